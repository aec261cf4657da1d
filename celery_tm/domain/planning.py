"""From a definition and the time to decisions about its instants, and from those to rows. Pure: tests need no database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from .definition import Definition
from .ids import occurrence_id, occurrence_job_id
from .job import DEFAULT_RETRIES, Job, Source
from .occurrence import Occurrence, OccurrenceState
from .overlap import apply_overlap
from .recovery import Decision, decide

MAX_INSTANTS = 1000  # per definition and round: a long outage is caught up over several ticks


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What was decided about one definition, and where it stands afterwards."""

    definition: Definition
    decisions: Sequence[Decision]
    planned_until: datetime
    next_run_at: datetime | None

    @property
    def last_run_at(self) -> datetime | None:
        """Return the last instant that runs, or the one before this plan."""
        ran = [decision.scheduled_at for decision in self.decisions if decision.runs]
        return ran[-1] if ran else self.definition.last_run_at


def plan(definition: Definition, *, now: datetime, active: int, limit: int = MAX_INSTANTS) -> Plan:
    """Decide about every instant later than `planned_until` and not later than `now`, up to `limit` of them."""
    instants = list(islice(_instants(definition, now), limit + 1))
    more_to_come = len(instants) > limit
    instants = instants[:limit]
    decisions = decide(instants, now=now, policy=definition.recovery, more_to_come=more_to_come)
    decisions = apply_overlap(_held_back(definition, decisions), policy=definition.overlap, active=active)
    # The clock may have been put back: what is decided stays decided.
    planned_until = max(definition.planned_until, instants[-1] if instants else definition.planned_until)
    return Plan(
        definition=definition,
        decisions=decisions,
        planned_until=planned_until,
        next_run_at=definition.next_after(planned_until),
    )


def _instants(definition: Definition, now: datetime) -> Iterator[datetime]:
    instant = definition.next_after(definition.planned_until)
    while instant is not None and instant <= now:
        yield instant
        instant = definition.next_after(instant)


def _held_back(definition: Definition, decisions: Sequence[Decision]) -> Sequence[Decision]:
    """Record the instants of a definition that is off as skipped: the schedule keeps its place."""
    if definition.enabled and not definition.paused:
        return decisions
    why = "the definition was paused" if definition.paused else "the definition was disabled"
    return [replace(decision, state=OccurrenceState.SKIPPED, reason=why) for decision in decisions]


def occurrence_of(definition: Definition, decision: Decision) -> Occurrence:
    """Return the ledger's row of a decision."""
    return Occurrence(
        id=occurrence_id(definition.id, decision.scheduled_at),
        definition=definition.id,
        version=definition.version,
        scheduled_at=decision.scheduled_at,
        state=decision.state or OccurrenceState.PENDING,
        reason=decision.reason,
        is_recovery=decision.is_recovery,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskDefaults:
    """What a task itself says about retries and time; a definition that states none goes by it."""

    max_retries: int | None = DEFAULT_RETRIES
    retry: Mapping[str, Any] | None = None
    timeout: timedelta | None = None


def job_of(
    definition: Definition,
    decision: Decision,
    *,
    now: datetime,
    defaults: TaskDefaults | None = None,
    source: Source | None = None,
) -> Job:
    """Return the job that carries out a decision to run."""
    defaults = defaults or TaskDefaults()
    occurrence = occurrence_id(definition.id, decision.scheduled_at)
    return Job(
        id=occurrence_job_id(occurrence),
        task=definition.task,
        args=definition.args,
        kwargs=definition.kwargs,
        run_at=decision.scheduled_at,
        created_at=now,
        original_delay=definition.rule.period_at(decision.scheduled_at),
        max_retries=defaults.max_retries if definition.max_retries is None else definition.max_retries,
        retry=definition.retry or defaults.retry,
        queue=definition.queue,
        priority=definition.priority,
        timeout=definition.timeout or defaults.timeout,
        occurrence=occurrence,
        source=source or (Source.RECOVERY if decision.is_recovery else Source.SCHEDULED),
        options=dict(definition.options),
    )
