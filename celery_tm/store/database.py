"""The database of one installation: one engine per process, transactions with a clock, and errors that say what is wrong.

Engines are made on first use and never shared across a fork. A database that is away raises `DatabaseUnavailable`, a
missing or old schema `SchemaMissing` or `SchemaOutdated`, what the user may not do `RightMissing`; everything else passes
through.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar
from weakref import WeakSet

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import (
    DBAPIError,
    ProgrammingError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ..domain.facts import Facts
from ..domain.secrecy import hidden, secrets_in
from ..errors import (
    DatabaseBusy,
    DatabaseReadOnly,
    DatabaseUnavailable,
    PoolerUnfit,
    RightMissing,
    SchemaMissing,
    TmError,
)
from ..settings import Settings
from .addresses import read_preparation, read_url
from .connections import DEFAULT_ROOM, SPARE, make_engine, urgent
from .dialect_base import Dialect, Manner
from .dialects import DIALECTS
from .notifications import Throttle
from .prepared import Bare
from .transaction import Transaction as Transaction
from .transaction import first_line

T = TypeVar("T")
DEFAULT_APP = "default"
UNNAMED = ""  # the app of rows that name none: any worker may run them, see `store.apps`
APPS_KNOWN_FOR = 60.0  # seconds after which the apps that share the tables are looked up again; named ones wait longer
NO_BEAT_FOR = 2.0  # the same while no app has a beat: the first one takes over what this process has written
TRANSIENT_TRIES = 10
STATEMENT_TIMEOUT = 60.0  # seconds; of beats and workers
_inherited: list[Engine] = []  # engines of a parent process: kept, so that their sockets are not closed here


class Database:
    """Where the jobs live."""

    def __init__(self, settings: Settings) -> None:
        self.own_app, self._is_served = DEFAULT_APP, False
        self._engine: Engine | None = None
        self._pid = 0
        self.move_to(settings)
        self._lock = threading.Lock()
        self.times_busy = 0  # how often a lock of another transaction was waited for in vain
        self.listener: Callable[[Facts], None] | None = None  # hears what was written, after each commit
        _databases.add(self)

    def move_to(self, settings: Settings) -> None:
        """Be the database that these settings name: at first, and where a test gives an app one of its own."""
        url, prepares = read_preparation(read_url(settings.tm_database_url))
        self.dispose()
        self.settings, self.url = settings, url
        self._secrets = secrets_in([url.render_as_string(hide_password=False)])
        self.dialect: Dialect = DIALECTS[url.get_backend_name()](url.get_driver_name())
        self.schema = settings.tm_schema
        self.channel, self.throttle = f"celery_tm_{self.schema or 'default'}", Throttle()
        self.manner = Manner(prepares=settings.tm_prepare_statements if prepares is None else prepares)
        self._bodies = 0
        self._engine, self._pid, self._schema_checked = None, 0, False
        self.app, self._is_named = settings.tm_app or UNNAMED, settings.tm_app is not None
        self.foreign_apps: frozenset[str] = frozenset()
        self._knows_apps_until = 0.0

    def belong_to(self, app: str) -> None:
        """Be the database of an app of this name, where `tm_app` states none."""
        self.own_app = app

    def serve_own_app(self) -> None:
        """Go by the own name from now on: this process is a beat, and others go by what it is called."""
        self._is_served = self._is_named = True
        self.app, self._knows_apps_until = self.settings.tm_app or self.own_app, 0.0

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
        room = self.settings.tm_pool_size or max(DEFAULT_ROOM, self._bodies + SPARE)
        self._engine = make_engine(self.url, self.dialect, self.manner, room=room)
        self._pid, self._schema_checked = os.getpid(), False

    def serve(self, *, lock_timeout: float, bodies: int = 0) -> None:
        """Be the database of a beat, or of a worker with so many bodies at once in one process: wait for nobody for long."""
        self._bodies = bodies
        self.manner.lock_timeout, self.manner.statement_timeout = lock_timeout, STATEMENT_TIMEOUT
        if self._engine is not None and self._pid == os.getpid():
            self._engine.dispose()  # connections that know nothing of it
            if bodies:
                self._make_engine()

    def limit_waiting(self, seconds: float) -> None:
        """Wait so long for what others have locked, and no longer; a beat or a worker has said how long already."""
        if self.manner.lock_timeout is None and self.dialect.is_server:
            self.manner.lock_timeout = seconds
            self.dispose()  # connections that know nothing of it

    def up_for(self) -> float | None:
        """Return for how many seconds the server has been running; None where that is not told."""
        try:
            with self.transaction(write=False) as tx:
                return self.dialect.up_for(tx.connection)
        except (DBAPIError, RightMissing):  # a service that keeps it to itself
            return None

    def ahead_of_others(self) -> AbstractContextManager[None]:
        """Let this thread have a connection in this block, also if others have used up the pool."""
        return urgent()

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[Transaction]:
        """Open a transaction that commits at the end of the block, or rolls back."""
        self.check_schema(has_time=True)
        with self.translated_errors(), self.engine.connect() as connection:
            connection = connection.execution_options(tm_write=write)
            with connection.begin():
                tx = Transaction(connection, self, direct=self.goes_direct)
                yield tx
                tx.notify(is_last=True)
        self.committed(tx)

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

    def committed(self, tx: Transaction) -> None:
        """Take note of a commit: of its notification, and of what was written."""
        if tx.notified_at is not None:
            self.throttle.sent(tx.notified_at)
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
        self.check_schema()
        single = alone and self.dialect.commits_alone and self.goes_direct and not self.manner.is_pooled
        opened = self._alone if single else self.transaction
        for tried in range(TRANSIENT_TRIES - 1):
            try:
                with opened() as tx:
                    return work(tx)
            except DatabaseUnavailable as error:
                if not self._may_run_again(error):
                    raise
            time.sleep(random.uniform(0, 0.02 * (tried + 1)))  # so that two that met do not meet again
        with opened() as tx:
            return work(tx)

    def _may_run_again(self, error: DatabaseUnavailable) -> bool:
        """Say whether a transaction failed by chance. Where we are not to wait for locks, having waited once is enough."""
        cause = error.__cause__
        if not isinstance(cause, DBAPIError):
            return False
        if self.dialect.is_timeout(cause):
            return self.dialect.is_transient(cause) and self.manner.lock_timeout is None
        return self.dialect.is_transient(cause) or (self.dialect.is_pooler(cause) and not self.manner.may_prepare)

    def joined(self, connection: Connection) -> Transaction:
        """Return a transaction that the caller owns, on the caller's connection."""
        self.check_schema()
        tx = Transaction(connection, self)
        tx.freed = Counter()
        return tx

    def check_schema(self, *, has_time: bool = False) -> None:
        """Make sure, once per process, that the tables are there and of this release, and know whose rows to work with.

        A beat may have registered since: where there `has_time`, a process that knows of none looks again each time.
        """
        if not self._schema_checked or self._pid != os.getpid():
            from . import schema

            schema.ensure(self)
            self._schema_checked = True
        if time.monotonic() >= self._knows_apps_until or (has_time and self.app == UNNAMED):
            try:
                self._learn_apps()
            except DatabaseBusy:  # what was known goes on, and `tm_app` needs no look
                if not self._is_named:
                    raise
                self._knows_apps_until = time.monotonic() + APPS_KNOWN_FOR

    def _learn_apps(self) -> None:
        """Find out whose definitions and jobs this process works with, and which apps have beats of their own.

        Without `tm_app`, a process whose app has no beat works for the only app that has one: a web process often has a
        Celery app of its own. What it writes before any app has a beat names no app.
        """
        from . import apps

        with self.translated_errors(), self.engine.connect() as connection:
            connection = connection.execution_options(tm_write=False)
            with connection.begin():
                known = apps.registered(Transaction(connection, self))
        self._is_named = self.settings.tm_app is not None or self._is_served or self.own_app in known
        if self._is_named or len(known) > 1:
            self.app = self.settings.tm_app or self.own_app
        else:
            self.app = next(iter(known), UNNAMED)
        self.foreign_apps = known - {self.app}
        known_for = APPS_KNOWN_FOR * 10 if self._is_named else APPS_KNOWN_FOR if self.app != UNNAMED else NO_BEAT_FOR
        self._knows_apps_until = time.monotonic() + known_for

    def is_of_another_app(self) -> bool:
        """Say whether this process turns out to work for another app than it knew, for a beat has registered meanwhile."""
        before = self.app
        if not self._is_named:
            self._learn_apps()
        return self.app != before

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Turn the driver's errors into ours where ours say more."""
        try:
            yield
        except DBAPIError as error:
            self._name_right(error)
            if self.dialect.lacks_table(error):
                raise SchemaMissing(self.safe_url) from error
            if self.dialect.is_read_only(error):
                self.engine.dispose()  # after a fail-over they lead to the old primary: the next one is made anew
            self._refuse_reader(error)
            said = hidden(first_line(error.orig), self._secrets)
            if self.dialect.is_pooler(error):
                self._stop_preparing()
                raise PoolerUnfit(self.safe_url, said) from error
            if self.dialect.is_transient(error) or self.dialect.is_timeout(error):
                self.times_busy += 1
                raise DatabaseBusy(self.safe_url, said) from error
            is_address = error.statement is None and isinstance(error, ProgrammingError)  # an option that nobody knows
            if is_address or self.dialect.is_outage(error):
                raise DatabaseUnavailable(self.safe_url, said) from error
            raise
        except StatementError as error:
            raise _refused(error) from None
        except PoolTimeout as error:
            raise DatabaseBusy(self.safe_url, "all connections of this process are in use; raise tm_pool_size") from error

    def _stop_preparing(self) -> None:
        """Prepare nothing from now on, and use only connections that have not, unless it was asked for."""
        if self.manner.prepares is None and not self.manner.is_pooled:
            self.manner.is_pooled = True
            self.engine.dispose()

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
            raise DatabaseReadOnly(self.safe_url, hidden(first_line(error.orig), self._secrets)) from error

    def dispose(self) -> None:
        """Close this process' connections."""
        if self._engine is not None and self._pid == os.getpid():
            self._engine.dispose()


_databases: WeakSet[Database] = WeakSet()


def _after_fork() -> None:
    for database in list(_databases):
        database._lock = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)


def _refused(error: StatementError) -> BaseException:
    """Return why a value was not even sent: one of our types refuses it, and SQLAlchemy's usual way wraps that up."""
    return error.orig if isinstance(error.orig, TmError) else error
