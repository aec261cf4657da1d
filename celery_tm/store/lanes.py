"""Slots: how many jobs of one concurrency key may be in flight.

A slot is no thing that could leak: the slots in use are the rows that are dispatched or running, and occurrences that wait
for their next try. A job that finds none free is held; whoever ends a job of the same key lets the next one go on. Both
look while they hold the key's row in `tm_lane`, so none is overlooked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import and_, func, or_, select, update

from ..domain.job import Job, Slot
from . import jobs, tables
from .conditions import IS_ACTIVE, IS_LEASED, IS_OWED, IS_PENDING, MAY_TAKE_SLOT, NEEDS_NO_SLOT, WAITS_FOR_SLOT
from .database import Transaction

job, lane, occurrence = tables.job, tables.lane, tables.occurrence
EVERYTHING = "*"  # the lane of `tm_max_in_flight`


def claim_due(tx: Transaction, *, node: str, lease: timedelta, limit: int) -> list[Job]:
    """Take up to `limit` due jobs whose keys have a slot free, and hold those that find none."""
    due = select(job).where(IS_PENDING, MAY_TAKE_SLOT, job.c.run_at <= tx.now).order_by(job.c.run_at, job.c.id)
    found = [jobs.read_job(row) for row in tx.execute(tx.dialect.locked(due.limit(limit)))]
    ours = _lock(tx, {one.concurrency_key or "" for one in found})
    waiting = [one for one in found if one.concurrency_key in ours]
    if not waiting:
        return []
    admitted = _admit(waiting, _in_use(tx, ours, {one.id for one in waiting}))
    ids = {one.id for one in admitted}
    hold(tx, [one.id for one in waiting if one.id not in ids])
    return jobs.claim(tx, list(ids), node=node, lease=lease)


def _admit(waiting: Sequence[Job], in_use: dict[str, int]) -> list[Job]:
    """Return those that get a slot: first those that have one already, then the oldest."""
    admitted = []
    for one in sorted(waiting, key=lambda one: not _keeps_slot(one)):  # stable: by time within each
        key = one.concurrency_key or ""
        if _keeps_slot(one) or in_use.get(key, 0) < (one.concurrency or 1):
            in_use[key] = in_use.get(key, 0) + 1
            admitted.append(one)
    return admitted


def _keeps_slot(one: Job) -> bool:
    """An occurrence that waits for its next try is still in process: what takes turns with it goes on waiting."""
    return one.occurrence is not None and one.attempt > one.tries_from


def _in_use(tx: Transaction, keys: Collection[str], besides: Collection[str]) -> dict[str, int]:
    retrying = and_(job.c.occurrence.is_not(None), job.c.attempt > job.c.tries_from, job.c.id.not_in(list(besides)))
    query = select(job.c.concurrency_key, func.count()).where(
        job.c.slot.is_not(None), job.c.concurrency_key.in_(list(keys)), or_(IS_LEASED, retrying)
    )
    return {row[0]: row[1] for row in tx.execute(query.group_by(job.c.concurrency_key))}


def hold(tx: Transaction, ids: Sequence[str]) -> None:
    """Let jobs wait until a slot is free. The caller holds their lanes."""
    if ids:
        tx.execute(update(job).where(job.c.id.in_(ids), IS_PENDING).values(slot=Slot.HELD))


def free(tx: Transaction, ended: Job) -> None:
    """Let the next job of the same key go on: `ended` has given its slot back."""
    if ended.slot is not None and ended.concurrency_key is not None:
        _let_go_on(tx, ended.concurrency_key, 1)


def free_all(tx: Transaction, taken_back: Collection[Job]) -> None:
    """Let as many jobs go on as there were among these that had a slot, or whose turn it was."""
    given = Counter(one.concurrency_key for one in taken_back if one.slot is Slot.OPEN and one.concurrency_key is not None)
    for key in sorted(given):
        _let_go_on(tx, key, given[key])


def _let_go_on(tx: Transaction, key: str, count: int) -> None:
    _wait_for(tx, key)
    query = select(job.c.id).where(job.c.concurrency_key == key, WAITS_FOR_SLOT)
    following = list(tx.execute(tx.dialect.latest(query.order_by(job.c.run_at, job.c.id).limit(count))).scalars())
    if following:
        tx.execute(update(job).where(job.c.id.in_(following), IS_PENDING).values(slot=Slot.OPEN))
        tx.wake()


def _wait_for(tx: Transaction, key: str) -> None:
    """Make the lane ours until the transaction ends; one that was pruned is made again, else there were nothing to hold."""
    locked = select(lane.c.key).where(lane.c.key == key)
    locked = locked.with_for_update() if tx.dialect.skips_locked else locked
    if tx.execute(locked).first() is None:
        tx.execute(tx.dialect.insert_if_new(lane), [{"key": key}])
        tx.execute(locked).first()


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
