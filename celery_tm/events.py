"""What happens, as data: emitted once, sent as a Celery signal, logged in one place.

Connect to a signal as to any of Celery's: `celery_tm.events.execution_failed.connect(handler)`; the handler gets the app
as sender and the event's fields as keywords. Delivery is best effort: the tables are the truth.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from celery.utils.dispatch import Signal

logger = logging.getLogger("celery_tm")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobsDeferred:
    """Jobs were created by hand; `job` is the id where it is one."""

    task: str
    count: int
    job: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _OfAttempt:
    """What every event about an attempt says of it."""

    job: str
    task: str
    definition: str | None
    step: str | None
    attempt: int
    execution: str
    occurrence: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutionStarted(_OfAttempt):
    """The gate has let an attempt in, `waited` seconds after it was due."""

    waited: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutionCompleted(_OfAttempt):
    """An attempt has succeeded; `duration` is how many seconds its body took, where this process saw it run."""

    duration: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutionFailed(_OfAttempt):
    """An attempt has failed, timed out or vanished; `next_delay` is None where no try follows."""

    outcome: str
    error: str
    next_delay: float | None
    duration: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutionGivenBack(_OfAttempt):
    """An attempt has ended that is no try: its worker stopped (*interrupted*), or its body put another call in its place."""

    outcome: str
    reason: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobCancelled(_OfAttempt):
    """A job will not run, or was stopped: it was cancelled, has expired, or its key has succeeded (*deduplicated*)."""

    outcome: str
    reason: str | None
    actor: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobBuried:
    """A job has become a dead letter."""

    job: str
    task: str
    definition: str | None
    step: str | None
    attempt: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LetterRevived:
    """A dead letter was given another chance."""

    job: str
    actor: str
    reason: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LettersPurged:
    """Dead letters were deleted for good; `job` is the id where it is one."""

    count: int
    job: str | None
    actor: str
    reason: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class OccurrenceEnded:
    """An occurrence has ended, or `count` instants of a definition were decided that do not run."""

    occurrence: str | None
    definition: str | None
    state: str
    reason: str | None
    is_recovery: bool
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStarted:
    """A run of a workflow has begun."""

    occurrence: str
    definition: str | None
    steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnded:
    """A run of a workflow has ended."""

    occurrence: str
    definition: str | None
    state: str
    steps: int
    duration: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DefinitionChanged:
    """A definition was added, edited, switched, triggered, backfilled or removed; `version` is the one that holds since."""

    name: str
    action: str
    version: int | None
    actor: str
    reason: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryRefused:
    """The gate did not let a delivery in; `kind` is the reason in one word."""

    job: str
    task: str
    definition: str | None
    attempt: int
    kind: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseWasLost:
    """A worker found that its attempt is no longer its own; what it did was not recorded."""

    job: str
    task: str
    definition: str | None
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class JobsDispatched:
    """Claimed jobs were handed to the broker; claiming took `claim_seconds`, publishing `seconds`."""

    count: int
    refused: int
    seconds: float
    claim_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class InstantsPlanned:
    """Instants of definitions were decided; `recovering` of those that run had been missed.

    `by_recovery` counts those that run by the recovery policy under which they do; `none`: they are on time.
    """

    definitions: int
    running: int
    recovering: int
    by_recovery: Mapping[str, int]
    not_running: int
    behind: float


@dataclass(frozen=True, kw_only=True, slots=True)
class JobsSwept:
    """Jobs whose lease had ended were put back; `stale` are attempts that ran for longer than they may."""

    redispatched: int
    orphaned: int
    stale: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TickDone:
    """Beat has done a round; `lag` is how many seconds the first due job had waited when it began."""

    seconds: float
    planned: int
    claimed: int
    sent: int
    swept: int
    lag: float


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
class RowSetAside:
    """A row could not be read or handled by this process; it is skipped for a while and tried again."""

    table: str
    row: str
    name: str | None
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
class DefinitionConflict:
    """A file or the code changes fields of a definition that a person has changed too; the person's values stay."""

    name: str
    source: str
    fields: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueBlocked:
    """A queue, or the exchange that jobs state, cannot be used: the broker refuses it. Its jobs wait, the others go on."""

    queue: str | None
    task: str
    error: str
    exchange: str | None = None


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


jobs_deferred = Signal(name="jobs_deferred")
execution_started = Signal(name="execution_started")
execution_completed = Signal(name="execution_completed")
execution_failed = Signal(name="execution_failed")
execution_given_back = Signal(name="execution_given_back")
job_cancelled = Signal(name="job_cancelled")
job_buried = Signal(name="job_buried")
letter_revived = Signal(name="letter_revived")
letters_purged = Signal(name="letters_purged")
occurrence_ended = Signal(name="occurrence_ended")
run_started = Signal(name="run_started")
run_ended = Signal(name="run_ended")
definition_changed = Signal(name="definition_changed")
delivery_refused = Signal(name="delivery_refused")
lease_lost = Signal(name="lease_lost")
jobs_dispatched = Signal(name="jobs_dispatched")
instants_planned = Signal(name="instants_planned")
jobs_swept = Signal(name="jobs_swept")
tick_done = Signal(name="tick_done")
task_unknown = Signal(name="task_unknown")
definition_broken = Signal(name="definition_broken")
row_set_aside = Signal(name="row_set_aside")
definition_seldom = Signal(name="definition_seldom")
entry_refused = Signal(name="entry_refused")
definition_conflict = Signal(name="definition_conflict")
queue_blocked = Signal(name="queue_blocked")
outage_began = Signal(name="outage_began")
outage_ended = Signal(name="outage_ended")

SIGNALS: Mapping[type, Signal] = {
    JobsDeferred: jobs_deferred,
    ExecutionStarted: execution_started,
    ExecutionCompleted: execution_completed,
    ExecutionFailed: execution_failed,
    ExecutionGivenBack: execution_given_back,
    JobCancelled: job_cancelled,
    JobBuried: job_buried,
    LetterRevived: letter_revived,
    LettersPurged: letters_purged,
    OccurrenceEnded: occurrence_ended,
    RunStarted: run_started,
    RunEnded: run_ended,
    DefinitionChanged: definition_changed,
    DeliveryRefused: delivery_refused,
    LeaseWasLost: lease_lost,
    JobsDispatched: jobs_dispatched,
    InstantsPlanned: instants_planned,
    JobsSwept: jobs_swept,
    TickDone: tick_done,
    TaskUnknown: task_unknown,
    DefinitionBroken: definition_broken,
    RowSetAside: row_set_aside,
    DefinitionSeldom: definition_seldom,
    EntryRefused: entry_refused,
    DefinitionConflict: definition_conflict,
    QueueBlocked: queue_blocked,
    OutageBegan: outage_began,
    OutageEnded: outage_ended,
}
_WARNINGS = (ExecutionFailed, LeaseWasLost, TaskUnknown, DefinitionSeldom, DefinitionConflict, OutageEnded)
_ERRORS = (JobBuried, DefinitionBroken, RowSetAside, EntryRefused, QueueBlocked, OutageBegan)
LEVELS: Mapping[type, int] = dict.fromkeys(_WARNINGS, logging.WARNING) | dict.fromkeys(_ERRORS, logging.ERROR)

REPEAT_AFTER = 60.0  # seconds until a warning about the same thing is worth a line again
_warned: dict[object, float] = {}


def is_wanted(kind: type, *, verbose: bool = False) -> bool:
    """Say whether anybody wants to hear of such an event; if not, it need not even be made."""
    return bool(SIGNALS[kind].receivers) or logger.isEnabledFor(_level(kind, verbose))


def _level(kind: type, verbose: bool) -> int:
    return LEVELS.get(kind, logging.INFO if verbose else logging.DEBUG)


def emit(app: Any, event: Any, *, verbose: bool = False) -> None:
    """Tell everybody about an event: signal receivers first, then the log. Nobody's error stops the work."""
    signal, level = SIGNALS[type(event)], _level(type(event), verbose)
    is_logged = logger.isEnabledFor(level)
    if not is_logged and not signal.receivers:
        return
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    signal.send(sender=app, **values)
    if is_logged:
        told = " ".join(f"{k}={v}" for k, v in values.items())
        logger.log(level, "%s %s", type(event).__name__, told, extra={"tm": values})


def emit_seldom(app: Any, event: Any) -> None:
    """Emit an event unless the same one was emitted within the last minute."""
    now = time.monotonic()
    if now - _warned.get(event, -REPEAT_AFTER) >= REPEAT_AFTER:
        if len(_warned) > 10_000:
            _warned.clear()
        _warned[event] = now
        emit(app, event)
