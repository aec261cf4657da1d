"""The text of a recurrence rule of iCalendar (RFC 5545): read strictly, and written back in one form.

All times in it are local times of the definition's zone, so `TZID` and `Z` are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, time
from typing import Any

from ...errors import InvalidValue, nearest, shown

EXAMPLE = "use e.g. 'DTSTART:20260101T090000 RRULE:FREQ=MONTHLY;BYDAY=-1FR'"
FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
YEARLY, MONTHLY, WEEKLY, DAILY, HOURLY, MINUTELY, SECONDLY = range(7)
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
MAX_COUNT = 100_000
MAX_INTERVAL = 100_000
MAX_RULES = 4  # each is walked at every question, and RFC 5545 advises against more than one
_MOMENT = re.compile(r"[0-9]{8}(?:T[0-9]{6})?", re.ASCII)
_DAY = re.compile(rf"(?P<n>[+-]?[0-9]{{1,2}})?(?P<day>{'|'.join(WEEKDAYS)})", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One RRULE as it was written; empty parts were not. Days of week count from Monday, 0."""

    freq: int
    interval: int = 1
    count: int | None = None
    until: datetime | None = None
    week_start: int = 0
    months: tuple[int, ...] = ()
    week_numbers: tuple[int, ...] = ()
    year_days: tuple[int, ...] = ()
    month_days: tuple[int, ...] = ()
    days: tuple[tuple[int, int], ...] = ()  # a day of week, and which of them in the month or year, or 0
    hours: tuple[int, ...] = ()
    minutes: tuple[int, ...] = ()
    seconds: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A start, rules, and single dates added and taken out."""

    text: str
    start: datetime
    rules: tuple[Rule, ...]
    added: tuple[datetime, ...]
    taken_out: frozenset[datetime]


def read_recurrence(text: str) -> Recurrence:
    """Return what the text means; parts are apart by new lines or blanks."""
    lines: list[str] = []
    start: datetime | None = None
    rules: list[Rule] = []
    added: list[datetime] = []
    taken_out: list[datetime] = []
    for line in text.upper().split():
        head, value = _parts(line)
        if head == "DTSTART":
            if start is not None:
                raise InvalidValue("schedule", "it has two DTSTART", "leave one out")
            start = read_moment(value, "DTSTART")
        elif head == "RRULE":
            rules.append(_read_rule(value))
        else:
            dates = added if head == "RDATE" else taken_out
            dates.extend(read_moment(item, head) for item in value.split(","))
        lines.append(f"{head}:{value}")
    if start is None:
        raise InvalidValue("schedule", f"{shown(text)} has no DTSTART, the local time it is counted from", EXAMPLE)
    if len(rules) > MAX_RULES:
        raise InvalidValue("schedule", f"it has {len(rules)} RRULE, and {MAX_RULES} is the most", "make definitions of them")
    if not rules and not added:
        raise InvalidValue("schedule", f"{shown(text)} has no RRULE", EXAMPLE)
    return Recurrence("\n".join(lines), start, tuple(rules), tuple(sorted(added)), frozenset(taken_out))


def _parts(line: str) -> tuple[str, str]:
    """Return name and value of a line such as RRULE:FREQ=DAILY."""
    head, colon, value = line.partition(":")
    name, *parameters = head.split(";")
    if not colon and line.startswith("FREQ="):
        name, value, parameters = "RRULE", line, []
    if name not in ("DTSTART", "RRULE", "RDATE", "EXDATE"):
        raise InvalidValue("schedule", f"{shown(line)} is not one of DTSTART, RRULE, RDATE and EXDATE", EXAMPLE)
    for parameter in parameters:
        if parameter.startswith("TZID"):
            raise InvalidValue("schedule", f"{shown(head)} names a time zone", "leave it out and use timezone=")
        if parameter not in ("VALUE=DATE", "VALUE=DATE-TIME"):
            raise InvalidValue("schedule", f"{shown(head)} has the parameter {shown(parameter)}", EXAMPLE)
    return name, value


def read_moment(text: str, what: str) -> datetime:
    """Return a local time like 20260101T090000; a date alone is its midnight."""
    if text.endswith("Z"):
        raise InvalidValue("schedule", f"{what} {shown(text)} is in UTC", "leave the Z out and use timezone=")
    try:
        if not _MOMENT.fullmatch(text):
            raise ValueError
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValue("schedule", f"{what} {shown(text)} is not a local time like 20260101T090000", EXAMPLE) from None


def _read_rule(text: str) -> Rule:
    values: dict[str, Any] = {}
    for part in text.split(";"):
        key, equals, value = part.partition("=")
        if key not in _READERS or not equals or not value:
            close = nearest(key, _READERS)
            hint = f", did you mean {close!r}?" if close and close != key else ""
            raise InvalidValue("schedule", f"{shown(part)} is not part of an RRULE{hint}", EXAMPLE)
        field, read = _READERS[key]
        if field in values:
            raise InvalidValue("schedule", f"the RRULE has {key} twice", "leave one out")
        values[field] = read(key, value)
    if "freq" not in values:
        raise InvalidValue("schedule", f"the RRULE {shown(text)} has no FREQ", EXAMPLE)
    return _checked(Rule(**values), text)


def _checked(rule: Rule, text: str) -> Rule:
    """Refuse what RFC 5545 says must not be together."""
    problem = None
    if rule.count and rule.until:
        problem = "has both COUNT and UNTIL"
    elif any(n for _, n in rule.days) and rule.freq not in (YEARLY, MONTHLY):
        problem = "has a number before a day of week, which needs FREQ=MONTHLY or YEARLY"
    elif any(n for _, n in rule.days) and rule.week_numbers:
        problem = "has a number before a day of week together with BYWEEKNO"
    elif rule.week_numbers and rule.freq != YEARLY:
        problem = "has BYWEEKNO, which needs FREQ=YEARLY"
    elif rule.positions and not any((rule.months, rule.week_numbers, rule.year_days, rule.month_days, rule.days, rule.hours,
                                     rule.minutes, rule.seconds)):  # fmt: skip
        problem = "has BYSETPOS and nothing to choose from"
    elif rule.positions and len(rule.hours or [0]) * len(rule.minutes or [0]) * len(rule.seconds or [0]) > 24:
        problem = "has BYSETPOS over more than 24 times a day"
    if problem:
        raise InvalidValue("schedule", f"the RRULE {shown(text)} {problem}", EXAMPLE)
    return rule


def _numbers(low: int, high: int, *, signed: bool = False) -> Callable[[str, str], tuple[int, ...]]:
    """Return a reader of a list of numbers; signed ones may count from the end, and are never 0."""

    def read(key: str, text: str) -> tuple[int, ...]:
        return tuple(sorted({_number(key, item, low, high, signed=signed) for item in text.split(",")}))

    return read


def _number(key: str, text: str, low: int, high: int, *, signed: bool = False) -> int:
    allowed = f"{low}-{high}" + (f" or -{high}-{-low}" if signed else "")
    if not re.fullmatch(r"[+-]?[0-9]{1,6}" if signed else r"[0-9]{1,6}", text, re.ASCII):
        raise InvalidValue("schedule", f"{key} {shown(text)} is not in {allowed}", EXAMPLE)
    if not low <= (abs(int(text)) if signed else int(text)) <= high:
        raise InvalidValue("schedule", f"{key} {shown(text)} is not in {allowed}", EXAMPLE)
    return int(text)


def _one(low: int, high: int) -> Callable[[str, str], int]:
    return lambda key, text: _number(key, text, low, high)


def _choice(known: tuple[str, ...]) -> Callable[[str, str], int]:
    def read(key: str, text: str) -> int:
        if text not in known:
            raise InvalidValue("schedule", f"{key} {shown(text)} is not one of {', '.join(known)}", EXAMPLE)
        return known.index(text)

    return read


def _until(key: str, text: str) -> datetime:
    """Return the last local time; a date alone takes its whole day in."""
    moment = read_moment(text, key)
    return moment if "T" in text else datetime.combine(moment, time(23, 59, 59))


def _days(key: str, text: str) -> tuple[tuple[int, int], ...]:
    found = set()
    for item in text.split(","):
        match = _DAY.fullmatch(item)
        if not match or (match["n"] and not 1 <= abs(int(match["n"])) <= 53):
            raise InvalidValue("schedule", f"{key} {shown(item)} is not a day like MO, 1MO or -1FR", EXAMPLE)
        found.add((WEEKDAYS.index(match["day"]), int(match["n"] or 0)))
    return tuple(sorted(found))


_READERS: Mapping[str, tuple[str, Callable[[str, str], Any]]] = {
    "FREQ": ("freq", _choice(FREQUENCIES)),
    "INTERVAL": ("interval", _one(1, MAX_INTERVAL)),
    "COUNT": ("count", _one(1, MAX_COUNT)),
    "UNTIL": ("until", _until),
    "WKST": ("week_start", _choice(WEEKDAYS)),
    "BYMONTH": ("months", _numbers(1, 12)),
    "BYWEEKNO": ("week_numbers", _numbers(1, 53, signed=True)),
    "BYYEARDAY": ("year_days", _numbers(1, 366, signed=True)),
    "BYMONTHDAY": ("month_days", _numbers(1, 31, signed=True)),
    "BYDAY": ("days", _days),
    "BYHOUR": ("hours", _numbers(0, 23)),
    "BYMINUTE": ("minutes", _numbers(0, 59)),
    "BYSECOND": ("seconds", _numbers(0, 59)),
    "BYSETPOS": ("positions", _numbers(1, 366, signed=True)),
}
