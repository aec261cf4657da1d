"""Gathers what the ledger, the audit and the versions know about an instant; `domain.explanation` puts it into words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from ..domain.calendar import closures_of
from ..domain.definition import Definition
from ..domain.explanation import Change, Explanation, Facts, explained
from ..domain.occurrence import Occurrence, OccurrenceState
from ..errors import DefinitionNotFound, nearest
from ..installation import Installation
from ..store import audit, dead_letters, definitions, executions, jobs, lanes, nodes, occurrences, versions
from ..store.database import Transaction
from .workflows import report_in

REACH = timedelta(days=366)
SWITCHES = ("pause", "disable", "retire")


def explain(installation: Installation, name: str, *, at: datetime | None) -> Explanation:
    """Say why a definition ran, ran late or did not run at the instant nearest to `at`."""
    with installation.database.transaction(write=False) as tx:
        now = tx.read_now()
        definition = definitions.find(tx, name)
        facts = Facts(name=name, at=at or _latest(tx, definition, now), now=now, definition=definition)
        if definition is None:
            return explained(_of_removed(tx, facts))
        return explained(_of_definition(tx, facts, definition))


def _latest(tx: Transaction, definition: Definition | None, now: datetime) -> datetime:
    """Return what a question without a time is about: the latest instant or run by hand, or now where there was none."""
    if definition is None:
        return now
    instant = definition.timeline.latest_until(now, reach=_reach(definition, now))
    last = occurrences.of_definition(tx, definition.id, until=now, limit=1)
    return max((at for at in (instant, *(one.scheduled_at for one in last)) if at is not None), default=now)


def _reach(definition: Definition, at: datetime) -> timedelta:
    return min(REACH, max(at - definition.created_at, timedelta(minutes=1)))


def _of_removed(tx: Transaction, facts: Facts) -> Facts:
    lines = audit.lines(tx, f"definition:{facts.name}")
    if not lines:
        raise DefinitionNotFound(facts.name, nearest(facts.name, definitions.names(tx)))
    gone = next((line for line in lines if line["action"] == "remove"), None)
    id = (gone["before"] or {}).get("id") if gone else None
    found = _nearest_occurrence(tx, id, facts.at, None) if id else None
    facts = replace(facts, removed=_change(gone) if gone else None)
    return _of_occurrence(tx, facts, found) if found else facts


def _of_definition(tx: Transaction, facts: Facts, definition: Definition) -> Facts:
    lines = audit.lines(tx, f"definition:{definition.name}")
    switch = next((line for line in lines if line["action"] in SWITCHES), None)
    then = versions.in_force(tx, definition.id, facts.at)
    beats = [node["seen_at"] for node in nodes.select_nodes(tx) if node["kind"] == "beat"]
    timeline = definition.timeline
    before = timeline.latest_until(facts.at, reach=_reach(definition, facts.at))
    facts = replace(
        facts,
        created_at=definition.created_at,
        version=_version(then) if then else None,
        switch=_change(switch) if switch else None,
        before=before,
        after=timeline.next_after(facts.at),
        closed_by=_closed_by(definition, facts.at),
        beat_seen_at=max(beats, default=None),
    )
    found = _nearest_occurrence(tx, definition.id, facts.at, before)
    return _of_occurrence(tx, facts, found) if found else facts


def _nearest_occurrence(tx: Transaction, definition: str, at: datetime, before: datetime | None) -> Occurrence | None:
    """Return the occurrence that a person means who names an instant: that of the same minute, or the one just before."""
    minute = timedelta(minutes=1)
    start = at.replace(second=0, microsecond=0)
    end = at.replace(second=59, microsecond=999_999)
    nearby = occurrences.of_definition(tx, definition, since=start, until=end, limit=120)
    if nearby:
        found = min(nearby, key=lambda one: (abs(one.scheduled_at - at), one.scheduled_at))
        return next((one for one in nearby if one.replay_of == found.id), found)  # its last backfill, if there is one
    last = occurrences.of_definition(tx, definition, until=at, limit=1)
    # An older one is meant only if the schedule has none in between, and only if the question is about that time.
    if last and before is not None and last[0].scheduled_at >= before and at - last[0].scheduled_at < minute:
        return last[0]
    return None


def _of_occurrence(tx: Transaction, facts: Facts, occurrence: Occurrence) -> Facts:
    report, all_owed = report_in(tx, occurrence), jobs.of_occurrence(tx, occurrence.id)
    ran = executions.of_occurrence(tx, occurrence.id) if report is None else []
    owed = next((job for job in all_owed if not job.is_step), None)
    letter = dead_letters.find(tx, ran[0].job) if ran and occurrence.state is OccurrenceState.FAILED else None
    made = versions.find(tx, occurrence.definition, occurrence.version)
    return replace(
        facts,
        at=facts.at,
        occurrence=occurrence,
        executions=ran,
        job=owed,
        report=report,
        step_jobs={job.step: job for job in all_owed if job.step is not None},
        letter_error=letter.last_error if letter else None,
        ahead_in_line=lanes.count_before(tx, owed) if owed else 0,
        version=_version(made) if made else facts.version,
    )


def _closed_by(definition: Definition, at: datetime) -> str | None:
    """Return what closes an instant: the definition's own exclusions or one of its calendars."""
    own = {"excluded": definition.excluded, **{f"calendar {name!r}": days for name, days in definition.closed.items()}}
    for what, entries in own.items():
        if entries and closures_of(tuple(entries), definition.timezone).reopens_after(at):
            return "its own exclusions" if what == "excluded" else what
    return None


def _change(line: Mapping[str, Any]) -> Change:
    return Change(
        at=line["at"], actor=line["actor"], action=_WORDS.get(line["action"], line["action"]), reason=line["reason"]
    )


def _version(made: versions.Version) -> Change:
    return Change(
        at=made.at,
        actor=made.actor,
        action=_WORDS.get(made.action, made.action),
        reason=made.reason,
        version=made.version,
        stated=made.stated,
    )


_WORDS = {
    "add": "added", "edit": "edited", "load": "loaded", "seed": "seeded", "pause": "paused", "resume": "resumed",
    "enable": "enabled", "disable": "disabled", "retire": "retired", "bring back": "brought back", "remove": "removed",
}  # fmt: skip
