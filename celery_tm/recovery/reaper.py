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
from ..domain.set_aside import NOWHERE, Aside
from ..store import audit, jobs, occurrences, settlement, workflows
from ..store.batches import run_each
from ..store.database import Database, Transaction

OCCURRENCES = "tm_occurrence"
Buried = tuple[Job, Failure, Bury]


def reap(database: Database, *, limit: int, aside: Aside = NOWHERE) -> list[Buried]:
    """End up to `limit` stale occurrences, and return the jobs that were buried with them.

    What others have locked is passed over; an occurrence that cannot be ended is set aside. Locks are taken in everybody's
    order: the run, jobs, the occurrence.
    """
    with database.transaction(write=False) as tx:
        overdue = occurrences.overdue_ids(tx, limit=limit, skip=aside.skipped(OCCURRENCES))
        runs = workflows.known(tx, overdue)
    failed = partial(aside.skip_row, OCCURRENCES)
    single = [id for id in overdue if id not in runs]
    buried = run_each(database, single, lambda tx, id: _end(tx, id), failed=failed)
    buried += run_each(database, sorted(runs), lambda tx, id: _end_run(tx, id), failed=failed, together=False)
    return [one for some in buried for one in some]


def _end(tx: Transaction, id: str) -> list[Buried]:
    owed = jobs.try_lock_of_occurrence(tx, id)
    stale = occurrences.lock_overdue(tx, id) if owed is not None else None
    if owed is None or stale is None:  # somebody else is at it, or it has ended
        return []
    why, failure, then = _said(stale)
    for job in owed:
        settlement.abandon(tx, job, failure, then, state=OccurrenceState.STALE)
    if not owed:  # nothing is left of it but its row
        occurrences.end(tx, stale.id, OccurrenceState.STALE, reason=then.reason)
        name = occurrences.definition_name(tx, stale.definition)
        tx.tell(Closed(name, OccurrenceState.STALE, stale.id, then.reason, stale.is_recovery))
    audit.note(tx, "reap", f"occurrence:{stale.id}", reason=why, before={"started_at": str(stale.started_at)})
    return [(job, failure, then) for job in owed]


def _said(stale: Occurrence) -> tuple[str, Failure, Bury]:
    limit = _limit_of(stale)
    why = f"it did not end within {format_duration(limit)}" if limit else "it did not end in time"
    return why, Failure(error=f"ExecutionTimeout: {why}", outcome=Outcome.TIMEOUT), Bury(reason=f"stale: {why}")


def _end_run(tx: Transaction, id: str) -> list[Buried]:
    """End the steps of a run whose time is over. Those that run regardless have as long again, and then end too."""
    run = workflows.lock(tx, id) if workflows.try_lock(tx, id) and jobs.may_lock_of_run(tx, id) else None
    stale = occurrences.find_overdue(tx, id)
    if run is None or stale is None:  # it has ended meanwhile, or another beat was here
        return []
    _, failure, then = _said(stale)
    again = run.stopped_as is OccurrenceState.STALE
    if not settlement.stop_run(tx, run, by=then.reason, as_=OccurrenceState.STALE, all_of_it=again):
        settlement.close_if_over(tx, run)  # its job could not be read when its last step ended
    buried = []
    for job in jobs.lock_steps(tx, run.id):
        if job.state is JobState.RUNNING and (again or job.cancel_requested):
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
