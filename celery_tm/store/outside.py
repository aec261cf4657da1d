"""Joining a caller's transaction: our rows commit or roll back with the caller's own work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from sqlalchemy.engine import Connection, TwoPhaseTransaction

from ..domain.secrecy import hidden
from ..errors import ForeignSession, InvalidValue
from .addresses import same_database
from .database import Database, Transaction

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, SessionTransaction

logger = logging.getLogger(__name__)
OUTBOX = "celery_tm_after_commit"
Action = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Joined:
    """A caller's transaction, and a way to do something once it has committed; None where that cannot be known."""

    tx: Transaction
    after_commit: Callable[[Action], None] | None
    may_notify: bool = True  # PostgreSQL prepares no transaction that has sent a notification


def join(database: Database, given: Any) -> Joined:
    """Return the transaction of a SQLAlchemy Session or Connection; one on another database is refused."""
    session = _session(given)
    connection = session.connection() if session is not None else given
    if not isinstance(connection, Connection):
        raise InvalidValue("session", f"{type(given).__name__} is no SQLAlchemy Session or Connection", "pass one of these")
    _refuse_foreign(database, connection)
    tx, may_notify = database.joined(connection), not isinstance(connection.get_transaction(), TwoPhaseTransaction)
    if session is None:
        return Joined(tx, None, may_notify)
    outbox: Outbox | None = session.info.get(OUTBOX)
    if outbox is None and isinstance(session.bind, Connection):
        return Joined(tx, None, may_notify)  # its commit may be a savepoint of the connection's owner
    return Joined(tx, (outbox or Outbox(session)).add, may_notify)


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


class Outbox:
    """What is to be done once a session has committed.

    Each action belongs to the transaction, or savepoint, it was added in. When that is released, its actions go to the one
    around it; when it ends in any other way, a rollback or a close, they are dropped with the rows they were about.
    `commit` is called with each action of the outermost one that committed.
    """

    def __init__(self, session: Session, commit: Callable[[Action], None] | None = None) -> None:
        self._session = session
        self._commit = commit or _act
        self._actions: list[tuple[SessionTransaction | None, Action]] = []
        session.info[OUTBOX] = self
        event.listen(session, "after_commit", self._committed)
        event.listen(session, "after_transaction_end", self._ended)

    def add(self, action: Action) -> None:
        """Do this when what is written now has committed."""
        self._actions.append((self._present(), action))

    def _present(self) -> SessionTransaction | None:
        return self._session.get_nested_transaction() or self._session.get_transaction()

    def _committed(self, _: Session) -> None:
        done = self._present()
        around = done.parent if done is not None else None
        while around is not None and not around.nested and around.parent is not None:
            around = around.parent
        actions = self._take(done)
        if around is not None:  # a savepoint was released; the caller's commit is still to come
            self._actions += [(around, action) for action in actions]
            return
        for action in actions:
            self._commit(action)

    def _ended(self, _: Session, transaction: SessionTransaction) -> None:
        self._take(transaction)

    def _take(self, transaction: SessionTransaction | None) -> list[Action]:
        taken = [action for owner, action in self._actions if owner is transaction]
        self._actions = [one for one in self._actions if one[0] is not transaction]
        return taken


def _act(action: Action) -> None:
    """Do what was to be done after a commit. It has happened: an error here must not look like one of the commit."""
    try:
        action()
    except Exception:
        logger.exception("an action after the commit of a caller's session failed")
