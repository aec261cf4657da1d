"""The walk over a recurrence rule's local times, from anywhere and in a bounded number of steps.

dateutil walks from DTSTART and, where a rule never fires, on to the year 9999, which takes from seconds to hours. So the
walk is ours: it begins at the period asked for and gives up at a bound. The tests hold it against dateutil.
"""

from __future__ import annotations

from bisect import bisect_right
from calendar import isleap, monthrange
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import MAXYEAR, date, datetime, time, timedelta
from itertools import count, product

from .rrule_text import DAILY, HOURLY, MINUTELY, MONTHLY, SECONDLY, WEEKLY, YEARLY, Rule

DAY = timedelta(days=1)
UNITS = {HOURLY: timedelta(hours=1), MINUTELY: timedelta(minutes=1), SECONDLY: timedelta(seconds=1)}
MAX_STEPS = 60_000  # every day of 160 years; the longest wait for a date on a day of week is 40


class TooFar(Exception):
    """Nothing was found within the steps that one question may take."""


class RuleWalk:
    """Walks one rule from its start; COUNT is the caller's."""

    def __init__(self, rule: Rule, start: datetime) -> None:
        self.rule, self.start = _completed(rule, start), start
        self.times = [time(*at) for at in product(self.rule.hours, self.rule.minutes, self.rule.seconds)]

    def after(self, wall: datetime, *, steps: int = MAX_STEPS) -> Iterator[datetime]:
        """Yield the local times strictly later than `wall`, in order; raise TooFar after so many steps."""
        found = self._by_day(wall, steps) if self.rule.freq <= DAILY else self._by_second(wall, steps)
        for at in found:
            if self.rule.until and at > self.rule.until:
                return
            if at > wall and at >= self.start:
                yield at

    def _by_day(self, wall: datetime, steps: int) -> Iterator[datetime]:
        """Yield the times of rules that choose days: period by period, day by day."""
        since = max(wall, self.start).date()
        for index in count(self._period_of(since)):
            dates = self._dates(index)
            if not dates:
                return
            steps -= len(dates) if dates[-1] >= since else 1
            if steps < 0:
                raise TooFar
            if self.rule.positions:
                yield from self._chosen(
                    [datetime.combine(day, at) for day in dates if self._matches(day) for at in self.times]
                )
                continue
            for day in dates:
                if day >= since and self._matches(day):
                    first = bisect_right(self.times, wall.time()) if day == wall.date() else 0
                    for at in self.times[first:]:
                        steps -= 1
                        yield datetime.combine(day, at)

    def _period_of(self, day: date) -> int:
        """Return which period a day is in, or the last that began before it."""
        start, interval = self.start, self.rule.interval
        if self.rule.freq == YEARLY:
            return (day.year - start.year) // interval
        if self.rule.freq == MONTHLY:
            return ((day.year - start.year) * 12 + day.month - start.month) // interval
        if self.rule.freq == WEEKLY:
            return (day.toordinal() - self._first_week()) // (7 * interval)
        return (day - start.date()).days // interval

    def _first_week(self) -> int:
        """Return the number of the day that the start's week begins with."""
        return self.start.toordinal() - (self.start.weekday() - self.rule.week_start) % 7

    def _dates(self, index: int) -> Sequence[date]:
        """Return the days of a period that are in its months; none outside the calendar."""
        start, ahead = self.start, index * self.rule.interval
        if self.rule.freq == YEARLY:
            year = start.year + ahead
            months = self.rule.months or range(1, 13)
            return [day for month in months for day in _month(year, month)] if year <= MAXYEAR else ()
        if self.rule.freq == MONTHLY:
            month = start.year * 12 + start.month - 1 + ahead
            return _month(month // 12, month % 12 + 1) if month // 12 <= MAXYEAR else ()
        first, length = (self._first_week() + 7 * ahead, 7) if self.rule.freq == WEEKLY else (start.toordinal() + ahead, 1)
        days = range(max(first, 1), min(first + length, date.max.toordinal() + 1))
        return [date.fromordinal(day) for day in days]

    def _matches(self, day: date) -> bool:
        """Say whether a day passes every part of the rule that is about days."""
        rule = self.rule
        if rule.months and day.month not in rule.months:
            return False
        if rule.month_days:
            length = monthrange(day.year, day.month)[1]
            if day.day not in rule.month_days and day.day - length - 1 not in rule.month_days:
                return False
        if rule.year_days:
            number = day.timetuple().tm_yday
            if number not in rule.year_days and number - _year_length(day.year) - 1 not in rule.year_days:
                return False
        if rule.days and not self._is_its_weekday(day):
            return False
        return not rule.week_numbers or any(number in rule.week_numbers for number in _week_numbers(day, rule.week_start))

    def _is_its_weekday(self, day: date) -> bool:
        weekday = day.weekday()
        if (weekday, 0) in self.rule.days:
            return True
        if self.rule.freq == MONTHLY or self.rule.months:
            number, length = day.day, monthrange(day.year, day.month)[1]
        else:
            number, length = day.timetuple().tm_yday, _year_length(day.year)
        of_start, of_end = (number - 1) // 7 + 1, -((length - number) // 7 + 1)
        return (weekday, of_start) in self.rule.days or (weekday, of_end) in self.rule.days

    def _chosen(self, found: list[datetime]) -> list[datetime]:
        """Return what BYSETPOS picks of a period's times."""
        places = (place - 1 if place > 0 else len(found) + place for place in self.rule.positions)
        return sorted({found[place] for place in places if 0 <= place < len(found)})

    def _by_second(self, wall: datetime, steps: int) -> Iterator[datetime]:
        """Yield the times of rules that count hours, minutes or seconds, jumping over what is ruled out."""
        unit = UNITS[self.rule.freq]
        begin = self.start - (self.start - datetime.min) % unit  # noqa: DTZ901
        step = unit * self.rule.interval
        at = begin + max((wall - begin) // step, 0) * step
        try:
            for _ in range(steps):
                ruled_out_until = self._ruled_out_until(at)
                if ruled_out_until is None:
                    yield from self._expanded(at)
                    at += step
                else:
                    at = begin - (begin - ruled_out_until) // step * step
        except OverflowError:
            return
        raise TooFar

    def _ruled_out_until(self, at: datetime) -> datetime | None:
        """Return up to when the rule forbids the day, hour, minute or second of a time, or None if it does not."""
        rule = self.rule
        if not self._matches(at.date()):
            return datetime.combine(at.date(), time()) + DAY
        if rule.hours and at.hour not in rule.hours:
            return at.replace(minute=0, second=0) + UNITS[HOURLY]
        if rule.freq >= MINUTELY and rule.minutes and at.minute not in rule.minutes:
            return at.replace(second=0) + UNITS[MINUTELY]
        if rule.freq == SECONDLY and rule.seconds and at.second not in rule.seconds:
            return at + UNITS[SECONDLY]
        return None

    def _expanded(self, at: datetime) -> list[datetime]:
        """Return the times within one hour, minute or second."""
        minutes = self.rule.minutes if self.rule.freq == HOURLY else (at.minute,)
        seconds = self.rule.seconds if self.rule.freq <= MINUTELY else (at.second,)
        found = [at.replace(minute=minute, second=second) for minute in minutes for second in seconds]
        return self._chosen(found) if self.rule.positions else found


def _completed(rule: Rule, start: datetime) -> Rule:
    """Return the rule with what it leaves open taken from the start."""
    if not (rule.week_numbers or rule.year_days or rule.month_days or rule.days):
        if rule.freq == YEARLY:
            rule = replace(rule, months=rule.months or (start.month,), month_days=(start.day,))
        elif rule.freq == MONTHLY:
            rule = replace(rule, month_days=(start.day,))
        elif rule.freq == WEEKLY:
            rule = replace(rule, days=((start.weekday(), 0),))
    return replace(
        rule,
        hours=rule.hours or ((start.hour,) if rule.freq <= DAILY else ()),
        minutes=rule.minutes or ((start.minute,) if rule.freq <= HOURLY else ()),
        seconds=rule.seconds or ((start.second,) if rule.freq <= MINUTELY else ()),
    )


def _month(year: int, month: int) -> list[date]:
    return [date(year, month, day) for day in range(1, monthrange(year, month)[1] + 1)]


def _year_length(year: int) -> int:
    return 365 + isleap(year)


def _week_numbers(day: date, week_start: int) -> tuple[int, int]:
    """Return the number of a day's week, from the front and from the back of the year that the week belongs to."""
    number = day.toordinal()
    year = day.year
    if number < _week_one(year, week_start):
        year -= 1
    elif number >= _week_one(year + 1, week_start):
        year += 1
    first, following = _week_one(year, week_start), _week_one(year + 1, week_start)
    week = (number - first) // 7 + 1
    return week, week - (following - first) // 7 - 1


def _week_one(year: int, week_start: int) -> int:
    """Return the number of the day on which a year's first week begins: the first with four days in it."""
    before = year - 1
    new_year = before * 365 + before // 4 - before // 100 + before // 400 + 1
    into_week = (new_year - 1 - week_start) % 7  # day 1 of the calendar was a Monday
    return new_year - into_week + (7 if into_week > 3 else 0)
