"""What follows a job's end: its links, the rest of its chain, its chord, its errbacks, its replacement.

Celery hands these on after the body. So that a worker that dies in between loses none of them, a job that something follows
keeps its row, with how it ended, until that is done. Such a row is no work that is owed: its body never runs again, and its
key and its slot are free. If its lease ends, another worker hands on what follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import and_, delete, insert, null, update

from ..domain.job import Job, JobState
from . import jobs, tables
from .conditions import IS_OWED
from .database import Transaction

job = tables.job
HAS_ENDED = ~IS_OWED
_FREED = {"dedupe_key": null(), "slot": null(), "expires_at": null(), "carrier": null(), "progress": null()}


def mark(tx: Transaction, one: Job, ended: Mapping[str, Any]) -> bool:
    """Write how a running attempt ended, and keep its row. False: the lease was lost, and nothing may be written."""
    return tx.execute(update(job).where(jobs.held_by(one), IS_OWED).values(_FREED | {"ended": ended})).rowcount == 1


def put(tx: Transaction, one: Job, ended: Mapping[str, Any]) -> None:
    """Let some worker hand on what follows a job that ended without one; its own row is gone."""
    values = jobs.columns_of(one) | _FREED | {"ended": ended, "cancel_requested": False}
    tx.execute(insert(job).values(values | _again(tx, one) | {"tries_from": one.tries_from + 1}))


def carry_on(tx: Transaction, one: Job, *, delay: timedelta = timedelta(0), ended: Mapping[str, Any] | None = None) -> bool:
    """Let another worker hand on what follows: the one that was at it is gone, or could not."""
    mine = and_(jobs.held_by(one), HAS_ENDED)
    change = _again(tx, one, delay=delay) | ({} if ended is None else {"ended": ended})
    return tx.execute(update(job).where(mine).values(change)).rowcount == 1


def _again(tx: Transaction, one: Job, *, delay: timedelta = timedelta(0)) -> dict[str, Any]:
    return {
        "state": JobState.PENDING, "attempt": one.attempt + 1, "tries_from": job.c.tries_from + 1, "dispatches": 0,
        "run_at": tx.later(delay), "lease_until": null(), "claimed_by": null(), "claimed_at": null(),
    }  # fmt: skip


def forget(tx: Transaction, one: Job) -> bool:
    """All that follows is handed on: the row goes. False: another worker is at it, or a revived job's end has its place."""
    return tx.execute(delete(job).where(jobs.held_by(one), HAS_ENDED)).rowcount == 1


def call_off(tx: Transaction, id: str) -> bool:
    """Nothing is to be handed on any more: the row goes, whoever is at it."""
    return tx.execute(delete(job).where(job.c.id == id, HAS_ENDED)).rowcount == 1
