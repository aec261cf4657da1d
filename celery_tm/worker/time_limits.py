"""The time limits of one delivery: what its message, its task and its worker state, else `tm_task_timeout`.

A pool that can interrupt a body gets these or the task's `max_duration`, whichever is shorter. That an attempt counts
as stuck after `max_duration`, or `tm_stuck_after`, does not depend on the pool: its lease ends then (`store.jobs.renew`).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

from ..clock import format_duration
from ..domain.execution import Failure, Outcome
from ..domain.job import Job, checked_timeout
from ..domain.time_limits import PoolLimits, is_stuck_limit, read_limits, stuck_limit
from ..installation import Installation
from .context import JobContext

_of_pools: WeakKeyDictionary[Any, PoolLimits] = WeakKeyDictionary()  # by app, in the worker's main process


def note_pool(app: Any, pool: Any) -> None:
    """Remember the limits that a worker's pool has for tasks which state none, e.g. by `--time-limit`."""
    options = getattr(pool, "options", None) or {}
    _of_pools[app] = read_limits((options.get("timeout"), options.get("soft_timeout")))


def max_duration_of(task: Any) -> timedelta | None:
    """Return how long an attempt of a task may take before it counts as stuck, where the task says so."""
    stated = getattr(task, "max_duration", None)
    return None if stated is None else checked_timeout(stated, field="max_duration")


def pool_limits(task: Any, header: Any, *, jobs: int) -> PoolLimits | None:
    """Return the limits that a pool is to get for a message that carries `jobs`; None: as Celery has them."""
    longest, default = max_duration_of(task), Installation.of(task.app).settings.tm_task_timeout
    limits = _stated(task, header).over(_of_pools.get(task.app, PoolLimits()))
    if default is not None and not limits.is_set:
        limits = limits.capped(default * jobs)
    elif longest is None:
        return None
    return limits if longest is None else limits.capped(longest * jobs)


def _stated(task: Any, header: Any) -> PoolLimits:
    return read_limits(header).over(PoolLimits(task.time_limit, task.soft_time_limit))


def stuck_limit_of(task: Any, *, jobs: int = 1) -> timedelta:
    """Return how long what the present delivery carries may run before it counts as stuck."""
    default = Installation.of(task.app).settings.tm_stuck_after
    return stuck_limit(max_duration_of(task), default=default, hard=_stated(task, task.request.timelimit).hard, jobs=jobs)


def default_timeout(task: Any) -> timedelta | None:
    """Return `tm_task_timeout` where the present delivery states no limit of its own."""
    is_stated = _stated(task, task.request.timelimit).is_set
    return None if is_stated else Installation.of(task.app).settings.tm_task_timeout


def is_stuck(task: Any, context: JobContext) -> bool:
    """Say whether a soft limit that interrupted the body is its stuck limit."""
    default = default_timeout(task)
    soft = _stated(task, task.request.timelimit).soft or (default and default.total_seconds())
    soft = soft or task.app.conf.task_soft_time_limit
    return context.exceeded or is_stuck_limit(context.job.longest, elapsed=context.seconds or 0.0, soft=soft)


def naming_limit(job: Job, failure: Failure, *, default: timedelta | None) -> Failure:
    """Return a failure whose error names the limit that the attempt exceeded, where that is why it failed."""
    if failure.outcome is Outcome.STALE:
        return replace(Failure.stale(job.longest), traceback=failure.traceback)
    timeout = job.timeout or default
    if failure.outcome is Outcome.TIMEOUT and timeout is not None:
        return replace(failure, error=f"TaskTimeout: it did not end within {format_duration(timeout)}")
    return failure
