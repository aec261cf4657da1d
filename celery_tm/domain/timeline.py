"""A definition's instants: what its schedule yields, within its bounds and without what is excluded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from .calendar import Closures, next_open
from .schedule import Schedule

INSTANT = timedelta(microseconds=1)
BEGINNING = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Yields instants in order; a schedule that is over yields none."""

    rule: Schedule
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    closures: Closures | None = None

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first instant strictly later than `instant`."""
        if self.starts_at and instant < self.starts_at:
            instant = self.starts_at - INSTANT
        following = _next(self.rule, instant)
        if self.closures:
            following = next_open(following, self.closures, self.rule.next_after)
        return None if following is None or (self.ends_at and following > self.ends_at) else following

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Yield the instants later than `after` and not later than `until`."""
        instant = self.next_after(after)
        while instant is not None and instant <= until:
            yield instant
            instant = self.next_after(instant)

    def latest_until(self, instant: datetime, *, reach: timedelta) -> datetime | None:
        """Return the last instant not later than `instant`, looked for back to `reach` before it.

        By bisection: some tens of looks at the schedule, however many instants lie in between.
        """
        span = min(timedelta(minutes=1), reach)
        found = self._first_since(instant, span)
        while found is None and span < reach:
            span = min(span * 4, reach)
            found = self._first_since(instant, span)
        low, high = found, instant  # an instant, and a time after which there is none up to `instant`
        while low is not None and high > low:
            following = self.next_after(low)
            if following is None or following > instant:
                return low
            middle = following + (high - following) / 2
            later = self.next_after(middle)
            if later is not None and later <= instant:
                low = later
            else:
                low, high = following, middle
        return low

    def _first_since(self, instant: datetime, span: timedelta) -> datetime | None:
        """Return the first instant from `span` before `instant` up to it."""
        start = instant - span - INSTANT if instant - BEGINNING > span + INSTANT else BEGINNING
        first = self.next_after(start)
        return first if first is not None and first <= instant else None

    def period_at(self, instant: datetime) -> timedelta:
        """Return the time from `instant` to the next one: the original delay that backoff is a share of."""
        following = _next(self.rule, instant)
        return following - instant if following else timedelta(0)


@lru_cache(maxsize=4096)
def _next(rule: Schedule, instant: datetime) -> datetime | None:
    """Return a rule's next instant; planning one asks for the same three times."""
    return rule.next_after(instant)
