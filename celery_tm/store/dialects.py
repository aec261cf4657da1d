"""PostgreSQL, MySQL and SQLite: what each does in its own way. What they have in common is `store.dialect_base`."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Insert,
    Select,
    Table,
    TableValuedAlias,
    any_,
    column,
    func,
    literal,
    select,
    tuple_,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import DBAPIError, IntegrityError

from .clocks import MySQLClock, PostgreSQLClock
from .denials import Lacking, denied_by_mysql, denied_by_postgresql
from .dialect_base import LONGEST_BUSY, NOTICING, SERVING_BUSY, Dialect, Manner, Moment
from .types import Duration, Microseconds

NOTIFY_PATIENCE = "5s"
# MySQL drivers raise OperationalError for most errors of the server, also for a value in one row that overflows. Only these
# mean that the server cannot serve: out of memory, disk or connections, shutting down, no access, a broken connection.
MYSQL_OUTAGES = frozenset({
    1021, 1030, 1037, 1038, 1040, 1041, 1042, 1043, 1044, 1045, 1047, 1049, 1053, 1077, 1079, 1114, 1129, 1130, 1152, 1158,
    1159, 1160, 1161, 1180, 1184, 1194, 1195, 1203, 1226, 1317, 1927, 3169, 4031,
})  # fmt: skip
MYSQL_CLIENT_ERRORS = range(2000, 3000)  # raised by the driver: no connection, or a lost one
SQLITE_ERROR = 1  # a statement that SQLite refuses; every other code is about the file


class PostgreSQL(Dialect):
    name = "postgresql"
    extra = "postgres"
    ends_transactions = False
    changes_many = True
    takes_tables = True
    clock = PostgreSQLClock

    def __init__(self, driver: str = "") -> None:
        super().__init__(driver)
        # READ COMMITTED whatever the role's default: at a higher level what others commit meanwhile is not seen.
        self.isolation = None if self.goes_direct else "READ COMMITTED"

    def prepare(self, connection: Any, manner: Manner) -> None:
        """Set what holds for the session, if it is ours alone: a pooler would leave it to the next client."""
        if self.driver not in ("psycopg", "psycopg2"):
            return
        mine = f"pg_backend_pid() = {int(connection.info.backend_pid)}"  # a pooler names none of the server's
        wanted = {"DateStyle": "ISO", "default_transaction_isolation": "read committed", **_timeouts(manner)}
        kept = [_set_if(mine, name, value) for name, value in wanted.items()]
        before, connection.autocommit = connection.autocommit, True
        cursor = connection.cursor()
        try:
            cursor.execute(f"SELECT {mine}, {', '.join(kept)}")
            manner.is_pooled = manner.is_pooled or not cursor.fetchone()[0]
        finally:
            cursor.close()
        connection.autocommit = before
        if self.driver == "psycopg" and not manner.may_prepare:
            connection.prepare_threshold = None

    def up_for(self, connection: Connection) -> float | None:
        asked = "SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())"
        return float(connection.exec_driver_sql(asked).scalar_one())

    def now(self) -> Moment:
        return self.clock().now

    def later(self, delay: timedelta) -> Moment:
        return self.clock().after(literal(delay, Duration))

    def make_single(self, connection: Any) -> None:
        # Another driver says BEGIN itself: psycopg2's `commit()` does nothing about one that it was merely handed.
        if self.goes_direct and not connection.autocommit:
            connection.autocommit = True  # we say BEGIN ourselves

    def begin(self, connection: Connection, manner: Manner, *, write: bool, is_body: bool) -> None:  # noqa: ARG002
        own_way = connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT"
        said = []
        if self.goes_direct and not own_way and connection.connection.dbapi_connection.autocommit:  # type: ignore[union-attr]
            said = ["BEGIN ISOLATION LEVEL READ COMMITTED"]
        if manner.is_pooled and not own_way:
            said += ["SET LOCAL DateStyle = ISO"]
            said += [] if is_body else [f"SET LOCAL {name} = {value}" for name, value in _timeouts(manner).items()]
        elif is_body:
            said += [f"SET LOCAL {name} TO DEFAULT" for name in _timeouts(manner)]
        if said:  # as one message, so one round trip
            connection.exec_driver_sql("; ".join(said), execution_options={"no_parameters": True})

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

    def wake(self, connection: Connection, channel: str, *, is_last: bool = False) -> None:
        # A commit that notifies takes a lock of the whole server. Our lock timeout is meant for rows, not for that one.
        patience = [func.set_config("lock_timeout", NOTIFY_PATIENCE, True)] if is_last else []
        connection.execute(select(*patience, func.pg_notify(channel, "")))

    def is_transient(self, error: DBAPIError) -> bool:
        return _state(error) in ("40001", "40P01", "55P03")

    def is_timeout(self, error: DBAPIError) -> bool:
        return _state(error) in ("55P03", "57014")

    def is_pooler(self, error: DBAPIError) -> bool:
        return _state(error) in ("26000", "42P05", "08P01") and error.statement is not None

    def is_outage(self, error: DBAPIError) -> bool:
        over_limit = (_state(error) or "").startswith("54")  # one row that is too large for an index, say
        return super().is_outage(error) and not over_limit

    def lacks_table(self, error: DBAPIError) -> bool:
        return _state(error) in ("42P01", "3F000")

    def lacks_right(self, error: DBAPIError) -> Lacking | None:
        return denied_by_postgresql(error)

    def is_read_only(self, error: DBAPIError) -> bool:
        return _state(error) == "25006"

    def connect_args(self) -> dict[str, Any]:
        noticing = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 25_000}
        return {"connect_timeout": 5, **noticing}


def _state(error: DBAPIError) -> str | None:
    """Return the SQLSTATE of an error: psycopg2 calls it `pgcode`."""
    return getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)


def _set_if(condition: str, name: str, value: object) -> str:
    return f"set_config('{name}', CASE WHEN {condition} THEN '{value}' ELSE current_setting('{name}') END, false)"


def _timeouts(manner: Manner) -> dict[str, int]:
    """Return the timeouts of a process by PostgreSQL's names, in milliseconds."""
    wanted = {"lock_timeout": manner.lock_timeout, "statement_timeout": manner.statement_timeout}
    return {name: round(seconds * 1000) for name, seconds in wanted.items() if seconds is not None}


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
    isolation = "READ COMMITTED"  # no gap locks: claims of two beats do not block each other

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

    def prepare(self, connection: Any, manner: Manner) -> None:
        """Let the kernel notice a server that has vanished within half a minute; the driver would wait for hours."""
        sock = getattr(connection, "_sock", None)  # as PyMySQL has it; other drivers keep theirs to themselves
        if isinstance(sock, socket.socket) and sock.family != socket.AF_UNIX:
            for option, value in NOTICING.items():
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self.take_back(connection, manner)

    def take_back(self, connection: Any, manner: Manner) -> None:
        if manner.lock_timeout is not None:
            _say(connection, f"SET SESSION {_limited(max(1, round(manner.lock_timeout)))}")

    def begin(self, connection: Connection, manner: Manner, *, write: bool, is_body: bool) -> None:  # noqa: ARG002
        if is_body and manner.lock_timeout is not None:
            connection.exec_driver_sql(f"SET SESSION {_limited('DEFAULT')}")

    def up_for(self, connection: Connection) -> float | None:
        return float(connection.exec_driver_sql("SHOW GLOBAL STATUS LIKE 'Uptime'").one()[1])

    def is_transient(self, error: DBAPIError) -> bool:
        return _number(error) in (1020, 1205, 1213)  # 1020: MariaDB 11.6 and later, a row changed since the snapshot

    def is_outage(self, error: DBAPIError) -> bool:
        number = _number(error)
        by_number = number is None or number in MYSQL_OUTAGES or number in MYSQL_CLIENT_ERRORS
        return error.connection_invalidated or (super().is_outage(error) and by_number)

    def is_timeout(self, error: DBAPIError) -> bool:
        return _number(error) in (1205, 1969, 3024)

    def lacks_table(self, error: DBAPIError) -> bool:
        return _number(error) == 1146

    def lacks_right(self, error: DBAPIError) -> Lacking | None:
        return denied_by_mysql(error)

    def is_read_only(self, error: DBAPIError) -> bool:
        return _number(error) in (1290, 1792, 1836)

    def connect_args(self) -> dict[str, Any]:
        return {"connect_timeout": 5, "charset": "utf8mb4"}


def _limited(seconds: object) -> str:
    """Return how long rows, and tables that somebody changes, are waited for."""
    return f"innodb_lock_wait_timeout = {seconds}, SESSION lock_wait_timeout = {seconds}"


def _say(connection: Any, statement: str) -> None:
    cursor = connection.cursor()
    try:
        cursor.execute(statement)
    finally:
        cursor.close()


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

    def prepare(self, connection: Any, manner: Manner) -> None:
        """WAL lets readers read while one writes; FULL waits for the disk, so a commit survives a power cut."""
        self.make_single(connection)
        self.take_back(connection, manner)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")

    def take_back(self, connection: Any, manner: Manner) -> None:
        # One lock for the whole file: another writer is no stranger, and nothing could be written beside it anyway.
        seconds = LONGEST_BUSY if manner.lock_timeout is None else SERVING_BUSY
        connection.execute(f"PRAGMA busy_timeout = {seconds * 1000}")

    def make_single(self, connection: Any) -> None:
        if connection.isolation_level is not None:
            connection.isolation_level = None  # we say BEGIN ourselves

    def begin(self, connection: Connection, manner: Manner, *, write: bool, is_body: bool) -> None:
        if is_body and manner.lock_timeout is not None:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {LONGEST_BUSY * 1000}")
        # Immediate: take the write lock before reading, so that two claims never read the same rows.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    def is_transient(self, error: DBAPIError) -> bool:
        return "database is locked" in str(error.orig)

    def is_timeout(self, error: DBAPIError) -> bool:
        return self.is_transient(error)

    def is_outage(self, error: DBAPIError) -> bool:
        return super().is_outage(error) and getattr(error.orig, "sqlite_errorcode", None) != SQLITE_ERROR

    def lacks_table(self, error: DBAPIError) -> bool:
        return "no such table" in str(error.orig)

    def is_read_only(self, error: DBAPIError) -> bool:
        return "readonly database" in str(error.orig)

    def connect_args(self) -> dict[str, Any]:
        return {"timeout": LONGEST_BUSY}


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
