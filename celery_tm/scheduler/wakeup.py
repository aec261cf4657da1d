"""How beat waits: until the next due row, or until somebody wakes it.

On PostgreSQL it listens, so that work with a delay shorter than the poll, and edits, are seen at once. Elsewhere the poll
itself is short and looks at one index entry. An outage of the listening connection only makes waiting plainer.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ..domain.secrecy import hidden
from ..store.database import Database
from ..store.notifications import LOOK_EVERY, LOOK_FOR, Listener

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
        self._database = database
        self._listener = Listener(database)
        self._warned = False
        self._sleeper = Sleeper()
        self._retry_at = 0.0
        self._look_until = 0.0

    def wait(self, seconds: float) -> None:
        """Wait for a notification; for a while after one, only moments: a process does not notify again at once."""
        try:
            if not self._listener.is_open:
                if time.monotonic() < self._retry_at:
                    self._sleeper.wait(seconds)
                    return
                self._retry_at = time.monotonic() + self.RECONNECT_EVERY
                self._open()
                self._look_until = time.monotonic() + LOOK_FOR
                return  # what was notified before we listened is found by looking once more
            if time.monotonic() < self._look_until:
                seconds = min(seconds, LOOK_EVERY)
            if self._listener.wait(seconds):
                self._look_until = time.monotonic() + LOOK_FOR
        except Exception as error:  # any way a connection can break; the tick says what is wrong with the database
            logger.debug("not listening: %s", error)
            self._listener.close()
            self._sleeper.wait(min(seconds, 0.5))

    def _open(self) -> None:
        """Connect and listen; where that cannot work though the database answers, log a warning once."""
        try:
            self._listener.open()
        except Exception as error:
            if not self._warned and self._database_answers():
                self._warned = True
                logger.warning("beat cannot listen for notifications, and polls: %s", hidden(str(error)))
            raise

    def _database_answers(self) -> bool:
        try:
            self._database.run(lambda tx: tx.read_now())
        except Exception:
            return False
        return True

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let a signal that ends beat wait for the end of this block, so that it never cuts a transaction in two.

    A second one is not kept waiting: beat may be stuck in this very block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread only
        return
    kept: list[int] = []
    known = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    before = {number: handler for number, handler in known.items() if handler not in (None, signal.SIG_IGN)}

    def keep(number: int, _: Any) -> None:
        kept.append(number)
        if len(kept) > 1:
            logger.warning("a second signal: beat stops in the middle of a round, and what is not committed is rolled back")
            signal.signal(number, before[signal.Signals(number)])
            os.kill(os.getpid(), number)

    for number in before:
        signal.signal(number, keep)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if kept:
            os.kill(os.getpid(), kept[0])


class Watchdog:
    """Logs a warning when a round of beat hangs in a statement or a publish, and once more when it goes on."""

    def __init__(self, after: float) -> None:
        self._after = after
        self._began: float | None = None
        self._thread: threading.Thread | None = None
        self._work = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this block."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, args=(threading.get_ident(),), daemon=True)
            self._thread.start()
        self._began = time.monotonic()
        self._work.set()
        try:
            yield
        finally:
            self._work.clear()
            self._began = None

    def _watch(self, ident: int) -> None:
        reported: float | None = None
        while self._work.wait():
            began = self._began
            if began is None:
                continue
            time.sleep(max(began + self._after - time.monotonic(), 0.05))
            if self._began == began and reported != began:
                reported = began
                frame = sys._current_frames().get(ident)
                where = traceback.format_stack(frame)[-1].strip().splitlines()[0] if frame else "an unknown place"
                logger.warning("a round of beat has taken %.0f seconds and goes on: %s", time.monotonic() - began, where)


def waiter_for(database: Database) -> Waiter:
    """Return the best way to wait that the database offers."""
    waiter: Any = ListeningWaiter(database) if database.dialect.name == "postgresql" else Sleeper()
    return waiter
