"""From a definition and the time to decisions about its instants, and from those to rows. Pure: tests need no database."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from .definition import Definition
from .ids import occurrence_id, occurrence_job_id
from .job import DEFAULT_RETRIES, Job, Slot, Source
from .occurrence import Occurrence, OccurrenceState
from .overlap import TAKING_TURNS, Active, Overlap, apply_overlap
from .recovery import GRACE, Decision, Recovery, decide, spaced
from .timeline import INSTANT, Timeline
from .workflow import TASK

MAX_INSTANTS = 1000  # per definition and round: a long outage is caught up over several ticks
MAX_AHEAD = 1000  # instants planned ahead of one definition
NOBODY = Active()


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What was decided about one definition, and how it stands afterwards."""

    definition: Definition
    decisions: Sequence[Decision]
    after: Definition
    is_complete: bool = True  # False: more instants are due, and are decided in another round

    @property
    def replaces(self) -> datetime | None:
        """Return the instant whose run cancels what is still owed, if one does."""
        if self.definition.overlap is not Overlap.REPLACE:
            return None
        return next((decision.scheduled_at for decision in reversed(self.decisions) if decision.runs), None)


def plan(
    definition: Definition,
    *,
    now: datetime,
    since: datetime | None = None,
    active: Active = NOBODY,
    limit: int = MAX_INSTANTS,
) -> Plan:
    """Decide about every instant later than `planned_until` and not later than `now`, up to `limit` of them.

    `since` is when the planner came to work, if that was before now.
    """
    instants = list(islice(_due(definition, now), limit + 1))
    more_to_come = len(instants) > limit
    clock = (now, since or now)
    decisions = _decide(definition, instants[:limit], clock, active=active, more_to_come=more_to_come)
    after = _moved_on(definition, decisions, now=now, more_to_come=more_to_come)
    return Plan(definition=definition, decisions=decisions, after=after, is_complete=not more_to_come or after.is_spent)


def _due(definition: Definition, now: datetime) -> Iterator[datetime]:
    """Yield the instants that this version decides: up to now, or to the run after which an edit takes over."""
    if definition.is_spent or definition.retired_at:
        return iter(())
    return definition.timeline.between(definition.resumes_after, _due_until(definition, now))


def _due_until(definition: Definition, now: datetime) -> datetime:
    edit = definition.waiting_edit
    return min(now, edit.after) if edit else now


def _decide(
    definition: Definition,
    instants: Sequence[datetime],
    clock: tuple[datetime, datetime],
    *,
    active: Active,
    more_to_come: bool,
) -> Sequence[Decision]:
    now, since = clock
    if not definition.enabled or definition.paused:
        return [_held_back(definition, instant) for instant in instants]
    kept = _oldest_kept(definition, instants, since) if more_to_come else None
    catch_up = definition.catch_up
    decided = decide(instants, now=now, since=since, policy=catch_up, more_to_come=more_to_come, oldest_kept=kept)
    decided = apply_overlap(decided, policy=definition.overlap, active=active, more_to_come=more_to_come)
    decisions = _windowed(definition, decided)
    decisions = spaced(decisions, now=now, spacing=catch_up.spacing, last=definition.spaced_until)
    return _within_max_runs(definition, [_jittered(definition, decision) for decision in decisions])


def _held_back(definition: Definition, instant: datetime) -> Decision:
    """Record an instant of a definition that is off as skipped: the schedule keeps its place."""
    why = "the definition was paused" if definition.paused else "the definition was disabled"
    return Decision(scheduled_at=instant, state=OccurrenceState.SKIPPED, reason=why)


def _oldest_kept(definition: Definition, instants: Sequence[datetime], now: datetime) -> datetime | None:
    """Return the first of the last `recovery_count` missed instants, looked for from the end backwards."""
    count = definition.recovery_count
    if definition.recovery is not Recovery.BOUNDED or not count:
        return None
    until = min(_due_until(definition, now), now - GRACE - INSTANT)  # what is later is not missed
    first = instants[0] - INSTANT
    span = max((instants[-1] - instants[0]) / max(len(instants) - 1, 1), timedelta(seconds=1)) * count
    start = until
    found: deque[datetime] = deque(maxlen=count)
    while len(found) < count and start > first:
        start = max(start - span, first)
        found = deque(definition.timeline.between(start, until), maxlen=count)
        span *= 2
    return found[0] if found else until


def _windowed(definition: Definition, decisions: Sequence[Decision]) -> Sequence[Decision]:
    """Give every run of a definition that compresses the range it stands for, up to the next instant."""
    if definition.recovery is not Recovery.COMPRESSED:
        return decisions
    missed_from = definition.catching_up_from
    settled = []
    for decision in decisions:
        if not decision.runs:
            missed_from = missed_from or decision.scheduled_at
        else:
            until = definition.next_after(decision.scheduled_at) or decision.scheduled_at + timedelta(seconds=1)
            decision = replace(
                decision,
                covers_from=missed_from or decision.scheduled_at,
                covers_until=until,
                is_recovery=decision.is_recovery or missed_from is not None,
            )
            missed_from = None
        settled.append(decision)
    return settled


def _jittered(definition: Definition, decision: Decision) -> Decision:
    """Shift the run of an instant that is on time; the same instant is always shifted alike, whoever plans it."""
    if not definition.jitter or not decision.runs or decision.is_recovery:
        return decision
    digest = hashlib.sha256(occurrence_id(definition.id, decision.scheduled_at).encode()).digest()
    # In whole numbers: a share that is rounded could be all of it.
    shift = (definition.jitter // INSTANT) * int.from_bytes(digest[:8]) >> 64
    return replace(decision, run_at=decision.scheduled_at + shift * INSTANT)


def _within_max_runs(definition: Definition, decisions: Sequence[Decision]) -> Sequence[Decision]:
    """Cut off what follows the last run that the definition has left."""
    if definition.max_runs is None:
        return decisions
    left = definition.max_runs - definition.runs
    for place, decision in enumerate(decisions):
        left -= decision.runs
        if left <= 0 and decision.runs:
            return decisions[: place + 1]
    return decisions


def _moved_on(definition: Definition, decisions: Sequence[Decision], *, now: datetime, more_to_come: bool) -> Definition:
    """Return the definition past what was decided."""
    ran = [decision for decision in decisions if decision.runs]
    last = decisions[-1].scheduled_at if decisions else definition.planned_until
    # The clock may have been put back: what is decided stays decided.
    planned_until, runs = max(definition.planned_until, last), definition.runs + len(ran)
    is_spent = definition.max_runs is not None and runs >= definition.max_runs
    goes_on = more_to_come and not is_spent
    return replace(
        definition,
        planned_until=planned_until,
        # Where nothing was decided, the offset stays the one that was known when something was.
        planned_offset=definition.offset_at(planned_until) if decisions else definition.planned_offset,
        runs=runs,
        last_run_at=ran[-1].scheduled_at if ran else definition.last_run_at,
        spaced_until=max((decision.run_at for decision in ran if decision.run_at and decision.is_recovery),
                         default=definition.spaced_until),
        catching_up_from=_missed_from(definition, decisions, goes_on=goes_on, is_spent=is_spent),
        # One that has more to decide queues up behind those that became due meanwhile, so that it starves nobody.
        next_run_at=now if goes_on else None if is_spent else _next_run(definition, planned_until if decisions else None),
    )  # fmt: skip


def _next_run(definition: Definition, decided_until: datetime | None) -> datetime | None:
    """Return the instant that follows what was decided now, or before if that was nothing."""
    if decided_until is None or definition.retired_at or definition.next_edit:
        return replace(definition, planned_until=decided_until or definition.planned_until).looked_at
    return definition.next_after(decided_until)


def _missed_from(definition: Definition, decisions: Sequence[Decision], *, goes_on: bool, is_spent: bool) -> datetime | None:
    """Return the first missed instant that no run stands for, where that is to be remembered."""
    if is_spent:
        return None
    if goes_on or _compresses(definition):  # the run of one that compresses was skipped: the next one covers it too
        return _not_covered_from(definition, decisions)
    # A clock that was put back finds nothing to decide, and what no run stands for yet is not to be forgotten.
    return None if decisions else definition.catching_up_from


def _compresses(definition: Definition) -> bool:
    return definition.recovery is Recovery.COMPRESSED and definition.enabled and not definition.paused


def _not_covered_from(definition: Definition, decisions: Sequence[Decision]) -> datetime | None:
    """Return the first missed instant that no run stands for yet."""
    missed_from = definition.catching_up_from
    for decision in decisions:
        missed_from = None if decision.covers_until else missed_from or decision.scheduled_at
    return missed_from


def ahead(definition: Definition, *, now: datetime) -> list[datetime]:
    """Return the instants that are planned ahead: later than what is decided, within `plan_ahead` of now."""
    if not definition.plan_ahead or definition.next_run_at is None:
        return []
    most = MAX_AHEAD if definition.max_runs is None else min(MAX_AHEAD, definition.max_runs - definition.runs)
    # What comes after a waiting edit has taken over is planned then.
    until = _due_until(definition, now + definition.plan_ahead)
    return list(islice(definition.timeline.between(definition.resumes_after, until), most))


def occurrence_of(definition: Definition, decision: Decision, *, now: datetime, replay_of: str | None = None) -> Occurrence:
    """Return the ledger's row of a decision."""
    return Occurrence(
        id=occurrence_id(definition.id, decision.scheduled_at),
        definition=definition.id,
        version=definition.version,
        scheduled_at=decision.scheduled_at,
        state=decision.state or OccurrenceState.PENDING,
        reason=decision.reason,
        is_recovery=decision.is_recovery,
        covers_from=decision.covers_from,
        covers_until=decision.covers_until,
        replay_of=replay_of,
        decided_at=now,
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
    period: timedelta | None = None,
) -> Job:
    """Return the job that carries out a decision to run; `period` is the time to the next instant, where that is known."""
    defaults = defaults or TaskDefaults()
    occurrence = occurrence_id(definition.id, decision.scheduled_at)
    key, concurrency = _lane(definition, decision)
    limits = [limit for limit in (definition.task_timeout or defaults.timeout, definition.execution_timeout) if limit]
    run_at = decision.run_at or decision.scheduled_at
    # A run of several jobs is one job until it starts; what its steps are is looked up then, by the version it has.
    task, args, kwargs = definition.task, definition.args, definition.kwargs
    if definition.is_workflow:
        task, args, kwargs = TASK, "[]", "{}"
    return Job(
        id=occurrence_job_id(occurrence),
        task=task,
        args=args,
        kwargs=kwargs,
        run_at=run_at,
        scheduled_at=decision.scheduled_at,
        covers_from=decision.covers_from,
        covers_until=decision.covers_until,
        created_at=now,
        original_delay=definition.timeline.period_at(decision.scheduled_at) if period is None else period,
        max_retries=defaults.max_retries if definition.max_retries is None else definition.max_retries,
        retry=definition.retry or defaults.retry,
        queue=definition.queue,
        priority=definition.priority,
        expires_at=max(run_at, now) + definition.expires if definition.expires else None,
        timeout=min(limits, default=None),
        execution_timeout=definition.execution_timeout,
        concurrency_key=key,
        concurrency=concurrency,
        slot=Slot.OPEN if key else None,
        occurrence=occurrence,
        definition=definition.name,
        source=source or (Source.RECOVERY if decision.is_recovery else Source.SCHEDULED),
        options=dict(definition.options),
        app=definition.app,
    )


def _lane(definition: Definition, decision: Decision) -> tuple[str | None, int | None]:
    """Return the key under which the job waits for its turn, and how many may run at once."""
    if definition.concurrency_key:
        return definition.concurrency_key, definition.concurrency
    if decision.takes_turns or definition.overlap in TAKING_TURNS:
        return f"definition:{definition.id}", 1
    return None, None


__all__ = ["MAX_AHEAD", "MAX_INSTANTS", "Plan", "TaskDefaults", "Timeline", "ahead", "job_of", "occurrence_of", "plan"]
