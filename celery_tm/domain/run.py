"""A run of a workflow and its steps as they are kept, the jobs its steps become, and what is told of it in the end."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from ..clock import format_duration, parse_duration
from .codec import MAX_BYTES, encode
from .effective import Effective, limit_of, values_of
from .execution import MAX_ERROR, MAX_MESSAGE, Execution, Outcome, cut
from .ids import occurrence_job_id
from .job import DEFAULT_RETRIES, Job, JobState, Slot, Source
from .occurrence import OccurrenceState
from .workflow import ALL, TASK, Mode, Stages, StepState, Strategy, weave

HOOK_TASK, HOOK_PREFIX = "celery_tm.hook", "hook:"  # a hook is a task, or `hook:name`: a callable that is registered
ON_START = "on_start"  # the hook, and the step of a run that it is where it blocks
DEFERRED = "deferred"  # stands for the definition of a run that has none
MAX_REPORT = 500_000  # characters of a report as it is kept and handed to hooks; its rows say the rest
FIRST_STEPS, FIRST_WORDS = 100, 200  # what is left of one that is too long whatever else is left out


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One row of `tm_workflow`. Its id is its occurrence's, `job` the one that stands for it."""

    id: str
    job: str
    attempt: int
    remaining: Sequence[int]
    stopped_by: str | None = None  # what ended it early: a step, a person, its time
    stopped_as: OccurrenceState | None = None  # what it ends as because of that
    settings: Mapping[str, Any] = field(default_factory=dict)
    created_at: datetime
    app: str = ""  # that of its job, whoever ends a step of it

    @property
    def is_stopped(self) -> bool:
        """Say whether only steps that run regardless may still start."""
        return self.stopped_by is not None

    def told(self, state: OccurrenceState) -> dict[str, Any]:
        """Return what hooks are told of the occurrence."""
        kept = {name: self.settings.get(name) for name in ("scheduled_at", "entity_id", "scope")}
        return {"id": self.id, "state": str(state), **kept}

    @property
    def is_over(self) -> bool:
        """Say whether all of its steps have ended."""
        return self.remaining[ALL] == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStep:
    """One row of `tm_step`."""

    workflow: str
    name: str
    number: int
    task: str
    args: str
    kwargs: str
    settings: Mapping[str, Any]
    regardless: bool
    waits_for: int | None
    feeds: Sequence[int]
    state: StepState
    job: str
    attempts: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: str | None = None
    result: str | None = None  # JSON text; None where it is not kept
    error: str | None = None
    cancelled_by: str | None = None
    kept_from: str | None = None  # the run whose outcome this is, in a replay that did not run it again

    @property
    def stops_run(self) -> bool:
        """Say whether the run is stopped if this step does not succeed."""
        return bool(self.settings.get("failure_strategy") != Strategy.CONTINUE)


def settings_of(root: Job, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run keeps of the job that stands for it, and of what its workflow states, as plain JSON."""
    kept: dict[str, Any] = {
        "scheduled_at": root.scheduled_at or root.run_at,
        "covers_from": root.covers_from,
        "covers_until": root.covers_until,
        "original_delay": format_duration(root.original_delay),
        "execution_timeout": None if root.execution_timeout is None else format_duration(root.execution_timeout),
        "source": str(root.source),
        "definition": root.definition,
        "entity_id": root.entity_id,
        "scope": root.scope,
        "actor": root.actor,
        "app": root.app or None,
    }
    plain = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in kept.items()}
    return {name: value for name, value in {**stated, **plain}.items() if value is not None}


def steps_of(run: str, stages: Stages, mode: Mode, settings: Mapping[str, Effective]) -> tuple[list[RunStep], list[int]]:
    """Return the steps of a run that begins, and what is left of its joins; `settings` are those in force, by step."""
    woven = weave(stages, mode)
    steps = [step for stage in stages for step in stage]
    made = [
        RunStep(
            workflow=run,
            name=step.name,
            number=number,
            task=step.task,
            args=step.args,
            kwargs=step.kwargs,
            settings=values_of(settings[step.name]),
            regardless=step.runs_regardless,
            waits_for=woven.waits_for[step.name],
            feeds=list(woven.feeds[step.name]),
            state=StepState.WAITING,
            job=occurrence_job_id(run, step.name),
        )
        for number, step in enumerate(steps, start=1)
    ]
    return made, list(woven.left)


def passed_over(
    run: Run, reached: Sequence[int], waiting: Iterable[RunStep]
) -> tuple[Run, Sequence[RunStep], Sequence[RunStep]]:
    """Return a stopped run after joins came to zero, the steps that end by that without having run, and those that start.

    A step that runs regardless starts; any other ends, and what waits for it is reached in turn.
    """
    by_join: dict[int | None, list[RunStep]] = {}
    for step in waiting:
        by_join.setdefault(step.waits_for, []).append(step)
    left, ahead = list(run.remaining), deque(reached)
    refused, ready = [], []
    while ahead:
        for step in by_join.get(ahead.popleft(), ()):
            if step.regardless:
                ready.append(step)
                continue
            refused.append(step)
            for join in step.feeds:
                left[join] -= 1
                if left[join] == 0 and join != ALL:
                    ahead.append(join)
    return replace(run, remaining=left), refused, ready


def step_job(run: Run, step: RunStep, now: datetime) -> Job:
    """Return the job that carries out a step."""
    common, own = run.settings, step.settings
    longest = common.get("execution_timeout")
    key, limit = own.get("concurrency_key"), own.get("concurrency")
    if key is None and common.get("max_parallel"):
        key, limit = f"workflow:{run.id}", common["max_parallel"]
    return Job(
        id=step.job,
        task=step.task,
        args=step.args,
        kwargs=step.kwargs,
        run_at=now,
        created_at=now,
        original_delay=parse_duration(common["original_delay"], field="original_delay"),
        scheduled_at=_instant(common.get("scheduled_at")),
        covers_from=_instant(common.get("covers_from")),
        covers_until=_instant(common.get("covers_until")),
        max_retries=own.get("max_retries"),
        retry=own.get("retry"),
        dedupe_key=_key(own.get("key"), run),
        entity_id=common.get("entity_id"),
        scope=common.get("scope"),
        queue=own.get("queue"),
        priority=own.get("priority"),
        timeout=limit_of(own, parse_duration(longest, field="execution_timeout") if longest else None),
        concurrency_key=key,
        concurrency=limit,
        slot=Slot.OPEN if key else None,
        occurrence=run.id,
        definition=common.get("definition"),
        step=step.name,
        source=Source(common["source"]),
        options=own.get("options") or {},
        actor=common.get("actor"),
        app=run.app,
    )


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _key(rule: str | None, run: Run) -> str | None:
    """Return a step's key; what stands in braces is the run's."""
    if rule is None:
        return None
    instant = run.settings.get("scheduled_at", "")
    return rule.replace("{run}", run.id).replace("{scheduled_at}", instant).replace("{date}", instant[:10])


def root_of(run: Run) -> Job:
    """Return the job of a run as far as the run knows it, where its row is gone."""
    common = run.settings
    return Job(
        id=run.job,
        task=TASK,
        args="[]",
        kwargs="{}",
        run_at=run.created_at,
        created_at=run.created_at,
        original_delay=parse_duration(common["original_delay"], field="original_delay"),
        state=JobState.RUNNING,
        attempt=run.attempt,
        claimed_at=run.created_at,
        entity_id=common.get("entity_id"),
        scope=common.get("scope"),
        occurrence=run.id,
        definition=common.get("definition"),
        source=Source(common["source"]),
        actor=common.get("actor"),
        app=run.app,
    )


def hook_call(task: str, arguments: Sequence[Any]) -> tuple[str, list[Any]]:
    """Return the task that a hook means, and its arguments."""
    if task.startswith(HOOK_PREFIX):
        return HOOK_TASK, [task.removeprefix(HOOK_PREFIX), *arguments]
    return task, list(arguments)


def hook_job(run: Run, hook: str, task: str, arguments: Sequence[Any], now: datetime) -> Job:
    """Return the job of a hook: it has one id for each run, so it runs once, and no occurrence that it could end.

    It has no entity either: whoever cancels that still wants to be told of it.
    """
    task, arguments = hook_call(task, arguments)
    return Job(
        id=occurrence_job_id(run.id, hook),
        task=task,
        args=encode(list(arguments), field=hook),
        kwargs="{}",
        run_at=now,
        created_at=now,
        original_delay=timedelta(0),
        max_retries=DEFAULT_RETRIES,
        scope={**(run.settings.get("scope") or {}), "run": run.id},
        definition=run.settings.get("definition"),
        step=hook,
        source=Source(run.settings["source"]),
        actor=run.settings.get("actor"),
        app=run.app,
    )


@dataclass(frozen=True, slots=True)
class Ending:
    """What a run ends as, and why."""

    state: OccurrenceState
    outcome: Outcome
    reason: str | None = None


def ending_of(run: Run, failed: Sequence[RunStep]) -> Ending:
    """Return what a run ends as: what stopped it says, else whether a step has failed."""
    first = min(failed, key=lambda step: (step.ended_at or run.created_at, step.number), default=None)
    if run.stopped_as is OccurrenceState.STALE:
        return Ending(OccurrenceState.STALE, Outcome.TIMEOUT, run.stopped_by)
    if run.stopped_as is OccurrenceState.CANCELLED:
        return Ending(OccurrenceState.CANCELLED, Outcome.CANCELLED, run.stopped_by)
    if first is None:
        return Ending(OccurrenceState.COMPLETED, Outcome.SUCCEEDED)
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    why = cut(f"step {first.name!r} failed{more}: {first.error}", MAX_MESSAGE)
    return Ending(OccurrenceState.FAILED, Outcome.FAILED, why)


def results_text(steps: Iterable[RunStep]) -> str | None:
    """Return what the steps of a run returned, by name, as one JSON text; None if that is too long to be kept."""
    parts = [f"{json.dumps(step.name)}: {step.result}" for step in steps if step.result is not None]
    text = f"{{{', '.join(parts)}}}"
    return text if len(text) <= MAX_BYTES else None


def report_of(
    run: Run, steps: Iterable[RunStep], executions: Iterable[Execution], *, ending: Ending | None, now: datetime
) -> dict[str, Any]:
    """Return what is told of a run, as plain JSON: how it stands or ended, and the same of every step with its attempts."""
    tries: dict[str, list[Execution]] = {}
    for execution in sorted(executions, key=lambda one: one.attempt):
        tries.setdefault(execution.job, []).append(execution)
    told = [_step_report(step, tries.get(step.job, [])) for step in sorted(steps, key=lambda step: step.number)]
    counts: dict[str, int] = {}
    for step in told:
        counts[step["state"]] = counts.get(step["state"], 0) + 1
    return {
        "run": run.id,
        "state": str(ending.state) if ending else str(OccurrenceState.RUNNING),
        "reason": ending.reason if ending else run.stopped_by,
        "strategy": run.settings.get("failure_strategy", str(Strategy.RETRY_ON_FAILURE)),
        "mode": run.settings.get("mode", str(Mode.SEQUENTIAL)),
        "stopped_by": run.stopped_by,
        "started_at": run.created_at.isoformat(),
        "ended_at": now.isoformat() if ending else None,
        "seconds": (now - run.created_at).total_seconds(),
        "counts": counts,
        "steps": told,
    }


def shortened(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a report as it is kept: one of thousands of steps says less of those that went well, and that it does."""
    for less in (_without_tries, _without_successes, _of_the_first):
        if len(json.dumps(report)) <= MAX_REPORT:
            break
        report = {**report, "steps": less(report["steps"]), "shortened": True}
    return report


Told = Sequence[dict[str, Any]]


def _without_tries(steps: Told) -> Told:
    return [{name: value for name, value in step.items() if name != "tries"} for step in steps]


def _without_successes(steps: Told) -> Told:
    return [step for step in steps if step["state"] != StepState.SUCCEEDED]


def _of_the_first(steps: Told) -> Told:
    long = ("error", "cancelled_by")
    return [step | {name: cut(step[name], FIRST_WORDS) for name in long if name in step} for step in steps[:FIRST_STEPS]]


def _step_report(step: RunStep, tries: Sequence[Execution]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": step.name,
        "task": step.task,
        "state": str(step.state),
        "outcome": step.outcome,
        "strategy": step.settings.get("failure_strategy"),
        "attempts": step.attempts,
        "started_at": None if step.started_at is None else step.started_at.isoformat(),
        "ended_at": None if step.ended_at is None else step.ended_at.isoformat(),
        "seconds": _seconds(step.started_at, step.ended_at),
        "error": step.error,
        "cancelled_by": step.cancelled_by,
        "kept_from": step.kept_from,
        "job": step.job,
        "tries": [
            {
                "attempt": one.attempt,
                "outcome": str(one.outcome),
                "started_at": None if one.started_at is None else one.started_at.isoformat(),
                "ended_at": one.completed_at.isoformat(),
                "seconds": _seconds(one.started_at, one.completed_at),
                "next_delay": None if one.next_delay is None else one.next_delay.total_seconds(),
                "error": cut(one.error, MAX_ERROR),
                "worker": one.worker,
            }
            for one in tries
        ],
    }
    return {name: value for name, value in told.items() if value is not None}


def _seconds(start: datetime | None, end: datetime | None) -> float | None:
    return None if start is None or end is None else (end - start).total_seconds()
