"""What is next: one look at one entry of each index, whatever the tables hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Column, ColumnElement, CursorResult, Executable, bindparam, literal, literal_column, select

from .clocks import Clock
from .conditions import IS_DISPATCHED, IS_LEASED, IS_OCCURRING, IS_PENDING, IS_RUNNING, MAY_TAKE_SLOT, NEEDS_NO_SLOT
from .database import Transaction
from .dialect_base import Dialect
from .exclusions import leave_out
from .prepared import Prepared
from .rows import UNREADABLE
from .tables import definition, job, occurrence
from .types import Instant

# As a literal: PostgreSQL would plan a statement with an unknown limit anew each time.
ONE: Any = literal_column("1")
MARGIN = timedelta(seconds=30)  # what is committed, or planned, so long after its instant is still found in its place
APP: Any = bindparam("of_app", type_=job.c.app.type)
NOTHING: Mapping[str, Sequence[str]] = {}
# Each instant of an agenda: the first of a column among the rows that an index is about.
LOOKS: dict[str, tuple[Column[datetime], tuple[ColumnElement[bool], ...]]] = {
    "definition_at": (definition.c.next_run_at, (definition.c.app == APP, definition.c.next_run_at.is_not(None))),
    "deadline_at": (occurrence.c.deadline_at, (IS_OCCURRING, occurrence.c.deadline_at.is_not(None))),
    "due_at": (job.c.run_at, (job.c.app == APP, IS_PENDING, NEEDS_NO_SLOT)),
    "turn_at": (job.c.run_at, (job.c.app == APP, IS_PENDING, MAY_TAKE_SLOT)),
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
    unread: frozenset[str] = frozenset()  # the instants that cannot be read

    @property
    def job_at(self) -> datetime | None:
        """Return when the next job is due."""
        return _first(self.due_at, self.turn_at)

    @property
    def lease_at(self) -> datetime | None:
        """Return when the next lease ends."""
        return _first(self.sent_until, self.run_until)

    def sparing_running(self) -> Agenda:
        """Return this agenda without the leases of running attempts."""
        return replace(self, run_until=None)

    def place_of(self, name: str) -> datetime:
        """Return the instant before which the next look need not begin: where this one found something."""
        return min(getattr(self, name) or self.now, self.now - MARGIN)

    def is_due(self, at: datetime | None) -> bool:
        """Say whether an instant of this agenda has come."""
        return at is not None and at <= self.now

    def same_due(self, other: Agenda) -> bool:
        """Say whether the same rows are first in line as in another look."""
        return self.unread == other.unread and self._read == other._read

    @property
    def seconds(self) -> float | None:
        """Return the seconds until the next thing to do; None if there is none in sight."""
        first = _first(*self._all)
        return None if first is None else max((first - self.now).total_seconds(), 0.0)

    @property
    def _all(self) -> tuple[datetime | None, ...]:
        return tuple(getattr(self, name) for name in LOOKS)

    @property
    def _read(self) -> tuple[datetime | None, ...]:
        return tuple(getattr(self, name) for name in LOOKS if name not in self.unread)


def look(tx: Transaction, *, since: Agenda | None = None, without: Mapping[str, Sequence[str]] = NOTHING) -> Agenda:
    """Return what is next; with `since` only what lies behind the places where that look found something.

    `without` are ids, by table, of rows that this process has set aside: they are not looked at.
    """
    bounds = {} if since is None else {name: since.place_of(name) for name in LOOKS}
    given = tx.now if isinstance(tx.now, datetime) else None
    (row,) = tx.run(_question(bounded=since is not None, timed=given is None), of_app=tx.app, **bounds)
    found = dict(zip(LOOKS, row, strict=False))
    for name, (column, _) in LOOKS.items():
        if found[name] is not None and (ids := without.get(column.table.name)):
            found[name] = _first_without(tx, name, ids)
    return Agenda(now=given or row[-1], **found)


def look_apart(tx: Transaction, *, without: Mapping[str, Sequence[str]] = NOTHING) -> Agenda:
    """Return what is next where an instant cannot be read: one that has come is due now, so that its row is found.

    One that sorts after the present, such as `infinity`, is no matter: nobody would take its row.
    """
    now, found, unread = tx.read_now(), dict[str, datetime | None](), set[str]()
    for name, (column, _) in LOOKS.items():
        ids = without.get(column.table.name, ())
        try:
            found[name] = _first_without(tx, name, ids)
        except UNREADABLE:
            unread.add(name)
            found[name] = now if _has_come(tx, name, ids) else None
    return Agenda(now=now, unread=frozenset(unread), **found)


def _first_without(tx: Transaction, name: str, ids: Sequence[str]) -> datetime | None:
    return _ask(tx, name, LOOKS[name][0], ids).scalar()


def _has_come(tx: Transaction, name: str, ids: Sequence[str]) -> bool:
    column = LOOKS[name][0]
    return _ask(tx, name, column.table.c.id, ids, column <= tx.now).first() is not None


def _ask(
    tx: Transaction, name: str, wanted: Column[Any], ids: Sequence[str], *more: ColumnElement[bool]
) -> CursorResult[*tuple[Any, ...]]:
    """Ask for the first row besides some; what is about occurrences is about those of all apps."""
    column, conditions = LOOKS[name]
    app = {"of_app": tx.app} if column.table is not occurrence else None
    query = select(wanted).where(*conditions, *more).order_by(column)
    query = leave_out(tx, query, column.table.c.id, ids, limit=1, parameters=app)
    return tx.execute(query.limit(ONE), app)


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
