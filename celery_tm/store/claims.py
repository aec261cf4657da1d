"""The statements that claim due jobs for a beat, and those that release a claim: pending → dispatched → pending."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Executable, Integer, Row, Select, Update, and_, bindparam, case, null, select, update

from ..domain.job import Job, JobState
from . import tables
from .clocks import Clock
from .conditions import IS_DISPATCHED, IS_LEASED, IS_PENDING, MAY_TAKE_SLOT, NEEDS_NO_SLOT
from .database import UNNAMED, Transaction
from .dialect_base import Dialect, Moment
from .exclusions import leave_out
from .jobs import WAITING, among, in_order, read_job
from .prepared import Prepared
from .rows import UNREADABLE

MOST_DISPATCHES = 1_000_000  # counted no further: the column ends somewhere
job = tables.job
LONGEST_LEASE = 6  # a dispatch lease doubles at most this often
PATIENCE = 8  # dispatch leases that a message may wait in line or for a free process before it is sent again


def claim_due(
    tx: Transaction,
    *,
    node: str,
    lease: timedelta,
    limit: int,
    since: datetime | None = None,
    skip: Sequence[str] = (),
) -> list[Job]:
    """Take up to `limit` due jobs for `node`, oldest first: pending and due → dispatched, leased.

    Jobs whose number is limited by a key are claimed by `store.lanes`. With `since` no earlier ones are looked for;
    `skip` are ids that are left out.
    """
    bound = {} if since is None else {"since": since}
    if skip or not tx.dialect.gives_back_updates:
        due = _due(tx.now, bounded=since is not None).params({"room": limit, "of_app": tx.app, **bound})
        due = leave_out(tx, due, job.c.id, skip, limit=limit)
        return in_order(map(read_job, tx.update_returning(job, due, _claiming(tx, node, lease))))
    leases = {f"lease_{n}": lease * 2**n for n in range(LONGEST_LEASE + 1)}
    rows = tx.run(_claim_due(bounded=since is not None), node=node, room=limit, of_app=tx.app, **leases, **bound)
    return in_order(map(read_job, rows))


def unreadable(tx: Transaction, *, limit: int, skip: Sequence[str] = ()) -> list[tuple[str, Exception]]:
    """Return the ids of due jobs that cannot be read, among the first `limit` of each kind, and why."""
    found: list[tuple[str, Exception]] = []
    for kind in (NEEDS_NO_SLOT, MAY_TAKE_SLOT):
        due = select(job.c.id).where(job.c.app == tx.app, IS_PENDING, kind, job.c.run_at <= tx.now)
        due = leave_out(tx, due.order_by(job.c.run_at), job.c.id, skip, limit=limit).limit(limit)
        found += unreadable_among(tx, list(tx.execute(due).scalars()))
    return found


def unreadable_among(tx: Transaction, ids: Sequence[str]) -> list[tuple[str, Exception]]:
    """Read jobs together; where the driver cannot, in halves, down to the ones that cannot be read."""
    if not ids:
        return []
    try:
        rows = tx.execute(select(job).where(job.c.id.in_(ids))).all()
    except UNREADABLE as error:
        middle = len(ids) // 2
        if not middle:
            return [(ids[0], error)]
        return unreadable_among(tx, ids[:middle]) + unreadable_among(tx, ids[middle:])
    return [(row.id, wrong) for row in rows if (wrong := _why_unreadable(row)) is not None]


def _why_unreadable(row: Row[Any]) -> Exception | None:
    try:
        read_job(row)
    except UNREADABLE as error:
        return error
    return None


@cache
def _claim_due(*, bounded: bool) -> Prepared:
    def build(dialect: Dialect, clock: Clock) -> Executable:
        due = dialect.locked(_due(clock.now, bounded=bounded))
        change = _claimed(clock.now, lambda n: clock.later(f"lease_{n}")).values(claimed_by=bindparam("node"))
        return change.where(dialect.picked_by(job.c.id, due)).returning(job)

    return Prepared(build, returns=list(job.c))


def _due(now: Moment, *, bounded: bool) -> Select[Any]:
    due = select(job.c.id).where(job.c.app == bindparam("of_app"), IS_PENDING, NEEDS_NO_SLOT, job.c.run_at <= now)
    due = due.where(job.c.run_at >= bindparam("since", type_=job.c.run_at.type)) if bounded else due
    return due.order_by(job.c.run_at).limit(bindparam("room", type_=Integer))


def sent_by_producers(tx: Transaction, *, limit: int, skip: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return id and task of due jobs that their caller's process has published, or was about to: no worker has them yet."""
    query = select(job.c.id, job.c.task).where(
        IS_LEASED, IS_DISPATCHED, job.c.claimed_by.like("producer@%"), job.c.run_at <= tx.now,
        job.c.app.in_((tx.app, UNNAMED)),
    )  # fmt: skip
    query = leave_out(tx, query.order_by(job.c.lease_until), job.c.id, skip, limit=limit).limit(limit)
    return [(row.id, row.task) for row in tx.execute(query)]


def still_dispatched(tx: Transaction, ids: Sequence[str], *, node: str) -> set[str]:
    """Return which of these jobs `node` has dispatched."""
    query = select(job.c.id).where(job.c.id.in_(ids), IS_DISPATCHED, job.c.claimed_by == node)
    return set(tx.execute(query).scalars())


def take_over(tx: Transaction, ids: Sequence[str], *, node: str, lease: timedelta) -> list[Job]:
    """Take these dispatched jobs for `node`. Whoever else has their message is refused at the gate, or `node` is."""
    if not ids:
        return []
    chosen = select(job.c.id).where(job.c.id.in_(ids), IS_DISPATCHED)
    change = update(job).values(claimed_by=node, claimed_at=tx.now, lease_until=tx.later(lease))
    return in_order(map(read_job, tx.update_returning(job, chosen, change)))


def claim(tx: Transaction, ids: Sequence[str], *, node: str, lease: timedelta) -> list[Job]:
    """Take these pending jobs for `node`. The caller has locked them."""
    if not ids:
        return []
    chosen = select(job.c.id).where(job.c.id.in_(ids), IS_PENDING)
    return in_order(map(read_job, tx.update_returning(job, chosen, _claiming(tx, node, lease))))


def _claiming(tx: Transaction, node: str, lease: timedelta) -> Update:
    return _claimed(tx.now, lambda n: tx.later(lease * 2**n)).values(claimed_by=node)


def _claimed(now: Moment, lease_after: Callable[[int], Moment]) -> Update:
    """Return the change from pending to dispatched, with the lease that a job has after so many dispatches.

    That is twice as long with each one, so that a slow queue is not flooded.
    """
    steps = [(job.c.dispatches == n, lease_after(n)) for n in range(LONGEST_LEASE)]
    lease_until = case(*steps, else_=lease_after(LONGEST_LEASE))
    return update(job).values(
        state=JobState.DISPATCHED,
        claimed_at=now,
        lease_until=lease_until,
        dispatches=case((job.c.dispatches < MOST_DISPATCHES, job.c.dispatches + 1), else_=job.c.dispatches),
    )


def begin_run(tx: Transaction, id: str, attempt: int, *, occurrence: str) -> bool:
    """Let a claimed job stand for a run that begins: dispatched → running, without a lease, until its steps have ended."""
    mine = and_(job.c.id == id, job.c.attempt == attempt, IS_DISPATCHED)
    change = {"state": JobState.RUNNING, "lease_until": null(), "claimed_at": tx.now, "occurrence": occurrence}
    return tx.execute(update(job).where(mine).values(change)).rowcount == 1


def release(tx: Transaction, claimed: Sequence[Job], *, error: str | None = None) -> int:
    """Give back jobs whose message the broker did not take: dispatched → pending, no try and no dispatch used.

    `error` says why. A row that another transaction has locked is passed over: it is swept when its dispatch lease ends.
    """
    changes = {} if error is None else {"last_error": error}
    return _wait_again(tx, claimed, job.c.dispatches - 1, waits=False, **changes)


def redispatch(tx: Transaction, lost: Sequence[Job]) -> int:
    """Give back jobs whose message got lost: dispatched → pending, no try used, the next lease longer."""
    return _wait_again(tx, lost, job.c.dispatches)


def postpone(tx: Transaction, claimed: Sequence[Job], *, delay: timedelta, error: str) -> int:
    """Let jobs wait whose queue cannot be used: dispatched → pending, due again after `delay`, no try used.

    They are due later, so that the oldest of them do not stand before jobs of other queues at every claim.
    """
    changes = {"run_at": tx.later(delay), "last_error": error}
    return _wait_again(tx, claimed, job.c.dispatches - 1, waits=False, **changes)


def keep_dispatched(
    tx: Transaction, attempts: Sequence[tuple[str, int]], *, lease: timedelta, patience: timedelta | None = None
) -> None:
    """Lengthen the dispatch leases of attempts whose messages still wait; a row that is locked is left for the next time.

    With `patience`, only of those that were dispatched less than so long ago.
    """
    if not attempts:
        return
    until = tx.later(lease)
    ours = select(job.c.id).where(among(tx, attempts), IS_DISPATCHED, job.c.lease_until < until)
    if patience is not None:
        ours = ours.where(job.c.claimed_at > tx.later(-patience))
    tx.update_returning(job, ours, update(job).values(lease_until=until))


def _wait_again(tx: Transaction, claimed: Sequence[Job], dispatches: Any, *, waits: bool = True, **changes: Any) -> int:
    if not claimed:
        return 0
    ours = and_(among(tx, [(one.id, one.attempt) for one in claimed]), IS_DISPATCHED)
    change = update(job).values(WAITING | {"dispatches": dispatches} | changes)
    if not waits:
        free = tx.dialect.locked(select(job.c.id).where(ours))
        if tx.dialect.gives_back_updates:  # counted by what comes back: SQLite has no row count for WITH … UPDATE
            return len(tx.execute(change.where(tx.dialect.picked_by(job.c.id, free)).returning(job.c.id)).all())
        ours = job.c.id.in_(list(tx.execute(free).scalars()))
    return tx.execute(change.where(ours)).rowcount
