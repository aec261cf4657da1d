"""Waking beat through PostgreSQL: NOTIFY with a commit, LISTEN on a connection of its own.

Commits that notify take one lock of the whole server until they are on disk, so they come one after the other. A process
therefore notifies at most every `NOTIFY_EVERY` seconds, and beat, once notified, looks often for a little longer than that:
it finds what the process commits meanwhile. What that misses, say behind a slow commit, the poll finds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ..errors import TmError

if TYPE_CHECKING:
    from .database import Database

NOTIFY_EVERY = 0.25  # seconds
LOOK_FOR = NOTIFY_EVERY + 0.15  # seconds after a notification; the rest is for a commit to be done
LOOK_EVERY = 0.05  # seconds


class Throttle:
    """Says whether this process is to notify, or has just done so: the first one is never delayed."""

    def __init__(self) -> None:
        self.every = NOTIFY_EVERY
        self._sent_at = float("-inf")

    @property
    def is_open(self) -> bool:
        """Say whether beat may no longer be looking because of the last notification."""
        return time.monotonic() >= self._sent_at + self.every

    def sent(self, at: float | None = None) -> None:
        """Take note of a notification that has committed; `at` is a time before the commit."""
        self._sent_at = max(self._sent_at, time.monotonic() if at is None else at)


class Listener:
    """One connection that waits for notifications of an installation."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Any = None

    @property
    def is_open(self) -> bool:
        """Say whether a connection is there."""
        return self._connection is not None

    def open(self) -> None:
        """Connect as the engine does, with all that the URL asks for, and listen."""
        import psycopg

        database = self._database
        if database.manner.is_pooled:
            raise TmError("a pooler passes on no notifications; use a direct connection for beat to be woken at once")
        positional, named = database.engine.dialect.create_connect_args(database.url)
        self._connection = psycopg.connect(*positional, **{**named, **database.dialect.connect_args()}, autocommit=True)
        self._connection.execute(f'LISTEN "{database.channel}"')

    def wait(self, seconds: float) -> bool:
        """Wait for a notification at most so long, and say whether one came; several count as one."""
        return len(list(self._connection.notifies(timeout=seconds, stop_after=1))) > 0

    def close(self) -> None:
        """Disconnect."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
