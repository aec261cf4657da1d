"""From local wall-clock time to UTC: what a schedule does when clocks are put forward or back.

Cron is computed on naive local time. Between two changes of a zone's offset local time is a plain line, so the walk goes
segment by segment: what falls into skipped time runs at the first valid instant; in repeated time a rule runs in one pass
or in both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from zoneinfo import ZoneInfo

SECOND = timedelta(seconds=1)
LAST_YEAR = 9990


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

    def wall(self, offset: timedelta) -> datetime:
        """Return the local time at this change, read with the offset before or after it."""
        return self.at.replace(tzinfo=None) + offset


def next_local(
    after: datetime, *, zone: ZoneInfo, gap: Gap, fold: Fold, next_naive: Callable[[datetime], datetime | None]
) -> datetime | None:
    """Return the first instant later than `after` at which the rule on local time fires.

    `next_naive(t)` returns the rule's first local time strictly later than `t`, as if clocks were never changed.
    """
    after = after.astimezone(UTC)
    offset = zone.utcoffset(after.astimezone(zone)) or timedelta(0)
    start = after.replace(tzinfo=None) + offset
    before = _change_before(zone, after)
    if before and not before.is_gap and fold is Fold.FIRST:
        start = max(start, before.wall(before.before) - SECOND)  # the second pass does not count
    candidate = next_naive(start)
    position = after
    while candidate is not None:
        change = _change_after(zone, position, candidate)
        if change is None or candidate < change.wall(offset):
            folded = change is not None and not change.is_gap and candidate >= change.wall(change.after)
            if not (folded and fold is Fold.SECOND):
                return (candidate - offset).replace(tzinfo=UTC)
            assert change is not None
        elif change.is_gap and gap is Gap.SHIFT and candidate < change.wall(change.after):
            return change.at
        first_pass_only = not change.is_gap and fold is Fold.FIRST
        resume = change.wall(change.before if first_pass_only else change.after) - SECOND
        candidate = next_naive(resume)
        offset, position = change.after, change.at
    return None


def _change_before(zone: ZoneInfo, instant: datetime) -> Transition | None:
    """Return the last change at or before `instant`, as far back as the year before."""
    known = [*transitions(zone, instant.year - 1), *transitions(zone, instant.year)] if instant.year > 1 else []
    index = bisect_right(known, instant, key=lambda change: change.at)
    return known[index - 1] if index else None


def _change_after(zone: ZoneInfo, instant: datetime, until: datetime) -> Transition | None:
    """Return the first change later than `instant` that a local time `until` may be touched by."""
    for year in range(instant.year, min(until.year + 2, LAST_YEAR)):
        known = transitions(zone, year)
        index = bisect_right(known, instant, key=lambda change: change.at)
        if index < len(known):
            return known[index]
    return None


@lru_cache(maxsize=4096)
def transitions(zone: ZoneInfo, year: int) -> tuple[Transition, ...]:
    """Return the changes of a zone's offset in one UTC year, in order."""
    start, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    found = []
    while start < end:
        # Half days: no zone has changed its offset twice within one and come back.
        stop = start + timedelta(hours=12)
        before, after = _offset(zone, start), _offset(zone, stop)
        if before != after:
            found.append(Transition(_bisect(zone, start, stop), before, after))
        start = stop
    return tuple(found)


def _offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta(0)


def _bisect(zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    before = _offset(zone, low)
    while high - low > SECOND:
        middle = (low + (high - low) / 2).replace(microsecond=0)
        if _offset(zone, middle) == before:
            low = middle
        else:
            high = middle
    return high
