"""What every source is read into: entries as definitions would state them, and entries that cannot be read."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from ...errors import InvalidValue, shown

# What a source says about a definition, also where it says nothing: so that what was taken out there is taken out here.
UNSTATED: Mapping[str, Any] = {
    "args": (), "kwargs": {}, "queue": None, "priority": None, "expires": None, "starts_at": None, "ends_at": None,
    "max_runs": None, "enabled": True, "options": {},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One entry of another scheduler."""

    name: str
    values: Mapping[str, Any]
    since: datetime | None = None  # what the source counts the next run from: the last run, or when it was changed
    last_run_at: datetime | None = None
    runs: int = 0
    every: timedelta | None = None  # of an interval that is not counted from its last run here, as it is there
    over: str | None = None  # why it will not fire again
    awaited: datetime | None = None  # the one instant it was to run at and has not
    origin: str | None = None  # None: the source
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Unreadable:
    """An entry that cannot be read, and why."""

    name: str
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """What a source holds: where that is, without a password, and its entries in order."""

    where: str
    entries: Sequence[Entry | Unreadable]
    notes: Sequence[str] = field(default_factory=list)


def read_instant(value: Any, *, field: str, zone: tzinfo = UTC) -> datetime | None:
    """Return an instant as a driver gives it, in UTC; one without an offset is local time in `zone`."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = datetime.fromisoformat(value)
    if not isinstance(value, datetime):
        raise InvalidValue(field, f"{shown(value)} is not a date and time", "repair it in the source")
    try:
        return (value if value.tzinfo else value.replace(tzinfo=zone)).astimezone(UTC)
    except OverflowError:
        raise InvalidValue(field, f"{value} is outside the calendar", "repair it in the source") from None
