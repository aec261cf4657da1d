"""One pass over occurrences that run past their deadline: the execution timeout, or else `tm_stuck_after`.

However healthy its worker looks, such an occurrence is stale: its job becomes a dead letter, the worker's lease is gone and
what it still writes is void, and the next instant may run.
"""

from __future__ import annotations

from ..clock import format_duration
from ..domain.execution import Failure, Outcome
from ..domain.job import Job
from ..domain.occurrence import Occurrence, OccurrenceState
from ..domain.retry import Bury
from ..store import audit, jobs, occurrences, settlement
from ..store.database import Database, Transaction


def reap(database: Database, *, limit: int) -> list[tuple[Job, Failure, Bury]]:
    """End up to `limit` stale occurrences in one transaction; return the jobs that were buried with them."""

    def work(tx: Transaction) -> list[tuple[Job, Failure, Bury]]:
        return [buried for stale in occurrences.lock_overdue(tx, limit=limit) for buried in _end(tx, stale)]

    return database.run(work)


def _end(tx: Transaction, stale: Occurrence) -> list[tuple[Job, Failure, Bury]]:
    why = "it did not end in time"
    if stale.started_at and stale.deadline_at:
        why = f"it did not end within {format_duration(stale.deadline_at - stale.started_at)}"
    failure, then = Failure(error=f"ExecutionTimeout: {why}", outcome=Outcome.TIMEOUT), Bury(reason=f"stale: {why}")
    owed = jobs.lock_of_occurrences(tx, [stale.id])
    for job in owed:
        settlement.abandon(tx, job, failure, then, state=OccurrenceState.STALE)
    if not owed:  # nothing is left of it but its row
        occurrences.end(tx, stale.id, OccurrenceState.STALE, reason=then.reason)
    audit.note(tx, "reap", f"occurrence:{stale.id}", reason=why, before={"started_at": str(stale.started_at)})
    return [(job, failure, then) for job in owed]
