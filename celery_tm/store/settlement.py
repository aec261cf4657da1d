"""How an attempt ends: each ending is one transaction in which the row moves, the record is written and the key is kept.

The first statement of each carries the attempt. If it finds no row, the lease was lost: `LeaseLost` is raised and the
transaction, with all that a stale worker would have written, rolls back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from ..domain.execution import MAX_ERROR, Failure, Outcome, cut
from ..domain.job import Job, JobState
from ..domain.occurrence import OccurrenceState
from ..domain.retry import Bury, TryAgain
from ..errors import LeaseLost
from . import audit, dead_letters, executions, jobs, keys, lanes, occurrences, pausing
from .database import Transaction


def succeed(tx: Transaction, job: Job, *, result: str | None, message: str | None, keep_key: timedelta) -> None:
    """The work is done: the row goes, the execution and the key stay."""
    if not jobs.remove_running(tx, job.id, job.attempt):
        raise LeaseLost(job.id, job.attempt)
    execution = executions.record(tx, job, Outcome.SUCCEEDED, message=message)
    if job.dedupe_key is not None:
        keep = job.keep_key if job.keep_key is not None else keep_key
        keys.keep(
            tx, task=job.task, key_text=job.dedupe_key, job=job.id, execution=execution, result=result, keep=keep
        )  # fmt: skip
    _end(tx, job, OccurrenceState.COMPLETED)


def hand_over(tx: Transaction, job: Job, *, message: str) -> bool:
    """A plain Celery task was sent: its end will not be seen, so it counts as done. False: somebody was faster."""
    if not jobs.remove_waiting(tx, job.id, job.attempt):
        return False
    executions.record(tx, replace(job, state=JobState.PENDING), Outcome.SUCCEEDED, message=message)
    _end(tx, job, OccurrenceState.COMPLETED, reason=message)
    return True


def _end(tx: Transaction, job: Job, state: OccurrenceState, *, reason: str | None = None) -> None:
    """The job is no longer owed: its occurrence has ended, and the next one of its key may go on."""
    if job.occurrence:
        occurrences.end(tx, job.occurrence, state, reason=reason)
    lanes.free(tx, job)


def fail(tx: Transaction, job: Job, failure: Failure, then: TryAgain | Bury) -> TryAgain | Bury | None:
    """The attempt failed: the job gets its next try or becomes a dead letter; None if it was cancelled instead."""
    if isinstance(then, Bury) and not jobs.is_cancelled(tx, job.id, job.attempt):
        bury(tx, job, failure, then)
        return then
    if isinstance(then, TryAgain) and jobs.reschedule(tx, job.id, job.attempt, then, error=cut(failure.error, MAX_ERROR)):
        executions.record(tx, job, failure.outcome, failure=failure)
        if job.occurrence is None:
            lanes.free(tx, job)  # an occurrence keeps its slot until it has ended
        if then.delay < WAKE_WITHIN:
            tx.wake()
        return then
    stop(tx, job, message=f"cancelled while it ran; its last try ended with {failure.error}")
    return None


def bury(
    tx: Transaction, job: Job, failure: Failure, then: Bury, *, state: OccurrenceState = OccurrenceState.FAILED
) -> None:
    """The tries, or the time, are used up: the row moves to the dead letters."""
    running = job.state is JobState.RUNNING
    if not (jobs.remove_running if running else jobs.remove_waiting)(tx, job.id, job.attempt):
        raise LeaseLost(job.id, job.attempt)
    if running:  # else its last attempt is recorded already
        executions.record(tx, job, failure.outcome, failure=failure)
    dead_letters.bury(tx, job, reason=then.reason, failure=failure)
    audit.note(tx, "bury", f"job:{job.id}", reason=then.reason, after={"task": job.task, "attempt": job.attempt})
    _end(tx, job, state, reason=then.reason)
    if job.occurrence:
        pausing.pause_if_failing(tx, job.occurrence)


WAKE_WITHIN = timedelta(seconds=1)


def stop(tx: Transaction, job: Job, *, message: str | None = None) -> None:
    """A running attempt was cancelled and has stopped."""
    if not jobs.remove_running(tx, job.id, job.attempt):
        raise LeaseLost(job.id, job.attempt)
    executions.record(tx, job, Outcome.CANCELLED, message=message)
    _end(tx, job, OccurrenceState.CANCELLED, reason=message)


def drop(tx: Transaction, job: Job, outcome: Outcome, *, reason: str, actor: str | None = None) -> bool:
    """A job that is not running will not run: cancelled, expired or deduplicated. False: it has started meanwhile."""
    if not jobs.remove_waiting(tx, job.id, job.attempt):
        return False
    # The attempt did not start; whoever dispatched it is not its worker.
    executions.record(tx, replace(job, state=JobState.PENDING), outcome, message=reason, actor=actor)
    _end(tx, job, OccurrenceState.CANCELLED, reason=reason)
    return True


def make_room(tx: Transaction, occurrences_owed: Sequence[str], *, reason: str) -> None:
    """Cancel what is owed of these occurrences: what waits goes at once, what runs is asked to stop."""
    for job in jobs.lock_of_occurrences(tx, occurrences_owed):
        if not drop(tx, job, Outcome.CANCELLED, reason=reason):
            jobs.request_cancel(tx, job.id, job.attempt)
