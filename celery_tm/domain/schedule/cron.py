"""Cron: five fields, six with the seconds first, `@daily` and friends, `L`, `W`, `#` and `H`.

The fields are read and checked by `cron_fields`. croniter walks naive local time where it does so rightly, `cron_days`
where it does not; `domain.dst` maps that to UTC, because croniter itself fires fixed times twice when clocks are put back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import ClassVar, Self

from croniter import CroniterBadDateError, croniter

from ...errors import InvalidValue, shown
from ..dst import Fold
from .base import Schedule, Zone, checked_text
from .cron_days import DayWalk
from .cron_fields import EXAMPLE, Fields, read_fields
from .cron_words import cron_words

NICKNAMES: Mapping[str, str] = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
ALLOWED = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ*/,-#?() ")
PROBE = datetime(2024, 1, 2)  # noqa: DTZ001


@dataclass(frozen=True, slots=True)
class Cron(Schedule):
    """Fires where local time matches the fields. `name` is the definition's, kept only where `H` is spread by it."""

    kind: ClassVar[str] = "cron"
    both_days: ClassVar[bool] = False
    takes_seconds: ClassVar[bool] = True
    expression: str
    zone: Zone
    name: str = ""

    @classmethod
    def load(cls, expression: str, zone: Zone, *, name: str = "") -> Self:
        """Return the schedule of a cron expression; refuse one that is malformed or never fires."""
        text = " ".join(checked_text(expression, what="a cron expression", example=EXAMPLE).split())
        if not cls.takes_seconds and len(text.split()) == 6:
            raise InvalidValue("schedule", f"{text!r} has 6 fields, and Celery's crontab has no seconds", cls.example())
        read = _read(text, name, cls.both_days)
        if not _walk(text, name, cls.both_days).days.ever_fires():
            raise InvalidValue("schedule", f"{text!r} never fires: no such date exists", EXAMPLE)
        return cls(text, zone, name if read.is_hashed else "")

    @classmethod
    def example(cls) -> str:
        """Return an example of what is right."""
        return EXAMPLE

    @property
    def fields(self) -> Fields:
        """Return what the expression means, field by field."""
        return _read(self.expression, self.name, self.both_days)

    @property
    def is_interval_like(self) -> bool:
        """Say whether it means every so often, and not at fixed local times."""
        return _walk(self.expression, self.name, self.both_days).is_interval_like

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first instant strictly later than `instant`."""
        walk = _walk(self.expression, self.name, self.both_days)
        fold = Fold.BOTH if walk.is_interval_like else Fold.FIRST
        return self.zone.next_after(instant, fold=fold, next_naive=walk.next_after)

    def describe(self) -> str:
        """Say when it fires."""
        return f"{cron_words(self.fields)} in {self.zone.name}"


@dataclass(frozen=True, slots=True)
class Crontab(Cron):
    """Celery's own crontab: five fields, and both the day of month and the day of week must match."""

    kind: ClassVar[str] = "crontab"
    both_days: ClassVar[bool] = True
    takes_seconds: ClassVar[bool] = False

    @classmethod
    def example(cls) -> str:
        """Return an example of what is right."""
        return "use five fields like '0 9 * * mon-fri'"


class _Walk:
    """The local times of one expression, by croniter where it is right about them."""

    def __init__(self, fields: Fields) -> None:
        self.is_interval_like = fields.is_interval_like
        self.days = DayWalk(fields)
        text = _plain(fields)
        self.croniter = croniter(text, PROBE, second_at_beginning=True) if text else None

    def next_after(self, start: datetime) -> datetime | None:
        """Return the first local time strictly later than `start`."""
        if self.croniter is None:
            return self.days.next_after(start)
        try:
            # A copy: croniter keeps its position in itself, and threads share what is cached here.
            found: datetime = copy(self.croniter).get_next(datetime, start_time=start.replace(microsecond=0))
        except (CroniterBadDateError, OverflowError, ValueError):
            return None  # the end of the calendar; the fields were proved to fire
        return found


def _plain(fields: Fields) -> str | None:
    """Return the fields in numbers for croniter, or None if it is not right about them."""
    days, weekdays = fields.days, fields.weekdays
    if not (days.free or weekdays.free) or days.last or days.nearest or days.last_weekday or weekdays.nth or weekdays.last:
        return None
    parts = (
        _text(fields.seconds, 60),
        _text(fields.minutes, 60),
        _text(fields.hours, 24),
        "*" if days.free else _text(days.numbers, 31),
        _text(fields.months, 12),
        "*" if weekdays.free else _text(weekdays.numbers, 7),
    )
    return " ".join(parts)


def _text(numbers: Iterable[int], full: int) -> str:
    ordered = sorted(numbers)
    return "*" if len(ordered) == full else ",".join(map(str, ordered))


@lru_cache(maxsize=8192)
def _walk(expression: str, name: str, both_days: bool) -> _Walk:
    return _Walk(_read(expression, name, both_days))


@lru_cache(maxsize=8192)
def _read(expression: str, name: str, both_days: bool) -> Fields:
    """Return the fields of an expression with its nickname and its seconds written out, or say what is wrong with it."""
    text = expression
    if text.startswith("@"):
        if text.lower() not in NICKNAMES:
            raise InvalidValue("schedule", f"unknown nickname {text!r}", f"use one of {', '.join(NICKNAMES)}")
        text = NICKNAMES[text.lower()]
    strange = sorted({c for c in text if c not in ALLOWED})
    if strange:
        raise InvalidValue("schedule", f"{shown(expression)} contains {strange[0]!r}, which no cron field has", EXAMPLE)
    parts = text.split()
    if len(parts) not in (5, 6):
        raise InvalidValue("schedule", f"{shown(expression)} has {len(parts)} fields", EXAMPLE)
    return read_fields(parts if len(parts) == 6 else ["0", *parts], name=name, both=both_days)
