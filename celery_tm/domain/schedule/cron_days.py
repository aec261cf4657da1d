"""Which days a cron expression's two day fields allow, and the walk over them.

croniter does most expressions; this does what it lacks or gets wrong: the nearest weekday (`15W`, `LW`), days counted from
the end (`L-3`), mixed lists, two restricted day fields of which one never fires, and both having to match.
"""

from __future__ import annotations

from bisect import bisect_right
from calendar import monthrange
from collections.abc import Iterator
from datetime import MAXYEAR, datetime

from .cron_fields import Fields

# The longest wait there is: 29 February on one day of week, over 2100 or another such year.
MONTHS_AHEAD = 12 * 42


class DayWalk:
    """Walks the local times of the fields. A month's days depend on its first day of week and its length alone."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.known: dict[tuple[int, int], tuple[int, ...]] = {}

    def ever_fires(self) -> bool:
        """Say whether any month there can be has a day for it."""
        lengths = {month: {monthrange(year, month)[1] for year in (2023, 2024)} for month in self.fields.months}
        return any(self.days(first, length) for month in lengths for length in lengths[month] for first in range(7))

    def next_after(self, start: datetime) -> datetime | None:
        """Return the first local time strictly later than `start`."""
        for year, month in self._months(start):
            first, length = monthrange(year, month)
            for day in self.days(first, length):
                if (year, month, day) > (start.year, start.month, start.day):
                    return datetime(year, month, day, self.fields.hours[0], self.fields.minutes[0], self.fields.seconds[0])  # noqa: DTZ001
                if (year, month, day) == (start.year, start.month, start.day):
                    found = self._later_that_day(start)
                    if found:
                        return found
        return None

    def _months(self, start: datetime) -> Iterator[tuple[int, int]]:
        begin = start.year * 12 + start.month - 1
        for index in range(begin, min(begin + MONTHS_AHEAD, (MAXYEAR + 1) * 12)):
            if index % 12 + 1 in self.fields.months:
                yield index // 12, index % 12 + 1

    def _later_that_day(self, start: datetime) -> datetime | None:
        hours, minutes, seconds = self.fields.hours, self.fields.minutes, self.fields.seconds
        at = start.replace(microsecond=0)
        if at.hour in hours:
            if at.minute in minutes and (index := bisect_right(seconds, at.second)) < len(seconds):
                return at.replace(second=seconds[index])
            if (index := bisect_right(minutes, at.minute)) < len(minutes):
                return at.replace(minute=minutes[index], second=seconds[0])
        if (index := bisect_right(hours, at.hour)) < len(hours):
            return at.replace(hour=hours[index], minute=minutes[0], second=seconds[0])
        return None

    def days(self, first: int, length: int) -> tuple[int, ...]:
        """Return the days of a month that begins on a day of week, Monday being 0, and has that many days."""
        if (first, length) not in self.known:
            by_number, by_weekday = self._by_number(first, length), self._by_weekday(first, length)
            either = by_number & by_weekday if self.fields.both else by_number | by_weekday
            self.known[first, length] = tuple(sorted(either))
        return self.known[first, length]

    def _by_number(self, first: int, length: int) -> set[int]:
        days = self.fields.days
        found = {day for day in days.numbers if day <= length}
        found |= {length - before for before in days.last if before < length}
        found |= {_nearest_weekday(day, first, length) for day in days.nearest if day <= length}
        if days.last_weekday:
            found.add(_nearest_weekday(length, first, length))
        return found

    def _by_weekday(self, first: int, length: int) -> set[int]:
        weekdays = self.fields.weekdays
        # Sunday is 0 in cron and 6 in the calendar.
        of_week = {day: (first + day) % 7 for day in range(1, length + 1)}
        return {
            day
            for day, weekday in of_week.items()
            if weekday in weekdays.numbers
            or (weekday, (day - 1) // 7 + 1) in weekdays.nth
            or (weekday in weekdays.last and day + 7 > length)
        }


def _nearest_weekday(day: int, first: int, length: int) -> int:
    """Return the day from Monday to Friday nearest to `day` within the month."""
    weekday = (first + day - 1) % 7
    if weekday == 5:
        return day - 1 if day > 1 else day + 2
    if weekday == 6:
        return day + 1 if day < length else day - 2
    return day
