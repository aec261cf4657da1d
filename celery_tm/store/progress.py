"""What the end of a step means for its run: the next steps get their jobs, or the others are cancelled, or the run is over.

All of it is part of the transaction that ends the step, so a process that dies in the middle leaves the step as it was, and
nothing that follows it. The caller has locked the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..domain.execution import MAX_ERROR, MAX_MESSAGE, Outcome, cut
from ..domain.job import Job, JobState
from ..domain.occurrence import OccurrenceState
from ..domain.run import ON_START, Run, RunStep, hook_job, passed_over, step_job
from ..domain.workflow import ALL, OPEN, StepState, count_down
from . import executions, insertion, jobs, keys, lanes, workflows
from .database import Transaction

STATE_AFTER: Mapping[Outcome, StepState] = {
    Outcome.SUCCEEDED: StepState.SUCCEEDED,
    Outcome.DEDUPLICATED: StepState.SUCCEEDED,
    Outcome.REPLACED: StepState.SUCCEEDED,
    Outcome.FAILED: StepState.FAILED,
    Outcome.TIMEOUT: StepState.FAILED,
    Outcome.ORPHANED: StepState.FAILED,
    Outcome.STALE: StepState.FAILED,
    Outcome.CANCELLED: StepState.CANCELLED,
    Outcome.EXPIRED: StepState.CANCELLED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StepEnd:
    """How a step ended: its last attempt's outcome, what it returned as JSON text, or what went wrong."""

    outcome: Outcome
    result: str | None = None
    why: str | None = None

    @property
    def state(self) -> StepState:
        """Return where that leaves the step."""
        return STATE_AFTER[self.outcome]


def begin(tx: Transaction, run: Run) -> Run:
    """Start the steps of a new run that wait for nothing, those kept from another run being done already."""
    steps = workflows.in_state(tx, run.id, *StepState)
    done = [step for step in steps if step.state not in OPEN]
    ready = [step for step in steps if step.waits_for is None and step.state is StepState.WAITING]
    return _advance(tx, run, [step.feeds for step in done], ready)


def end_step(tx: Transaction, run: Run, job: Job, end: StepEnd) -> Run:
    """Write that a step has ended, and what follows from it."""
    step = workflows.find_step(tx, run.id, job.step or "")
    if step is None or step.state is not StepState.OWED:
        return run
    ran = job.state is JobState.RUNNING
    changes: dict[str, Any] = {
        "state": end.state, "outcome": str(end.outcome), "result": end.result, "ended_at": tx.now,
        "attempts": job.attempt if ran else job.attempt - 1, "started_at": job.claimed_at if ran else None,
    }  # fmt: skip
    changes["error" if end.state is StepState.FAILED else "cancelled_by"] = cut(end.why, MAX_ERROR)
    if end.state is StepState.SUCCEEDED:
        changes["cancelled_by"] = None
    workflows.change(tx, run.id, [step.name], **changes)
    if end.state is StepState.SUCCEEDED or not step.stops_run or run.is_stopped:
        return _advance(tx, run, [step.feeds])
    as_ = OccurrenceState.FAILED if end.state is StepState.FAILED else OccurrenceState.CANCELLED
    # Without what the hook prepares no step may start, not even one that would run regardless.
    return stop(tx, run, by=_blamed(step, end), as_=as_, also=[step.feeds], all_of_it=step.name == ON_START)


def _blamed(step: RunStep, end: StepEnd) -> str:
    what = "failed" if end.state is StepState.FAILED else "was cancelled"
    return cut(f"step {step.name!r} {what}: {end.why}" if end.why else f"step {step.name!r} {what}", MAX_MESSAGE) or ""


def stop(
    tx: Transaction,
    run: Run,
    *,
    by: str,
    as_: OccurrenceState,
    also: Sequence[Sequence[int]] = (),
    all_of_it: bool = False,
) -> Run:
    """Take back what is due, ask what runs to stop, and let only steps start that run regardless, or none at all.

    A step that waits for others is cancelled when its turn comes, so that a clean-up after it finds nobody still at work.
    """
    run = replace(run, stopped_by=by, stopped_as=as_)
    found = workflows.in_state(tx, run.id, *(OPEN if all_of_it else [StepState.OWED]))
    others = [step for step in found if all_of_it or not step.regardless]
    owed = {step.name for step in others if step.state is StepState.OWED}
    running = _take_back(tx, run, owed)
    ended = [step for step in others if step.name not in running]
    _cancelled(tx, run, ended)
    return _advance(tx, run, [*also, *(step.feeds for step in ended)])


def _take_back(tx: Transaction, run: Run, names: set[str]) -> set[str]:
    """Delete and record jobs of steps that have not started; return the names of those that run: these are asked to stop."""
    if not names:
        return set()
    found = [job for job in jobs.lock_steps(tx, run.id) if job.step in names]
    running = [job for job in found if job.state is JobState.RUNNING]
    waiting = [job for job in found if job.state is not JobState.RUNNING]
    jobs.remove_all_waiting(tx, [(job.id, job.attempt) for job in waiting])
    told = cut(run.stopped_by, MAX_MESSAGE)
    executions.record_all(tx, [(replace(job, state=JobState.PENDING), told) for job in waiting], Outcome.CANCELLED)
    lanes.free_all(tx, waiting)
    for job in waiting:
        if job.attempt > 1:  # it has been tried before
            workflows.change(tx, run.id, [job.step or ""], attempts=job.attempt - 1)
    for job in running:
        jobs.request_cancel(tx, job.id, job.attempt)
    return {job.step or "" for job in running}


def _cancelled(tx: Transaction, run: Run, steps: Sequence[RunStep]) -> None:
    names = [step.name for step in steps]
    values = {"state": StepState.CANCELLED, "outcome": str(Outcome.CANCELLED), "ended_at": tx.now}
    workflows.change(tx, run.id, names, **values, cancelled_by=run.stopped_by)


def _advance(tx: Transaction, run: Run, ended: Sequence[Sequence[int]], ready: Sequence[RunStep] = ()) -> Run:
    """Count down the joins that ended steps feed, and start what waited for them; so on while that ends steps at once."""
    while ended or ready:
        remaining, reached = count_down(run.remaining, ended)
        run = replace(run, remaining=remaining)
        waited = [join for join in reached if join != ALL]
        if waited and run.is_stopped:
            run, ready = _pass_over(tx, run, waited)
        elif waited:
            ready = [*ready, *workflows.waiting_for(tx, run.id, waited)]
        ended, ready = [step.feeds for step in _start(tx, run, ready)], []
    workflows.save(tx, run)
    return run


def _pass_over(tx: Transaction, run: Run, reached: Sequence[int]) -> tuple[Run, Sequence[RunStep]]:
    """Cancel the steps of a stopped run whose turn has come, and whose turn comes by that; return those that start."""
    run, refused, ready = passed_over(run, reached, workflows.in_state(tx, run.id, StepState.WAITING))
    _cancelled(tx, run, refused)
    return run, ready


def _start(tx: Transaction, run: Run, steps: Sequence[RunStep]) -> Sequence[RunStep]:
    """Give steps their jobs; return those whose key is taken: their work is done, or being done, by another job."""
    if not steps:
        return []
    now = tx.read_now()
    made = {step.name: step_job(run, step, now) for step in steps}
    keyed = [(job.task, job.dedupe_key) for job in made.values() if job.dedupe_key is not None]
    kept = keys.find_all_kept(tx, keyed) if keyed else {}
    results = {name: done.whole for name, job in made.items() if (done := kept.get((job.task, job.dedupe_key or "")))}
    fresh = {name: job for name, job in made.items() if name not in results}
    if fresh:
        written = insertion.insert_many(tx, [jobs.columns_of(job) for job in fresh.values()])
        results |= {name: None for name, job in fresh.items() if not written.is_new({"id": job.id})}
    for name, result in results.items():
        _deduplicated(tx, run, made[name], result)
    workflows.change(tx, run.id, [name for name in made if name not in results], state=StepState.OWED)
    tx.wake()
    return [step for step in steps if step.name in results]


def _deduplicated(tx: Transaction, run: Run, job: Job, result: str | None) -> None:
    executions.record(tx, job, Outcome.DEDUPLICATED, message=f"key {job.dedupe_key!r} is another job's")
    changes = {"state": StepState.SUCCEEDED, "outcome": str(Outcome.DEDUPLICATED), "ended_at": tx.now, "result": result}
    workflows.change(tx, run.id, [job.step or ""], **changes)


def call_hook(tx: Transaction, run: Run, hook: str, arguments: Sequence[Any]) -> None:
    """Give a run's hook its job, if it has one."""
    task = run.settings.get(hook)
    if task:
        jobs.insert_many(tx, [hook_job(run, hook, task, arguments, tx.read_now())])
        tx.wake()
