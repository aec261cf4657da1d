"""What became of a job, whether its row is still there or not."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from ..domain.execution import STATUS, Execution
from ..domain.job import Job, JobState, Status
from ..domain.queues import error_of
from ..domain.workflow import TASK
from . import dead_letters, executions, jobs, keys, tables, workflows
from .database import Transaction
from .keys import DoneKey
from .rows import readable


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStory:
    """One job's life so far."""

    id: str
    task: str
    state: Status
    attempt: int
    attempt_count: int
    executions: Sequence[Execution] = field(default_factory=list)
    job: Job | None = None
    run_at: datetime | None = None
    locked_by: str | None = None
    locked_at: datetime | None = None
    last_error: str | None = None
    progress: str | None = None
    result: object = None
    reason: str | None = None
    step: str | None = None
    run: str | None = None  # of the workflow that it is a step of, or stands for
    definition: str | None = None


def story(tx: Transaction, id: str) -> JobStory | None:
    """Return a job's life so far, or None if nothing is known of it (any more)."""
    # The row first: if it goes in this moment, its record is there when that is looked for.
    with readable(tables.job, id):
        owed = jobs.find(tx, id)
    attempts = executions.of_job(tx, id)
    if owed and owed.ended is None:
        return _owed(owed, attempts)
    with readable(tables.dead_letter, id):
        letter = dead_letters.find(tx, id)
    if letter:
        ended = _ended(letter.job.task, id, Status.FAILED, attempts)
        buried = letter.job
        ended = replace(ended, job=buried, step=buried.step, run=buried.run, definition=buried.definition)
        return replace(ended, last_error=letter.last_error, reason=letter.reason)
    done = keys.find_by_job(tx, id)
    if attempts:
        last = attempts[0]
        step, run = _place(tx, last)
        ended = replace(
            _ended(last.task, id, STATUS[last.outcome], attempts), step=step, run=run, definition=last.definition
        )
        return replace(ended, last_error=last.error, reason=last.message, result=_result(done))
    return _kept(done) if done else None


def _place(tx: Transaction, last: Execution) -> tuple[str | None, str | None]:
    """Return the step and the run that an execution belongs to, if it does."""
    if last.occurrence is None or last.task == TASK:
        return None, last.occurrence
    name = workflows.names_of(tx, {last.job: last.occurrence}).get(last.job)
    return name, None if name is None else last.occurrence


def _owed(job: Job, attempts: Sequence[Execution]) -> JobStory:
    started = job.state is JobState.RUNNING
    return JobStory(
        id=job.id,
        task=job.task,
        state=job.status,
        attempt=job.attempt,
        attempt_count=len(attempts) + started,
        executions=attempts,
        job=job,
        run_at=job.run_at,
        locked_by=job.claimed_by,
        locked_at=job.claimed_at,
        last_error=error_of(job),
        progress=job.progress,
        step=job.step,
        run=job.run,
        definition=job.definition,
    )


def _ended(task: str, id: str, state: Status, attempts: Sequence[Execution]) -> JobStory:
    last = attempts[0].attempt if attempts else 0
    return JobStory(id=id, task=task, state=state, attempt=last, attempt_count=len(attempts), executions=attempts)


def _kept(done: DoneKey) -> JobStory:
    return replace(_ended(done.task, done.job, done.status, []), result=_result(done))


def _result(done: DoneKey | None) -> object:
    """Return the result that was kept; one that cannot be read is none."""
    with suppress(ValueError, TypeError, RecursionError):
        return done.shown if done else None
    return None
