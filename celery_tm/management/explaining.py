"""Gathers what the ledger, the audit and the versions know about an instant; `domain.explanation` puts it into words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from ..domain.calendar import closures_of
from ..domain.definition import Definition
from ..domain.dst import Transition, change_at
from ..domain.explanation import Explanation, Facts, explained, of_broken
from ..domain.job import Source
from ..domain.occurrence import Occurrence, OccurrenceState
from ..domain.run_explanation import Change
from ..domain.timeline import INSTANT
from ..domain.waiting_edits import next_after, version_at
from ..errors import DefinitionNotFound, RowUnreadable, nearest
from ..installation import Installation
from ..store import apps, audit, definitions, executions, jobs, lanes, lists, nodes, occurrences, versions
from ..store.database import Transaction
from ..store.lists import Letters
from .workflows import report_in

REACH = timedelta(days=366)
NEAR = timedelta(minutes=1)  # the audit's line is written in the transaction that decides the run
SWITCHES = ("pause", "disable", "retire")


def explain(installation: Installation, name: str, *, at: datetime | None) -> Explanation:
    """Say why a definition ran, ran late or did not run at the instant nearest to `at`."""
    with installation.database.transaction(write=False) as tx:
        now = tx.read_now()
        definition = definitions.find(tx, name)
        if definition is not None and (problem := definition.problem) is not None:
            facts = Facts(name=name, at=at if at is not None and at.tzinfo else now, now=now, definition=definition)
            found = _nearest_occurrence(tx, definition.id, facts.at, None)
            return explained(_of_occurrence(tx, facts, found)) if found else of_broken(facts, definition, problem)
        asked = _resolved(definition, at) if at is not None else Asked(at=_latest(tx, definition, now))
        facts = Facts(
            name=name, at=asked.at, now=now, definition=definition, wall=asked.wall, clock_change=asked.clock_change
        )
        if definition is None:
            return explained(_of_removed(tx, facts))
        return explained(_of_definition(tx, facts, definition))


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The instant that is asked about; `wall` is the local time where clocks were changed then."""

    at: datetime
    wall: datetime | None = None
    clock_change: Transition | None = None


def _resolved(definition: Definition | None, at: datetime) -> Asked:
    """Return what a time means: one that does not exist is the moment of the change, one of two is the one that ran."""
    zone, wall = at.tzinfo, at.replace(tzinfo=None, fold=0)
    change = change_at(wall, zone) if isinstance(zone, ZoneInfo) else None
    if change is None:
        return Asked(at=at.astimezone(UTC))
    readings = change.readings(wall)[at.fold :] if not change.is_gap else change.readings(wall)
    fires = [one for one in readings if definition and definition.timeline.next_after(one - INSTANT) == one]
    return Asked(at=(fires or readings)[0], wall=wall, clock_change=change)


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
    removed = [line for line in lines if line["action"] == "remove"]
    gone = next((line for line in removed if (line["before"] or {}).get("app", tx.app) == tx.app), None)
    if not lines or (removed and gone is None):
        raise DefinitionNotFound(facts.name, nearest(facts.name, definitions.names(tx)))
    id = (gone["before"] or {}).get("id") if gone else None
    found = _nearest_occurrence(tx, id, facts.at, None) if id else None
    facts = replace(facts, removed=_change(gone) if gone else None)
    return _of_occurrence(tx, facts, found) if found else facts


def _of_definition(tx: Transaction, facts: Facts, definition: Definition) -> Facts:
    then = versions.in_force(tx, definition.id, facts.at)
    seen_at, since = _beats(tx)
    rule = version_at(definition, facts.at)
    before = _instant_before(definition, rule, facts.at)
    facts = replace(
        facts,
        created_at=definition.created_at,
        version=_version(then) if then else None,
        switches=[_version(one) for one in versions.with_actions(tx, definition.id, SWITCHES)],
        before=before,
        after=next_after(definition, facts.at),
        closed_by=_closed_by(rule, facts.at),
        rule=rule,
        beat_seen_at=seen_at,
        beat_since=since,
    )
    found = _nearest_occurrence(tx, definition.id, facts.at, before)
    return _of_occurrence(tx, facts, found) if found else facts


def _instant_before(definition: Definition, rule: Definition, at: datetime) -> datetime | None:
    """Return the last instant up to a time; `rule` is the definition as it is then, with its waiting edit or without."""
    reach, edit = _reach(definition, at), definition.waiting_edit
    if edit is None or at <= edit.after:
        return definition.timeline.latest_until(at, reach=reach)
    found = rule.timeline.latest_until(at, reach=min(reach, at - edit.after))
    return found if found is not None and found > edit.after else definition.timeline.latest_until(edit.after, reach=reach)


def _beats(tx: Transaction) -> tuple[datetime | None, datetime | None]:
    """Return when a beat of this app was last seen, and since when one has been running, as far as that is known.

    Where other apps have beats too, it is not known since when this app's have been running.
    """
    seen = apps.beats_seen(tx)
    if seen.keys() - {tx.app}:
        return seen.get(tx.app), None
    beats = [node for node in nodes.select_nodes(tx) if node["kind"] == "beat"]
    last = max((beat["seen_at"] for beat in beats), default=None)
    return last, min((beat["started_at"] for beat in beats), default=None)


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
    report, all_owed = _report(tx, occurrence), jobs.of_occurrence(tx, occurrence.id)
    ran = executions.of_occurrence(tx, occurrence.id) if report is None else []
    owed = next((job for job in all_owed if not job.is_step), None)
    failed = ran and occurrence.state is OccurrenceState.FAILED
    letters = lists.dead_letters(tx, Letters(ids=[ran[0].job])) if failed else []
    letter = next(iter(letters), None)
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
        slot_is_free=lanes.is_free(tx, owed) if owed and owed.slot else False,
        version=_version(made) if made else facts.version,
        started_by=_started_by(tx, facts.name, occurrence),
        is_manual=Source.MANUAL in {*(one.source for one in ran), *(one.source for one in all_owed)},
    )


def _report(tx: Transaction, occurrence: Occurrence) -> Mapping[str, Any] | None:
    """Return the report of a run; None where it is none, or its rows cannot be read."""
    try:
        return report_in(tx, occurrence)
    except RowUnreadable:
        return None


def _started_by(tx: Transaction, name: str, occurrence: Occurrence) -> Change | None:
    """Return who ran it by hand; a run of the schedule was started by nobody."""
    if occurrence.decided_at is None:
        return None
    about = f"occurrence:{occurrence.replay_of}" if occurrence.replay_of else f"definition:{name}"
    try:
        since, until = occurrence.decided_at - NEAR, occurrence.decided_at + NEAR
    except OverflowError:  # no instant that anybody has decided at
        return None
    lines = audit.lines(tx, about, actions=["trigger", "replay"], since=since, until=until)
    return next((_change(line) for line in lines if (line["after"] or {}).get("occurrence") == occurrence.id), None)


def _closed_by(definition: Definition, at: datetime) -> str | None:
    """Return what closes an instant: the definition's own exclusions or one of its calendars."""
    own = {
        "excluded": definition.excluded,
        **{f"calendar {name!r}": definition.closed[name] for name in definition.calendars},
    }
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
    "enable": "enabled", "trigger": "triggered",
    "replay": "replayed", "disable": "disabled", "retire": "retired", "bring back": "brought back", "remove": "removed",
    "release": "released",
}  # fmt: skip
