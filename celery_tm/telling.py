"""Turns what a committed transaction has written into events, wherever it was written: beat, worker, producer or a person.

An event that nobody wants to hear of is not made: with no receiver and no log line this costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from . import events
from .domain.execution import Outcome
from .domain.facts import Buried, Closed, Created, Ended, Fact, Facts, Noted, RunMoved, Unread
from .domain.job import Job
from .domain.occurrence import OccurrenceState

KINDS: Mapping[Outcome, type] = {
    Outcome.SUCCEEDED: events.ExecutionCompleted,
    Outcome.FAILED: events.ExecutionFailed,
    Outcome.TIMEOUT: events.ExecutionFailed,
    Outcome.ORPHANED: events.ExecutionFailed,
    Outcome.STALE: events.ExecutionFailed,
    Outcome.CANCELLED: events.JobCancelled,
    Outcome.EXPIRED: events.JobCancelled,
    Outcome.DEDUPLICATED: events.JobCancelled,
    Outcome.INTERRUPTED: events.ExecutionGivenBack,
    Outcome.REPLACED: events.ExecutionGivenBack,
}
DEFINITION, JOB = "definition:", "job:"


def tell(app: Any, facts: Facts, *, verbose: bool = False) -> None:
    """Emit the events of what was written."""
    for fact in facts:
        kind = _kind(fact)
        if kind is not None and events.is_wanted(kind, verbose=verbose):
            events.emit(app, _MAKERS[type(fact)](fact), verbose=verbose)
    purged = [fact for fact in facts if isinstance(fact, Noted) and fact.action == "purge"]
    if purged:
        _tell_purged(app, purged, verbose=verbose)


def tell_started(app: Any, job: Job, *, verbose: bool = False) -> None:
    """Emit the event of an attempt that the gate has let in."""
    if events.is_wanted(events.ExecutionStarted, verbose=verbose):
        waited = (job.claimed_at - job.run_at).total_seconds() if job.claimed_at else None
        started = events.ExecutionStarted(**_named(job), waited=None if waited is None else max(waited, 0.0))
        events.emit(app, started, verbose=verbose)


def tell_lost(app: Any, job: Job) -> None:
    """Emit the event of an attempt that is no longer its worker's."""
    events.emit(app, events.LeaseWasLost(job=job.id, task=job.task, definition=job.definition, attempt=job.attempt))


def _kind(fact: Fact) -> type | None:
    """Return the class of the event that a fact becomes; None where it becomes none, or one together with others."""
    match fact:
        case Ended():
            return KINDS[fact.outcome]
        case Buried():
            return events.JobBuried
        case Closed():
            return events.OccurrenceEnded
        case RunMoved():
            return events.RunStarted if fact.state is OccurrenceState.RUNNING else events.RunEnded
        case Created():
            return events.JobsDeferred
        case Unread():
            return None  # `Installation` sets it aside
    if fact.object.startswith(DEFINITION):
        return events.DefinitionChanged
    return events.LetterRevived if fact.object.startswith(JOB) and fact.action == "revive" else None


def _named(job: Job) -> dict[str, Any]:
    return {
        "job": job.id,
        "task": job.task,
        "definition": job.definition,
        "step": job.step,
        "attempt": job.attempt,
        "execution": job.execution_id,
        "occurrence": job.occurrence,
    }


def _ended(fact: Ended) -> Any:
    kind, named = KINDS[fact.outcome], _named(fact.job)
    if kind is events.ExecutionCompleted:
        return kind(**named, duration=fact.seconds)
    named["outcome"] = str(fact.outcome)
    if kind is events.ExecutionFailed:
        return kind(**named, error=fact.reason or "", next_delay=fact.next_delay, duration=fact.seconds)
    if kind is events.JobCancelled:
        return kind(**named, reason=fact.reason, actor=fact.actor)
    return kind(**named, reason=fact.reason)


def _buried(fact: Buried) -> Any:
    named = _named(fact.job)
    said = {name: named[name] for name in ("job", "task", "definition", "step", "attempt")}
    return events.JobBuried(**said, reason=fact.reason)


def _closed(fact: Closed) -> Any:
    return events.OccurrenceEnded(
        occurrence=fact.occurrence,
        definition=fact.definition,
        state=str(fact.state),
        reason=fact.reason,
        is_recovery=fact.is_recovery,
        count=fact.count,
    )


def _run_moved(fact: RunMoved) -> Any:
    said: dict[str, Any] = {"occurrence": fact.occurrence, "definition": fact.definition, "steps": fact.steps}
    if fact.state is OccurrenceState.RUNNING:
        return events.RunStarted(**said)
    return events.RunEnded(**said, state=str(fact.state), duration=fact.seconds)


def _created(fact: Created) -> Any:
    return events.JobsDeferred(task=fact.task, count=fact.count, job=fact.job)


def _noted(fact: Noted) -> Any:
    if fact.object.startswith(JOB):
        return events.LetterRevived(job=fact.object.removeprefix(JOB), actor=fact.actor, reason=fact.reason)
    version = (fact.after or {}).get("version")
    return events.DefinitionChanged(
        name=fact.object.removeprefix(DEFINITION),
        action=fact.action,
        version=version if isinstance(version, int) else None,
        actor=fact.actor,
        reason=fact.reason,
    )


def _tell_purged(app: Any, purged: list[Noted], *, verbose: bool) -> None:
    first = purged[0]
    job = first.object.removeprefix(JOB) if len(purged) == 1 else None
    event = events.LettersPurged(count=len(purged), job=job, actor=first.actor, reason=first.reason)
    events.emit(app, event, verbose=verbose)


_MAKERS: Mapping[type, Callable[[Any], Any]] = {
    Ended: _ended,
    Buried: _buried,
    Closed: _closed,
    RunMoved: _run_moved,
    Created: _created,
    Noted: _noted,
}
