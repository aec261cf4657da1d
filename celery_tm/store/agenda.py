"""What is next: one look at one entry of each index, whatever the tables hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Select, literal_column, select

from .database import Transaction
from .dialects import Dialect
from .tables import (
    IS_DISPATCHED,
    IS_LEASED,
    IS_OCCURRING,
    IS_PENDING,
    IS_RUNNING,
    MAY_TAKE_SLOT,
    NEEDS_NO_SLOT,
    definition,
    job,
    occurrence,
)

# As a literal: PostgreSQL would plan a statement with an unknown limit anew each time.
ONE: Any = literal_column("1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Agenda:
    """The database's time, and when the next definition, job, lease and deadline want attention."""

    now: datetime
    definition_at: datetime | None
    job_at: datetime | None
    lease_at: datetime | None
    deadline_at: datetime | None = None

    def is_due(self, at: datetime | None) -> bool:
        """Say whether an instant of this agenda has come."""
        return at is not None and at <= self.now

    def same_due(self, other: Agenda) -> bool:
        """Say whether the same rows are first in line as in another look."""
        return self._all == other._all

    @property
    def seconds(self) -> float | None:
        """Return the seconds until the next thing to do; None if there is none in sight."""
        instants = [at for at in self._all if at is not None]
        return max((min(instants) - self.now).total_seconds(), 0.0) if instants else None

    @property
    def _all(self) -> tuple[datetime | None, ...]:
        return self.definition_at, self.job_at, self.lease_at, self.deadline_at


def look(tx: Transaction) -> Agenda:
    """Return what is next."""
    now = tx.now
    if isinstance(now, datetime):
        found = [now, *tx.execute(_statement(None)).one()]
    else:
        found = list(tx.execute(_statement(tx.dialect)).one())
    now, definition_at, deadline_at, *rest = found
    return Agenda(
        now=now,
        definition_at=definition_at,
        job_at=_first(rest[:2]),
        lease_at=_first(rest[2:]),
        deadline_at=deadline_at,
    )


@cache
def _statement(dialect: Dialect | None) -> Select[Any]:
    """Return the question, made once: with the database's time unless time was moved."""
    next_definition = select(definition.c.next_run_at).where(definition.c.next_run_at.is_not(None))
    next_jobs = [select(job.c.run_at).where(IS_PENDING, slot) for slot in (NEEDS_NO_SLOT, MAY_TAKE_SLOT)]
    ends = [select(job.c.lease_until).where(IS_LEASED, state) for state in (IS_DISPATCHED, IS_RUNNING)]
    deadline = select(occurrence.c.deadline_at).where(IS_OCCURRING, occurrence.c.deadline_at.is_not(None))
    columns: list[Any] = [
        next_definition.order_by(definition.c.next_run_at).limit(ONE).scalar_subquery(),
        deadline.order_by(occurrence.c.deadline_at).limit(ONE).scalar_subquery(),
        *(due.order_by(job.c.run_at).limit(ONE).scalar_subquery() for due in next_jobs),
        *(end.order_by(job.c.lease_until).limit(ONE).scalar_subquery() for end in ends),
    ]
    clock: list[Any] = [] if dialect is None else [dialect.now()]
    return select(*clock, *columns)


def _first(instants: Sequence[datetime | None]) -> datetime | None:
    return min((at for at in instants if at is not None), default=None)
