"""Instants, durations and progress as people read them on a page. Pure functions: the present is passed in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from ...clock import as_utc
from ...domain.dst import local_or_utc
from ...errors import InvalidValue, shown

MINUTE, HOUR, DAY = 60, 3_600, 86_400
_OF = re.compile(r"(?<![\d.])(\d{1,9})\s*(?:/|of)\s*(\d{1,9})(?![\d.])")
_PERCENT = re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d+)?)\s*%")


@dataclass(frozen=True, kw_only=True, slots=True)
class When:
    """An instant: for machines, in UTC, in the definition's own time zone where that differs, and from now."""

    iso: str
    utc: str
    own: str | None
    zone: str
    away: str


def when(instant: datetime | None, *, now: datetime, zone: str = "UTC") -> When | None:
    """Return an instant as it is shown; None stays None."""
    if instant is None:
        return None
    instant = instant.astimezone(UTC)
    local = instant.astimezone(ZoneInfo(known_zone(zone)))
    own = None if local.utcoffset() == timedelta(0) else f"{_stamp(local, now, other=instant)} {zone}"
    utc = f"{_stamp(instant, now)} UTC"
    return When(iso=instant.isoformat(timespec="milliseconds"), utc=utc, own=own, zone=zone, away=away(instant - now))


def known_zone(name: str) -> str:
    """Return a time zone that this machine knows: UTC in place of one that it does not."""
    try:
        ZoneInfo(name)
    except (ValueError, OSError):  # of a definition that cannot be planned here either
        return "UTC"
    return name


def _stamp(instant: datetime, now: datetime, other: datetime | None = None) -> str:
    """Return a date and a time; the year only where it is another one, the date only where it differs from the other's."""
    seconds = ":%S" if instant.second or instant.microsecond >= 500_000 else ""
    year = " %Y" if instant.year != now.year else ""
    date = "" if other is not None and other.date() == instant.date() else f"%-d %b{year} "
    return instant.strftime(f"{date}%H:%M{seconds}")


def away(distance: timedelta) -> str:
    """Return how far away an instant is: "in 5 min", "3 h ago"."""
    seconds = distance.total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"in {roughly(seconds)}" if seconds > 0 else f"{roughly(-seconds)} ago"


def roughly(seconds: float) -> str:
    """Return a duration in one or two units."""
    seconds = abs(seconds)
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    for size, unit, below in ((DAY, "d", (HOUR, "h")), (HOUR, "h", (MINUTE, "min")), (MINUTE, "min", (1, "s"))):
        if whole >= size:
            rest = whole % size // below[0]
            few = whole // size < 10 and rest
            return f"{whole // size} {unit} {rest} {below[1]}" if few else f"{whole // size} {unit}"
    return f"{whole} s"


def took(start: datetime | None, end: datetime | None) -> str | None:
    """Return how long something took; None where one end of it is not known."""
    return None if start is None or end is None else roughly(max((end - start).total_seconds(), 0))


def share_of(progress: str | None) -> float | None:
    """Return how far a body says it has come, from 0 to 1, where its words have a share in them: "3/10", "40 %"."""
    if not progress:
        return None
    if found := _PERCENT.search(progress):
        return min(float(found[1]) / 100, 1.0)
    if (found := _OF.search(progress)) and int(found[2]):
        return min(int(found[1]) / int(found[2]), 1.0)
    return None


def first_line(text: str | None, limit: int = 160) -> str:
    """Return the beginning of what others have written, for one line of a table."""
    lines = (text or "").strip().splitlines()
    first = lines[0] if lines else ""
    return first if len(first) <= limit and len(lines) <= 1 else f"{first[:limit]} …"


def as_json(value: Any) -> str:
    """Return a plain value as JSON that people read."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def plainly(value: Any) -> str:
    """Return a value as people write it: text as it is, what is short in one line, the rest as JSON."""
    if isinstance(value, str):
        return value
    short = json.dumps(value, ensure_ascii=False, default=str)
    return short if len(short) <= 60 else as_json(value)


Change = tuple[str, str | None, str | None]


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Return what differs between two statements, as words."""
    return [
        (field, None if was is None else plainly(was), None if now is None else plainly(now))
        for field, was, now in differences(old, new)
    ]


def code_in(text: str) -> list[tuple[bool, str]]:
    """Return the parts of a text, and of each whether it stands between backticks, as commands do."""
    return [(place % 2 == 1, part) for place, part in enumerate(text.split("`")) if part]


def read_instant(text: str, *, field: str, zone: str = "UTC") -> datetime:
    """Return what somebody typed as an instant; without an offset it is on the clocks of `zone`."""
    return as_utc(local_or_utc(read_moment(text, field=field, zone=zone)), field=field)


def read_moment(text: str, *, field: str, zone: str = "UTC") -> datetime:
    """Return what somebody typed as a time; without an offset it is on the clocks of `zone`."""
    try:
        found = datetime.fromisoformat(text.strip().replace(" ", "T", 1) if "T" not in text else text.strip())
    except ValueError:
        remedy = "give it as 2026-03-29 02:15, or with an offset as 2026-03-29T02:15:00+01:00"
        raise InvalidValue(field, f"{shown(text)} is not an instant", remedy) from None
    return found if found.tzinfo else found.replace(tzinfo=ZoneInfo(zone))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return what differs between two statements: the field, what it was, what it is; None is not stated."""
    return [(field, old.get(field), new.get(field)) for field in {**old, **new} if old.get(field) != new.get(field)]
