"""What happens, as data: emitted once, sent as a Celery signal, logged in one place.

Connect to a signal as to any of Celery's: `celery_tm.events.execution_failed.connect(handler)`; the handler gets the app
as sender and the event's fields as keywords. Delivery is best effort: the tables are the truth.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from celery.utils.dispatch import Signal

from .domain.execution import Failure
from .domain.ids import execution_id
from .domain.job import Job
from .domain.retry import Bury, TryAgain

logger = logging.getLogger("celery_tm")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutionCompleted:
    """An attempt has succeeded."""

    job: str
    task: str
    attempt: int
    execution: str
    occurrence: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutionFailed:
    """An attempt has failed, timed out or vanished; `next_delay` is None where no try follows."""

    job: str
    task: str
    attempt: int
    execution: str
    occurrence: str | None
    outcome: str
    error: str
    next_delay: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobBuried:
    """A job has become a dead letter."""

    job: str
    task: str
    attempt: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryRefused:
    """The gate did not let a delivery in."""

    job: str
    task: str
    attempt: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseWasLost:
    """A worker found that its attempt is no longer its own; what it did was not recorded."""

    job: str
    task: str
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class JobsDispatched:
    """Claimed jobs were handed to the broker."""

    count: int
    refused: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class InstantsPlanned:
    """Instants of definitions were decided."""

    definitions: int
    running: int
    not_running: int
    behind: float


@dataclass(frozen=True, kw_only=True, slots=True)
class JobsSwept:
    """Jobs whose lease had ended were put back."""

    redispatched: int
    orphaned: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskUnknown:
    """A definition or a job names a task that is not registered here."""

    task: str
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DefinitionBroken:
    """A definition could not be planned; it is left alone and tried again later."""

    name: str
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DefinitionSeldom:
    """A definition fires less than once in five years."""

    name: str
    schedule: str
    next_run_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryRefused:
    """An entry of `beat_schedule` could not be seeded; the others were."""

    name: str
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OutageBegan:
    """The database or the broker does not answer."""

    what: str
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OutageEnded:
    """The database or the broker answers again."""

    what: str
    since: datetime | None = None


execution_completed = Signal(name="execution_completed")
execution_failed = Signal(name="execution_failed")
job_buried = Signal(name="job_buried")
delivery_refused = Signal(name="delivery_refused")
lease_lost = Signal(name="lease_lost")
jobs_dispatched = Signal(name="jobs_dispatched")
instants_planned = Signal(name="instants_planned")
jobs_swept = Signal(name="jobs_swept")
task_unknown = Signal(name="task_unknown")
definition_broken = Signal(name="definition_broken")
definition_seldom = Signal(name="definition_seldom")
entry_refused = Signal(name="entry_refused")
outage_began = Signal(name="outage_began")
outage_ended = Signal(name="outage_ended")

SIGNALS: Mapping[type, Signal] = {
    ExecutionCompleted: execution_completed,
    ExecutionFailed: execution_failed,
    JobBuried: job_buried,
    DeliveryRefused: delivery_refused,
    LeaseWasLost: lease_lost,
    JobsDispatched: jobs_dispatched,
    InstantsPlanned: instants_planned,
    JobsSwept: jobs_swept,
    TaskUnknown: task_unknown,
    DefinitionBroken: definition_broken,
    DefinitionSeldom: definition_seldom,
    EntryRefused: entry_refused,
    OutageBegan: outage_began,
    OutageEnded: outage_ended,
}
LEVELS: Mapping[type, int] = {
    ExecutionFailed: logging.WARNING,
    JobBuried: logging.ERROR,
    LeaseWasLost: logging.WARNING,
    TaskUnknown: logging.WARNING,
    DefinitionBroken: logging.ERROR,
    DefinitionSeldom: logging.WARNING,
    EntryRefused: logging.ERROR,
    OutageBegan: logging.ERROR,
    OutageEnded: logging.WARNING,
}

REPEAT_AFTER = 60.0  # seconds until a warning about the same thing is worth a line again
_warned: dict[object, float] = {}


def emit(app: Any, event: Any, *, verbose: bool = False) -> None:
    """Tell everybody about an event: signal receivers first, then the log. Nobody's error stops the work."""
    signal, level = SIGNALS[type(event)], LEVELS.get(type(event), logging.INFO if verbose else logging.DEBUG)
    is_logged = logger.isEnabledFor(level)
    if not is_logged and not signal.receivers:
        return
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    signal.send(sender=app, **values)
    if is_logged:
        logger.log(
            level, "%s %s", type(event).__name__, " ".join(f"{k}={v}" for k, v in values.items()), extra={"tm": values}
        )


def emit_seldom(app: Any, event: Any) -> None:
    """Emit an event unless the same one was emitted within the last minute."""
    now = time.monotonic()
    if now - _warned.get(event, -REPEAT_AFTER) >= REPEAT_AFTER:
        if len(_warned) > 10_000:
            _warned.clear()
        _warned[event] = now
        emit(app, event)


def emit_failure(app: Any, job: Job, failure: Failure, then: TryAgain | Bury) -> None:
    """Tell about a recorded failure, and about the dead letter where it was the last one."""
    emit(
        app,
        ExecutionFailed(
            job=job.id,
            task=job.task,
            attempt=job.attempt,
            execution=execution_id(job.id, job.attempt),
            occurrence=job.occurrence,
            outcome=failure.outcome,
            error=failure.error,
            next_delay=then.delay.total_seconds() if isinstance(then, TryAgain) else None,
        ),
    )
    if isinstance(then, Bury):
        emit(app, JobBuried(job=job.id, task=job.task, attempt=job.attempt, reason=then.reason))
