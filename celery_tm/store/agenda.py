"""What is next: one look at one entry of each index, whatever the tables hold."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Executable, bindparam, literal, literal_column, select

from .clocks import Clock
from .conditions import IS_DISPATCHED, IS_LEASED, IS_OCCURRING, IS_PENDING, IS_RUNNING, MAY_TAKE_SLOT, NEEDS_NO_SLOT
from .database import Transaction
from .dialects import Dialect
from .prepared import Prepared
from .tables import definition, job, occurrence
from .types import Instant

# As a literal: PostgreSQL would plan a statement with an unknown limit anew each time.
ONE: Any = literal_column("1")
MARGIN = timedelta(seconds=30)  # what is committed, or planned, so long after its instant is still found in its place
# Each instant of an agenda: the first of a column among the rows that an index is about.
LOOKS: dict[str, tuple[ColumnElement[datetime], tuple[ColumnElement[bool], ...]]] = {
    "definition_at": (definition.c.next_run_at, (definition.c.next_run_at.is_not(None),)),
    "deadline_at": (occurrence.c.deadline_at, (IS_OCCURRING, occurrence.c.deadline_at.is_not(None))),
    "due_at": (job.c.run_at, (IS_PENDING, NEEDS_NO_SLOT)),
    "turn_at": (job.c.run_at, (IS_PENDING, MAY_TAKE_SLOT)),
    "sent_until": (job.c.lease_until, (IS_LEASED, IS_DISPATCHED)),
    # A job that stands for a run has no lease, and would come first where nothing sorts before all else.
    "run_until": (job.c.lease_until, (IS_LEASED, IS_RUNNING, job.c.lease_until.is_not(None))),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Agenda:
    """The database's time, and when the next definition, job, lease and deadline want attention."""

    now: datetime
    definition_at: datetime | None = None
    deadline_at: datetime | None = None
    due_at: datetime | None = None  # the next job that needs no slot
    turn_at: datetime | None = None  # the next job that may take one
    sent_until: datetime | None = None  # the next end of a lease, of a job that is dispatched
    run_until: datetime | None = None  # and of one that runs

    @property
    def job_at(self) -> datetime | None:
        """Return when the next job is due."""
        return _first(self.due_at, self.turn_at)

    @property
    def lease_at(self) -> datetime | None:
        """Return when the next lease ends."""
        return _first(self.sent_until, self.run_until)

    def place_of(self, name: str) -> datetime:
        """Return the instant before which the next look need not begin: where this one found something."""
        return min(getattr(self, name) or self.now, self.now - MARGIN)

    def is_due(self, at: datetime | None) -> bool:
        """Say whether an instant of this agenda has come."""
        return at is not None and at <= self.now

    def same_due(self, other: Agenda) -> bool:
        """Say whether the same rows are first in line as in another look."""
        return self._all == other._all

    @property
    def seconds(self) -> float | None:
        """Return the seconds until the next thing to do; None if there is none in sight."""
        first = _first(*self._all)
        return None if first is None else max((first - self.now).total_seconds(), 0.0)

    @property
    def _all(self) -> tuple[datetime | None, ...]:
        return tuple(getattr(self, name) for name in LOOKS)


def look(tx: Transaction, *, since: Agenda | None = None) -> Agenda:
    """Return what is next; with `since` only what lies behind the places where that look found something."""
    bounds = {} if since is None else {name: since.place_of(name) for name in LOOKS}
    given = tx.now if isinstance(tx.now, datetime) else None
    (row,) = tx.run(_question(bounded=since is not None, timed=given is None), **bounds)
    return Agenda(now=given or row[-1], **dict(zip(LOOKS, row, strict=False)))


@cache
def _question(*, bounded: bool, timed: bool) -> Prepared:
    """Return the question; `timed` asks for the database's time as well."""

    def build(_: Dialect, clock: Clock) -> Executable:
        looks = []
        for name, (column, conditions) in LOOKS.items():
            first = select(column).where(*conditions)
            first = first.where(column >= bindparam(name, type_=column.type)) if bounded else first
            looks.append(first.order_by(column).limit(ONE).scalar_subquery())
        return select(*looks, *([clock.now] if timed else []))

    columns = [column for column, _ in LOOKS.values()]
    return Prepared(build, returns=[*columns, literal(None, Instant)] if timed else columns)


def _first(*instants: datetime | None) -> datetime | None:
    return min((at for at in instants if at is not None), default=None)
