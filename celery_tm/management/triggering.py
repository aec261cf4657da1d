"""Running a definition by hand: an occurrence at this moment, under the definition's own rules, marked as manual."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from ..domain.ids import occurrence_id
from ..domain.job import Source
from ..domain.occurrence import Occurrence
from ..domain.overlap import apply_overlap
from ..domain.planning import job_of, occurrence_of
from ..domain.recovery import Decision
from ..errors import DefinitionNotFound, nearest
from ..installation import Installation
from ..store import audit, definitions, jobs, occurrences
from ..store.database import Transaction


def trigger(installation: Installation, name: str, *, actor: str | None, reason: str | None) -> Occurrence:
    """Create an occurrence of the definition now and return it; `state` says whether it runs."""

    def work(tx: Transaction) -> Occurrence:
        definition = definitions.find(tx, name, lock=True)
        if definition is None:
            raise DefinitionNotFound(name, nearest(name, definitions.names(tx)))
        now = tx.read_now()
        active = occurrences.count_active(tx, [definition.id]).get(definition.id, 0)
        while occurrences.known(tx, [occurrence_id(definition.id, now)]):
            now += timedelta(microseconds=1)  # another one at the very same moment
        [decision] = apply_overlap([Decision(scheduled_at=now)], policy=definition.overlap, active=active)
        occurrence = occurrence_of(definition, decision)
        occurrences.insert_many(tx, [occurrence])
        if decision.runs:
            made = job_of(
                definition, decision, now=now, defaults=installation.task_defaults(definition.task), source=Source.MANUAL
            )
            jobs.insert_many(tx, [replace(made, actor=actor)])
        after = {"occurrence": occurrence.id, "state": occurrence.state}
        audit.note(tx, "trigger", f"definition:{name}", actor=actor, after=after, reason=reason)
        tx.wake()
        return occurrence

    return installation.database.run(work)
