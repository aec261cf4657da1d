"""How beat waits: until the next due row, or until somebody wakes it.

On PostgreSQL it listens, so that work with a delay shorter than the poll, and edits, are seen at once. Elsewhere the poll
itself is short and looks at one index entry. An outage of the listening connection only makes waiting plainer.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ..store.database import Database
from ..store.listening import Listener

logger = logging.getLogger(__name__)


class Waiter(Protocol):
    """Waits at most so many seconds; returns early if woken."""

    def wait(self, seconds: float) -> None: ...

    def close(self) -> None: ...


class Sleeper:
    """Waits; a signal that raises, as beat's do, ends the wait."""

    def wait(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def close(self) -> None:
        """Nothing is held."""


class ListeningWaiter:
    """Waits for notifications; without a connection it sleeps, and connects again from time to time."""

    RECONNECT_EVERY = 2.0

    def __init__(self, database: Database) -> None:
        self._listener = Listener(database)
        self._sleeper = Sleeper()
        self._retry_at = 0.0

    def wait(self, seconds: float) -> None:
        """Wait for a notification."""
        try:
            if not self._listener.is_open:
                if time.monotonic() < self._retry_at:
                    self._sleeper.wait(seconds)
                    return
                self._retry_at = time.monotonic() + self.RECONNECT_EVERY
                self._listener.open()
                return  # what was notified before we listened is found by looking once more
            self._listener.wait(seconds)
        except Exception as error:  # any way a connection can break; the tick says what is wrong with the database
            logger.debug("not listening: %s", error)
            self._listener.close()
            self._sleeper.wait(min(seconds, 0.5))

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let a signal that ends beat wait for the end of this block, so that it never cuts a transaction in two."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread only
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def waiter_for(database: Database) -> Waiter:
    """Return the best way to wait that the database offers."""
    waiter: Any = ListeningWaiter(database) if database.dialect.name == "postgresql" else Sleeper()
    return waiter
