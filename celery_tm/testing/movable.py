"""Time that stands still in a test, and moves when told."""

from __future__ import annotations

from datetime import datetime, timedelta

from .. import clock
from ..clock import as_utc, parse_duration


class MovableClock:
    """Time that stands still until it is moved, in all threads of this process."""

    def __init__(self, start: datetime) -> None:
        self.now = start
        self.move_to(start)

    def move_to(self, instant: datetime) -> None:
        """Let it be `instant`."""
        instant = as_utc(instant, field="instant")
        clock.stand_still(instant)
        self.now = instant

    def forward(self, duration: timedelta | float | str) -> None:
        """Let time pass."""
        self.move_to(self.now + parse_duration(duration, field="duration"))

    def release(self) -> None:
        """Let time flow again."""
        clock.stand_still(None)
