"""How long one attempt may run: the stuck limit of every attempt, and the time limits that a pool gets for it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

HARD_LIMIT_GRACE = timedelta(seconds=10)  # between the soft limit, which a body may catch, and the hard one
GATE_PATIENCE = timedelta(seconds=5)  # a pool counts from before the gate, which may wait this long for a database


class PoolLimits(NamedTuple):
    """The time limits of one delivery in seconds, in the order of Celery's `timelimit` header; None: no limit."""

    hard: float | None = None
    soft: float | None = None

    def over(self, default: PoolLimits) -> PoolLimits:
        """Return these limits, each from `default` where it is not set."""
        return PoolLimits(self.hard or default.hard, self.soft or default.soft)

    @property
    def is_set(self) -> bool:
        """Say whether there is a limit at all."""
        return bool(self.hard or self.soft)

    def capped(self, longest: timedelta) -> PoolLimits:
        """Return limits that interrupt an attempt after `longest` at the latest; shorter ones stay."""
        soft, hard = longest.total_seconds(), (longest + HARD_LIMIT_GRACE).total_seconds()
        return PoolLimits(min(self.hard or hard, hard), min(self.soft or soft, soft))


def stuck_limit(max_duration: timedelta | None, *, default: timedelta, hard: float | None, jobs: int = 1) -> timedelta:
    """Return after how long an attempt counts as stuck: the task's `max_duration`, else `tm_stuck_after`.

    A longer hard limit that was set for the attempt goes before the default. Of `jobs` that share a message each may take
    `max_duration`.
    """
    if max_duration is not None:
        return max_duration * jobs
    return max(default, timedelta(seconds=hard or 0))


def is_stuck_limit(limit: timedelta | None, *, elapsed: float, soft: float | None) -> bool:
    """Say whether a soft limit that was exceeded after `elapsed` seconds is the stuck limit, and no shorter one."""
    if limit is None or (soft is not None and soft < limit.total_seconds()):
        return False
    return elapsed >= (limit - min(GATE_PATIENCE, limit / 2)).total_seconds()


def read_limits(header: Any) -> PoolLimits:
    """Return the limits that a message states, hard and soft; what is no number of seconds is none."""
    if not isinstance(header, (list, tuple)) or len(header) != 2:
        return PoolLimits()
    return PoolLimits(*(float(value) if type(value) in (int, float) and value > 0 else None for value in header))
