"""A recurrence rule in plain words; the parts that have none are shown as they are written."""

from __future__ import annotations

from .rrule_text import DAILY, Recurrence, Rule
from .words import MONTHS, WEEKDAYS, counted, listed, moment, span_words

_UNITS = ("year", "month", "week", "day", "hour", "minute", "second")
_ORDINALS = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth", -1: "last", -2: "last but one"}


def recurrence_words(recurrence: Recurrence) -> str:
    """Return the sentence: what each rule says, from when, and how many dates are added or taken out."""
    words = " and ".join(_rule(rule, recurrence) for rule in recurrence.rules)
    words = f"{words}, from {moment(recurrence.start)}" if words else ""
    added, taken_out = recurrence.added, recurrence.taken_out
    if added:
        words += f"{', and ' if words else ''}at {counted(len(added), 'date')} of its own"
    return words + (f", except at {counted(len(taken_out), 'date')}" if taken_out else "")


def _rule(rule: Rule, recurrence: Recurrence) -> str:
    unit = _UNITS[rule.freq]
    parts = [f"every {unit}" if rule.interval == 1 else f"every {counted(rule.interval, unit)}"]
    if rule.days:
        parts.append(f"on {_days(rule)}")
    if rule.month_days:
        parts.append(f"on {listed(_day_number(day) for day in rule.month_days)} of the month")
    if rule.months:
        parts.append(f"in {span_words([month - 1 for month in rule.months], MONTHS)}")
    if rule.freq <= DAILY and not (rule.hours or rule.minutes or rule.seconds):
        parts.append(f"at {recurrence.start:%H:%M:%S}".removesuffix(":00"))
    parts += [
        f"with {name}={','.join(map(str, numbers))}"
        for name, numbers in (
            ("BYYEARDAY", rule.year_days), ("BYWEEKNO", rule.week_numbers), ("BYHOUR", rule.hours),
            ("BYMINUTE", rule.minutes), ("BYSECOND", rule.seconds), ("BYSETPOS", rule.positions),
        )
        if numbers
    ]  # fmt: skip
    if rule.count:
        parts.append(f"{counted(rule.count, 'time')} in all")
    if rule.until:
        parts.append(f"until {moment(rule.until)}")
    return " ".join(parts)


def _days(rule: Rule) -> str:
    plain = [day for day, n in rule.days if not n]
    items = [span_words(plain, WEEKDAYS)] if plain else []
    items += [f"the {_ORDINALS.get(n) or f'{n}.'} {WEEKDAYS[day]}" for day, n in rule.days if n]
    return listed(items)


def _day_number(day: int) -> str:
    if day > 0:
        return f"day {day}"
    return "the last day" if day == -1 else f"{counted(-day - 1, 'day')} before the last"
