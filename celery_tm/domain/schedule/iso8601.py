"""ISO 8601 repeating intervals: `R5/2026-01-01T00:00:00Z/P1M`, `R/…` without an end, `Rn/start/end`, `Rn/period/end`.

The n-th instant is counted from the start, never from the one before, so months do not drift: 31 January, 28 February,
31 March. Years, months, weeks and days step on the local wall clock; a period of hours, minutes and seconds alone is
exact elapsed time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import ClassVar

from ...errors import InvalidValue, shown
from ..dst import Fold, wall_to_utc
from .base import Schedule, Zone, checked_text
from .iso_period import Period, checked_period, read_period
from .words import counted, moment

EXAMPLE = "use e.g. 'R5/2026-01-01T00:00:00Z/P1M' or 'R/2026-01-01T09:00:00/P1D'"
DAY = timedelta(days=1)
# How long a month is on average, in the calendar's cycle of 400 years.
MONTH = timedelta(days=146097) / 4800


@dataclass(frozen=True, slots=True)
class Iso8601(Schedule):
    """Fires at the start and then once per period, as often as R says in all."""

    kind: ClassVar[str] = "iso8601"
    expression: str
    zone: Zone

    @classmethod
    def load(cls, expression: str, zone: Zone, *, name: str = "") -> Iso8601:  # noqa: ARG003
        """Return the schedule of a repeating interval; refuse one that is malformed or never fires."""
        text = checked_text(expression, what="a repeating interval", example=EXAMPLE).upper()
        schedule = cls(text, zone)
        if schedule.next_after(datetime.min.replace(tzinfo=UTC)) is None:
            raise InvalidValue("schedule", f"{text!r} never fires in {zone.name} with gap={zone.gap.value!r}", EXAMPLE)
        return schedule

    @classmethod
    def example(cls) -> str:
        """Return an example of what is right."""
        return EXAMPLE

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Say whether a text begins with R, perhaps a number, and a slash."""
        return re.match(r"[Rr]-?[0-9]*/", text) is not None

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first instant strictly later than `instant`, at once however long ago the start is."""
        line = _read(self.expression, self.zone)
        if line.first and instant < line.first:
            return line.first
        if not line.period.is_dated:
            return line.next_elapsed(instant)
        if line.offset:
            return line.next_at_offset(instant)
        return self.zone.next_after(instant, fold=Fold.FIRST, next_naive=line.next_wall)

    def describe(self) -> str:
        """Say when it fires."""
        line = _read(self.expression, self.zone)
        times = f", {counted(line.count, 'time')} in all" if line.count else ""
        where = line.offset or self.zone.name
        return f"every {line.period.words()} from {moment(line.start)} in {where}{times}"


@dataclass(frozen=True, slots=True)
class _Line:
    """What an expression means: `start` is local time, of the zone or of `offset`; `first` the start as an instant.

    A start that was written as an instant is `first` even where its local time comes twice; None: it follows from `start`.
    """

    start: datetime
    first: datetime | None
    period: Period
    count: int | None
    offset: timezone | None

    def next_elapsed(self, instant: datetime) -> datetime | None:
        """Return the first instant later than `instant`, the period being exact time."""
        assert self.first is not None
        n = (instant - self.first) // self.period.rest + 1
        return self.period.add(self.first, n) if self.count is None or n < self.count else None

    def next_at_offset(self, instant: datetime) -> datetime | None:
        """Return the first instant later than `instant` on the wall clock of a fixed offset."""
        try:
            wall = self.next_wall(instant.astimezone(self.offset).replace(tzinfo=None))
            return wall.replace(tzinfo=self.offset).astimezone(UTC) if wall else None
        except OverflowError:
            return None  # the end of the calendar; before its beginning `first` is the answer

    def next_wall(self, wall: datetime) -> datetime | None:
        """Return the first local time strictly later than `wall`: guess which one it is, then put the guess right."""
        least = 1 if self.first else 0
        n = max(int((wall - self.start) / (self.period.months * MONTH + self.period.rest)), least)
        while n > least and ((at := self.period.add(self.start, n)) is None or at > wall):
            n -= 1
        while (at := self.period.add(self.start, n)) is not None and at <= wall:
            n += 1
        return at if self.count is None or n < self.count else None


@lru_cache(maxsize=8192)
def _read(text: str, zone: Zone) -> _Line:
    """Return what an expression means in a zone, or say what is wrong with it."""
    parts = text.split("/")
    if len(parts) != 3:
        raise InvalidValue("schedule", f"{shown(text)} is not R, a start and a period with slashes between", EXAMPLE)
    count = _read_count(parts[0])
    if parts[1].startswith("P"):
        return _ending_at(parts[2], read_period(parts[1], example=EXAMPLE), count, zone)
    start = _read_moment(parts[1], "start")
    offset = _offset_of(start, zone)
    wall = _wall(start, zone, offset)
    if parts[2].startswith("P"):
        period = read_period(parts[2], example=EXAMPLE)
    else:
        period = _until(start, _read_moment(parts[2], "end"), zone, offset, text)
    if start.tzinfo:
        return _Line(wall, start.astimezone(UTC), period, count, offset)
    return _Line(wall, None if period.is_dated else _instant(wall, zone), period, count, offset)


def _read_count(text: str) -> int | None:
    match = re.fullmatch(r"R([0-9]{0,9})", text, re.ASCII)
    if not match or match[1].strip("0") == "" != match[1]:
        raise InvalidValue("schedule", f"{shown(text)} is not R, or R and how often it fires in all, from 1", EXAMPLE)
    return int(match[1]) if match[1] else None


def _read_moment(text: str, what: str) -> datetime:
    at: datetime | None
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo:
            at.astimezone(UTC)
    except (ValueError, OverflowError):
        at = None
    if at is None or at.microsecond:
        raise InvalidValue("schedule", f"the {what} {shown(text)} is not a date and time in whole seconds", EXAMPLE)
    return at


def _offset_of(at: datetime, zone: Zone) -> timezone | None:
    """Return the fixed offset whose wall clock counts: that of the text, where the definition has no zone of its own."""
    offset = at.utcoffset()
    return timezone(offset) if offset is not None and zone.name in ("UTC", "Etc/UTC") else None


def _wall(at: datetime, zone: Zone, offset: timezone | None) -> datetime:
    """Return the local time of a moment."""
    try:
        return at.astimezone(offset or zone.info).replace(tzinfo=None, fold=0) if at.tzinfo else at
    except OverflowError:
        raise InvalidValue("schedule", f"{at.isoformat()} is outside the calendar in {zone.name}", EXAMPLE) from None


def _instant(wall: datetime, zone: Zone) -> datetime:
    """Return the instant that exact time is counted from."""
    fold = zone.fold if zone.fold is Fold.SECOND else Fold.FIRST
    at = wall_to_utc(wall, zone=zone.info, gap=zone.gap, fold=fold)
    if at is None:
        raise InvalidValue("schedule", f"{wall.isoformat()} does not exist in {zone.name}", "give another time")
    return at


def _until(start: datetime, end: datetime, zone: Zone, offset: timezone | None, text: str) -> Period:
    """Return the period from start to end: days if it is whole days on the wall clock, else exact time."""
    if bool(start.tzinfo) != bool(end.tzinfo):
        raise InvalidValue("schedule", f"{text!r} has an offset in its start or its end alone", "write both alike")
    if end <= start:
        raise InvalidValue("schedule", f"{text!r} ends before it starts", EXAMPLE)
    days = _wall(end, zone, offset) - _wall(start, zone, offset)
    if days >= DAY and not days % DAY:
        return Period(0, days, is_dated=True)
    elapsed = end - start if start.tzinfo else _instant(end, zone) - _instant(start, zone)
    return checked_period(Period(0, elapsed, is_dated=False), text)


def _ending_at(text: str, period: Period, count: int | None, zone: Zone) -> _Line:
    """Return what Rn/period/end means: the start is one period before the end."""
    end = _read_moment(text, "end")
    offset = _offset_of(end, zone)
    wall = _wall(end, zone, offset)
    start: datetime | None
    if period.is_dated:
        start, first = period.add(wall, -1), None
    else:
        first = period.add(end.astimezone(UTC) if end.tzinfo else _instant(wall, zone), -1)
        start = _wall(first, zone, offset) if first else None
    if start is not None and period.is_dated and offset:
        first = _in_utc(start.replace(tzinfo=offset))
    if start is None or (offset and first is None):
        raise InvalidValue("schedule", f"the start of the interval that ends at {text} is before the calendar's", EXAMPLE)
    return _Line(start, first, period, count, offset)


def _in_utc(at: datetime) -> datetime | None:
    try:
        return at.astimezone(UTC)
    except OverflowError:
        return None
