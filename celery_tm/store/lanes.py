"""Slots: how many jobs of one concurrency key may be in flight.

A slot is no thing that could leak: the slots in use are the rows that are dispatched or running, and occurrences that wait
for their next try. A job that finds none free is held; whoever ends a job of the same key lets the next one go on. Both
look while they hold the key's row in `tm_lane`, so none is overlooked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Select, and_, exists, func, or_, select, update

from ..domain.job import Job, Slot
from . import claims, jobs, tables
from .conditions import IS_ACTIVE, IS_LEASED, IS_OWED, IS_PENDING, MAY_TAKE_SLOT, NEEDS_NO_SLOT, WAITS_FOR_SLOT
from .database import Transaction
from .exclusions import leave_out
from .rows import UNREADABLE

job, lane, occurrence = tables.job, tables.lane, tables.occurrence
LOOK = 50  # of the jobs that wait for one key, so many are looked at for those that are to go on
EVERYTHING = "*"  # the lane of `tm_max_in_flight`
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)  # in place of instants that cannot be read


def claim_due(
    tx: Transaction,
    *,
    node: str,
    lease: timedelta,
    limit: int,
    skip: Sequence[str] = (),
    urgency: Callable[[Job], int] = lambda _: 0,
) -> list[Job]:
    """Take up to `limit` due jobs whose keys have a slot free, and hold those that find none; `skip` are left out.

    Those with the least `urgency` number come first, then the oldest.
    """
    due = select(job).where(job.c.app == tx.app, IS_PENDING, MAY_TAKE_SLOT, job.c.run_at <= tx.now)
    due = due.order_by(job.c.run_at, job.c.id)
    due = leave_out(tx, due, job.c.id, skip, limit=limit)
    found = [jobs.read_job(row) for row in tx.execute(tx.dialect.locked(due.limit(limit)))]
    ours = _lock(tx, {one.concurrency_key or "" for one in found})
    waiting = [one for one in found if one.concurrency_key in ours]
    if not waiting:
        return []
    in_use = _in_use(tx, ours, {one.id for one in waiting})
    claimants = [*in_use, *(_claimant(one) for one in waiting)]
    limits = _limits(ours, claimants)
    _restate(tx, claimants)
    used = Counter(one.key for one in in_use)
    admitted = _admit(sorted(waiting, key=urgency), used, limits)
    ids = {one.id for one in admitted}
    hold(tx, [one.id for one in waiting if one.id not in ids])
    spare = {key: limits[key] - used[key] for key in ours if used[key] < limits[key]}
    for key in _with_held(tx, spare):  # its limit was raised, or nobody told it that a slot is free
        _open(tx, key, spare[key], skip=skip)
    return claims.claim(tx, list(ids), node=node, lease=lease)


class Claimant(NamedTuple):
    """What a job says about the limit of its key."""

    key: str
    task: str
    limit: int
    created_at: datetime


def _claimant(one: Job) -> Claimant:
    return Claimant(one.concurrency_key or "", one.task, _limit(one.concurrency), one.created_at)


def _limit(stated: Any) -> int:
    return stated if isinstance(stated, int) and stated > 0 else 1


def _claimants(tx: Transaction, jobs_of: Select[Any]) -> list[Claimant]:
    """Return what jobs state about their keys; where an instant cannot be read, all count as created at the same one.

    Whoever counts slots needs no more of a row than this, and one that cannot be read counts like the others.
    """
    stated = (job.c.concurrency_key, job.c.task, job.c.concurrency)
    try:
        rows = [tuple(row) for row in tx.execute(jobs_of.with_only_columns(*stated, job.c.created_at))]
    except UNREADABLE:
        rows = [(*row, EPOCH) for row in tx.execute(jobs_of.with_only_columns(*stated))]
    return [Claimant(key, task, _limit(limit), created_at) for key, task, limit, created_at in rows]


def _limits(keys: Collection[str], claimants: Sequence[Claimant]) -> dict[str, int]:
    """Return one limit for each key: of each task the one that its latest job states, and of these the lowest."""
    latest = _latest(claimants)
    return {key: min((one.limit for (of, _), one in latest.items() if of == key), default=1) for key in keys}


def _latest(claimants: Sequence[Claimant]) -> dict[tuple[str, str], Claimant]:
    """Return the latest job of each key and task; of several from the same instant, one with the lowest limit."""
    return {(one.key, one.task): one for one in sorted(claimants, key=lambda one: (one.created_at, -one.limit))}


def _restate(tx: Transaction, claimants: Sequence[Claimant]) -> None:
    """Give earlier jobs of a task that wait the limit that its latest one states, so that it holds after that one too."""
    latest = _latest(claimants)
    for key, task in sorted({(one.key, one.task) for one in claimants if one.limit != latest[one.key, one.task].limit}):
        limit = latest[key, task].limit
        mine = and_(job.c.concurrency_key == key, job.c.task == task, job.c.slot.is_not(None), IS_PENDING)
        others = select(job.c.id).where(mine, job.c.concurrency != limit, job.c.created_at < latest[key, task].created_at)
        ids = list(tx.execute(tx.dialect.locked(others)).scalars())
        for start in range(0, len(ids), 1000):
            tx.execute(update(job).where(job.c.id.in_(ids[start : start + 1000])).values(concurrency=limit))


def _admit(waiting: Sequence[Job], used: Counter[str], limits: Mapping[str, int]) -> list[Job]:
    """Return those that get a slot: first those that have one already, then in order; `used` counts them too."""
    admitted = []
    for one in sorted(waiting, key=lambda one: not _keeps_slot(one)):  # stable
        key = one.concurrency_key or ""
        if _keeps_slot(one) or used[key] < limits[key]:
            used[key] += 1
            admitted.append(one)
    return admitted


def _keeps_slot(one: Job) -> bool:
    """An occurrence that waits for its next try is still in process: what takes turns with it goes on waiting."""
    return one.occurrence is not None and one.attempt > one.tries_from


def _in_use(tx: Transaction, keys: Collection[str], besides: Collection[str] = ()) -> list[Claimant]:
    """Return what has a slot of these keys."""
    retrying = and_(job.c.occurrence.is_not(None), job.c.attempt > job.c.tries_from, job.c.id.not_in(list(besides)))
    mine = and_(job.c.slot.is_not(None), job.c.concurrency_key.in_(list(keys)))
    return _claimants(tx, select(job.c.id).where(mine, or_(IS_LEASED, retrying)))


def _with_held(tx: Transaction, keys: Collection[str]) -> list[str]:
    """Return those of these keys for which jobs wait."""
    if not keys:
        return []
    waits = exists(select(job.c.id).where(job.c.concurrency_key == lane.c.key, WAITS_FOR_SLOT))
    return list(tx.execute(select(lane.c.key).where(lane.c.key.in_(list(keys)), waits)).scalars())


def waited_for(tx: Transaction, *, after: str, limit: int) -> list[str]:
    """Return the next keys, in order, for which jobs wait."""
    waits = exists(select(job.c.id).where(job.c.concurrency_key == lane.c.key, WAITS_FOR_SLOT))
    return list(tx.execute(select(lane.c.key).where(lane.c.key > after, waits).order_by(lane.c.key).limit(limit)).scalars())


def relieve(tx: Transaction, keys: Collection[str], *, skip: Sequence[str] = ()) -> None:
    """Let jobs of these keys go on that wait for a slot though one is free.

    Whoever gives a slot back lets the next one go on; this is for those who could not: a caller that committed over a bare
    connection, or died right after its commit. It is also for jobs whose turn went to a row that no claim takes: one of
    `skip`, which cannot be read, or one of another app, which may have no beat.
    """
    ours = _lock(tx, keys)
    in_use = _in_use(tx, ours) if ours else []
    used = Counter(one.key for one in in_use)
    for key in sorted(ours):
        if _is_any_ahead(tx, key, skip):
            continue  # the next claim sees to it
        mine = and_(job.c.concurrency_key == key, job.c.slot.is_not(None), IS_PENDING)
        held = _claimants(tx, select(job.c.id).where(mine, WAITS_FOR_SLOT).order_by(job.c.run_at).limit(LOOK))
        limits = _limits([key], [*(one for one in in_use if one.key == key), *held])
        if used[key] < limits[key]:
            _open(tx, key, limits[key] - used[key], skip=skip, only_ours=True)


def _is_any_ahead(tx: Transaction, key: str, skip: Sequence[str]) -> bool:
    """Say whether the next claim of this app finds a due job whose turn it is."""
    ahead = select(job.c.id).where(job.c.app == tx.app, job.c.concurrency_key == key, IS_PENDING, MAY_TAKE_SLOT)
    ahead = ahead.where(job.c.run_at <= tx.now).order_by(job.c.run_at, job.c.id)
    return tx.execute(leave_out(tx, ahead, job.c.id, skip, limit=1).limit(1)).first() is not None


def is_free(tx: Transaction, one: Job) -> bool:
    """Say whether a slot of a job's key is free."""
    key = one.concurrency_key or ""
    in_use = _in_use(tx, [key])
    return len(in_use) < _limits([key], [*in_use, _claimant(one)])[key]


def hold(tx: Transaction, ids: Sequence[str]) -> None:
    """Let jobs wait until a slot is free. The caller holds their lanes."""
    if ids:
        tx.execute(update(job).where(job.c.id.in_(ids), IS_PENDING).values(slot=Slot.HELD))


def free(tx: Transaction, ended: Job) -> None:
    """Let the next job of the same key go on: `ended` has given its slot back."""
    if ended.slot is not None and ended.concurrency_key is not None:
        _free(tx, {ended.concurrency_key: 1})


def free_all(tx: Transaction, taken_back: Collection[Job]) -> None:
    """Let as many jobs go on as there were among these that had a slot, or whose turn it was."""
    _free(
        tx, Counter(one.concurrency_key for one in taken_back if one.slot is Slot.OPEN and one.concurrency_key is not None)
    )


def _free(tx: Transaction, given: Mapping[str, int]) -> None:
    """A caller's transaction gives slots back once it has committed: it may be open for long, and see what is long gone."""
    if tx.freed is not None:
        tx.freed.update(given)
    else:
        free_keys(tx, given)


def free_keys(tx: Transaction, given: Mapping[str, int]) -> None:
    """Let so many jobs of each key go on."""
    for key in sorted(given):
        _wait_for(tx, key)
        _open(tx, key, given[key])


def _open(tx: Transaction, key: str, count: int, *, skip: Sequence[str] = (), only_ours: bool = False) -> None:
    """Let the oldest held jobs of a key go on, so many of each app and priority: the claim chooses.

    The caller holds the lane. A job that another transaction has locked is passed over, and so are `skip`. `only_ours`: only
    jobs of this app go on.
    """
    query, chosen = _next_held(tx, key, count, skip, only_ours=only_ours)
    if not chosen:
        return
    mine = select(job.c.id).where(job.c.id.in_(chosen), IS_PENDING)
    ours = list(tx.execute(tx.dialect.locked(mine)).scalars()) or _choose(tx.execute(tx.dialect.locked(query)).all(), count)
    if ours:
        tx.execute(update(job).where(job.c.id.in_(ours), IS_PENDING).values(slot=Slot.OPEN))
        tx.wake()


def _next_held(
    tx: Transaction, key: str, count: int, skip: Sequence[str], *, only_ours: bool
) -> tuple[Select[Any], list[str]]:
    """Return the query for the oldest held jobs of a key, and those of them that are to go on.

    If so many of other apps wait that none of this app is among them, its own oldest ones go on too.
    """
    most = max(LOOK, count)
    query: Select[Any] = select(job.c.id, job.c.priority, job.c.app).where(job.c.concurrency_key == key, WAITS_FOR_SLOT)
    query = query.order_by(job.c.run_at, job.c.id)
    ours = query.where(job.c.app == tx.app)
    query = leave_out(tx, ours if only_ours else query, job.c.id, skip, limit=most).limit(most)
    found = list(tx.execute(query))
    if len(found) == most and tx.app not in {app for _, _, app in found}:
        found += tx.execute(leave_out(tx, ours, job.c.id, skip, limit=most).limit(most))
    return query, _choose(found, count)


def _choose(held: Sequence[Any], count: int) -> list[str]:
    alike: dict[tuple[str, int | None], list[str]] = {}
    for id, priority, app in held:
        alike.setdefault((app, priority), []).append(id)
    return [id for ids in alike.values() for id in ids[:count]]


def _wait_for(tx: Transaction, key: str) -> None:
    """Make the lane ours until the transaction ends; one that was pruned is made again, else there were nothing to hold."""
    locked = select(lane.c.key).where(lane.c.key == key)
    locked = locked.with_for_update() if tx.dialect.skips_locked else locked
    if tx.execute(locked).first() is None:
        tx.execute(tx.dialect.insert_if_new(lane), [{"key": key}])
        tx.execute(locked).first()


def try_lock(tx: Transaction, keys: Collection[str]) -> bool:
    """Make the lanes of these keys ours until the transaction ends; False if another transaction has one of them."""
    return _lock(tx, keys) == set(keys)


def count_before(tx: Transaction, one: Job) -> int:
    """Return how many jobs of the same key wait before this one."""
    if one.slot is None:
        return 0
    earlier = and_(WAITS_FOR_SLOT, job.c.concurrency_key == one.concurrency_key, job.c.run_at < one.run_at)
    return int(tx.execute(select(func.count()).select_from(job).where(earlier)).scalar_one())


def is_any_outside(tx: Transaction, definition: str) -> bool:
    """Say whether a run of a definition is in process that stands in no line."""
    query = select(job.c.id).join(occurrence, job.c.occurrence == occurrence.c.id)
    # Of a workflow it is the job that stands for the run which takes turns, not its steps.
    query = query.where(occurrence.c.definition == definition, IS_ACTIVE, IS_OWED, NEEDS_NO_SLOT, job.c.step.is_(None))
    return tx.execute(query.limit(1)).first() is not None


def room_left(tx: Transaction, limit: int) -> int:
    """Return how many more jobs may be in flight under `tm_max_in_flight`; 0 while another beat is claiming."""
    if not _lock(tx, {EVERYTHING}):
        return 0
    # A job that stands for a run has no lease: it is its steps that are in flight.
    in_flight = select(job.c.id).where(IS_LEASED, job.c.lease_until.is_not(None)).limit(limit).subquery()
    return limit - int(tx.execute(select(func.count()).select_from(in_flight)).scalar_one())


def exceeds(tx: Transaction, limit: int) -> bool:
    """Say whether more jobs are in flight than `tm_max_in_flight`, those that this transaction wrote included.

    Waits for a beat that is claiming, and for other calls: each counts what those before it have committed.
    """
    _wait_for(tx, EVERYTHING)
    in_flight = select(job.c.id).where(IS_LEASED, job.c.lease_until.is_not(None)).limit(limit + 1).subquery()
    return int(tx.execute(select(func.count()).select_from(in_flight)).scalar_one()) > limit


def _lock(tx: Transaction, keys: Collection[str]) -> set[str]:
    """Make lanes where there are none, and return those that are ours until the transaction ends."""
    if not keys:
        return set()
    ordered = sorted(keys)
    known = set(tx.execute(select(lane.c.key).where(lane.c.key.in_(ordered))).scalars())
    missing: list[dict[str, Any]] = [{"key": key} for key in ordered if key not in known]
    if missing:
        tx.execute(tx.dialect.insert_if_new(lane), missing)
    query = select(lane.c.key).where(lane.c.key.in_(ordered)).order_by(lane.c.key)
    return set(tx.execute(tx.dialect.locked(query)).scalars())
