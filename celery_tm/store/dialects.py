"""What the databases do differently, in one place: clocks, upserts, locks and rows given back by an UPDATE."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy import (
    ColumnElement,
    Insert,
    Select,
    Table,
    TableValuedAlias,
    any_,
    bindparam,
    column,
    func,
    literal,
    select,
    tuple_,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError

from .clocks import Clock, GivenClock, MySQLClock, PostgreSQLClock
from .denials import Lacking, denied_by_mysql, denied_by_postgresql
from .types import Duration, Microseconds

Moment = datetime | ColumnElement[datetime]
# How the kernel finds out that the other side is gone: asked after 10 idle seconds, then every 5, given up after 25 in all.
_WISHES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
NOTICING = {getattr(socket, name): value for name, value in _WISHES.items() if hasattr(socket, name)}


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
    # Whether one statement can change several tables.
    changes_many: ClassVar[bool] = False
    # Whether a statement can take a table of values in a few parameters (`store.given`).
    takes_tables: ClassVar[bool] = False
    clock: ClassVar[type[Clock]] = GivenClock

    def __init__(self, driver: str = "") -> None:
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

    def wake(self, connection: Connection, channel: str) -> None:  # noqa: B027
        """Wake the beats that listen, when the transaction commits; where nobody can listen, do nothing."""

    def prepare(self, connection: Any) -> None:  # noqa: B027
        """Get a new connection of the driver ready."""

    def make_single(self, connection: Any) -> None:  # noqa: B027
        """Let a single statement commit by itself, whatever a connection's last user asked of it."""

    def begin(self, connection: Connection, *, write: bool) -> None:  # noqa: B027
        """Start a transaction the way claims need it."""

    @abstractmethod
    def is_transient(self, error: DBAPIError) -> bool:
        """Say whether the whole transaction may simply be run again."""

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


class PostgreSQL(Dialect):
    name = "postgresql"
    extra = "postgres"
    changes_many = True
    takes_tables = True
    clock = PostgreSQLClock

    def now(self) -> Moment:
        return self.clock().now

    def later(self, delay: timedelta) -> Moment:
        return self.clock().after(literal(delay, Duration))

    def make_single(self, connection: Any) -> None:
        # Another driver says BEGIN itself: psycopg2's `commit()` does nothing about one that it was merely handed.
        if self.goes_direct and not connection.autocommit:
            connection.autocommit = True  # we say BEGIN ourselves

    def begin(self, connection: Connection, *, write: bool) -> None:  # noqa: ARG002
        own_way = connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT"
        if self.goes_direct and not own_way and connection.connection.dbapi_connection.autocommit:  # type: ignore[union-attr]
            connection.exec_driver_sql("BEGIN")

    def insert_if_new(self, table: Table) -> Insert:
        return postgresql.insert(table).on_conflict_do_nothing()

    def among(self, having: ColumnElement[Any], values: Sequence[Any]) -> ColumnElement[bool]:
        # One parameter however many there are, so one statement that is prepared once.
        return having == any_(literal(list(values), postgresql.ARRAY(having.type)))

    def picked_by(self, key: ColumnElement[Any], chosen: Select[Any]) -> ColumnElement[bool]:
        # An array is made once, and its elements are looked up by index whatever the planner thinks of the table.
        return key == any_(func.array(chosen.scalar_subquery()))

    def insert_all_new(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], **options: Any
    ) -> None:
        insert = _inserting(table, rows).on_conflict_do_nothing()
        connection.execute(insert, **options)

    def insert_all(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], **options: Any) -> None:
        connection.execute(_inserting(table, rows), **options)

    def update_all(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], **options: Any) -> None:
        given = _given(table, list(rows[0]), rows)
        change = table.update().where(table.c.id == given.c.id)
        connection.execute(change.values({name: given.c[name] for name in rows[0] if name != "id"}), **options)

    def upsert(self, table: Table, values: Mapping[str, Any], keys: Sequence[str]) -> Insert:
        insert = postgresql.insert(table).values(**values)
        changed = {name: insert.excluded[name] for name in values if name not in keys}
        return insert.on_conflict_do_update(index_elements=list(keys), set_=changed)

    def wake(self, connection: Connection, channel: str) -> None:
        connection.execute(func.pg_notify(channel, "").select())

    def is_transient(self, error: DBAPIError) -> bool:
        return getattr(error.orig, "sqlstate", None) in ("40001", "40P01", "55P03")

    def lacks_table(self, error: DBAPIError) -> bool:
        return getattr(error.orig, "sqlstate", None) in ("42P01", "3F000")

    def lacks_right(self, error: DBAPIError) -> Lacking | None:
        return denied_by_postgresql(error)

    def is_read_only(self, error: DBAPIError) -> bool:
        return getattr(error.orig, "sqlstate", None) == "25006"

    def connect_args(self) -> dict[str, Any]:
        noticing = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 25_000}
        return {"connect_timeout": 5, **noticing}


def _inserting(table: Table, rows: Sequence[Mapping[str, Any]]) -> postgresql.Insert:
    # Half of a job's columns are mostly empty: those that all rows leave so are not sent.
    names = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    return postgresql.insert(table).from_select(names, select(_given(table, names, rows)))


def _given(table: Table, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> TableValuedAlias:
    """Return rows as a table: one parameter for each column, however many rows there are."""
    columns = [table.c[name] for name in names]
    lists = [literal([row[c.name] for row in rows], postgresql.ARRAY(c.type)) for c in columns]
    return func.unnest(*lists).table_valued(*(column(c.name, c.type) for c in columns)).render_derived(name="given")


class MySQL(Dialect):
    """MySQL 8 and MariaDB 10.6 or later."""

    name = "mysql"
    extra = "mysql"
    gives_back_updates = False
    asks_key_first = True
    commits_alone = False
    clock = MySQLClock

    def now(self) -> Moment:
        return self.clock().now

    def later(self, delay: timedelta) -> Moment:
        return self.clock().after(literal(delay, Microseconds))

    def insert_if_new(self, table: Table) -> Insert:
        first = next(iter(table.primary_key.columns))
        # Not INSERT IGNORE, which would also swallow values that do not fit.
        return mysql.insert(table).on_duplicate_key_update({first.name: first})

    def insert_all_new(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], **options: Any
    ) -> None:
        # Not by `insert_if_new`, which asks for the right to update every column of a table that nobody is to update.
        try:
            connection.execute(table.insert(), rows, **options)
            return
        except IntegrityError as error:
            _pass_duplicate(error)
        for row in rows:
            try:
                connection.execute(table.insert(), row, **options)
            except IntegrityError as error:
                _pass_duplicate(error)

    def upsert(self, table: Table, values: Mapping[str, Any], keys: Sequence[str]) -> Insert:
        insert = mysql.insert(table).values(**values)
        return insert.on_duplicate_key_update({n: insert.inserted[n] for n in values if n not in keys})

    def latest(self, query: Select[Any]) -> Select[Any]:
        # A caller's transaction may be REPEATABLE READ; only a locking read looks past its snapshot.
        return query.with_for_update(read=True)

    def prepare(self, connection: Any) -> None:
        """Let the kernel notice a server that has vanished within half a minute; the driver would wait for hours."""
        sock = getattr(connection, "_sock", None)  # as PyMySQL has it; other drivers keep theirs to themselves
        if isinstance(sock, socket.socket) and sock.family != socket.AF_UNIX:
            for option, value in NOTICING.items():
                sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def is_transient(self, error: DBAPIError) -> bool:
        return _number(error) in (1205, 1213)

    def lacks_table(self, error: DBAPIError) -> bool:
        return _number(error) == 1146

    def lacks_right(self, error: DBAPIError) -> Lacking | None:
        return denied_by_mysql(error)

    def is_read_only(self, error: DBAPIError) -> bool:
        return _number(error) in (1290, 1792, 1836)

    def connect_args(self) -> dict[str, Any]:
        return {"connect_timeout": 5, "charset": "utf8mb4"}


class SQLite(Dialect):
    name = "sqlite"
    extra = ""
    skips_locked = False
    is_server = False

    def now(self) -> Moment:
        return datetime.now(UTC)  # an embedded database has this machine's clock

    def later(self, delay: timedelta) -> Moment:
        return datetime.now(UTC) + delay

    def insert_if_new(self, table: Table) -> Insert:
        return sqlite.insert(table).on_conflict_do_nothing()

    def upsert(self, table: Table, values: Mapping[str, Any], keys: Sequence[str]) -> Insert:
        insert = sqlite.insert(table).values(**values)
        changed = {name: insert.excluded[name] for name in values if name not in keys}
        return insert.on_conflict_do_update(index_elements=list(keys), set_=changed)

    def prepare(self, connection: Any) -> None:
        """WAL lets readers read while one writes; FULL waits for the disk, so a commit survives a power cut."""
        self.make_single(connection)
        connection.execute("PRAGMA busy_timeout = 30000")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")

    def make_single(self, connection: Any) -> None:
        if connection.isolation_level is not None:
            connection.isolation_level = None  # we say BEGIN ourselves

    def begin(self, connection: Connection, *, write: bool) -> None:
        # Immediate: take the write lock before reading, so that two claims never read the same rows.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    def is_transient(self, error: DBAPIError) -> bool:
        return "database is locked" in str(error.orig)

    def lacks_table(self, error: DBAPIError) -> bool:
        return "no such table" in str(error.orig)

    def is_read_only(self, error: DBAPIError) -> bool:
        return "readonly database" in str(error.orig)

    def connect_args(self) -> dict[str, Any]:
        return {"timeout": 30}


def _number(error: DBAPIError) -> int | None:
    arguments = getattr(error.orig, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None


def _pass_duplicate(error: DBAPIError) -> None:
    """Go on where a row is there already; that does not end a transaction of MySQL."""
    if _number(error) != 1062:
        raise error


DIALECTS: Mapping[str, type[Dialect]] = {
    "postgresql": PostgreSQL,
    "mysql": MySQL,
    "mariadb": MySQL,
    "sqlite": SQLite,
}
DRIVERS = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mysql+pymysql",
}


def with_driver(url: URL) -> URL:
    """Return the URL with the driver this package brings, where it names none."""
    return url.set(drivername=DRIVERS.get(url.drivername, url.drivername))


def pairs(*columns: ColumnElement[Any]) -> Any:
    """Return a row value to compare with a list of tuples."""
    return tuple_(*columns)
