"""Window: every so often between two times of day, on some days of the week.

The steps count from the opening time on the local wall clock. A window may go over midnight; it belongs to the day on
which it opens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any, ClassVar

from ...clock import format_duration, parse_duration
from ...errors import InvalidValue, nearest, shown
from ..dst import Fold
from .base import MAX_LENGTH, Schedule, Zone, checked_keys
from .words import WEEKDAYS, every_words, runs, span_words

DAY, SECOND = timedelta(days=1), timedelta(seconds=1)
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EVERY_DAY = tuple(range(7))
_SHAPE = re.compile(
    r"every\s+(?P<every>.+?)\s+from\s+(?P<opens>\S+)\s+until\s+(?P<closes>\S+)(?:\s+on\s+(?P<days>.+))?", re.ASCII
)
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Window(Schedule):
    """Fires at `opens + n × every` up to and including `closes`, on `days`, Monday being 0."""

    kind: ClassVar[str] = "window"
    every: timedelta
    opens: time
    closes: time
    days: tuple[int, ...]
    zone: Zone

    @property
    def expression(self) -> str:  # type: ignore[override]
        """Return the text that `load` takes back."""
        text = f"every {format_duration(self.every)} from {_clock(self.opens)} until {_clock(self.closes)}"
        return text if self.days == EVERY_DAY else f"{text} on {_days_text(self.days)}"

    @classmethod
    def load(cls, expression: str, zone: Zone, *, name: str = "") -> Window:  # noqa: ARG003
        """Return the schedule of text like "every 2h from 08:00 until 18:00 on mon-fri"."""
        match = _SHAPE.fullmatch(expression.strip()) if len(expression) <= MAX_LENGTH else None
        if not match:
            raise InvalidValue("schedule", f"{shown(expression)} is not a window", cls.example())
        every = parse_duration(match["every"], field="schedule.every")
        if not SECOND <= every <= DAY or every % SECOND:
            raise InvalidValue("schedule.every", f"{match['every']!r} is not in 1s-24h in whole seconds", cls.example())
        opens, closes = _read_clock(match["opens"], "from"), _read_clock(match["closes"], "until")
        if opens == closes:
            raise InvalidValue(
                "schedule", f"the window from {match['opens']} until {match['closes']} is empty", "use cron for a fixed time"
            )
        return cls(every, opens, closes, _read_days(match["days"]) if match["days"] else EVERY_DAY, zone)

    @classmethod
    def expression_of(cls, given: Mapping[str, Any]) -> str:
        """Return the expression of {"kind": "window", "every": …, "from": …, "until": …, "days": …}."""
        checked_keys(given, needed=["every", "from", "until"], optional=["days"], example=cls.example())
        every = format_duration(parse_duration(given["every"], field="schedule.every"))
        text = f"every {every} from {_clock_given(given, 'from')} until {_clock_given(given, 'until')}"
        days = given.get("days")
        if days is None:
            return text
        if not isinstance(days, str):
            if not isinstance(days, (list, tuple)) or not all(isinstance(day, str) for day in days):
                raise InvalidValue("schedule.days", f"{shown(days)} is not a list of days", _DAYS_EXAMPLE)
            days = ",".join(days)
        return f"{text} on {_days_text(_read_days(days))}"

    @classmethod
    def example(cls) -> str:
        """Return an example of what is right."""
        return (
            "use e.g. 'every 2h from 08:00 until 18:00 on mon-fri', or "
            "{'kind': 'window', 'every': '2h', 'from': '08:00', 'until': '18:00', 'days': 'mon-fri'}"
        )

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Say whether a text begins like an interval and has an end."""
        return text.startswith("every ") and " until " in text

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first instant strictly later than `instant`."""
        return self.zone.next_after(instant, fold=Fold.BOTH, next_naive=self._next_naive)

    def _next_naive(self, start: datetime) -> datetime | None:
        """Return the first local time strictly later than `start`: yesterday's window may still be open."""
        length = (_since_midnight(self.closes) - _since_midnight(self.opens)) % DAY
        for ahead in range(-1, 9):
            try:
                day = start.date() + timedelta(days=ahead)
                if day.weekday() not in self.days:
                    continue
                opens = datetime.combine(day, self.opens)
                into = max((start - opens) // self.every + 1, 0) * self.every
                if into <= length:
                    return opens + into
            except OverflowError:
                continue  # before the first day of the calendar, or after the last
        return None

    def describe(self) -> str:
        """Say when it fires."""
        days = "every day" if self.days == EVERY_DAY else f"on {span_words(self.days, WEEKDAYS)}"
        return f"{every_words(self.every)} from {_clock(self.opens)} until {_clock(self.closes)} {days} in {self.zone.name}"


_DAYS_EXAMPLE = "use e.g. 'mon-fri', 'sat,sun' or ['mon', 'wed']"


def _since_midnight(at: time) -> timedelta:
    return datetime.combine(date.min, at) - datetime.combine(date.min, time())


def _clock(at: time) -> str:
    return at.isoformat("seconds" if at.second else "minutes")


def _clock_given(given: Mapping[str, Any], key: str) -> str:
    at = given[key]
    if isinstance(at, time) and at.tzinfo is None and not at.microsecond:
        return _clock(at)
    if isinstance(at, str):
        return _clock(_read_clock(at.strip(), key))
    # YAML reads 18:00 without quotes as the number 1080.
    hint = " (in YAML, put the time in quotes)" if isinstance(at, int) else ""
    raise InvalidValue(f"schedule.{key}", f"{shown(at)} is not a time of day{hint}", "use HH:MM or HH:MM:SS, e.g. '08:00'")


def _read_clock(text: str, key: str) -> time:
    match = _CLOCK.fullmatch(text)
    if not match:
        raise InvalidValue(f"schedule.{key}", f"{shown(text)} is not a time of day", "use HH:MM or HH:MM:SS, e.g. '08:00'")
    return time(int(match[1]), int(match[2]), int(match[3] or 0))


def _read_days(text: str) -> tuple[int, ...]:
    """Return the days of "mon-fri", "mon,wed" or "fri-mon", in order."""
    found: set[int] = set()
    for item in text.lower().split(","):
        first, dash, last = (part.strip() for part in item.partition("-"))
        begin, end = _day(first), _day(last if dash else first)
        found |= {(begin + n) % 7 for n in range((end - begin) % 7 + 1)}
    return tuple(sorted(found))


def _day(text: str) -> int:
    for index, name in enumerate(WEEKDAYS):
        if text in (DAYS[index], name.lower()):
            return index
    close = nearest(text, DAYS)
    hint = f", did you mean {close!r}?" if close else ""
    raise InvalidValue("schedule.days", f"{shown(text)} is not a day of the week{hint}", _DAYS_EXAMPLE)


def _days_text(days: tuple[int, ...]) -> str:
    """Return days as short as they can be written: runs of three and more as a range."""
    parts: list[str] = []
    for first, last in runs(days):
        if last - first >= 2:
            parts.append(f"{DAYS[first]}-{DAYS[last]}")
        else:
            parts.extend(DAYS[day] for day in range(first, last + 1))
    return ",".join(parts)
