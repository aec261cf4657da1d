"""From local wall-clock time to UTC: what a schedule does when clocks are put forward or back.

Cron is computed on naive local time, as if clocks were never changed; here each of its times becomes an instant. What falls
into skipped time runs at the first valid instant or not at all; what comes twice runs in one pass or in both. An instant
found is always later than the one asked from.

It asks the zone for the two readings of a local time that PEP 495 defines, so it needs no table of changes. That holds as
long as a zone's changes lie further apart than they shift; the tz database has none closer than three days.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from zoneinfo import ZoneInfo

SECOND = timedelta(seconds=1)
ZERO = timedelta(0)


class Gap(StrEnum):
    """What to do with a local time that does not exist."""

    SHIFT = "shift"
    SKIP = "skip"


class Fold(StrEnum):
    """Which pass of a local time that comes twice counts."""

    FIRST = "first"
    SECOND = "second"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of a zone's offset at one instant."""

    at: datetime
    before: timedelta
    after: timedelta

    @property
    def is_gap(self) -> bool:
        """Say whether local time jumps forward here."""
        return self.after > self.before

    def readings(self, wall: datetime) -> tuple[datetime, ...]:
        """Return the instants that a local time touched by this change means: the change itself in a gap, else both."""
        if self.is_gap:
            return (self.at,)
        return (wall - self.before).replace(tzinfo=UTC), (wall - self.after).replace(tzinfo=UTC)

    def wall(self, offset: timedelta) -> datetime:
        """Return the local time at this change, read with the offset before or after it."""
        return self.at.replace(tzinfo=None) + offset


def next_local(
    after: datetime, *, zone: ZoneInfo, gap: Gap, fold: Fold, next_naive: Callable[[datetime], datetime | None]
) -> datetime | None:
    """Return the first instant later than `after` at which the rule on local time fires.

    `next_naive(t)` returns the rule's first local time strictly later than `t`, as if clocks were never changed.
    """
    try:
        after = after.astimezone(UTC)  # also where it is in this very zone: it may be a local time that does not exist
        start = after.astimezone(zone).replace(tzinfo=None, fold=0)
    except OverflowError:
        if after.year > 1:
            return None
        start = datetime.min  # noqa: DTZ901
    change = change_at(start, zone)
    wall = next_naive(start) if change is None else _wall_after(after, start, change, fold, next_naive)
    while wall is not None:
        try:
            instants = _instants(wall, zone, gap, fold)
        except OverflowError:
            return None  # its local time is the calendar's last day, its UTC day the one after
        for instant in instants:
            if instant > after:
                return instant
        wall = next_naive(_skip(wall, zone))
    return None


def wall_to_utc(wall: datetime, *, zone: ZoneInfo, gap: Gap, fold: Fold) -> datetime | None:
    """Return the instant that one naive local time means, the first of two with `Fold.BOTH`; None if it is skipped."""
    try:
        return next(iter(_instants(wall.replace(fold=0), zone, gap, fold)), None)
    except OverflowError:
        return None


def local_or_utc(moment: datetime) -> datetime:
    """Return a time as it is, or the moment clocks go forward for a local time that they skip."""
    zone = moment.tzinfo
    change = change_at(moment.replace(tzinfo=None, fold=0), zone) if isinstance(zone, ZoneInfo) else None
    return change.at if change is not None and change.is_gap else moment


def _wall_after(
    after: datetime, start: datetime, change: Transition, fold: Fold, next_naive: Callable[[datetime], datetime | None]
) -> datetime | None:
    """Return the local time to look at first from a start that comes twice."""
    repeated, past = change.wall(change.after), change.wall(change.before)
    if after >= change.at:
        return next_naive(_just_before(past) if fold is Fold.FIRST else start)
    wall = None if fold is Fold.SECOND else next_naive(start)
    if fold is Fold.FIRST or (wall is not None and wall < past):
        return wall
    return next_naive(_just_before(repeated))  # nothing more in this pass: the other one begins where clocks go back to


def _instants(wall: datetime, zone: ZoneInfo, gap: Gap, fold: Fold) -> tuple[datetime, ...]:
    """Return the instants that a local time means, in order."""
    before, after = _offsets(wall, zone)
    first = (wall - before).replace(tzinfo=UTC)
    if before == after:
        return (first,)
    if before < after:
        return (_find_change(wall, zone, before, after).at,) if gap is Gap.SHIFT else ()
    second = (wall - after).replace(tzinfo=UTC)
    return (first, second) if fold is Fold.BOTH else (first if fold is Fold.FIRST else second,)


def _skip(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return from where to go on after a local time that did not count: the end of the gap it is in."""
    change = change_at(wall, zone)
    return max(wall, _just_before(change.wall(change.after))) if change and change.is_gap else wall


def _just_before(wall: datetime) -> datetime:
    # A second, though a rule may fire within it: croniter reckons in floats, and what is found too early is passed over.
    return wall - SECOND


def change_at(wall: datetime, zone: ZoneInfo) -> Transition | None:
    """Return the change that skips or repeats a local time, if one does."""
    before, after = _offsets(wall, zone)
    return None if before == after else _find_change(wall, zone, before, after)


def _offsets(wall: datetime, zone: ZoneInfo) -> tuple[timedelta, timedelta]:
    """Return the offsets before and after the change that a local time is touched by; mostly they are equal."""
    return zone.utcoffset(wall) or ZERO, zone.utcoffset(wall.replace(fold=1)) or ZERO


def _find_change(wall: datetime, zone: ZoneInfo, before: timedelta, after: timedelta) -> Transition:
    """Return the change between the two offsets: it lies between the instants that they make of the local time."""
    wall = wall.replace(tzinfo=UTC, microsecond=0)
    return Transition(_bisect(zone, wall - max(before, after), wall - min(before, after)), before, after)


@lru_cache(maxsize=4096)
def transitions(zone: ZoneInfo, year: int) -> tuple[Transition, ...]:
    """Return the changes of a zone's offset in one UTC year, in order."""
    start, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    found = []
    while start < end:
        stop = start + timedelta(hours=12)
        before = _offset(zone, start)
        if before != _offset(zone, stop):
            stop = _bisect(zone, start, stop)
            found.append(Transition(stop, before, _offset(zone, stop)))
        start = stop
    return tuple(found)


def _offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    return instant.astimezone(zone).utcoffset() or ZERO


def _bisect(zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    """Return the first second with an offset other than that of `low`."""
    before = _offset(zone, low)
    while high - low > SECOND:
        middle = (low + (high - low) / 2).replace(microsecond=0)
        if _offset(zone, middle) == before:
            low = middle
        else:
            high = middle
    return high
