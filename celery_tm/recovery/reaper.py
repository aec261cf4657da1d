"""One pass over occurrences that run past their deadline: the execution timeout, or else `tm_stuck_after`.

However healthy its worker looks, such an occurrence is stale: its job becomes a dead letter, the worker's lease is gone and
what it still writes is void, and the next instant may run.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from ..clock import format_duration
from ..domain.execution import Failure, Outcome
from ..domain.facts import Closed
from ..domain.job import Job, JobState
from ..domain.occurrence import Occurrence, OccurrenceState
from ..domain.retry import Bury
from ..store import audit, definitions, jobs, occurrences, settlement, workflows
from ..store.database import Database, Transaction

Buried = tuple[Job, Failure, Bury]


def reap(database: Database, *, limit: int) -> list[Buried]:
    """End up to `limit` stale occurrences, and return the jobs that were buried with them.

    They are ended in one transaction; each run is in one of its own, for it is locked before its occurrence.
    """

    def work(tx: Transaction) -> tuple[list[Buried], list[str]]:
        overdue = occurrences.lock_overdue(tx, limit=limit)
        runs = workflows.known(tx, [stale.id for stale in overdue])
        return [buried for stale in overdue if stale.id not in runs for buried in _end(tx, stale)], sorted(runs)

    buried, runs = database.run(work)
    return buried + [one for run in runs for one in database.run(partial(_end_run, id=run))]


def _end(tx: Transaction, stale: Occurrence) -> list[Buried]:
    why, failure, then = _said(stale)
    owed = jobs.lock_of_occurrences(tx, [stale.id])
    for job in owed:
        settlement.abandon(tx, job, failure, then, state=OccurrenceState.STALE)
    if not owed:  # nothing is left of it but its row
        occurrences.end(tx, stale.id, OccurrenceState.STALE, reason=then.reason)
        found = definitions.find_by_id(tx, stale.definition)
        name = found.name if found else None
        tx.tell(Closed(name, OccurrenceState.STALE, stale.id, then.reason, stale.is_recovery))
    audit.note(tx, "reap", f"occurrence:{stale.id}", reason=why, before={"started_at": str(stale.started_at)})
    return [(job, failure, then) for job in owed]


def _said(stale: Occurrence) -> tuple[str, Failure, Bury]:
    limit = _limit_of(stale)
    why = f"it did not end within {format_duration(limit)}" if limit else "it did not end in time"
    return why, Failure(error=f"ExecutionTimeout: {why}", outcome=Outcome.TIMEOUT), Bury(reason=f"stale: {why}")


def _end_run(tx: Transaction, *, id: str) -> list[Buried]:
    """End the steps of a run whose time is over. Those that run regardless have as long again, and then end too."""
    run = workflows.lock(tx, id)
    stale = occurrences.find_overdue(tx, id)
    if run is None or stale is None:  # it has ended meanwhile, or another beat was here
        return []
    _, failure, then = _said(stale)
    again = run.stopped_as is OccurrenceState.STALE
    settlement.stop_run(tx, run, by=then.reason, as_=OccurrenceState.STALE, all_of_it=again)
    buried = []
    for job in jobs.lock_of_occurrences(tx, [run.id]):
        if job.is_step and job.state is JobState.RUNNING and (again or job.cancel_requested):
            settlement.abandon(tx, job, failure, then)
            buried.append((job, failure, then))
    limit = _limit_of(stale)
    if limit:
        occurrences.allow(tx, run.id, limit)
    audit.note(tx, "reap", f"occurrence:{run.id}", reason=then.reason, before={"started_at": str(stale.started_at)})
    return buried


def _limit_of(stale: Occurrence) -> timedelta | None:
    """Return how long an occurrence had; an embedded database's clock was read once for each end of it."""
    if stale.started_at is None or stale.deadline_at is None:
        return None
    return timedelta(seconds=round((stale.deadline_at - stale.started_at).total_seconds(), 3))
