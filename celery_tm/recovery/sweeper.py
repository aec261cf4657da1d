"""One pass over jobs whose lease has ended.

Dispatched: its message was lost, or waits in a long queue; it goes back to pending without using up a try, and its next
dispatch lease is longer. Running: its worker died or lost touch; that counts as a failed try. Ended, and its worker died
before what follows was handed on: another worker does that. The sweeper only writes rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from ..domain.execution import Failure
from ..domain.job import Job, JobState
from ..domain.retry import Bury, RetryPolicy, TryAgain, after_failure
from ..store import audit, following, jobs, overdue, settlement, workflows
from ..store.database import Database, Transaction

Orphan = tuple[Job, Failure, TryAgain | Bury | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Swept:
    """What one pass found: messages that were lost, and attempts that vanished, each with what follows."""

    redispatched: Sequence[Job] = field(default_factory=list)
    orphaned: Sequence[Orphan] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.redispatched) + len(self.orphaned)


def sweep(database: Database, *, default: RetryPolicy, limit: int) -> Swept:
    """Put back up to `limit` jobs whose lease has ended, in one transaction; other sweepers pass over the same rows."""

    def work(tx: Transaction) -> Swept:
        found = overdue.lock(tx, limit=limit)
        lost = [job for job in found if job.state is JobState.DISPATCHED]
        jobs.redispatch(tx, lost)
        running = [job for job in found if job.state is JobState.RUNNING]
        unfollowed = [job for job in running if job.ended is not None and following.carry_on(tx, job)]
        vanished = [_orphan(tx, job, default) for job in running if job.ended is None]
        return Swept(redispatched=[*lost, *unfollowed], orphaned=vanished)

    swept = database.run(work)
    steps = [database.run(partial(_orphan_step, job=job, default=default)) for job in _overdue_steps(database, limit)]
    return replace(swept, orphaned=[*swept.orphaned, *(step for step in steps if step is not None)])


def _overdue_steps(database: Database, limit: int) -> Sequence[Job]:
    with database.transaction(write=False) as tx:
        return overdue.steps(tx, limit=limit)


def _orphan_step(tx: Transaction, *, job: Job, default: RetryPolicy) -> Orphan | None:
    """Put back one step; its run is locked first, so each is a transaction of its own."""
    workflows.lock(tx, job.occurrence)
    found = overdue.lock_step(tx, job.id, job.attempt)
    return None if found is None else _orphan(tx, found, default)


def _orphan(tx: Transaction, job: Job, default: RetryPolicy) -> Orphan:
    failure = Failure.orphaned(f"its worker {job.claimed_by} gave no sign until {job.lease_until}")
    then: TryAgain | Bury | None = after_failure(job, default=default, vanished=True)
    if job.carrier:
        # It shared its message with others, and which of them brought the worker down is not known: none is blamed, and
        # the next time each travels alone.
        then = TryAgain(timedelta(0)) if settlement.hand_back(tx, job, failure) else None
    elif isinstance(then, Bury) and not jobs.is_cancelled(tx, job):
        settlement.abandon(tx, job, failure, then)
    elif then is not None:
        then = settlement.fail(tx, job, failure, then)
    audit.note(tx, "sweep", f"job:{job.id}", before={"attempt": job.attempt, "worker": job.claimed_by}, reason=failure.error)
    return job, failure, then
