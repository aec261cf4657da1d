"""The statements that find what is overdue: attempts and messages whose lease has ended.

What becomes of them is `recovery.sweeper`.
"""

from __future__ import annotations

from sqlalchemy import and_, or_, select

from ..domain.job import Job
from . import tables
from .conditions import IS_DISPATCHED, IS_LEASED, IS_OWED, IS_RUNNING, IS_STEP
from .database import Transaction
from .jobs import is_running, read_job

job = tables.job


def lock(tx: Transaction, *, limit: int) -> list[Job]:
    """Lock and return jobs whose lease has ended, the longest ago first; those of another sweeper are passed over."""
    found: list[Job] = []
    alone = or_(~IS_STEP, ~IS_OWED)  # a step is looked for by itself: its run is locked before it
    for state in (and_(IS_RUNNING, alone), IS_DISPATCHED):  # one by one: so every database finds both by index
        query = select(job).where(IS_LEASED, state, job.c.lease_until <= tx.now).order_by(job.c.lease_until).limit(limit)
        found += [read_job(row) for row in tx.execute(tx.dialect.locked(query))]
    return found


def steps(tx: Transaction, *, limit: int) -> list[Job]:
    """Return running steps whose lease has ended, not locked: their runs are to be locked first."""
    query = select(job).where(IS_LEASED, IS_RUNNING, IS_STEP, IS_OWED, job.c.lease_until <= tx.now)
    return [read_job(row) for row in tx.execute(query.order_by(job.c.lease_until).limit(limit))]


def lock_step(tx: Transaction, id: str, attempt: int) -> Job | None:
    """Lock and return a step if its lease has ended still. The caller has locked its run."""
    query = select(job).where(is_running(id, attempt), IS_OWED, job.c.lease_until <= tx.now)
    row = tx.execute(query.with_for_update() if tx.dialect.skips_locked else query).first()
    return read_job(row) if row else None
