"""One pass over jobs whose lease has ended.

Dispatched: its message was lost, or waits in a long queue; it goes back to pending without using up a try, and its next
dispatch lease is longer. Running: its worker died or lost touch; that counts as a failed try. The sweeper only writes rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..domain.execution import Failure
from ..domain.job import Job, JobState
from ..domain.retry import Bury, RetryPolicy, TryAgain, after_failure
from ..store import audit, jobs, settlement
from ..store.database import Database, Transaction


@dataclass(frozen=True, kw_only=True, slots=True)
class Swept:
    """What one pass found: messages that were lost, and attempts that vanished, each with what follows."""

    redispatched: Sequence[Job] = field(default_factory=list)
    orphaned: Sequence[tuple[Job, Failure, TryAgain | Bury | None]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.redispatched) + len(self.orphaned)


def sweep(database: Database, *, default: RetryPolicy, limit: int) -> Swept:
    """Put back up to `limit` jobs whose lease has ended, in one transaction; other sweepers pass over the same rows."""

    def work(tx: Transaction) -> Swept:
        overdue = jobs.lock_overdue(tx, limit=limit)
        lost = [job for job in overdue if job.state is JobState.DISPATCHED]
        jobs.redispatch(tx, lost)
        vanished = [_orphan(tx, job, default) for job in overdue if job.state is JobState.RUNNING]
        return Swept(redispatched=lost, orphaned=vanished)

    return database.run(work)


def _orphan(tx: Transaction, job: Job, default: RetryPolicy) -> tuple[Job, Failure, TryAgain | Bury | None]:
    failure = Failure.orphaned(f"its worker {job.claimed_by} gave no sign until {job.lease_until}")
    then = settlement.fail(tx, job, failure, after_failure(job, default=default))
    audit.note(tx, "sweep", f"job:{job.id}", before={"attempt": job.attempt, "worker": job.claimed_by}, reason=failure.error)
    return job, failure, then
