"""What follows a job's end: its links, the rest of its chain, its chord, its errbacks, its replacement.

Celery hands these on after the body. So that a worker that dies in between loses none of them, a job that something follows
keeps its row, with how it ended, until that is done. Such a row is no work that is owed: its body never runs again, and its
key and its slot are free. If its lease ends, another worker hands on what follows.

The row of an attempt that is replaced by a call of a gated task stays until that call is admitted: its message may be lost
before. If both are of the same task it keeps its key, too, so that no other job has it in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import and_, case, delete, null, update

from ..domain.execution import Outcome
from ..domain.job import Job, JobState
from . import executions, jobs, tables
from .conditions import IS_OWED
from .database import Transaction

job = tables.job
HAS_ENDED = ~IS_OWED
KEEPS_KEY = "keeps_key"  # in `ended`
STAYS = "stays"  # in `ended`: the row goes when the replacement is admitted, not when that is published
_FREED = {"dedupe_key": null(), "slot": null(), "expires_at": null(), "carrier": null(), "progress": null()}
_FREED |= {"stuck_at": null()}  # publishing callbacks has no limit


def mark(tx: Transaction, one: Job, ended: Mapping[str, Any]) -> bool:
    """Write how a running attempt ended, and keep its row. False: the lease was lost, and nothing may be written."""
    freed: dict[str, Any] = {
        name: value for name, value in _FREED.items() if name != "dedupe_key" or not ended.get(KEEPS_KEY)
    }
    if one.stuck_at is not None and one.lease_until and one.claimed_at:  # else it might end while callbacks are published
        until = tx.later(one.lease_until - one.claimed_at)
        freed["lease_until"] = case((job.c.lease_until < until, until), else_=job.c.lease_until)
    return tx.execute(update(job).where(jobs.held_by(one), IS_OWED).values(freed | {"ended": ended})).rowcount == 1


def put(tx: Transaction, one: Job, ended: Mapping[str, Any]) -> bool:
    """Let some worker publish the callbacks of a job that ended without one; its own row is gone. False: the id is taken."""
    values = jobs.columns_of(one) | _FREED | {"ended": ended, "cancel_requested": False, "app": one.app or tx.app}
    if one.args is None or one.kwargs is None:  # its body does not run: no callback gets them
        values |= {"args": "[]", "kwargs": "{}"}
    return tx.insert_new(job, values | _again(tx, one) | {"tries_from": one.tries_from + 1})


def carry_on(tx: Transaction, one: Job, *, delay: timedelta = timedelta(0), ended: Mapping[str, Any] | None = None) -> bool:
    """Let another worker hand on what follows: the one that was at it is gone, or could not."""
    mine = and_(jobs.held_by(one), HAS_ENDED)
    change = _again(tx, one, delay=delay) | ({} if ended is None else {"ended": ended})
    return tx.execute(update(job).where(mine).values(change)).rowcount == 1


def _again(tx: Transaction, one: Job, *, delay: timedelta = timedelta(0)) -> dict[str, Any]:
    return {
        "state": JobState.PENDING, "attempt": one.attempt + 1, "tries_from": job.c.tries_from + 1, "dispatches": 0,
        "run_at": tx.later(delay), "lease_until": null(), "claimed_by": null(), "claimed_at": null(),
        "stuck_at": null(),
    }  # fmt: skip


def forget(tx: Transaction, one: Job) -> bool:
    """All that follows is handed on: the row goes. False: another worker is at it, or a revived job's end has its place."""
    return tx.execute(delete(job).where(jobs.held_by(one), HAS_ENDED)).rowcount == 1


def call_off(tx: Transaction, id: str) -> bool:
    """Nothing is to be handed on any more: the row goes, whoever is at it."""
    return tx.execute(delete(job).where(job.c.id == id, HAS_ENDED)).rowcount == 1


def call_off_replacement(tx: Transaction, one: Job, *, reason: str, actor: str | None = None) -> bool:
    """Cancel what replaces a job and is not admitted yet: its gate refuses an attempt that is recorded."""
    if not call_off(tx, one.id):
        return False
    recorded = executions.of_job(tx, one.id)
    attempt = recorded[0].attempt + 1 if recorded else one.attempt
    waiting = replace(one, state=JobState.PENDING, attempt=attempt, claimed_by=None, ended=None)
    executions.record(tx, waiting, Outcome.CANCELLED, message=reason, actor=actor)
    return True
