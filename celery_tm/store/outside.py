"""Joining a caller's transaction: our rows commit or roll back with the caller's own work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from sqlalchemy.engine import Connection

from ..domain.secrecy import hidden
from ..errors import ForeignSession, InvalidValue
from .addresses import same_database
from .database import Database, Transaction

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, SessionTransaction

OUTBOX = "celery_tm_after_commit"


@dataclass(frozen=True, slots=True)
class Joined:
    """A caller's transaction, and a way to do something once it has committed; None where that cannot be known."""

    tx: Transaction
    after_commit: Callable[[Callable[[], None]], None] | None


def join(database: Database, given: Any) -> Joined:
    """Return the transaction of a SQLAlchemy Session or Connection; one on another database is refused."""
    session = _session(given)
    connection = session.connection() if session is not None else given
    if not isinstance(connection, Connection):
        raise InvalidValue("session", f"{type(given).__name__} is no SQLAlchemy Session or Connection", "pass one of these")
    _refuse_foreign(database, connection)
    if session is None:
        return Joined(database.joined(connection), None)
    return Joined(database.joined(connection), lambda action: _add(session, action))


def _session(given: Any) -> Session | None:
    if isinstance(given, Connection):
        return None
    from sqlalchemy.orm import Session  # whoever has a session has loaded it already

    if isinstance(given, Session):
        return given
    for wrapper in ("sync_session", "registry"):  # AsyncSession; scoped_session
        inner = getattr(given, wrapper, None)
        inner = inner() if callable(inner) and not isinstance(inner, Session) else inner
        if isinstance(inner, Session):
            return inner
    return None


def _refuse_foreign(database: Database, connection: Connection) -> None:
    theirs = connection.engine.url
    same = same_database(database.url, theirs)
    if same and theirs.database in (None, "", ":memory:") and database.dialect.name == "sqlite":
        same = connection.engine is database.engine  # each in-memory database is its own
    if not same:
        raise ForeignSession(hidden(theirs.render_as_string(hide_password=True)), database.safe_url)


def _add(session: Session, action: Callable[[], None]) -> None:
    if OUTBOX not in session.info:
        session.info[OUTBOX] = []
        event.listen(session, "after_commit", _committed)
        event.listen(session, "after_soft_rollback", _rolled_back)
    session.info[OUTBOX].append(action)


def _committed(session: Session) -> None:
    if session.in_nested_transaction():
        return  # a savepoint was released; the caller's commit is still to come
    actions = list(session.info[OUTBOX])
    session.info[OUTBOX].clear()
    for action in actions:
        action()


def _rolled_back(session: Session, ended: SessionTransaction) -> None:
    # What was deferred within a savepoint that is rolled back is published for nothing: the gate finds no row.
    if not ended.nested:
        session.info[OUTBOX].clear()
