"""Times at which a definition does not fire: dates, ranges, days of every year or week, alone or as a named calendar.

Entries are text that people write and files keep: "2026-12-24", "2026-12-24/2027-01-02" (both days included),
"2026-12-24T10:00/2026-12-24T12:00" (local times, the end not included), "12-25" (every year), "sat" (every week).
Dates are local dates of the definition's time zone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from ..errors import InvalidValue, shown

DAY = timedelta(days=1)
MAX_ENTRIES = 5000
EXAMPLE = "use e.g. '2026-12-24', '2026-12-24/2027-01-02', '2026-12-24T10:00/2026-12-24T12:00', '12-25' or 'sat'"
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_YEARLY = re.compile(r"(\d\d)-(\d\d)", re.ASCII)
MAX_STEPS = 100_000


@dataclass(frozen=True, slots=True)
class Closures:
    """When something is closed, in one time zone."""

    zone: str
    days: frozenset[date]
    yearly: frozenset[tuple[int, int]]
    weekly: frozenset[int]
    dates: tuple[tuple[date, date], ...]
    times: tuple[tuple[datetime, datetime], ...]

    def reopens_after(self, instant: datetime) -> datetime | None:
        """Return the end of the closure that `instant` falls into, or None if it is open then."""
        for start, end in self.times:
            if start <= instant < end:
                return end
        day = instant.astimezone(ZoneInfo(self.zone)).date()
        last = next((last for first, last in self.dates if first <= day <= last), None)
        if last is None and (day in self.days or (day.month, day.day) in self.yearly or day.weekday() in self.weekly):
            last = day
        return None if last is None else _midnight(last + DAY, self.zone)


def _midnight(day: date, zone: str) -> datetime:
    """Return the first instant of a local day, also where clocks are changed at midnight."""
    start = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    while start.astimezone(ZoneInfo(zone)).date() < day:  # midnight does not exist there
        start += timedelta(minutes=15)
    return start


def next_open(
    instant: datetime | None, closures: Closures, following: Callable[[datetime], datetime | None]
) -> datetime | None:
    """Return the first instant at or after `instant` that is open; `following(t)` is the rule's next after t."""
    for _ in range(MAX_STEPS):
        end = None if instant is None else closures.reopens_after(instant)
        if instant is None or end is None:
            return instant
        instant = following(end - timedelta(microseconds=1))
    return None


@lru_cache(maxsize=4096)
def closures_of(entries: tuple[str, ...], zone: str) -> Closures:
    """Return what checked entries mean in a time zone."""
    days, yearly, weekly = set(), set(), set()
    dates: list[tuple[date, date]] = []
    times: list[tuple[datetime, datetime]] = []
    for entry in entries:
        if entry in WEEKDAYS:
            weekly.add(WEEKDAYS.index(entry))
        elif match := _YEARLY.fullmatch(entry):
            yearly.add((int(match[1]), int(match[2])))
        elif "T" in entry:
            start, end = (_local(text, zone) for text in entry.split("/"))
            times.append((start, end))
        elif "/" in entry:
            first, last = (date.fromisoformat(text) for text in entry.split("/"))
            dates.append((first, last))
        else:
            days.add(date.fromisoformat(entry))
    return Closures(zone, frozenset(days), frozenset(yearly), frozenset(weekly), tuple(sorted(dates)), tuple(sorted(times)))


def _local(text: str, zone: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(zone))).astimezone(UTC)


def checked_entries(value: Any, *, field: str) -> tuple[str, ...]:
    """Return entries in their one spelling, or say which one is wrong and where."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise InvalidValue(field, f"{shown(value)} is not a list", f"give a list; {EXAMPLE}")
    if len(value) > MAX_ENTRIES:
        raise InvalidValue(field, f"{len(value)} entries are too many", f"stay within {MAX_ENTRIES}")
    return tuple(_entry(item, f"{field}[{place}]") for place, item in enumerate(value))


def _entry(item: Any, field: str) -> str:
    if isinstance(item, date) and not isinstance(item, datetime):  # TOML and YAML have dates
        return item.isoformat()
    if not isinstance(item, str):
        raise InvalidValue(field, f"{shown(item)} is not text or a date", EXAMPLE)
    text = item.strip()
    if text.lower() in WEEKDAYS:
        return text.lower()
    try:
        return (_YEARLY.fullmatch(text) and _yearly(text)) or _range(text, field)
    except ValueError as error:
        if isinstance(error, InvalidValue):
            raise
        raise InvalidValue(field, f"{shown(item)} is not a date or a range", EXAMPLE) from None


def _yearly(text: str) -> str:
    date.fromisoformat(f"2024-{text}")  # a leap year: 02-29 is a day
    return text


def _range(text: str, field: str) -> str:
    first, slash, last = text.partition("/")
    if not slash:
        if "T" in text or len(text) != 10:
            raise InvalidValue(field, f"{shown(text)} is one moment, not a day or a range", EXAMPLE)
        return date.fromisoformat(text).isoformat()
    if "T" not in text:
        start, end = date.fromisoformat(first.strip()), date.fromisoformat(last.strip())
        if end < start:
            raise InvalidValue(field, f"{shown(text)} ends before it starts", "give the earlier day first")
        return f"{start.isoformat()}/{end.isoformat()}"
    begin, finish = datetime.fromisoformat(first.strip()), datetime.fromisoformat(last.strip())
    if (begin.tzinfo is None) != (finish.tzinfo is None):
        raise InvalidValue(field, f"{shown(text)} has an offset at one end only", "give both or none")
    if finish <= begin:
        raise InvalidValue(field, f"{shown(text)} ends before it starts", "give the earlier time first")
    return f"{begin.isoformat()}/{finish.isoformat()}"
