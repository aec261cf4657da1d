"""How busy the time to come is: the instants of each hour, by definition, for a heat map or a look before a release.

The work is bounded, whatever the definitions are: those with the same timeline are counted once, what fires more often than
can be walked is estimated hour by hour, and where even that would take too long it is estimated by its rate.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ..domain.definition import Definition
from ..domain.timeline import INSTANT
from ..errors import InvalidValue, shown

HOUR = timedelta(hours=1)
MAX_HOURS = 24 * 31
MOST_STEPS = 10_000  # of all definitions together; a step is one `next_after`, mostly well under 100 µs
OVERDRAFT = 2_500  # for the rates of those that are left; what is beyond that shows its first instant only
READING = 8  # steps that it is worth to read a schedule's text
EXACT = 200  # steps that one timeline is walked: more than once an hour for a week is estimated from there
SAMPLE = 3  # instants of an hour that its number is estimated from


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """How many instants each hour has, from `since` on. Jitter, overlap and waiting edits are not looked at."""

    since: datetime
    hours: int
    totals: Sequence[int]  # of each hour
    counts: Mapping[str, Sequence[int]] = field(default_factory=dict)  # by definition, those with at least one instant
    estimated: Sequence[str] = field(default_factory=list)  # definitions of which some hours are estimated
    broken: Mapping[str, str] = field(default_factory=dict)  # definitions that cannot be read, and why

    def busiest(self, hour: int) -> list[tuple[str, int]]:
        """Return the definitions that fire in an hour and how often, the busiest first."""
        found = [(name, counts[hour]) for name, counts in self.counts.items() if counts[hour]]
        return sorted(found, key=lambda one: (-one[1], one[0]))


def checked_hours(hours: int) -> int:
    """Return a number of hours that can be looked ahead."""
    if isinstance(hours, bool) or not isinstance(hours, int) or not 0 < hours <= MAX_HOURS:
        raise InvalidValue("hours", f"{shown(hours)} is not a number of hours", f"give 1 to {MAX_HOURS}")
    return hours


def forecast(definitions: Iterable[Definition], *, since: datetime, hours: int, steps: int = MOST_STEPS) -> Forecast:
    """Count the instants of the definitions that are on; `steps` is how much work that may be."""
    alike: dict[Hashable, list[Definition]] = {}
    broken: dict[str, str] = {}
    for definition in definitions:
        if definition.unread:
            broken[definition.name] = definition.problem or ""
        elif _may_fire(definition, until=since + hours * HOUR):
            alike.setdefault(_course_of(definition), []).append(definition)
    totals = [0] * hours
    counts: dict[str, Sequence[int]] = {}
    estimated: list[str] = []
    for number, some in enumerate(alike.values()):
        names = [definition.name for definition in some]
        walk = _Walk(some[0], since=since, hours=hours, steps=steps // (len(alike) - number))
        walk.may_read = steps > -OVERDRAFT
        try:
            walk.count()
        except Exception as error:  # a zone, kind or package that this node lacks, or a text that nobody can read
            broken |= dict.fromkeys(names, str(error) or type(error).__name__)
            continue
        steps -= walk.taken
        totals = [there + len(names) * count for there, count in zip(totals, walk.counts, strict=True)]
        counts |= dict.fromkeys(names, walk.counts) if any(walk.counts) else {}
        estimated += names if walk.is_estimate else []
    return Forecast(
        since=since, hours=hours, totals=totals, counts=dict(sorted(counts.items())), estimated=sorted(estimated),
        broken=broken,
    )  # fmt: skip


def _may_fire(definition: Definition, *, until: datetime) -> bool:
    is_on = definition.enabled and not definition.paused and definition.retired_at is None
    return is_on and definition.next_run_at is not None and definition.next_run_at < until


def _course_of(definition: Definition) -> Hashable:
    """Return what decides the coming instants of a definition; many definitions share one. Reads no schedule."""
    hashed = definition.name if "h" in definition.schedule.lower() else ""
    days = tuple((name, definition.closed.get(name)) for name in definition.calendars)
    rule = (definition.schedule_kind, definition.schedule, definition.timezone, definition.gap, definition.fold, hashed)
    bounds = (definition.starts_at, definition.ends_at, definition.excluded, days, definition.next_run_at)
    return rule, bounds, None if definition.max_runs is None else definition.max_runs - definition.runs


class _Walk:
    """One definition's instants by hour, counted for a while, then estimated."""

    def __init__(self, definition: Definition, *, since: datetime, hours: int, steps: int) -> None:
        self.definition, self.since, self.hours, self.steps = definition, since, hours, steps
        self.left = None if definition.max_runs is None else definition.max_runs - definition.runs
        self.counts = [0] * hours
        self.taken = 0
        self.may_read = True
        self.is_estimate = False

    def count(self) -> None:
        """Fill in the hours."""
        first = instant = self._first()
        while (
            first is not None
            and instant is not None
            and (hour := (instant - self.since) // HOUR) < self.hours
            and self.left != 0
        ):
            if self.taken and self.taken >= min(EXACT, self.steps):
                self._go_on(hour, instant, since=first)
                return
            self.counts[hour] += 1
            self.left = None if self.left is None else self.left - 1
            if not self.taken and self.steps < READING:  # its first instant was there for nothing; one more tells the rate
                period = self._period(instant)
                self._go_on_by_rate(instant + period, period)
                return
            instant = self._next(instant)

    def _first(self) -> datetime | None:
        """Return the first instant; the row knows it, unless it is overdue."""
        following = self.definition.following if self.definition.next_edit else self.definition.next_run_at
        if following is None or following >= self.since:
            return following
        return self._next(self.since - INSTANT)

    def _period(self, instant: datetime) -> timedelta:
        """Return the time between two instants: from the row, or where it never ran, from its schedule."""
        last = self.definition.last_run_at
        if last is not None and last < instant:
            return instant - last
        self.is_estimate, self.taken = True, self.taken + READING
        return self.definition.timeline.period_at(instant) if self.may_read else timedelta(0)

    def _go_on(self, hour: int, instant: datetime, *, since: datetime) -> None:
        """Estimate the hours from this one on; by the rate so far where even that takes too long, or runs are numbered."""
        if self.left is not None or self.steps - self.taken < (self.hours - hour) * SAMPLE:
            counted = sum(self.counts)
            self._go_on_by_rate(instant, (instant - since) / counted if counted else self._period(instant))
            return
        self.is_estimate = True
        for one in range(hour, self.hours):
            self.counts[one] = self._estimated(self.since + one * HOUR)

    def _go_on_by_rate(self, instant: datetime, period: timedelta) -> None:
        """Fill in the hours from an instant on as if it came again after each period."""
        end = self.since + self.hours * HOUR
        if self.definition.ends_at is not None:
            end = min(end, self.definition.ends_at + INSTANT)
        if not period or instant >= end:
            return
        self.is_estimate = True
        for hour in range((instant - self.since) // HOUR, self.hours):
            last = min(self.since + (hour + 1) * HOUR, end) - INSTANT
            until = (last - instant) // period + 1  # how many there are up to the end of this hour
            until = until if self.left is None else min(until, self.left)
            before = max((self.since + hour * HOUR - INSTANT - instant) // period + 1, 0)
            self.counts[hour] += max(until - before, 0)

    def _estimated(self, start: datetime) -> int:
        """Return how many instants an hour has if they go on as they begin; exact where there are only a few."""
        found: list[datetime] = []
        instant = self._next(start - INSTANT)
        while instant is not None and instant < start + HOUR:
            found.append(instant)
            if len(found) == SAMPLE:
                gap = (found[-1] - found[0]) / (SAMPLE - 1)
                return 1 + (start + HOUR - INSTANT - found[0]) // gap
            instant = self._next(instant)
        return len(found)

    def _next(self, instant: datetime) -> datetime | None:
        self.taken += 1 if self.taken else READING
        return self.definition.timeline.next_after(instant)
