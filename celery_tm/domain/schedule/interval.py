"""Interval: every so often, anchored to a start, so that it never drifts however late a beat was."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from ...clock import as_utc, format_duration, parse_duration
from ...errors import InvalidValue, shown
from .base import MAX_LENGTH, Schedule, Zone, checked_keys
from .words import every_words, moment

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHORTEST = timedelta(seconds=1)
_SHAPE = re.compile(r"@?every\s+(?P<every>.+?)(?:\s+from\s+(?P<start>\S.*))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Interval(Schedule):
    """Fires at `start + n × every`."""

    kind: ClassVar[str] = "interval"
    every: timedelta
    start: datetime = EPOCH

    @property
    def expression(self) -> str:  # type: ignore[override]
        """Return the text that `load` takes back."""
        every = format_duration(self.every)
        return f"every {every}" if self.start == EPOCH else f"every {every} from {self.start.isoformat()}"

    @classmethod
    def load(cls, expression: str, zone: Zone, *, name: str = "") -> Interval:  # noqa: ARG003
        """Return the schedule of text like "every 10s" or "every 2h from 2026-01-01T08:00:00+00:00"."""
        match = _SHAPE.fullmatch(expression.strip()) if len(expression) <= MAX_LENGTH else None
        if not match:
            raise InvalidValue("schedule", f"{shown(expression)} is not an interval", cls.example())
        every = parse_duration(match["every"], field="schedule")
        if every < SHORTEST:
            raise InvalidValue("schedule", f"{match['every']!r} is too short", "use one second or more")
        return cls(every, _start(match["start"]) if match["start"] else EPOCH)

    @classmethod
    def expression_of(cls, given: Mapping[str, Any]) -> str:
        """Return the expression of {"kind": "interval", "every": "10s", "start": …}."""
        checked_keys(given, needed=["every"], optional=["start"], example=cls.example())
        every = format_duration(parse_duration(given["every"], field="schedule.every"))
        start = given.get("start")
        if isinstance(start, datetime):
            start = as_utc(start, field="schedule.start").isoformat()
        return f"every {every} from {start}" if start else f"every {every}"

    @classmethod
    def example(cls) -> str:
        """Return an example of what is right."""
        return "use e.g. 'every 10s', or {'kind': 'interval', 'every': '2h'}"

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Say whether a text begins like an interval and is no window."""
        return text.startswith(("every ", "@every ")) and " until " not in text

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first instant strictly later than `instant`, or None at the end of the calendar."""
        if instant < self.start:
            return self.start
        try:
            return self.start + self.every * ((instant - self.start) // self.every + 1)
        except OverflowError:
            return None

    def describe(self) -> str:
        """Say when it fires."""
        words = every_words(self.every)
        return words if self.start == EPOCH else f"{words} from {moment(self.start)} UTC"


def _start(text: str) -> datetime:
    try:
        return as_utc(datetime.fromisoformat(text), field="schedule.start")
    except ValueError as error:
        if isinstance(error, InvalidValue):
            raise
        raise InvalidValue("schedule.start", f"{text!r} is not a date and time", "use ISO 8601 with an offset") from None
