"""The instants of simple schedules, by plain arithmetic: seconds since the epoch, in UTC, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

FIELDS = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6))  # seconds first; weekdays as in cron, 0 is Sunday
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_EVERY = re.compile(r"every (\d+)([smhd])")


def instants(schedule: str, after: datetime, until: datetime) -> Iterator[datetime]:
    """Return the instants of a schedule in (after, until]."""
    every = _EVERY.fullmatch(schedule)
    if every is not None:
        yield from _steps(int(every[1]) * UNITS[every[2]], after, until)
        return
    allowed = _fields(schedule)
    moment = after.replace(microsecond=0) + timedelta(seconds=1)
    while moment <= until:
        if _fits(moment, allowed):
            yield moment
            moment += timedelta(seconds=1)
        elif moment.month not in allowed[4] or moment.day not in allowed[3]:
            moment = moment.replace(hour=0, minute=0, second=0) + timedelta(days=1)
        elif moment.hour not in allowed[2] or moment.minute not in allowed[1]:
            moment = moment.replace(second=0) + timedelta(minutes=1)
        else:
            moment += timedelta(seconds=1)


def is_instant(schedule: str, moment: datetime) -> bool:
    """Say whether a schedule fires at a moment."""
    return next(instants(schedule, moment - timedelta(microseconds=1), moment), None) == moment


def _steps(seconds: int, after: datetime, until: datetime) -> Iterator[datetime]:
    number = int(after.timestamp()) // seconds
    while (moment := datetime.fromtimestamp(number * seconds, UTC)) <= until:
        if moment > after:
            yield moment
        number += 1


def _fits(moment: datetime, allowed: list[set[int]]) -> bool:
    weekday = (moment.weekday() + 1) % 7  # Sunday is 0
    parts = (moment.second, moment.minute, moment.hour, moment.day, moment.month, weekday)
    return all(part in some for part, some in zip(parts, allowed, strict=True))


def _fields(schedule: str) -> list[set[int]]:
    words = schedule.split()
    words = ["0", *words] if len(words) == 5 else words
    if len(words) != 6:
        raise ValueError(f"{schedule!r} is no schedule that a run may use; use cron of 5 or 6 simple fields, or 'every 10s'")
    return [_field(word, low, high) for word, (low, high) in zip(words, FIELDS, strict=True)]


def _field(word: str, low: int, high: int) -> set[int]:
    if word == "*":
        return set(range(low, high + 1))
    if word.startswith("*/"):
        return set(range(low, high + 1, int(word[2:])))
    return {int(one) for one in word.split(",")}
