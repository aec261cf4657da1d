"""One pass over jobs whose lease has ended.

Dispatched: its message was lost, or waits in a long queue; it goes back to pending without using up a try, and its next
dispatch lease is longer. Running: its worker died or lost touch, or the attempt ran for longer than it may; that counts as
a failed try. Ended, and its worker died
before what follows was handed on: another worker does that. The sweeper only writes rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from ..domain.execution import Failure, Outcome
from ..domain.job import Job, JobState
from ..domain.retry import Bury, RetryPolicy, TryAgain, after_failure
from ..domain.set_aside import NOWHERE, Aside
from ..store import audit, claims, following, jobs, overdue, settlement, workflows
from ..store.batches import is_out_of_reach, run_each, run_parts
from ..store.database import Database, Transaction

JOBS = "tm_job"
APART = 0.2  # seconds of one pass for jobs that could not be put back together; the next pass goes on
Orphan = tuple[Job, Failure, TryAgain | Bury | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Swept:
    """What one pass found: messages that were lost, and attempts that vanished, each with what follows."""

    redispatched: Sequence[Job] = field(default_factory=list)
    orphaned: Sequence[Orphan] = field(default_factory=list)

    @property
    def stale(self) -> int:
        """Return how many of the attempts had run for too long; the others were orphaned."""
        return sum(failure.outcome is Outcome.STALE for _, failure, _ in self.orphaned)

    def __len__(self) -> int:
        return len(self.redispatched) + len(self.orphaned)


def sweep(
    database: Database,
    *,
    default: RetryPolicy,
    limit: int,
    running: bool = True,
    aside: Aside = NOWHERE,
    dispatch_lease: timedelta | None = None,
) -> Swept:
    """Put back up to `limit` jobs whose lease has ended; other sweepers, and rows that others have locked, are passed over.

    All in one transaction; if one of them cannot be put back, in halves, and that one is set aside. Without `running` only
    lost messages: after an outage nobody could renew a lease, and workers are given time to. With `dispatch_lease`, messages
    that still wait behind one that a worker holds get so much more time.
    """
    put_back = partial(_put_back, default=default, dispatch_lease=dispatch_lease)
    skip = aside.skipped(JOBS)
    overdue_now = partial(overdue.lock, limit=limit, running=running, skip=skip)
    try:
        swept = [database.run(lambda tx: put_back(tx, overdue_now(tx)))]
    except Exception as error:  # one of them cannot be read or written, or needs what another transaction holds
        if is_out_of_reach(error):
            raise
        with database.transaction(write=False) as tx:
            ids = overdue.ids(tx, limit=limit, running=running, skip=skip)
            unreadable = dict(claims.unreadable_among(tx, ids))  # read at once: each alone would take a transaction
        for id, wrong in unreadable.items():
            aside.skip_row(JOBS, id, wrong)
        swept = run_parts(
            database,
            [id for id in ids if id not in unreadable],
            lambda tx, some: put_back(tx, overdue_now(tx, only=some)),
            failed=partial(aside.skip_row, JOBS),
            seconds=APART,
        )
    steps = _sweep_steps(database, default, limit, aside) if running else []
    lost = [job for one in swept for job in one.redispatched]
    return Swept(redispatched=lost, orphaned=[*(orphan for one in swept for orphan in one.orphaned), *steps])


def _put_back(tx: Transaction, found: Sequence[Job], *, default: RetryPolicy, dispatch_lease: timedelta | None) -> Swept:
    lost = [job for job in found if job.state is JobState.DISPATCHED]
    if dispatch_lease is not None:
        behind = overdue.behind_held(tx, lost, patience=dispatch_lease * claims.PATIENCE)
        queued = {job.id: job.attempt for job in behind}
        claims.keep_dispatched(tx, list(queued.items()), lease=dispatch_lease)
        lost = [job for job in lost if job.id not in queued]
    claims.redispatch(tx, lost)
    begun = [job for job in found if job.state is JobState.RUNNING]
    unfollowed = [job for job in begun if job.ended is not None and following.carry_on(tx, job)]
    vanished = [_orphan(tx, job, default) for job in begun if job.ended is None]
    return Swept(redispatched=[*lost, *unfollowed], orphaned=vanished)


def _sweep_steps(database: Database, default: RetryPolicy, limit: int, aside: Aside) -> list[Orphan]:
    with database.transaction(write=False) as tx:
        found = overdue.steps(tx, limit=limit, skip=aside.skipped(JOBS))

    def put_back(tx: Transaction, step: tuple[str, int, str]) -> Orphan | None:
        return _orphan_step(tx, step, default)

    def failed(step: tuple[str, int, str], error: Exception) -> None:
        aside.skip_row(JOBS, step[0], error)

    done = run_each(database, found, put_back, failed=failed, together=False)
    return [orphan for orphan in done if orphan is not None]


def _orphan_step(tx: Transaction, step: tuple[str, int, str], default: RetryPolicy) -> Orphan | None:
    """Put back one step; its run is locked first, so each is a transaction of its own."""
    id, attempt, run = step
    if not workflows.try_lock(tx, run):
        return None  # somebody ends or cancels something of it at this moment
    found = overdue.lock_step(tx, id, attempt)
    return None if found is None else _orphan(tx, found, default)


def _orphan(tx: Transaction, job: Job, default: RetryPolicy) -> Orphan:
    if job.has_stuck_lease:
        failure = Failure.stale(job.longest)
    else:
        failure = Failure.orphaned(f"its worker {job.claimed_by} gave no sign until {job.lease_until}")
    then: TryAgain | Bury | None = after_failure(job, default=default, vanished=failure.outcome is Outcome.ORPHANED)
    if job.carrier:
        # It shared its message with others, and which of them brought the worker down is not known: none is blamed, and
        # the next time each travels alone.
        then = TryAgain(timedelta(0)) if settlement.hand_back(tx, job, failure) else None
    elif isinstance(then, Bury) and not jobs.is_cancelled(tx, job):
        settlement.abandon(tx, job, failure, then)
    elif then is not None:
        then = settlement.fail(tx, job, failure, then, reports=False)
    audit.note(tx, "sweep", f"job:{job.id}", before={"attempt": job.attempt, "worker": job.claimed_by}, reason=failure.error)
    return job, failure, then
