"""Times at which a definition does not fire: dates, ranges, days of every year or week, alone or as a named calendar.

Entries are text that people write and files keep: "2026-12-24", "2026-12-24/2027-01-02" (both days included),
"2026-12-24T10:00/2026-12-24T12:00" (local times, the end not included), "12-25" (every year), "sat" (every week).
Dates are local dates of the definition's time zone.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from operator import itemgetter
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from ..errors import InvalidValue, shown
from .dst import Fold, Gap, wall_to_utc

T = TypeVar("T", date, datetime)
DAY = timedelta(days=1)
FOREVER = datetime.max.replace(tzinfo=UTC)
MAX_ENTRIES = 5000
EXAMPLE = "use e.g. '2026-12-24', '2026-12-24/2027-01-02', '2026-12-24T10:00/2026-12-24T12:00', '12-25' or 'sat'"
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_YEARLY = re.compile(r"(\d\d)-(\d\d)", re.ASCII)
ENOUGH = timedelta(days=40 * 366)  # in which each day of the year, 29 February too, comes on each day of the week


@dataclass(frozen=True, slots=True)
class Closures:
    """When something is closed, in one time zone. `dates` and `times` are in order and lie apart."""

    zone: str
    yearly: frozenset[tuple[int, int]]
    weekly: frozenset[int]
    dates: tuple[tuple[date, date], ...]
    times: tuple[tuple[datetime, datetime], ...]

    def reopens_after(self, instant: datetime) -> datetime | None:
        """Return the end of the closure that `instant` falls into, or None if it is open then."""
        return self._dated(instant) or self._recurs_until(instant)

    def closes_again(self, instant: datetime) -> bool:
        """Say whether it is closed then for the day of the year or week alone, so that it may go on like that forever."""
        return self._dated(instant) is None and self._recurs(self._day(instant))

    def _dated(self, instant: datetime) -> datetime | None:
        place = bisect_right(self.times, instant, key=itemgetter(0)) - 1
        if place >= 0 and instant < self.times[place][1]:
            return self.times[place][1]
        last = self._closed_until(self._day(instant))
        return None if last is None else _end_of(last, self.zone, instant)

    def _closed_until(self, day: date) -> date | None:
        """Return the last day of the range of dates that a day is in."""
        place = bisect_right(self.dates, day, key=itemgetter(0)) - 1
        return self.dates[place][1] if place >= 0 and day <= self.dates[place][1] else None

    def _recurs_until(self, instant: datetime) -> datetime | None:
        """Return the end of the days in a row that are closed every year or week; days are cheaper than instants."""
        day = first = self._day(instant)
        while self._recurs(day):
            if day - first > ENOUGH or day == date.max:
                return FOREVER
            day += DAY
            if self._closed_until(day):
                break
        return None if day == first else _end_of(day - DAY, self.zone, instant)

    def _recurs(self, day: date) -> bool:
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
    yearly, weekly = set(), set()
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
            dates.append((date.fromisoformat(entry),) * 2)
    return Closures(zone, frozenset(yearly), frozenset(weekly), _joined(dates, DAY), _joined(times, timedelta(0)))


def _joined(spans: Iterable[tuple[T, T]], apart: timedelta) -> tuple[tuple[T, T], ...]:
    """Return spans in order, with those in one that overlap or follow on each other, `apart` at most."""
    found: list[tuple[T, T]] = []
    for start, end in sorted(spans):
        if found and start - found[-1][1] <= apart:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return tuple(found)


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
