"""The statements that find what is overdue: attempts and messages whose lease has ended.

What becomes of them is `recovery.sweeper`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Select, and_, or_, select

from ..domain.job import Job
from . import tables
from .conditions import IS_DISPATCHED, IS_LEASED, IS_OWED, IS_RUNNING, IS_STEP
from .database import Transaction
from .exclusions import leave_out
from .jobs import is_running, read_job
from .rows import UNREADABLE

job = tables.job
PLAUSIBLE = timedelta(days=3660)


def lock(
    tx: Transaction, *, limit: int, running: bool = True, skip: Sequence[str] = (), only: Sequence[str] | None = None
) -> list[Job]:
    """Lock and return jobs whose lease has ended, the longest ago first; those of another sweeper are passed over.

    Without `running` only dispatched ones. `skip` are ids to leave out, `only` are the ids to look at.
    """
    found: list[Job] = []
    for query in _overdue(tx, limit, running, skip):
        query = query if only is None else query.where(job.c.id.in_(list(only)))
        found += [read_job(row) for row in tx.execute(tx.dialect.locked(query))]
    return found


def ids(tx: Transaction, *, limit: int, running: bool = True, skip: Sequence[str] = ()) -> list[str]:
    """Return the ids of the jobs that `lock` would look at, not locked and not read."""
    return [
        id for query in _overdue(tx, limit, running, skip) for id in tx.execute(query.with_only_columns(job.c.id)).scalars()
    ]


def _overdue(tx: Transaction, limit: int, running: bool, skip: Sequence[str]) -> Iterator[Select[Any]]:
    alone = or_(~IS_STEP, ~IS_OWED)  # a step is looked for by itself: its run is locked before it
    for state in ([and_(IS_RUNNING, alone)] if running else []) + [IS_DISPATCHED]:  # one by one: each is found by index
        query = select(job).where(IS_LEASED, state, job.c.lease_until <= tx.now)
        yield leave_out(tx, query.order_by(job.c.lease_until), job.c.id, skip, limit=limit).limit(limit)


def behind_held(tx: Transaction, lost: Sequence[Job], *, patience: timedelta) -> list[Job]:
    """Return those of dispatched jobs whose lease has ended that still wait in line, behind one that is not lost.

    A queue is first in, first out. While a worker holds a message of the same task that was dispatched earlier, and renews
    its lease, the later ones have not been overtaken; one that has become the first is taken to be lost. Where several
    workers share a queue that is a guess: another worker may have died with the message. So it counts only for what was
    dispatched less than `patience` ago. A row without a `claimed_at`, as tools of others may leave it, has no place in the
    line.
    """
    recent = set() if not lost else _dispatched_within(tx, lost, patience)
    lost = [one for one in lost if one.id in recent]
    firsts = {kind: _first_held(tx, *kind) for kind in {(one.task, one.queue) for one in lost}}
    return [one for one in lost if (first := firsts[one.task, one.queue]) is not None and first < _place(one)]


def _dispatched_within(tx: Transaction, lost: Sequence[Job], patience: timedelta) -> set[str]:
    query = select(job.c.id).where(job.c.id.in_([one.id for one in lost]), job.c.claimed_at > tx.later(-patience))
    return set(tx.execute(query).scalars())


def _place(one: Job) -> tuple[Any, ...]:
    """Return what orders messages as they were dispatched."""
    return one.claimed_at, one.run_at, one.id


def _first_held(tx: Transaction, task: str, queue: str | None) -> tuple[Any, ...] | None:
    query = select(job.c.claimed_at, job.c.run_at, job.c.id).where(
        IS_LEASED, IS_DISPATCHED, job.c.task == task, job.c.queue.is_not_distinct_from(queue), job.c.lease_until > tx.now
    )
    # A row that claims to be held for years, since before there were queues or from a later time on was not written by a
    # beat. Where the first cannot be read nobody is known to wait behind it: a message that is sent again is refused.
    claimed = and_(job.c.claimed_at > tx.later(-PLAUSIBLE), job.c.claimed_at <= tx.now)
    query = query.where(claimed, job.c.lease_until < tx.later(PLAUSIBLE))
    try:
        row = tx.execute(query.order_by(job.c.claimed_at, job.c.run_at, job.c.id).limit(1)).first()
    except UNREADABLE:
        return None
    return tuple(row) if row else None


def steps(tx: Transaction, *, limit: int, skip: Sequence[str] = ()) -> list[tuple[str, int, str]]:
    """Return id, attempt and run of running steps whose lease has ended, not locked: their runs are to be locked first."""
    query = select(job.c.id, job.c.attempt, job.c.occurrence)
    query = query.where(IS_LEASED, IS_RUNNING, IS_STEP, IS_OWED, job.c.lease_until <= tx.now)
    query = leave_out(tx, query.order_by(job.c.lease_until), job.c.id, skip, limit=limit).limit(limit)
    return [(row.id, row.attempt, row.occurrence) for row in tx.execute(query)]


def lock_step(tx: Transaction, id: str, attempt: int) -> Job | None:
    """Lock and return a step if its lease has ended still, and nobody else has it. The caller has locked its run."""
    query = select(job).where(is_running(id, attempt), IS_OWED, job.c.lease_until <= tx.now)
    row = tx.execute(tx.dialect.locked(query)).first()
    return read_job(row) if row else None
