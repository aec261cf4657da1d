"""Times at which a definition does not fire: dates, ranges, days of every year or week, alone or as a named calendar.

Entries are text that people write and files keep: "2026-12-24", "2026-12-24/2027-01-02" (both days included),
"2026-12-24T10:00/2026-12-24T12:00" (local times, the end not included), "12-25" (every year), "sat" (every week).
Dates are local dates of the definition's time zone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from ..errors import InvalidValue, shown
from .dst import Fold, Gap, wall_to_utc

DAY = timedelta(days=1)
FOREVER = datetime.max.replace(tzinfo=UTC)
MAX_ENTRIES = 5000
EXAMPLE = "use e.g. '2026-12-24', '2026-12-24/2027-01-02', '2026-12-24T10:00/2026-12-24T12:00', '12-25' or 'sat'"
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_YEARLY = re.compile(r"(\d\d)-(\d\d)", re.ASCII)
ENOUGH = timedelta(days=40 * 366)  # in which each day of the year, 29 February too, comes on each day of the week


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
        end = self._dated(instant)
        if end is None and self._recurs(instant):
            end = FOREVER if len(self.weekly) == len(WEEKDAYS) else _end_of(self._day(instant), self.zone, instant)
        return end

    def closes_again(self, instant: datetime) -> bool:
        """Say whether it is closed then for the day of the year or week alone, so that it may go on like that forever."""
        return self._dated(instant) is None and self._recurs(instant)

    def _dated(self, instant: datetime) -> datetime | None:
        for start, end in self.times:
            if start <= instant < end:
                return end
        day = self._day(instant)
        last = next((last for first, last in self.dates if first <= day <= last), day if day in self.days else None)
        return None if last is None else _end_of(last, self.zone, instant)

    def _recurs(self, instant: datetime) -> bool:
        day = self._day(instant)
        return (day.month, day.day) in self.yearly or day.weekday() in self.weekly

    def _day(self, instant: datetime) -> date:
        try:
            return instant.astimezone(ZoneInfo(self.zone)).date()
        except OverflowError:  # its local day lies beyond the calendar
            return instant.date()


def _end_of(day: date, zone: str, instant: datetime) -> datetime:
    """Return the first instant later than `instant` at which a local day is over, also where clocks are changed then."""
    if day == date.max:
        return FOREVER
    midnight = datetime.combine(day + DAY, time())
    # Where clocks are put back over midnight, the day ends twice.
    ends = (wall_to_utc(midnight, zone=ZoneInfo(zone), gap=Gap.SHIFT, fold=fold) for fold in (Fold.FIRST, Fold.SECOND))
    return next((end for end in ends if end is not None and end > instant), FOREVER)


def next_open(
    instant: datetime | None, closures: Closures, following: Callable[[datetime], datetime | None]
) -> datetime | None:
    """Return the first instant at or after `instant` that is open; `following(t)` is the rule's next after t."""
    since = instant
    while instant is not None and since is not None:
        end = closures.reopens_after(instant)
        if end is None:
            return instant
        if not closures.closes_again(instant):
            since = end
        if end == FOREVER or end - since > ENOUGH:
            return None
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
    """Return the instant of a local time, or of one with an offset; beyond the calendar, its first or last."""
    moment = datetime.fromisoformat(text)
    found = None
    with suppress(OverflowError):
        if moment.tzinfo:
            return moment.astimezone(UTC)
        found = wall_to_utc(moment, zone=ZoneInfo(zone), gap=Gap.SHIFT, fold=Fold.FIRST)
    return found or (FOREVER if moment.year > 1 else datetime.min.replace(tzinfo=UTC))


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
