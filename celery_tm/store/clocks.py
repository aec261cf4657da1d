"""The time that prepared statements go by: the database's, or one that is passed in."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Interval, bindparam, func, literal_column, text

from .types import Duration, Instant, Microseconds

NOW = "tm_now"


class Clock(Protocol):
    """What a statement knows about time."""

    @property
    def now(self) -> ColumnElement[datetime]:
        """Return the present instant: one and the same within a statement, and usable by an index."""

    def later(self, name: str) -> ColumnElement[datetime]:
        """Return the instant that lies ahead by the duration which is passed in as `name`."""


class PostgreSQLClock:
    """PostgreSQL's own time."""

    @property
    def now(self) -> ColumnElement[datetime]:
        """Return the time of the statement.

        Not now(): a caller's transaction may be old. Not clock_timestamp(): volatile, so no index could use it.
        """
        return func.statement_timestamp(type_=Instant)

    def later(self, name: str) -> ColumnElement[datetime]:
        """Return the instant that lies ahead by a parameter."""
        return self.after(bindparam(name, type_=Duration))

    def after(self, delay: ColumnElement[timedelta]) -> ColumnElement[datetime]:
        """Return the instant that lies ahead by `delay`."""
        return ahead(self.now, delay)


def ahead(instant: ColumnElement[datetime], delay: ColumnElement[timedelta]) -> ColumnElement[datetime]:
    """Return PostgreSQL's instant that is `delay` after another.

    Reckoned in seconds: an interval of days would gain or lose an hour where the session's zone changes its clocks.
    """
    seconds = delay.op("*", return_type=Interval())(literal_column("interval '1 second'"))
    return instant.op("+", return_type=Instant())(seconds)


class MySQLClock:
    """MySQL's own time."""

    @property
    def now(self) -> ColumnElement[datetime]:
        """Return the time of the statement."""
        return func.utc_timestamp(literal_column("6"), type_=Instant)

    def later(self, name: str) -> ColumnElement[datetime]:
        """Return the instant that lies ahead by a parameter."""
        return self.after(bindparam(name, type_=Microseconds))

    def after(self, delay: ColumnElement[timedelta]) -> ColumnElement[datetime]:
        """Return the instant that lies ahead by `delay`."""
        return func.timestampadd(text("MICROSECOND"), delay, self.now, type_=Instant)


class GivenClock:
    """A time that is passed in with each run: this machine's, for a database that is embedded, or that of a test."""

    def __init__(self) -> None:
        self._delays: set[str] = set()

    @property
    def now(self) -> ColumnElement[datetime]:
        """Return the time that is passed in."""
        return bindparam(NOW, type_=Instant)

    def later(self, name: str) -> ColumnElement[datetime]:
        """Return the instant that lies ahead by a parameter."""
        self._delays.add(name)
        return bindparam(name, type_=Instant)

    def told(self, values: Mapping[str, Any], now: datetime) -> dict[str, Any]:
        """Return a run's parameters with the instants they mean."""
        return {name: now + v if name in self._delays else v for name, v in values.items()} | {NOW: now}
