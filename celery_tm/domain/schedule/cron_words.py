"""A cron expression in plain words; what has no short sentence is said field by field."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .cron_fields import Fields
from .words import MONTHS, WEEKDAYS, counted, listed, span_words

MOST_TIMES = 6  # more times of day than these are said field by field
_SUNDAY_FIRST = (WEEKDAYS[6], *WEEKDAYS[:6])
_ORDINALS = ("", "first", "second", "third", "fourth", "fifth")


def cron_words(fields: Fields) -> str:
    """Return the sentence: the times, then the days."""
    times, days = _times(fields), _days(fields)
    is_time_of_day = times.startswith("at ") and times[3].isdigit()
    return times if days == "every day" and not is_time_of_day else f"{times} {days}"


def _times(fields: Fields) -> str:
    seconds, minutes, hours = fields.seconds, fields.minutes, fields.hours
    if len(hours) * len(minutes) * len(seconds) <= MOST_TIMES:
        return "at " + listed(_clock(h, m, s) for h in hours for m in minutes for s in seconds)
    if len(minutes) == 60 and len(hours) == 24 and (words := _even(seconds, 60, "second")):
        return words
    if seconds == (0,) and len(hours) == 24 and (words := _even(minutes, 60, "minute")):
        return words
    if seconds == (0,) and minutes == (0,) and (words := _even(hours, 24, "hour")):
        return words
    if seconds == (0,) and len(minutes) == 1 and len(hours) == 24:
        return f"{counted(minutes[0], 'minute')} past every hour"
    run = len(hours) > 1 and hours == tuple(range(hours[0], hours[-1] + 1))
    if seconds == (0,) and run and (words := _even(minutes, 60, "minute")):
        return f"{words} from {_clock(hours[0], minutes[0], 0)} until {_clock(hours[-1], minutes[-1], 0)}"
    if seconds == (0,) and minutes == (0,) and (step := _step(hours)):
        return f"every {_of(step, 'hour')} from {_clock(hours[0], 0, 0)} until {_clock(hours[-1], 0, 0)}"
    return _by_field(fields)


def _even(numbers: Sequence[int], full: int, noun: str) -> str | None:
    """Return "every 5 minutes" if the numbers go round evenly from 0, also from one hour or day to the next."""
    step = _step(numbers)
    if not step or numbers[0] or full % step or len(numbers) * step != full:
        return None
    return f"every {_of(step, noun)}"


def _of(step: int, noun: str) -> str:
    return noun if step == 1 else counted(step, noun)


def _step(numbers: Sequence[int]) -> int | None:
    """Return the distance of numbers that all lie equally far apart."""
    steps = {later - earlier for earlier, later in pairwise(numbers)}
    return steps.pop() if len(steps) == 1 else None


def _by_field(fields: Fields) -> str:
    parts = [
        f"{noun} {listed(map(str, numbers))}" if len(numbers) < full else f"every {noun}"
        for noun, numbers, full in (
            ("second", fields.seconds, 60), ("minute", fields.minutes, 60), ("hour", fields.hours, 24),
        )
        if (noun, numbers) != ("second", (0,))
    ]  # fmt: skip
    return "at " + " of ".join(parts)


def _clock(hour: int, minute: int, second: int) -> str:
    return f"{hour:02d}:{minute:02d}:{second:02d}" if second else f"{hour:02d}:{minute:02d}"


def _days(fields: Fields) -> str:
    days, weekdays = fields.days, fields.weekdays
    of_month, of_week = _month_days(fields), _week_days(fields)
    if days.free and weekdays.free:
        words = "every day"
    elif days.free or weekdays.free:
        words = f"on {of_week if days.free else of_month}"
    else:
        words = f"on {of_month} if it is {of_week}" if fields.both else f"on {of_month} or on {of_week}"
    if len(fields.months) == 12:
        return words
    return f"{words} in {span_words([month - 1 for month in fields.months], MONTHS)}"


def _month_days(fields: Fields) -> str:
    days = fields.days
    items = []
    if days.numbers:
        names = [str(day) for day in range(32)]
        items.append(f"{'day' if len(days.numbers) == 1 else 'days'} {span_words(sorted(days.numbers), names)}")
    items += [f"the weekday nearest to day {day}" for day in sorted(days.nearest)]
    items += ["the last day" if not before else f"{counted(before, 'day')} before the last" for before in sorted(days.last)]
    items += ["the last weekday"] * days.last_weekday
    return f"{listed(items)} of the month"


def _week_days(fields: Fields) -> str:
    weekdays = fields.weekdays
    numbers = sorted((number - 1) % 7 for number in weekdays.numbers)
    items = [span_words(numbers, WEEKDAYS)] if numbers else []
    items += [f"the {_ORDINALS[n]} {_SUNDAY_FIRST[day]} of the month" for day, n in sorted(weekdays.nth)]
    items += [f"the last {_SUNDAY_FIRST[day]} of the month" for day in sorted(weekdays.last)]
    return listed(items)
