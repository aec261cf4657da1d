"""Lets a soft time limit interrupt user code only: hooks and bodies, never the gate or the record of an end.

The pool raises it in the main thread of its process, between any two lines. Raised while an end is written, it would make
Celery report a failure whose row says succeeded, or running. One that arrives outside of user code is raised when user code
of the same delivery is next called; after the last of it the work was done in time, and the limit is dropped.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

from ..domain.time_limits import HARD_LIMIT_GRACE
from .context import JobContext

SIGNAL = getattr(signal, "SIGUSR1", None)
POOLS_HANDLER = "soft_timeout_sighandler"  # of billiard, which only prefork's processes have


class SoftLimit:
    """The soft limit of the delivery that this process works on; pools without processes have none."""

    def __init__(self) -> None:
        self._delivery: str | None = None  # whose steps of ours are not to be interrupted
        self._is_open = True  # user code runs
        self._is_late = False  # it came while no user code ran
        self._pools: Any = None

    def hold(self, delivery: str | None) -> None:
        """Keep the limit out from the gate on."""
        self._install()
        self._delivery, self._is_open, self._is_late = delivery, False, False

    def open(self) -> None:
        """Let it interrupt what comes; raise the one that came while it was kept out."""
        self._is_open = True
        if self._is_late:
            self._is_late = False
            raise SoftTimeLimitExceeded

    def close(self) -> None:
        """Keep it out again: user code has ended."""
        self._is_open = self._delivery is None

    def release(self, delivery: str | None) -> None:
        """The delivery is over: the next task may be a plain one, with its own limit."""
        if delivery == self._delivery:
            self._delivery, self._is_open, self._is_late = None, True, False

    def interrupt(self) -> bool:
        """Raise the limit in the body that runs now, as the pool would; False: this pool cannot interrupt a body."""
        if self._pools is None or SIGNAL is None:
            return False
        main = threading.main_thread().ident
        if main is not None:  # sent to the process, another thread might take it, and the body would sleep on
            signal.pthread_kill(main, SIGNAL)
        return True

    def _install(self) -> None:
        handler = None if SIGNAL is None else signal.getsignal(SIGNAL)
        if getattr(handler, "__name__", None) != POOLS_HANDLER or threading.current_thread() is not threading.main_thread():
            return
        self._pools = handler
        signal.signal(SIGNAL, self._arrived)  # type: ignore[arg-type]

    def _arrived(self, signum: int, frame: Any) -> None:
        if self._is_open:
            self._pools(signum, frame)
        self._is_late = True


soft_limit = SoftLimit()


def kill_later(context: JobContext) -> None:
    """End this process if a body goes on that was interrupted, as the pool does at a hard limit; the pool starts another."""

    def kill() -> None:
        if not context.over:
            os.kill(os.getpid(), signal.SIGKILL)

    timer = threading.Timer(HARD_LIMIT_GRACE.total_seconds(), kill)
    timer.daemon = True
    timer.start()
