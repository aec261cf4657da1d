"""Instants and durations, and the one way to move time.

Every instant in celery_tm is an aware UTC datetime. What is due and when a lease ends is asked of the database's clock
(`store.database`); this module only answers for this machine, and lets tests and `run_due_jobs(now=…)` stand still, or a
whole process live at another time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

from .errors import InvalidValue, shown

_moved: ContextVar[datetime | None] = ContextVar("celery_tm_moved_time", default=None)
_ahead = timedelta(0)  # how far this process' time is moved while it flows
_standing: datetime | None = None  # where this process' time stands still

_UNITS = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000, "w": 604_800_000_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
_WHOLE = re.compile(rf"(?:{_PART.pattern}\s*)+", re.ASCII)
MAX_DURATION = timedelta(days=36500)


def now() -> datetime:
    """Return this machine's time, or the time moved to."""
    return moved_time() or datetime.now(UTC)


def moved_time() -> datetime | None:
    """Return the present instant where time was moved, else None: then the database's clock is asked."""
    standing = _moved.get() or _standing
    return standing or (datetime.now(UTC) + _ahead if _ahead else None)


@contextmanager
def moved_to(instant: datetime) -> Iterator[None]:
    """Let time stand still at `instant` for what runs in this context, the database's questions included."""
    token = _moved.set(as_utc(instant, field="now"))
    try:
        yield
    finally:
        _moved.reset(token)


def move_by(ahead: timedelta) -> None:
    """Let this whole process live that far from the present; time goes on flowing. Zero brings it back."""
    global _ahead
    _ahead = ahead


def stand_still(instant: datetime | None) -> None:
    """Let time stand still at `instant` for this whole process, all its threads included; None lets it flow again."""
    global _standing
    _standing = None if instant is None else as_utc(instant, field="instant")


def as_utc(value: datetime, *, field: str) -> datetime:
    """Return an aware instant in UTC; a naive one is refused, since nobody knows which zone it means."""
    if not isinstance(value, datetime):
        raise InvalidValue(field, f"{shown(value)} is not a datetime", "pass an aware one, e.g. datetime.now(UTC)")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidValue(field, f"{value.isoformat()} has no time zone", "pass an aware datetime, e.g. with tzinfo=UTC")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidValue(field, f"{value.isoformat()} is outside the calendar", "give a year from 1 to 9999") from None


def parse_duration(value: timedelta | float | str, *, field: str) -> timedelta:
    """Return what `timedelta`, seconds or text like "15m" and "1h 30m" mean; negative ones are refused."""
    duration = _read(value, field)
    if duration < timedelta(0):
        raise InvalidValue(field, f"{shown(value)} is negative", "give a duration of zero or more")
    if duration > MAX_DURATION:
        raise InvalidValue(field, f"{shown(value)} is longer than 100 years", "give a shorter duration")
    return duration


def readable_expiry(value: Any) -> Any:
    """Return an `expires` as Celery reads it: text like "30s", which Celery would take for a date, becomes seconds."""
    if not isinstance(value, (str, timedelta)) or (isinstance(value, str) and _is_instant(value)):
        return value
    return parse_duration(value, field="expires").total_seconds()


def _is_instant(value: str) -> bool:
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def _read(value: timedelta | float | str, field: str) -> timedelta:
    if isinstance(value, timedelta):
        return value
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return timedelta(seconds=value)
        if isinstance(value, str) and len(value) <= 64:
            return _read_text(value)
    except (OverflowError, ValueError):
        pass
    raise InvalidValue(
        field, f"{shown(value)} is not a duration", "give a timedelta, seconds, or text like '15m' or '1h 30m'"
    )


@lru_cache(maxsize=1024)  # "15m" is said again and again
def _read_text(value: str) -> timedelta:
    if not _WHOLE.fullmatch(value.strip()):
        raise ValueError(value)
    return timedelta(microseconds=int(sum(Decimal(n) * _UNITS[unit] for n, unit in _PART.findall(value))))


def format_duration(duration: timedelta) -> str:
    """Write a duration so that people read it and `parse_duration` takes it back, to the microsecond."""
    left = duration // timedelta(microseconds=1)
    parts = []
    for unit in ("d", "h", "m"):
        count, left = divmod(left, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    unit = "ms" if left < _UNITS["s"] and left and not parts else "s"
    if left or not parts:
        parts.append(f"{_decimal(left, _UNITS[unit])}{unit}")
    return " ".join(parts)


def _decimal(amount: int, size: int) -> str:
    """Return amount / size without a rounding error and without zeros at its end; `size` is a power of ten."""
    whole, rest = divmod(amount, size)
    digits = len(str(size)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip(".") if rest else str(whole)
