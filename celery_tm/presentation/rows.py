"""One place that turns what is kept into plain values for commands, pages and the API, with arguments redacted.

Each method takes a value of the domain or the store and returns what `shapes.COMPONENTS` documents under its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from ..domain.backfill import Backfilled
from ..domain.declared import open_conflicts
from ..domain.definition import Definition, stated
from ..domain.execution import Execution
from ..domain.explanation import Explanation
from ..domain.findings import Finding
from ..domain.job import Job
from ..domain.occurrence import Occurrence
from ..domain.schedule import Schedule, rules_at
from ..domain.status import Status
from ..domain.waiting_edits import coming, version_at
from ..store.audit import AuditLine
from ..store.calendars import Calendar
from ..store.dead_letters import DeadLetter
from ..store.history import JobStory
from ..store.logs import LogLine
from ..store.versions import Version
from .plain import plain
from .redaction import Redactor

if TYPE_CHECKING:
    from ..management import TimeManagement
    from ..management.dead_letters import Affected
    from ..management.loading import Loaded

COMING = 3


def standing(definition: Definition) -> str:
    """Say whether a definition fires: on, paused, disabled or retired; whether it is broken, or an edit of it waits."""
    off = {"retired": definition.retired_at, "disabled": not definition.enabled, "paused": definition.paused}
    words = [word for word, applies in off.items() if applies] or ["on"]
    words += [] if definition.problem is None else ["broken"]
    return ", ".join([*words, "edit waits"] if definition.next_edit else words)


def both_times(instant: datetime, zone: str, rule: Schedule | None = None) -> dict[str, Any]:
    """Return an instant in UTC and on the clocks of a time zone, with which of several schedules gives it."""
    local = instant.astimezone(ZoneInfo(zone)).isoformat(sep=" ")
    given_by = ", ".join(rules_at(rule, instant)) if rule is not None else None
    return {"utc": instant.isoformat(), "local": local, "timezone": zone, "rule": given_by or None}


def counted(counts: Mapping[str, int]) -> str:
    """Return how many there are of each, in words."""
    return ", ".join(f"{count} {state}" for state, count in counts.items())


class Rows:
    """What one app shows of its records."""

    def __init__(self, tm: TimeManagement) -> None:
        self.redactor = Redactor(tm.app, tm.installation.redact_rules())
        self._tm = tm

    def definition(self, definition: Definition) -> dict[str, Any]:
        """Return a definition as it is kept; one of steps has no task of its own."""
        row = plain(definition) | {"problem": definition.problem, "conflicts": sorted(open_conflicts(definition))}
        del row["unread"], row["declared"]
        row["args"], row["kwargs"] = self.redactor.arguments(definition.task, definition.args, definition.kwargs)
        row["steps"] = self.redactor.steps(row["steps"])
        row["options"] = self.redactor.calls(row["options"])
        row["next_edit"] = self._edit(row["next_edit"], definition.task)
        return row | {"task": None if definition.steps else definition.task, "is": standing(definition)}

    def definition_in_full(self, definition: Definition, *, versions: int) -> dict[str, Any]:
        """Return a definition with what was stated, what it means, and what comes next."""
        times = coming_times(definition, COMING)
        told = {"stated": self.stated(definition), "meaning": definition.meaning, "coming": times}
        edit = None if definition.problem else definition.waiting_edit
        waiting = self._edit(plain(edit), definition.task)
        if edit is not None:
            waiting["at"] = plain(edit.at)
        return {**self.definition(definition), **told, "versions": versions, "waiting_edit": waiting}

    def loaded(self, loaded: Loaded) -> dict[str, Any]:
        """Return what loading a file did; the arguments in conflicts are redacted."""
        row: dict[str, Any] = plain(loaded)
        for one in row["conflicts"]:
            for side in ("file", "database"):
                one[side] = self.redactor.stated({one["field"]: one[side]}, one["task"])[one["field"]]
        return row

    def stated(self, definition: Definition) -> dict[str, Any]:
        """Return what a person would write to get this definition."""
        shown: dict[str, Any] = plain(self.redactor.stated(stated(definition)))
        return shown

    def changed_definition(self, definition: Definition) -> dict[str, Any]:
        """Return what is told after a definition was added or edited."""
        edit = None if definition.problem else definition.waiting_edit
        return {
            "name": definition.name,
            "version": definition.version,
            "is": standing(definition),
            "schedule": definition.schedule,
            "meaning": definition.meaning,
            "next_run_at": plain(definition.next_run_at),
        } | ({} if edit is None else {"edit_waits_until": plain(edit.at or edit.after)})

    def switched_definition(self, definition: Definition) -> dict[str, Any]:
        """Return what is told after a definition was switched on or off."""
        names = ("enabled", "paused", "version", "next_run_at")
        told = {name: plain(getattr(definition, name)) for name in names}
        return {"name": definition.name, "is": standing(definition), **told}

    def _edit(self, edit: Mapping[str, Any] | None, task: str) -> Any:
        return None if edit is None else {**edit, "values": self.redactor.stated(edit.get("values") or {}, task)}

    def versions(self, found: Sequence[Version], limit: int) -> list[dict[str, Any]]:
        """Return versions, latest first, with what each changed; one more than `limit` is there to compare the last with."""
        return [self._version(found, place) for place in range(min(limit, len(found)))]

    def _version(self, found: Sequence[Version], place: int) -> dict[str, Any]:
        new = found[place].stated
        old = found[place + 1].stated if place + 1 < len(found) else {}
        changed = {field: new.get(field) for field in {**old, **new} if old.get(field) != new.get(field)}
        shown = {"stated": self.redactor.stated(new), "changed": self.redactor.stated(changed, new.get("task"))}
        return plain(found[place]) | plain(shown)

    def occurrences(self, found: Sequence[Occurrence]) -> list[dict[str, Any]]:
        """Return occurrences with the names of their definitions."""
        names = self._tm.names_of(found)
        return [self.occurrence(one, names.get(one.definition)) for one in found]

    def occurrence(self, occurrence: Occurrence, name: str | None) -> dict[str, Any]:
        """Return an occurrence without its report, which is told on its own."""
        row = {one.name: plain(getattr(occurrence, one.name)) for one in fields(occurrence) if one.name != "report"}
        row["overrides"] = self.redactor.stated(row["overrides"])
        return row | {"name": name, "steps": counted(occurrence.report["counts"]) if occurrence.report else None}

    def job(self, job: Job) -> dict[str, Any]:
        """Return a job as it is kept, with the run it belongs to."""
        row = plain(job)
        row["args"], row["kwargs"] = self.redactor.arguments(job.task, job.args, job.kwargs)
        return row | {"options": self.redactor.calls(row["options"]), "run": job.run}

    def story(self, story: JobStory) -> dict[str, Any]:
        """Return one job's life so far."""
        row = {one.name: plain(getattr(story, one.name)) for one in fields(story) if one.name not in ("job", "executions")}
        attempts = [self.execution(one, step=story.step) for one in story.executions]
        return row | {"job": None if story.job is None else self.job(story.job), "executions": attempts}

    def execution(self, execution: Execution, *, step: str | None = None) -> dict[str, Any]:
        """Return the record of one attempt, with the step that it was of."""
        return plain(execution) | {"step": step}

    def executions(self, tm: TimeManagement, found: Sequence[Execution]) -> list[dict[str, Any]]:
        """Return records of attempts, with the steps that they were of."""
        steps = tm.step_names(found)
        return [self.execution(one, step=steps.get(one.job)) for one in found]

    def letter(self, letter: DeadLetter) -> dict[str, Any]:
        """Return a dead letter without its traceback."""
        told = {"attempts": letter.attempts, "buried_at": plain(letter.buried_at), "reason": letter.reason}
        return {**self.job(letter.job), **told}

    def letter_in_full(self, letter: DeadLetter) -> dict[str, Any]:
        """Return a dead letter with its traceback."""
        return {**self.letter(letter), "traceback": letter.traceback}

    def audit_line(self, line: AuditLine) -> dict[str, Any]:
        """Return a line of the audit, with what was and what is."""
        row = plain(line)
        task = next((said["task"] for said in (row["after"], row["before"]) if said and said.get("task")), None)
        return row | {name: self.redactor.stated(row[name], task) for name in ("before", "after")}

    def log_line(self, line: LogLine) -> dict[str, Any]:
        """Return a progress or log line."""
        row: dict[str, Any] = plain(line)
        return row

    def status(self, status: Status) -> dict[str, Any]:
        """Return how everything stands."""
        row: dict[str, Any] = plain(status)
        return row

    def finding(self, finding: Finding) -> dict[str, Any]:
        """Return what doctor found."""
        row: dict[str, Any] = plain(finding)
        return row

    def explanation(self, explanation: Explanation) -> dict[str, Any]:
        """Return why a definition ran, or did not."""
        found = explanation.occurrence
        told = {"name": explanation.name, "at": plain(explanation.at), "answer": explanation.answer}
        return {
            **told,
            "lines": list(explanation.lines),
            "occurrence": None if found is None else self.occurrences([found])[0],
        }

    def affected(self, affected: Affected) -> dict[str, Any]:
        """Return how much an act on many dead letters would change, with some of them."""
        row = {one.name: plain(getattr(affected, one.name)) for one in fields(affected) if one.name != "sample"}
        return row | {"sample": [self.letter(letter) for letter in affected.sample]}

    def calendar(self, calendar: Calendar, used_by: Sequence[str]) -> dict[str, Any]:
        """Return a calendar with the names of the definitions that follow it."""
        told = {"updated_at": plain(calendar.updated_at), "updated_by": calendar.updated_by}
        return {"name": calendar.name, "dates": list(calendar.entries), "used_by": list(used_by), **told}

    def backfilled(self, made: Backfilled) -> dict[str, Any]:
        """Return what a backfill did, or would do, instant by instant."""
        pairs = zip(made.instants, made.created, strict=True)
        told = {
            "name": made.name,
            "since": made.range.since,
            "until": made.range.until,
            "dry_run": made.dry_run,
            "counts": made.counts,
            "created": [{"instant": at, "occurrence": one.id, "replay_of": one.replay_of} for at, one in pairs],
            "left_out": [{"instant": at, "why": why} for at, why in made.left_out],
        }
        shown: dict[str, Any] = plain(told)
        return shown


def coming_instants(definition: Definition, count: int = COMING) -> list[datetime]:
    """Return the next instants of a definition, those after its waiting edit has taken over by that edit."""
    return [] if definition.problem else list(islice(coming(definition), count))


def coming_times(definition: Definition, count: int) -> list[dict[str, Any]]:
    """Return the next instants of a definition in UTC and in the zone that it has by then."""
    shown = []
    for instant in coming_instants(definition, count):
        version = version_at(definition, instant)
        shown.append(both_times(instant, version.timezone, version.rule))
    return shown
