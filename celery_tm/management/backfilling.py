"""Running instants of the past: what the ledger says did not run becomes runs of now that know their instant.

All of a backfill is one transaction that holds the definition's row: of two people who ask for the same, the second finds
what the first has made, and a process that dies in the middle has done nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from ..domain.backfill import (
    Backfilled,
    Range,
    Span,
    choose,
    decisions_of,
    overlap_of,
    read_overlap,
    read_range,
    refuse_unfit,
    spans_of,
)
from ..domain.definition import Definition
from ..domain.execution import STATUS, Outcome
from ..domain.ids import occurrence_id, occurrence_job_id
from ..domain.job import Job, Source, Status, checked_actor
from ..domain.occurrence import Occurrence, OccurrenceState
from ..domain.overlap import Overlap
from ..domain.overrides import overridden
from ..domain.planning import job_of, occurrence_of
from ..domain.recovery import Decision
from ..domain.timeline import INSTANT
from ..errors import DefinitionNotFound, InvalidValue, nearest
from ..installation import Installation
from ..store import audit, definitions, executions, jobs, lanes, occurrences
from ..store.database import Transaction
from .triggering import checked_for, noted

BESIDE = timedelta(milliseconds=1)  # a replay of an instant stands this close to it at most


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What somebody asks for, once it is checked."""

    name: str
    range: Range
    overlap: Overlap | None = None
    again: bool = False
    dry_run: bool = False
    reason: str | None = None
    actor: str | None = None
    values: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What is on record about an instant: how it and its replays stand, and the last place taken beside it."""

    states: Sequence[OccurrenceState]
    last: datetime


def backfill(
    installation: Installation,
    name: str,
    *,
    since: Any,
    until: Any = None,
    overlap: Any = None,
    again: bool = False,
    dry_run: bool = False,
    values: Mapping[str, Any] | None = None,
    reason: str | None = None,
    actor: str | None = None,
) -> Backfilled:
    """Run the instants of a range that did not run; with `dry_run` only say which.

    `values` are arguments and settings that hold for these runs only.
    """
    checked_actor(actor)
    rule = read_overlap(overlap)
    with installation.database.transaction(write=False) as tx:
        wanted = read_range(since, until, now=tx.read_now())
        seen = _find(tx, name)
    spans = spans_of(seen, wanted)  # takes its time, so nobody is kept waiting meanwhile
    asked = Asked(
        name=name, range=wanted, overlap=rule, again=again, dry_run=dry_run, reason=reason, actor=actor, values=values
    )

    def work(tx: Transaction) -> Backfilled:
        definition = _find(tx, name, lock=not dry_run)
        same = definition.timeline == seen.timeline
        return _run(installation, tx, definition, spans if same else spans_of(definition, wanted), asked)

    if dry_run:
        with installation.database.transaction(write=False) as tx:
            return work(tx)
    return installation.database.run(work)


def _find(tx: Transaction, name: str, *, lock: bool = False) -> Definition:
    found = definitions.find(tx, name, lock=lock)
    if found is None:
        raise DefinitionNotFound(name, nearest(name, definitions.names(tx)))
    if found.retired_at is not None:
        raise InvalidValue(
            "name",
            f"{name!r} was retired at {found.retired_at.isoformat()}: what seeded it no longer names it",
            "name it there again, or add it under another name",
        )
    return found


def _run(
    installation: Installation, tx: Transaction, definition: Definition, spans: Sequence[Span], asked: Asked
) -> Backfilled:
    """Decide, and unless it is a dry run, write. The caller holds the definition's row."""
    overlap = overlap_of(definition, asked.overlap)
    overrides = checked_for(installation, definition, asked.values)
    known = _known(tx, definition, spans)
    choice = choose(definition, spans, {at: one.states for at, one in known.items()}, again=asked.again)
    result = Backfilled(name=asked.name, range=asked.range, left_out=choice.left_out, dry_run=asked.dry_run)
    if not choice.chosen:
        return result
    refuse_unfit(definition, overlap, outside=lanes.is_any_outside(tx, definition.id))
    now = tx.read_now()
    decisions = decisions_of(definition, choice.chosen, now=now, reason=asked.reason)
    places = _places(tx, definition, {span.at: known[span.at].last for span in choice.chosen if span.at in known})
    created = [replace(_occurrence(definition, decision, places, now=now), overrides=overrides) for decision in decisions]
    result = replace(result, created=created, instants=[span.at for span in choice.chosen])
    if not asked.dry_run:
        occurrences.insert_many(tx, created)
        of_these = overridden(replace(definition, overlap=overlap), overrides)
        made = _jobs(installation, of_these, decisions, choice.chosen, now=now)
        jobs.insert_many(tx, [_carrying(job, one, asked.actor) for job, one in zip(made, created, strict=True)])
        _note(tx, asked, overlap, result, overrides)
        tx.wake()
    return result


def _known(tx: Transaction, definition: Definition, spans: Sequence[Span]) -> dict[datetime, Known]:
    """Return what is on record about instants, by instant."""
    at = {occurrence_id(definition.id, span.at): span.at for span in spans}
    found: dict[str, list[Occurrence]] = {row.id: [row] for row in occurrences.find_many(tx, list(at))}
    replays = {row.id: row for row in occurrences.replays(tx, definition.id, since=spans[0].at)} if spans else {}
    for row in replays.values():
        root = _root(row, replays)
        if root in at:  # also where the original is pruned already
            found.setdefault(root, []).append(row)
    known = {at[id]: Known(states=[row.state for row in rows], last=_last(rows, at[id])) for id, rows in found.items()}
    gone = executions.outcomes_of(tx, [id for id in at if id not in found])
    known |= {at[id]: Known(states=[_state_of(outcomes)], last=at[id]) for id, outcomes in gone.items()}
    return known


def _root(row: Occurrence, replays: Mapping[str, Occurrence]) -> str:
    """Return the occurrence that a replay, or a replay of one, goes back to."""
    root = row.replay_of or row.id
    while root in replays:
        root = replays[root].replay_of or root
    return root


def _last(rows: Sequence[Occurrence], at: datetime) -> datetime:
    return max((row.scheduled_at for row in rows if row.scheduled_at - at < BESIDE), default=at)


def _state_of(outcomes: Collection[Outcome]) -> OccurrenceState:
    """Return how an occurrence ended whose row is pruned, while records of its attempts are still kept."""
    statuses = {STATUS[outcome] for outcome in outcomes}
    if Status.SUCCEEDED in statuses:
        return OccurrenceState.COMPLETED
    return OccurrenceState.CANCELLED if statuses == {Status.CANCELED} else OccurrenceState.FAILED


def _places(tx: Transaction, definition: Definition, taken: Mapping[datetime, datetime]) -> dict[datetime, datetime]:
    """Return for instants that are on record a free place a little later, where the ledger has no other run."""
    places = {at: last + INSTANT for at, last in taken.items()}
    unsure = list(places)
    while unsure:
        ids = {occurrence_id(definition.id, places[at]): at for at in unsure}
        unsure = [ids[row.id] for row in occurrences.find_many(tx, list(ids))]
        places |= {at: places[at] + INSTANT for at in unsure}
    return places


def _occurrence(
    definition: Definition, decision: Decision, places: Mapping[datetime, datetime], *, now: datetime
) -> Occurrence:
    """Return the ledger's row; an instant that is on record already is replayed, beside it."""
    at = decision.scheduled_at
    if at not in places:
        return occurrence_of(definition, decision, now=now)
    replay_of = occurrence_id(definition.id, at)
    return occurrence_of(definition, replace(decision, scheduled_at=places[at]), now=now, replay_of=replay_of)


def _jobs(
    installation: Installation,
    definition: Definition,
    decisions: Sequence[Decision],
    chosen: Sequence[Span],
    *,
    now: datetime,
) -> list[Job]:
    defaults = installation.task_defaults(definition.task)
    return [
        job_of(definition, decision, now=now, defaults=defaults, source=Source.RECOVERY, period=span.period)
        for decision, span in zip(decisions, chosen, strict=True)
    ]


def _carrying(job: Job, occurrence: Occurrence, actor: str | None) -> Job:
    """Return the job of an occurrence; its body sees the true instant, also where that is replayed."""
    return replace(job, id=occurrence_job_id(occurrence.id), occurrence=occurrence.id, actor=actor)


def _note(tx: Transaction, asked: Asked, overlap: Overlap, result: Backfilled, overrides: Mapping[str, Any] | None) -> None:
    bounds = {"since": asked.range.since.isoformat(), "until": asked.range.until.isoformat()}
    after = {**bounds, "overlap": str(overlap), "again": asked.again, **result.counts, **noted(overrides)}
    audit.note(tx, "backfill", f"definition:{asked.name}", actor=asked.actor, after=after, reason=asked.reason)
