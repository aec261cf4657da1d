"""The database of one installation: one engine per process, transactions with a clock, and errors that say what is wrong.

Engines are made on first use and never shared across a fork. A database that is away raises `DatabaseUnavailable`, a
missing or old schema `SchemaMissing` or `SchemaOutdated`, what the user may not do `RightMissing`; everything else passes
through.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar
from weakref import WeakSet

from sqlalchemy import Executable, Select, Table, Update, create_engine, event, select
from sqlalchemy.engine import Connection, CursorResult, Engine, Row
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InvalidatePoolError,
    ProgrammingError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import StaticPool

from .. import clock
from ..domain.facts import Fact, Facts
from ..domain.secrecy import hidden, secrets_in
from ..errors import DatabaseReadOnly, DatabaseUnavailable, InvalidValue, RightMissing, SchemaMissing, TmError, shown
from ..settings import Settings
from .addresses import read_url
from .clocks import Clock, GivenClock
from .dialects import DIALECTS, Dialect, Moment
from .prepared import Bare, Prepared, run_raw

T = TypeVar("T")
TRANSIENT_TRIES = 10
TRUSTED_FOR = 0.1  # seconds for which a connection that was just used is taken to be alive; no restart is as short
USED = "tm_used_at"
_inherited: list[Engine] = []  # engines of a parent process: kept, so that their sockets are not closed here


class Transaction:
    """One open transaction: the connection, the database's ways, and the time its statements go by."""

    def __init__(self, connection: Connection | Bare, database: Database, *, direct: bool = False) -> None:
        self.connection: Any = connection
        self.dialect = database.dialect
        self._schema = database.schema
        self._direct = direct  # ours alone, and nobody listens: prepared statements go straight to the driver
        self._options = {"schema_translate_map": {None: database.schema}} if database.schema else {}
        self._channel = database.channel
        self._woken = False
        self.facts: list[Fact] = []  # what is to be told when this has committed

    @property
    def now(self) -> Moment:
        """Return the present instant, for use in a statement."""
        return clock.moved_time() or self.dialect.now()

    def later(self, delay: timedelta) -> Moment:
        """Return the instant `delay` from now, for use in a statement."""
        moved = clock.moved_time()
        return moved + delay if moved else self.dialect.later(delay)

    def read_now(self) -> datetime:
        """Ask for the present instant."""
        now = self.now
        return now if isinstance(now, datetime) else self.execute(select(now)).scalar_one()

    def execute(
        self, statement: Executable, parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    ) -> CursorResult[*tuple[Any, ...]]:
        """Run one statement in the tables' schema."""
        try:
            return self.connection.execute(statement, parameters, execution_options=self._options)
        except (DataError, UnicodeEncodeError, OverflowError) as error:  # an id with NUL, half a character, a huge number
            told = shown(_first_line(getattr(error, "orig", error)), 200)
            raise InvalidValue("value", f"no column holds it ({told})", "give one that the database may keep") from error

    def run(self, prepared: Prepared, **values: Any) -> Sequence[Sequence[Any]]:
        """Run a statement that is made for every job; return its rows, or one that says how many it changed."""
        moved = clock.moved_time()
        kind = self.dialect.clock if moved is None else GivenClock
        if not self._direct:
            statement, time_of = prepared.statement(self.dialect, kind)
            result = self.execute(statement, [self._told(time_of, values, moved)])
            return result.all() if result.returns_rows else [(result.rowcount,)]
        text = prepared.text(self.dialect, kind, self.connection.dialect, self._schema)
        return run_raw(self.connection, text, self._told(text.clock, values, moved))

    def _told(self, time_of: Clock, values: Mapping[str, Any], moved: datetime | None) -> Mapping[str, Any]:
        return time_of.told(values, moved or clock.now()) if isinstance(time_of, GivenClock) else values

    def insert_all_new(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert many rows; where a unique index knows one already, it stays as it is."""
        if rows:
            self.dialect.insert_all_new(self.connection, table, rows, execution_options=self._options)

    def insert_all(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert many rows; where a unique index knows one already, the transaction fails."""
        if rows:
            self.dialect.insert_all(self.connection, table, rows, execution_options=self._options)

    def update_all(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Change many rows, each found by its `id`."""
        if rows:
            self.dialect.update_all(self.connection, table, rows, execution_options=self._options)

    def insert_new(self, table: Table, values: Mapping[str, Any]) -> bool:
        """Insert one row and say whether it is new; where a unique index knows it already, change nothing."""
        if self.dialect.gives_back_updates:
            key = next(iter(table.primary_key.columns))
            return self.execute(self.dialect.insert_if_new(table).values(**values).returning(key)).first() is not None
        # MySQL reports an ignored duplicate like a new row, but an error there does not end the transaction.
        try:
            self.execute(table.insert().values(**values))
        except IntegrityError:
            return False
        return True

    def update_returning(self, table: Table, chosen: Select[Any], change: Update) -> Sequence[Row[Any]]:
        """Lock the rows `chosen` selects by primary key, change them, and return them as they are then."""
        key = next(iter(table.primary_key.columns))
        chosen = self.dialect.locked(chosen)
        if self.dialect.gives_back_updates:
            return self.execute(change.where(self.dialect.picked_by(key, chosen)).returning(table)).all()
        ids = [row[0] for row in self.execute(chosen)]
        if not ids:
            return []
        self.execute(change.where(key.in_(ids)))
        return self.execute(select(table).where(key.in_(ids))).all()

    def update_one(self, table: Table, key_value: str, change: Update) -> Row[Any] | None:
        """Change the row that the statement's conditions let it change, and return it as it is then."""
        key = next(iter(table.primary_key.columns))
        change = change.where(key == key_value)
        if self.dialect.gives_back_updates:
            return self.execute(change.returning(table)).first()
        if not self.execute(change).rowcount:
            return None
        return self.execute(select(table).where(key == key_value)).first()

    def wake(self) -> None:
        """Wake beat when this commits; once is enough however much was written."""
        if not self._woken:
            self.dialect.wake(self.connection, self._channel)
            self._woken = True

    def tell(self, fact: Fact) -> None:
        """Let those who listen hear of something when this commits."""
        self.facts.append(fact)


class Database:
    """Where the jobs live."""

    def __init__(self, settings: Settings) -> None:
        self._engine: Engine | None = None
        self._pid = 0
        self.move_to(settings)
        self._lock = threading.Lock()
        self.listener: Callable[[Facts], None] | None = None  # hears what was written, after each commit
        _databases.add(self)

    def move_to(self, settings: Settings) -> None:
        """Be the database that these settings name: at first, and where a test gives an app one of its own."""
        url = read_url(settings.tm_database_url)
        self.dispose()
        self.settings, self.url = settings, url
        self._secrets = secrets_in([url.render_as_string(hide_password=False)])
        self.dialect: Dialect = DIALECTS[url.get_backend_name()](url.get_driver_name())
        self.schema = settings.tm_schema
        self.channel = f"celery_tm_{self.schema or 'default'}"
        self._engine, self._pid, self._schema_checked = None, 0, False

    @property
    def safe_url(self) -> str:
        """Return the URL without its password, wherever in it that is."""
        return hidden(self.url.render_as_string(hide_password=True))

    @property
    def engine(self) -> Engine:
        """Return this process' engine."""
        if self._pid != os.getpid():
            with self._lock:
                if self._pid != os.getpid():
                    self._make_engine()
        assert self._engine is not None
        return self._engine

    def _make_engine(self) -> None:
        if self._engine is not None:
            _inherited.append(self._engine)
        memory = self.url.get_backend_name() == "sqlite" and self.url.database in (None, "", ":memory:")
        # The last one used comes first: it is known to live, and has prepared what we say most often.
        pool: dict[str, Any] = {"poolclass": StaticPool} if memory else {"pool_use_lifo": True}
        if self.dialect.name == "mysql":
            pool["isolation_level"] = "READ COMMITTED"  # no gap locks: claims of two beats do not block each other
        arguments = self.dialect.connect_args() | ({"check_same_thread": False} if memory else {})
        self._engine = create_engine(self.url, connect_args=arguments, hide_parameters=True, **pool)
        _get_ready(self._engine, self.dialect)
        self._pid, self._schema_checked = os.getpid(), False

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[Transaction]:
        """Open a transaction that commits at the end of the block, or rolls back."""
        self.check_schema()
        with self.translated_errors(), self.engine.connect() as connection:
            connection = connection.execution_options(tm_write=write)
            with connection.begin():
                tx = Transaction(connection, self, direct=self.goes_direct)
                yield tx
        self.tell(tx.facts)

    @contextmanager
    def _alone(self) -> Iterator[Transaction]:
        """Open a transaction that is a single statement: it needs no BEGIN and no COMMIT, so it costs one round trip."""
        self.check_schema()
        with self.translated_errors():
            bare = Bare(self.engine)
            try:
                tx = Transaction(bare, self, direct=True)
                yield tx
            finally:
                bare.connection.close()
        self.tell(tx.facts)

    def tell(self, facts: Facts) -> None:
        """Let who listens hear what was written and has committed."""
        if facts and self.listener is not None:
            self.listener(facts)

    @property
    def goes_direct(self) -> bool:
        """Say whether prepared statements go straight to the driver: it is ours, and nobody, as tracing does, watches."""
        seen = self.engine.dispatch
        is_watched = seen.before_cursor_execute or seen.after_cursor_execute or self.engine.echo
        return self.dialect.goes_direct and not is_watched

    def run(self, work: Callable[[Transaction], T], *, alone: bool = False) -> T:
        """Do `work` in a transaction of its own; start over if it met a deadlock. `work` may run more than once.

        `alone`: it is one prepared statement, and nothing else.
        """
        opened = self._alone if alone and self.dialect.commits_alone and self.goes_direct else self.transaction
        for tried in range(TRANSIENT_TRIES - 1):
            try:
                with opened() as tx:
                    return work(tx)
            except DatabaseUnavailable as error:
                cause = error.__cause__
                if not (isinstance(cause, DBAPIError) and self.dialect.is_transient(cause)):
                    raise
            time.sleep(random.uniform(0, 0.02 * (tried + 1)))  # so that two that met do not meet again
        with opened() as tx:
            return work(tx)

    def joined(self, connection: Connection) -> Transaction:
        """Return a transaction that the caller owns, on the caller's connection."""
        self.check_schema()
        return Transaction(connection, self)

    def check_schema(self) -> None:
        """Make sure, once per process, that the tables are there and of this release."""
        if not self._schema_checked or self._pid != os.getpid():
            from . import schema

            schema.ensure(self)
            self._schema_checked = True

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Turn the driver's errors into ours where ours say more."""
        try:
            yield
        except DBAPIError as error:
            self._name_right(error)
            if self.dialect.lacks_table(error):
                raise SchemaMissing(self.safe_url) from error
            self._refuse_reader(error)
            is_address = error.statement is None and isinstance(error, ProgrammingError)  # an option that nobody knows
            if is_address or self.dialect.is_outage(error):
                raise DatabaseUnavailable(self.safe_url, hidden(_first_line(error.orig), self._secrets)) from error
            raise
        except StatementError as error:
            raise _refused(error) from None
        except PoolTimeout as error:
            raise DatabaseUnavailable(self.safe_url, "all connections are in use") from error

    @contextmanager
    def explained_refusals(self) -> Iterator[None]:
        """Say in our words what a caller's transaction may not do; its other errors stay its own."""
        try:
            yield
        except DBAPIError as error:
            self._name_right(error)
            self._refuse_reader(error)
            raise
        except StatementError as error:
            raise _refused(error) from None

    def _name_right(self, error: DBAPIError) -> None:
        lacking = self.dialect.lacks_right(error)
        if lacking is not None:
            raise RightMissing(self.safe_url, lacking.right, lacking.object) from error

    def _refuse_reader(self, error: DBAPIError) -> None:
        if self.dialect.is_read_only(error):
            raise DatabaseReadOnly(self.safe_url, hidden(_first_line(error.orig), self._secrets)) from error

    def dispose(self) -> None:
        """Close this process' connections."""
        if self._engine is not None and self._pid == os.getpid():
            self._engine.dispose()


_databases: WeakSet[Database] = WeakSet()


def _after_fork() -> None:
    for database in list(_databases):
        database._lock = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)


def _get_ready(engine: Engine, dialect: Dialect) -> None:
    """Let connections begin the way the database needs it, and ask one that was idle whether it still lives.

    A connection whose last user asked for an isolation level of its own comes back with the driver's defaults, and a single
    statement would then be rolled back: so each gets ready each time.
    """

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _: Any) -> None:
        dialect.prepare(connection)

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        dialect.begin(connection, write=connection.get_execution_options().get("tm_write", True))

    @event.listens_for(engine, "checkin")
    def on_checkin(_: Any, record: Any) -> None:
        record.info[USED] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def on_checkout(connection: Any, record: Any, _: Any) -> None:
        if dialect.is_server and time.monotonic() - record.info.get(USED, math.inf) > TRUSTED_FOR:
            _ping(engine, connection)
        dialect.make_single(connection)


def _ping(engine: Engine, connection: Any) -> None:
    try:
        engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error as error:
        raise InvalidatePoolError from error  # the pool throws away all that are as old, and connects anew


def _refused(error: StatementError) -> BaseException:
    """Return why a value was not even sent: one of our types refuses it, and SQLAlchemy's usual way wraps that up."""
    return error.orig if isinstance(error.orig, TmError) else error


def _first_line(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
