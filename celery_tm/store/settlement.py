"""How an attempt ends: each ending is one transaction in which the row moves, the record is written and the key is kept.

The first statement of each carries the attempt. If it finds no row, the lease was lost: `LeaseLost` is raised and the
transaction, with all that a stale worker would have written, rolls back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from ..domain.execution import MAX_ERROR, Failure, Outcome, cut
from ..domain.job import Job, JobState
from ..domain.occurrence import OccurrenceState
from ..domain.retry import NOT_KEPT, Bury, TryAgain, can_be_sent_again
from ..errors import LeaseLost
from . import audit, completion, dead_letters, executions, following, jobs, keys, lanes, occurrences, pausing
from .database import Transaction

Ended = Mapping[str, Any]  # how a body ended, kept while what follows it is handed on


def succeed(
    tx: Transaction, job: Job, *, result: str | None, message: str | None, keep_key: timedelta, ended: Ended | None = None
) -> None:
    """The work is done: the execution and the key stay, the row goes, or stays until what follows is handed on."""
    if completion.is_single(tx.dialect, job, ended):
        if not completion.succeed(tx, job, result=result, message=message, keep_key=keep_key):
            raise LeaseLost(job.id, job.attempt)
        return
    _finish(tx, job, ended)
    execution = executions.record(tx, job, Outcome.SUCCEEDED, message=message)
    _keep(tx, job, execution, result, keep_key)
    _end(tx, job, OccurrenceState.COMPLETED)


def succeed_all(
    tx: Transaction, done: Sequence[tuple[Job, str | None, str | None]], *, keep_key: timedelta
) -> Collection[str]:
    """The work of many jobs is done, each with its result and message; return the ids of those whose lease was held.

    These are jobs that share a message, so none has an occurrence, a slot or anything that follows it.
    """
    if tx.dialect.changes_many:
        by_attempt: dict[int, list[tuple[Job, str | None, str | None]]] = {}
        for one in done:
            by_attempt.setdefault(one[0].attempt, []).append(one)
        parts = (completion.succeed_all(tx, some, attempt=n, keep_key=keep_key) for n, some in by_attempt.items())
        return set().union(*parts)
    held = jobs.remove_all_running(tx, [(job.id, job.attempt) for job, _, _ in done])
    mine = [(job, result, message) for job, result, message in done if job.id in held]
    recorded = executions.record_all(tx, [(job, message) for job, _, message in mine], Outcome.SUCCEEDED)
    for job, result, _ in mine:
        _keep(tx, job, recorded[job.id], result, keep_key)
    return held


def _keep(tx: Transaction, job: Job, execution: str, result: str | None, default: timedelta) -> None:
    if job.dedupe_key is not None:
        keep = job.keep_key if job.keep_key is not None else default
        keys.keep(
            tx, task=job.task, key_text=job.dedupe_key, job=job.id, execution=execution, result=result, keep=keep
        )  # fmt: skip


def _finish(tx: Transaction, job: Job, ended: Ended | None) -> None:
    """End a running attempt, or find that it is no longer ours."""
    done = jobs.remove_running(tx, job.id, job.attempt) if ended is None else following.mark(tx, job, ended)
    if not done:
        raise LeaseLost(job.id, job.attempt)


def replaced(tx: Transaction, job: Job, ended: Ended | None, *, message: str) -> None:
    """The body put another call in its place: that one has the job's id, and passes the gate when it comes."""
    _finish(tx, job, ended)
    executions.record(tx, job, Outcome.REPLACED, message=message)
    _end(tx, job, OccurrenceState.COMPLETED, reason=message)


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


def fail(
    tx: Transaction, job: Job, failure: Failure, then: TryAgain | Bury, *, ended: Ended | None = None
) -> TryAgain | Bury | None:
    """The attempt failed: the job gets its next try or becomes a dead letter; None if it was cancelled instead."""
    if isinstance(then, TryAgain) and not can_be_sent_again(job, then):
        then = Bury(NOT_KEPT)
    if isinstance(then, Bury) and not jobs.is_cancelled(tx, job.id, job.attempt):
        bury(tx, job, failure, then, ended=ended)
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
    tx: Transaction,
    job: Job,
    failure: Failure,
    then: Bury,
    *,
    state: OccurrenceState = OccurrenceState.FAILED,
    ended: Ended | None = None,
) -> None:
    """The tries, or the time, are used up: the job moves to the dead letters.

    With `ended` its row stays until what follows a failure is handed on, by the worker that has it.
    """
    running = job.state is JobState.RUNNING
    if running:
        _finish(tx, job, ended)
    elif not jobs.remove_waiting(tx, job.id, job.attempt):
        raise LeaseLost(job.id, job.attempt)
    if running:  # else its last attempt is recorded already
        executions.record(tx, job, failure.outcome, failure=failure)
    dead_letters.bury(tx, job, reason=then.reason, failure=failure)
    audit.note(tx, "bury", f"job:{job.id}", reason=then.reason, after={"task": job.task, "attempt": job.attempt})
    _end(tx, job, state, reason=then.reason)
    if job.occurrence:
        pausing.pause_if_failing(tx, job.occurrence)


def abandon(
    tx: Transaction, job: Job, failure: Failure, then: Bury, *, state: OccurrenceState = OccurrenceState.FAILED
) -> None:
    """Bury a job whose worker is gone: some worker is to tell whoever waits for it that it has failed."""
    bury(tx, job, failure, then, state=state)
    if job.args is not None:
        following.put(tx, job, {"error": cut(failure.error, MAX_ERROR), "attempt": job.attempt})
        tx.wake()


def hand_back(tx: Transaction, job: Job, why: Failure) -> bool:
    """A worker that stops gives back a running attempt: it waits again and no try is used. False: it is gone."""
    if not can_be_sent_again(job):
        return fail(tx, job, why, Bury(NOT_KEPT)) is not None
    if not jobs.hand_back(tx, job.id, job.attempt):
        if not jobs.is_cancelled(tx, job.id, job.attempt):
            return False
        stop(tx, job, message=f"cancelled while it ran; {why.error}")
        return True
    executions.record(tx, job, why.outcome, failure=why)
    tx.wake()
    return True


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
