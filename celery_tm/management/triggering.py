"""Running a definition by hand: an occurrence at this moment, under the definition's own rules, marked as such."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from ..domain.definition import Definition
from ..domain.execution import MAX_MESSAGE, cut
from ..domain.ids import occurrence_id
from ..domain.job import Source, checked_actor
from ..domain.occurrence import ACTIVE, Occurrence
from ..domain.overlap import Active, Overlap, apply_overlap, replaced_by
from ..domain.planning import job_of, occurrence_of
from ..domain.recovery import Decision
from ..errors import DefinitionNotFound, InvalidValue, OccurrenceNotFound, nearest
from ..installation import Installation
from ..store import audit, definitions, jobs, occurrences, settlement
from ..store.database import Transaction


def trigger(installation: Installation, name: str, *, actor: str | None, reason: str | None) -> Occurrence:
    """Create an occurrence of the definition now and return it; `state` says whether it runs."""

    checked_actor(actor)

    def work(tx: Transaction) -> Occurrence:
        definition = definitions.find(tx, name, lock=True)
        if definition is None:
            raise DefinitionNotFound(name, nearest(name, definitions.names(tx)))
        made = _run_now(installation, tx, definition, Decision(scheduled_at=tx.read_now()), Source.MANUAL, actor=actor)
        after = {"occurrence": made.id, "state": made.state}
        audit.note(tx, "trigger", f"definition:{name}", actor=actor, after=after, reason=reason)
        return made

    return installation.database.run(work)


def replay(installation: Installation, occurrence: str, *, actor: str | None, reason: str | None) -> Occurrence:
    """Run an occurrence that has ended once more, as a new one that names the original; `state` says whether it runs."""

    checked_actor(actor)

    def work(tx: Transaction) -> Occurrence:
        original = occurrences.find(tx, occurrence)
        if original is None:
            raise OccurrenceNotFound(occurrence)
        if original.state in ACTIVE:
            raise InvalidValue(
                "occurrence", f"{occurrence} is still {original.state}", "wait for its end, or cancel its job"
            )
        definition = definitions.find_by_id(tx, original.definition, lock=True)
        if definition is None:
            raise InvalidValue("occurrence", "its definition was removed", "add the definition again and trigger it")
        decision = Decision(
            scheduled_at=tx.read_now(),
            reason=cut(reason, MAX_MESSAGE),
            covers_from=original.covers_from,
            covers_until=original.covers_until,
        )
        made = _run_now(installation, tx, definition, decision, Source.REPLAY, actor=actor, replay_of=original.id)
        after = {"occurrence": made.id, "state": made.state}
        audit.note(tx, "replay", f"occurrence:{occurrence}", actor=actor, after=after, reason=reason)
        return made

    return installation.database.run(work)


def _run_now(
    installation: Installation,
    tx: Transaction,
    definition: Definition,
    decision: Decision,
    source: Source,
    *,
    actor: str | None,
    replay_of: str | None = None,
) -> Occurrence:
    now = decision.scheduled_at
    decision = replace(decision, scheduled_at=_free_instant(tx, definition, now), run_at=now)
    active = occurrences.count_active(tx, [definition.id]).get(definition.id, Active())
    [decision] = apply_overlap([decision], policy=definition.overlap, active=active)
    if decision.runs and definition.overlap is Overlap.REPLACE:
        owed = occurrences.active_of(tx, definition.id)
        settlement.make_room(tx, owed, reason=replaced_by(decision.scheduled_at))
    made = occurrence_of(definition, decision, now=now, replay_of=replay_of)
    occurrences.insert_many(tx, [made])
    if decision.runs:
        defaults = installation.task_defaults(definition.task)
        job = job_of(definition, decision, now=now, defaults=defaults, source=source)
        jobs.insert_many(tx, [replace(job, actor=actor)])
    tx.wake()
    return made


def _free_instant(tx: Transaction, definition: Definition, instant: datetime) -> datetime:
    """Return the instant, or one a little later where the ledger has another run at the very same moment."""
    while occurrences.find(tx, occurrence_id(definition.id, instant)):
        instant += timedelta(microseconds=1)
    return instant
