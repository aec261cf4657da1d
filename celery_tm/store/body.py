"""The transaction of a body whose own writes commit together with its completion, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from ..domain.secrecy import hidden
from ..errors import ForeignSession, InvalidValue, TmError
from .addresses import same_database
from .database import Database, Transaction
from .outside import Action, Outbox

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

T = TypeVar("T")


class BodyTransaction:
    """One transaction, opened when the body first asks for its session.

    The session works in a savepoint of it, so a body that commits or rolls back by itself neither publishes half of its
    work nor ends the transaction: that is done once, with the statement that finishes the job. Where an error may end the
    whole transaction unasked, a savepoint of our own shows in the end whether it is still the one that was begun. Its name
    is unique: a transaction that somebody else began on this connection has another.
    """

    def __init__(
        self,
        database: Database,
        factory: Callable[..., Session] | None = None,
        *,
        job: str | None = None,
        before_commit: Callable[[Transaction], object] | None = None,
    ) -> None:
        self.database = database
        self.job = job  # the job whose body this is
        self._before_commit = before_commit  # what nobody else could write meanwhile, where this has barred others
        self._factory = factory
        self._connection: Connection | None = None
        self._guard: str | None = None
        self._session: Session | None = None
        self._after_commit: list[Action] = []
        self.is_cancelled = False  # the body cancelled its own job
        self.holds_row = False  # it has changed or locked the row of its own job; others see, or reach, that when it commits
        self.is_over = False  # committed or rolled back: what is done from now on is no longer part of it

    @property
    def is_open(self) -> bool:
        """Say whether the body has asked for its session."""
        return self._session is not None

    @property
    def bars_others(self) -> bool:
        """Say whether nobody else can write while this is open, as in SQLite."""
        return self.is_open and not self.database.dialect.is_server

    @property
    def session(self) -> Session:
        """Return the body's session; raise once the body has ended, for nothing would commit it any more."""
        if self.is_over:
            raise TmError("the body has ended, and its transaction with it; open a session of your own here")
        if self._session is None:
            self.database.check_schema()
            with self.database.translated_errors():
                self._connection = self.database.engine.connect().execution_options(tm_write=True, tm_body=True)
                self._connection.begin()
                if self.database.dialect.ends_transactions:
                    self._guard = f"tm_{token_hex(8)}"
                    self._connection.dialect.do_savepoint(self._connection, self._guard)
                factory = self._factory or _plain_session()
                self._session = factory(bind=self._connection, join_transaction_mode="create_savepoint")
                Outbox(self._session, commit=self._keep)
        return self._session

    def _keep(self, action: Action) -> None:
        if not self.is_over:
            self._after_commit.append(action)

    @property
    def tx(self) -> Transaction:
        """Return the transaction for statements of our own."""
        assert self._connection is not None
        return Transaction(self._connection, self.database, direct=self.database.goes_direct)

    def write_aside(self, work: Callable[[Transaction], object]) -> None:
        """Do statements of our own in between; if they fail, the body's transaction is as it was."""
        tx = self.tx
        with tx.connection.begin_nested():
            work(tx)
            tx.notify(always=True)

    def commit_with(self, finish: Callable[[Transaction], T]) -> T:
        """Let `finish` add the last statements, and commit; if it raises, everything is rolled back."""
        assert self._session is not None
        assert self._connection is not None
        try:
            with self.database.translated_errors():
                self._session.commit()
                if self._guard is not None:
                    self._connection.dialect.do_release_savepoint(self._connection, self._guard)
                tx = self.tx
                result = finish(tx)
                if self._before_commit is not None and self.bars_others:
                    self._before_commit(tx)
                tx.notify(is_last=True)
                self._connection.get_transaction().commit()  # type: ignore[union-attr]
        finally:
            actions = list(self._after_commit)
            self.roll_back()
        self.database.committed(tx)
        for action in actions:
            action()
        return result

    def roll_back(self) -> None:
        """Undo what is not committed, and let go of the connection."""
        session, connection, self._session, self._connection = self._session, self._connection, None, None
        self._guard = None
        self._after_commit.clear()
        self.is_over = True
        for resource in (session, connection):  # the connection rolls back what is still open
            if resource is not None:
                with suppress(SQLAlchemyError):  # a server that is away has rolled back already
                    resource.close()


def _plain_session() -> type[Session]:
    from sqlalchemy.orm import Session  # a tenth of the time that a command takes to start, and few have a body

    return Session


_current: ContextVar[BodyTransaction | None] = ContextVar("celery_tm_body", default=None)


@contextmanager
def within(body: BodyTransaction | None) -> Iterator[None]:
    """Let what is deferred in this block, on the same database, commit with the body."""
    token = _current.set(body)
    try:
        yield
    finally:
        _current.reset(token)


def ambient(database: Database) -> Session | None:
    """Return the session of the body that this code runs in, if it is on this database."""
    body = _current.get()
    return body.session if body is not None and body.database is database and not body.is_over else None


def joined_by(database: Database, session: Any) -> BodyTransaction | None:
    """Return the body's transaction, if that is what a call with this session, or with none, writes in."""
    own = _current.get()
    if own is None or own.database is not database or own.is_over:
        return None
    return own if session is None or (own.is_open and session is own.session) else None


def refuse_foreign(database: Database, factory: Any) -> None:
    """Raise if a session factory is made for another database than the jobs', or for several."""
    stated: dict[str, Any] = getattr(factory, "kw", None) or {}
    if stated.get("binds"):
        raise InvalidValue("session", "binds= leads its writes past the job's transaction", "make it without binds=")
    bind = stated.get("bind")
    engine = bind.engine if isinstance(bind, Connection) else bind
    if isinstance(engine, Engine) and not same_database(database.url, engine.url):
        raise ForeignSession(hidden(engine.url.render_as_string(hide_password=True)), database.safe_url)
