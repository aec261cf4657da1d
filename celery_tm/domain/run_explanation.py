"""What an explanation says of a run of a workflow: which step failed, what that cancelled, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ..clock import format_duration
from .execution import Execution
from .job import Job, JobState, Slot
from .queues import publish_error
from .workflow import StepState

MOST_NAMES, MOST_STEPS = 5, 10
Told = Mapping[str, Any]  # a report, or a step of it: plain JSON


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Something that people or the system did to the definition."""

    at: datetime
    actor: str
    action: str
    reason: str | None = None
    version: int | None = None
    stated: Mapping[str, Any] | None = None

    def told(self) -> str:
        """Return who did what, when and why."""
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.action} by {self.actor} at {stamp(self.at)}{why}"


def standing_of(report: Told) -> str:
    """Say how far a run has come that is going on, and what it waits for."""
    steps = report["steps"]
    ended = sum(step["state"] not in (StepState.OWED, StepState.WAITING) for step in steps)
    owed = [step["name"] for step in steps if step["state"] == StepState.OWED]
    waits = f", it waits for {named(owed)}" if owed else ""
    stopped = f"; it was stopped: {report['stopped_by']}" if report.get("stopped_by") else ""
    return f"{ended} of {_steps(len(steps))} {'has' if 1 in (ended, len(steps)) else 'have'} ended{waits}{stopped}"


def lines_of(report: Told, jobs: Mapping[str, Job]) -> list[str]:
    """Say what became of the steps, those that are still owed by their `jobs`, and of those that went well how many."""
    by_state: dict[str, list[Told]] = {str(state): [] for state in StepState}
    for step in report["steps"]:
        by_state[step["state"]].append(step)
    return [
        *_some([_failure(step) for step in by_state[StepState.FAILED]]),
        *_some([line for step in report["steps"] for line in _earlier_attempts(step)]),
        *_cancelled(by_state[StepState.CANCELLED]),
        *_some([_owed(step, jobs.get(step["name"])) for step in by_state[StepState.OWED]]),
        *_waiting(by_state[StepState.WAITING]),
        *_succeeded(report, by_state[StepState.SUCCEEDED]),
    ]


def named(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(repr(name) for name in names[:MOST_NAMES]) + more


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def _some(lines: Sequence[str]) -> list[str]:
    more = [f"and {len(lines) - MOST_STEPS} more steps; `tm report` lists them all"] if len(lines) > MOST_STEPS else []
    return [*lines[:MOST_STEPS], *more]


def _failure(step: Told) -> str:
    tries = step.get("attempts", 0)
    after = f" in attempt {tries}" if tries else ""
    kept = f", in run {step['kept_from']}" if step.get("kept_from") else ""
    return f"step {step['name']!r} failed{after}{kept}: {_first_line(step.get('error') or 'no error was recorded')}"


def _earlier_attempts(step: Told) -> list[str]:
    """Say how the attempts of a step ended that another one followed, each with the backoff between them."""
    return [
        f"step {step['name']!r}, " + _attempt(
            one["attempt"], one["outcome"], started=_read(one.get("started_at")), took=_duration(one.get("seconds")),
            error=one.get("error"), backoff=_duration(one.get("next_delay")),
        )
        for one in step.get("tries") or () if one.get("next_delay") is not None
    ]  # fmt: skip


def attempts_told(executions: Iterable[Execution]) -> list[str]:
    """Say of each attempt, the first one first, when it started, how it ended after how long, and what backoff followed."""
    return [
        _attempt(
            one.attempt, one.outcome, started=one.started_at, error=one.error or one.message, backoff=one.next_delay,
            took=one.completed_at - one.started_at if one.started_at else None, worker=one.worker,
        )
        for one in sorted(executions, key=lambda one: one.attempt)
    ]  # fmt: skip


def _attempt(
    number: int,
    outcome: str,
    *,
    started: datetime | None,
    took: timedelta | None,
    error: str | None,
    backoff: timedelta | None,
    worker: str | None = None,
) -> str:
    after = "" if took is None else f" after {took_of(took)}"
    where = f" on {worker}" if worker else ""
    begun = f", started at {stamp(started)}" if started else ""
    followed = "" if backoff is None else f", the next one {took_of(backoff)} later"
    why = f": {_first_line(error)}" if error else ""
    return f"attempt {number} {outcome}{after}{where}{begun}{followed}{why}"


def took_of(duration: timedelta) -> str:
    """Return a duration as people read it."""
    return format_duration(timedelta(seconds=round(max(duration, timedelta(0)).total_seconds(), 1)))


def _duration(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _read(instant: str | None) -> datetime | None:
    return None if instant is None else datetime.fromisoformat(instant)


def _first_line(text: str) -> str:
    lines = text.strip().splitlines() or [""]
    return f"{lines[0]} …" if len(lines) > 1 else lines[0]


def _cancelled(steps: Iterable[Told]) -> list[str]:
    """Say which steps were cancelled, those by one cause together."""
    causes: dict[str, list[str]] = {}
    for step in steps:
        causes.setdefault(step.get("cancelled_by") or "no cause was recorded", []).append(step["name"])
    return [f"cancelled: {named(names)}, because {_first_line(cause)}" for cause, names in causes.items()]


def _owed(step: Told, job: Job | None) -> str:
    name = f"step {step['name']!r}"
    if job is None:
        return f"{name} has just ended"
    if job.state is JobState.RUNNING:
        asked = ", and was asked to stop" if job.cancel_requested else ""
        return f"{name} is running in attempt {job.attempt} on {job.claimed_by}{asked}"
    if job.state is JobState.DISPATCHED:
        return f"{name} waits for a free worker"
    if (error := publish_error(job)) is not None:
        return f"{name} was not published: {_first_line(error)}; a beat tries again"
    if job.retries:
        return f"{name} is tried again at {stamp(job.run_at)}: {_first_line(job.last_error or 'no error was recorded')}"
    if job.slot is Slot.HELD:
        return f"{name} waits for a slot"
    return f"{name} waits for a beat to send it"


def _waiting(steps: Sequence[Told]) -> list[str]:
    names = [step["name"] for step in steps]
    return [f"{named(names)} {'waits' if len(names) == 1 else 'wait'} for other steps"] if names else []


def _succeeded(report: Told, steps: Sequence[Told]) -> list[str]:
    """Say how many succeeded: the counts know also of those that a report in short leaves out."""
    count = report["counts"].get(str(StepState.SUCCEEDED), 0)
    kept = sum(1 for step in steps if step.get("kept_from"))
    before = f", {kept} of them in the run that this one repeats" if kept else ""
    return [f"{_steps(count)} succeeded{before}"] if count else []


def stamp(instant: datetime) -> str:
    """Return an instant as people read it, in UTC."""
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"
