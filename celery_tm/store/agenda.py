"""What is next: one look at one entry of each index, whatever the tables hold."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from .database import Transaction
from .tables import IS_DISPATCHED, IS_LEASED, IS_PENDING, IS_RUNNING, definition, job


@dataclass(frozen=True, kw_only=True, slots=True)
class Agenda:
    """The database's time, and when the next definition, job and lease want attention."""

    now: datetime
    definition_at: datetime | None
    job_at: datetime | None
    lease_at: datetime | None

    def is_due(self, at: datetime | None) -> bool:
        """Say whether an instant of this agenda has come."""
        return at is not None and at <= self.now

    def same_due(self, other: Agenda) -> bool:
        """Say whether the same rows are first in line as in another look."""
        mine = (self.definition_at, self.job_at, self.lease_at)
        return mine == (other.definition_at, other.job_at, other.lease_at)

    @property
    def seconds(self) -> float | None:
        """Return the seconds until the next thing to do; None if there is none in sight."""
        instants = [at for at in (self.definition_at, self.job_at, self.lease_at) if at is not None]
        return max((min(instants) - self.now).total_seconds(), 0.0) if instants else None


def look(tx: Transaction) -> Agenda:
    """Return what is next."""
    next_definition = select(definition.c.next_run_at).where(definition.c.next_run_at.is_not(None))
    next_job = select(job.c.run_at).where(IS_PENDING)
    ends = [select(job.c.lease_until).where(IS_LEASED, state) for state in (IS_DISPATCHED, IS_RUNNING)]
    columns = [
        next_definition.order_by(definition.c.next_run_at).limit(1).scalar_subquery(),
        next_job.order_by(job.c.run_at).limit(1).scalar_subquery(),
        *(end.order_by(job.c.lease_until).limit(1).scalar_subquery() for end in ends),
    ]
    now = tx.now
    if isinstance(now, datetime):
        found = [now, *tx.execute(select(*columns)).one()]
    else:
        found = list(tx.execute(select(now, *columns)).one())
    now, definition_at, job_at, *lease_ends = found
    lease_at = min((at for at in lease_ends if at is not None), default=None)
    return Agenda(now=now, definition_at=definition_at, job_at=job_at, lease_at=lease_at)
