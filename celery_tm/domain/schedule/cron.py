"""Cron: five fields, six with the seconds first, `@daily` and friends.

croniter reads the expression and walks naive local time; `domain.dst` maps that to UTC, because croniter itself fires
fixed times twice when clocks are put back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import ClassVar

from croniter import CroniterBadDateError, CroniterError, croniter

from ...errors import InvalidValue
from ..dst import Fold, next_local
from .base import Schedule, Zone

MAX_LENGTH = 200
NICKNAMES: Mapping[str, str] = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
NO_ZERO = ("day of month", "month")
FIELDS = ("second", "minute", "hour", "day of month", "month", "day of week")
ALLOWED = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ*/,-#? ")
# 2 January of a leap year: far enough from any expression's only date to prove that it fires at all.
PROBE = datetime(2024, 1, 2)  # noqa: DTZ001


@dataclass(frozen=True, slots=True)
class Cron(Schedule):
    """Fires where local time matches the fields."""

    kind: ClassVar[str] = "cron"
    expression: str
    zone: Zone

    @classmethod
    def load(cls, expression: str, zone: Zone) -> Cron:
        """Return the schedule of a cron expression; refuse one that is malformed or never fires."""
        _parsed(_six_fields(expression))
        return cls(" ".join(expression.split()), zone)

    @classmethod
    def example(cls) -> str:
        """Return an example of what is right."""
        return _EXAMPLE

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first instant strictly later than `instant`."""
        fields = _six_fields(self.expression)
        fold = self.zone.fold or (Fold.BOTH if is_interval_like(fields) else Fold.FIRST)
        return next_local(
            instant,
            zone=self.zone.info,
            gap=self.zone.gap,
            fold=fold,
            next_naive=lambda start: _next_naive(fields, start),
        )

    def describe(self) -> str:
        """Say when it fires."""
        return f"cron {self.expression!r} in {self.zone.name}"


_EXAMPLE = "use five fields like '*/5 * * * *', or six with the seconds first"


def is_interval_like(fields: str) -> bool:
    """Say whether the second, minute or hour has a `*`, a range or a step: such a job runs in both passes of a fold."""
    return any(mark in part for part in fields.split()[:3] for mark in "*-/")


@lru_cache(maxsize=8192)
def _six_fields(expression: str) -> str:
    """Return the expression with its nickname and its seconds written out, or say what is wrong with it."""
    text = expression.strip()
    if len(text) > MAX_LENGTH:
        raise InvalidValue("schedule", f"{len(text)} characters are too many for a cron expression", _EXAMPLE)
    if text.startswith("@"):
        if text.lower() not in NICKNAMES:
            raise InvalidValue("schedule", f"unknown nickname {text!r}", f"use one of {', '.join(NICKNAMES)}")
        text = NICKNAMES[text.lower()]
    strange = sorted({c for c in text if c not in ALLOWED and not c.isspace()})
    if strange:
        raise InvalidValue("schedule", f"{expression!r} contains {strange[0]!r}, which no cron field has", _EXAMPLE)
    parts = text.split()
    if len(parts) not in (5, 6):
        raise InvalidValue("schedule", f"{expression!r} has {len(parts)} fields", _EXAMPLE)
    parts = parts if len(parts) == 6 else ["0", *parts]
    return " ".join(_plain(part, name, expression) for part, name in zip(parts, FIELDS, strict=True))


def _plain(field: str, name: str, expression: str) -> str:
    """Return a field in words that croniter reads right: a-a as a, Sunday as 0, and nothing that it takes for a dice."""
    items = []
    for item in field.split(","):
        body, slash, step = item.partition("/")
        low, dash, high = body.partition("-")
        if low.lower() in ("r", "h") or (name in NO_ZERO and any(end.isdigit() and not int(end) for end in (low, high))):
            raise InvalidValue("schedule", f"{item!r} is not valid for the {name} in {expression!r}", _EXAMPLE)
        if dash and low and low.lower() == high.lower():
            item, dash = low, ""
        if name == FIELDS[5]:
            item = _sunday(item, low, high if dash else None, int(step) if slash and step.isdigit() else 1)
        items.append(item)
    return ",".join(items)


def _sunday(item: str, low: str, high: str | None, step: int) -> str:
    """Return an item of the day of week with Sunday as 0 where it is 7, which croniter takes in five fields only."""
    if high == "7" and low.isdigit() and step and int(low) <= 7:
        return ",".join(str(day % 7) for day in range(int(low), 8, step))
    return f"0{item[1:]}" if low == "7" or low.startswith("7#") else item


@lru_cache(maxsize=8192)
def _parsed(fields: str) -> bool:
    """Prove that croniter reads the fields and that they fire at least once."""
    try:
        croniter(fields, PROBE, second_at_beginning=True, max_years_between_matches=41).get_next(datetime)
    except CroniterBadDateError:
        raise InvalidValue("schedule", f"{fields!r} never fires: no such date exists", _EXAMPLE) from None
    except (CroniterError, ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        raise InvalidValue("schedule", _where(fields, error), _EXAMPLE) from None
    return True


def _where(fields: str, error: Exception) -> str:
    """Name the first field that is wrong on its own."""
    parts = fields.split()
    for index, name in enumerate(FIELDS):
        alone = ["0", "0", "0", "1", "*", "*"] if index != 5 else ["0", "0", "0", "*", "*", "*"]
        alone[index] = parts[index]
        try:
            croniter(" ".join(alone), PROBE, second_at_beginning=True)
        except Exception:
            return f"{parts[index]!r} is not valid for the {name} in {fields!r}"
    return f"{fields!r} is not a cron expression ({error})"


def _next_naive(fields: str, start: datetime) -> datetime | None:
    try:
        found: datetime = croniter(fields, start, second_at_beginning=True).get_next(datetime)
    except CroniterBadDateError:
        return None
    return found
