"""A pytest plugin: time that stands still and moves when told.

`tm_clock` freezes celery_tm's time for a test: what is due, leases and backoff go by it, the database's questions included.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta

import pytest


class MovableClock:
    """Time that stands still until it is moved."""

    def __init__(self, start: datetime) -> None:
        self._stack = ExitStack()
        self.now = start
        self.move_to(start)

    def move_to(self, instant: datetime) -> None:
        """Let it be `instant`."""
        from . import clock

        instant = clock.as_utc(instant, field="instant")
        self._stack.close()
        self._stack.enter_context(clock.moved_to(instant))
        self.now = instant

    def forward(self, duration: timedelta | float | str) -> None:
        """Let time pass."""
        from .clock import parse_duration

        self.move_to(self.now + parse_duration(duration, field="duration"))

    def release(self) -> None:
        """Let time flow again."""
        self._stack.close()


@pytest.fixture
def tm_clock() -> Iterator[MovableClock]:
    """Freeze celery_tm's time for a test."""
    from . import clock

    movable = MovableClock(clock.now().replace(microsecond=0))
    yield movable
    movable.release()
