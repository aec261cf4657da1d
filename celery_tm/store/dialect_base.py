"""What the databases do differently, as one interface: clocks, upserts, locks and rows given back by an UPDATE."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Insert, Select, Table, bindparam, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from .clocks import Clock, GivenClock
from .denials import Lacking

Moment = datetime | ColumnElement[datetime]
# How the kernel finds out that the other side is gone: asked after 10 idle seconds, then every 5, given up after 25 in all.
_WISHES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
NOTICING = {getattr(socket, name): value for name, value in _WISHES.items() if hasattr(socket, name)}


LONGEST_BUSY = 30  # seconds to wait for another writer of SQLite
SERVING_BUSY = 10  # the same in a beat or a worker


@dataclass(slots=True)
class Manner:
    """How this process speaks to its database: what it was told to, and what it found out when it connected."""

    lock_timeout: float | None = None  # seconds to wait for a lock of others; None: as the server has it
    statement_timeout: float | None = None
    prepares: bool | None = None  # whether the driver may prepare statements; None: unless there is a pooler
    is_pooled: bool = False  # a pooler may give each transaction another session, so nothing lasts longer than one

    @property
    def may_prepare(self) -> bool:
        """Say whether the driver may prepare statements."""
        return not self.is_pooled if self.prepares is None else self.prepares


class Dialect(ABC):
    """The ways of one kind of database."""

    name: ClassVar[str]
    extra: ClassVar[str]
    gives_back_updates: ClassVar[bool] = True
    skips_locked: ClassVar[bool] = True
    is_server: ClassVar[bool] = True
    # InnoDB deadlocks when several transactions insert and delete the same unique key at once.
    asks_key_first: ClassVar[bool] = False
    # Whether a statement outside a transaction commits by itself, so that a single one costs one round trip.
    commits_alone: ClassVar[bool] = True
    # Whether an error, such as a deadlock, may end the whole transaction, so that the next statement begins another.
    ends_transactions: ClassVar[bool] = True
    # Whether one statement can change several tables.
    changes_many: ClassVar[bool] = False
    # Whether a statement can take a table of values in a few parameters (`store.given`).
    takes_tables: ClassVar[bool] = False
    clock: ClassVar[type[Clock]] = GivenClock
    isolation: str | None = None  # of connections whose driver begins their transactions

    def __init__(self, driver: str = "") -> None:
        self.driver = driver
        # Statements go straight to a driver, past SQLAlchemy, only where it is one that we bring and test.
        self.goes_direct = driver in ("psycopg", "pymysql", "pysqlite")

    @abstractmethod
    def now(self) -> Moment:
        """Return the database's time: one and the same within a statement, and usable by an index."""

    @abstractmethod
    def later(self, delay: timedelta) -> Moment:
        """Return the database's time plus `delay`."""

    @abstractmethod
    def insert_if_new(self, table: Table) -> Insert:
        """Return an INSERT that leaves rows alone that are there already, by any unique index."""

    @abstractmethod
    def upsert(self, table: Table, values: Mapping[str, Any], keys: Sequence[str]) -> Insert:
        """Return an INSERT that overwrites the row with the same keys."""

    def among(self, having: ColumnElement[Any], values: Sequence[Any]) -> ColumnElement[bool]:
        """Return the condition that a column is `having` one of these values."""
        return having.in_(values)

    def picked_by(self, key: ColumnElement[Any], chosen: Select[Any]) -> ColumnElement[bool]:
        """Return the condition that a row is one of those that a locking SELECT of keys has chosen, which is run once."""
        # Materialised first: a plain IN (… LIMIT …) may be run again per row and lock more than it takes.
        picked = chosen.cte("picked")
        return key.in_(select(next(iter(picked.c))).scalar_subquery())

    def insert_all_new(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], **options: Any
    ) -> None:
        """Insert many rows at once; those that are there already stay as they are."""
        connection.execute(self.insert_if_new(table), rows, **options)

    def insert_all(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], **options: Any) -> None:
        """Insert many rows at once; one that is there already is an error."""
        connection.execute(table.insert(), rows, **options)

    def update_all(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], **options: Any) -> None:
        """Change many rows at once, each found by its `id`."""
        change = table.update().where(table.c.id == bindparam("the_id"))
        change = change.values({name: bindparam(f"new_{name}") for name in rows[0] if name != "id"})
        named = [{"the_id" if name == "id" else f"new_{name}": row[name] for name in row} for row in rows]
        connection.execute(change, named, **options)

    def locked(self, query: Select[Any]) -> Select[Any]:
        """Return the SELECT such that its rows are this transaction's, and rows of others are passed over."""
        return query.with_for_update(skip_locked=True) if self.skips_locked else query

    def latest(self, query: Select[Any]) -> Select[Any]:
        """Return the SELECT such that it sees what is committed now."""
        return query

    def wake(self, connection: Connection, channel: str, *, is_last: bool = False) -> None:  # noqa: B027
        """Wake the beats that listen, when the transaction commits; where nobody can listen, do nothing.

        `is_last`: the transaction is ours, and nothing but its commit follows.
        """

    def prepare(self, connection: Any, manner: Manner) -> None:  # noqa: B027
        """Get a new connection of the driver ready, and note in `manner` what it shows of the way to the server."""

    def take_back(self, connection: Any, manner: Manner) -> None:  # noqa: B027
        """Get a connection ready again that a body's transaction was on."""

    def up_for(self, connection: Connection) -> float | None:  # noqa: ARG002
        """Return for how many seconds the server has been running; None where it does not tell."""
        return None

    def make_single(self, connection: Any) -> None:  # noqa: B027
        """Let a single statement commit by itself, whatever a connection's last user asked of it."""

    def begin(self, connection: Connection, manner: Manner, *, write: bool, is_body: bool) -> None:  # noqa: B027
        """Start a transaction the way claims need it; that of a body waits for locks as long as the server lets it."""

    @abstractmethod
    def is_transient(self, error: DBAPIError) -> bool:
        """Say whether the whole transaction may simply be run again."""

    @abstractmethod
    def is_timeout(self, error: DBAPIError) -> bool:
        """Say whether a lock of others, or the statement itself, took too long."""

    def is_pooler(self, error: DBAPIError) -> bool:  # noqa: ARG002
        """Say whether a pooler has mixed up prepared statements."""
        return False

    def is_outage(self, error: DBAPIError) -> bool:
        """Say whether the database is away, as opposed to: did not like what it was told."""
        return error.connection_invalidated or isinstance(error, (OperationalError, InterfaceError))

    @abstractmethod
    def lacks_table(self, error: DBAPIError) -> bool:
        """Say whether the error means that a table does not exist."""

    def lacks_right(self, error: DBAPIError) -> Lacking | None:  # noqa: ARG002
        """Return what the user may not do, if that is what the error means."""
        return None

    @abstractmethod
    def is_read_only(self, error: DBAPIError) -> bool:
        """Say whether the error means that nothing may be written here."""

    @abstractmethod
    def connect_args(self) -> dict[str, Any]:
        """Return what the driver needs to notice a dead server in time."""
