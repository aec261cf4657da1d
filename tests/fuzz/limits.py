"""How long a question may take, and what an error of ours must look like."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from celery_tm.errors import InvalidValue, TmError

MOST = 2.0  # seconds of a processor; here the longest takes a fifth of that


class TimeIsUp(BaseException):
    """No `except Exception` on the way catches it."""


@contextmanager
def limited(seconds: float = MOST) -> Iterator[None]:
    """Stop what takes longer; time that others have the processor for does not count."""

    def stop(*_: object) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    except TimeIsUp as up:
        raise AssertionError(f"it took more than {seconds} seconds") from up
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def check_told(error: TmError, *, lines: int = 6, length: int = 1200, names: str = "") -> None:
    """Fail where an error is not one that a person can read in a terminal or a log: named, short, and text."""
    told = str(error)
    assert told.encode(), "half a character"
    assert names in told
    assert len(told) <= length, f"{len(told)} characters: {told[:200]}"
    assert len(told.splitlines()) <= lines, told
    assert all(c.isprintable() or c == "\n" for c in told), repr(told[:500])
    if isinstance(error, InvalidValue):
        assert error.field
        assert error.problem
        assert error.remedy
