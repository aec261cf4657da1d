"""How an attempt ends: each ending is one transaction in which the row moves, the record is written and the key is kept.

The first statement of each carries the attempt and who was let in. If it finds no row, the lease was lost: `LeaseLost` is
raised and the transaction, with all that a stale worker would have written, rolls back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from ..domain.execution import MAX_ERROR, Failure, Outcome, cut
from ..domain.facts import Closed, RunMoved, Unread
from ..domain.job import Job, JobState, Source
from ..domain.occurrence import OccurrenceState
from ..domain.retry import NOT_KEPT, Bury, TryAgain, can_be_sent_again
from ..domain.run import Run, ending_of, report_of, results_text, root_of, shortened
from ..domain.workflow import StepState
from ..errors import LeaseLost
from . import (
    audit,
    completion,
    dead_letters,
    executions,
    following,
    jobs,
    keys,
    lanes,
    occurrences,
    pausing,
    progress,
    rows,
    workflows,
)
from .database import Transaction
from .keys import DoneKey
from .progress import StepEnd

Ended = Mapping[str, Any]  # how a body ended, kept while what follows it is handed on


def succeed(
    tx: Transaction, job: Job, *, result: str | None, message: str | None, keep_key: timedelta, ended: Ended | None = None
) -> None:
    """The work is done: the execution and the key stay, the row goes, or stays until what follows is handed on."""
    run = _run_of(tx, job)
    if completion.is_single(tx.dialect, job, ended):
        if not completion.succeed(tx, job, result=result, message=message, keep_key=keep_key):
            raise LeaseLost(job.id, job.attempt)
        return
    _finish(tx, job, ended)
    execution = executions.record(tx, job, Outcome.SUCCEEDED, message=message)
    keys.keep_success(tx, job, execution, result, keep_key)
    if run is not None:
        _end_step(tx, run, job, StepEnd(outcome=Outcome.SUCCEEDED, result=result))
        return
    _end(tx, job, OccurrenceState.COMPLETED)


def try_lock(tx: Transaction, job: Job) -> bool:
    """Lock a running attempt, and first the run that it is a step of, without waiting. False: another transaction has it."""
    return (not job.is_step or workflows.try_lock(tx, job.occurrence or "")) and not jobs.lock_free(tx, [job])


def _run_of(tx: Transaction, job: Job) -> Run | None:
    """Lock and return the run that a job is a step of; before the job, as everybody does who changes a run."""
    return workflows.lock(tx, job.occurrence) if job.is_step else None


def _end_step(tx: Transaction, run: Run, job: Job, end: StepEnd) -> None:
    """A step is no longer owed: what waits for it may start, or its run is over."""
    run = progress.end_step(tx, run, job, end)
    lanes.free(tx, job)
    close_if_over(tx, run)


def stop_run(
    tx: Transaction,
    run: Run,
    *,
    by: str,
    as_: OccurrenceState = OccurrenceState.CANCELLED,
    all_of_it: bool = False,
) -> bool:
    """End a run early, which the caller has locked: what has not started goes at once, what runs is asked to stop.

    What runs regardless goes on, unless it is to stop too. False: the run was over before we had it.
    """
    if run.is_over:
        return False
    if all_of_it or not run.is_stopped or as_ is OccurrenceState.STALE:
        run = progress.stop(tx, run, by=by, as_=as_, all_of_it=all_of_it)
    close_if_over(tx, run)
    return True


def close_if_over(tx: Transaction, run: Run) -> None:
    """End the job that stands for a run all of whose steps have ended, and the occurrence; the next one may go on."""
    if not run.is_over:
        return
    root = _taken_root(tx, run)
    if root is None:
        return
    steps = workflows.in_state(tx, run.id, *StepState)
    ending = ending_of(run, [step for step in steps if step.state is StepState.FAILED and not step.kept_from])
    failure = Failure(error=ending.reason or "", outcome=ending.outcome) if ending.outcome in FAILED else None
    message = None if failure else ending.reason
    execution = executions.record(tx, root, ending.outcome, message=message, failure=failure)
    if ending.outcome is Outcome.SUCCEEDED:
        keys.keep_success(tx, root, execution, results_text(steps), NO_TIME)  # one that has a key says how long it is kept
    attempts, now = executions.of_occurrence(tx, run.id), tx.read_now()
    report = shortened(report_of(run, steps, attempts, ending=ending, now=now))
    _close(tx, root, run.id, ending.state, reason=ending.reason, report=report)
    took = (now - run.created_at).total_seconds()
    tx.tell(RunMoved(root.definition, run.id, ending.state, len(steps), took))
    progress.call_hook(tx, run, "on_complete", [run.told(ending.state), report])
    lanes.free(tx, root)
    if ending.state in (OccurrenceState.FAILED, OccurrenceState.STALE):
        pausing.pause_if_failing(tx, run.id)


def _taken_root(tx: Transaction, run: Run) -> Job | None:
    """End and return the job of a run; None if it cannot be read: its run ends when that is mended, or its row removed."""
    try:
        root = jobs.find(tx, run.job)
    except rows.UNREADABLE as error:
        tx.tell(Unread(jobs.job.name, run.job, rows.told(error)))
        return None
    if root is None and occurrences.is_active(tx, run.id):
        return root_of(run)  # its row could not be read, and was removed
    if root is None or not jobs.remove_running(tx, root):
        raise LeaseLost(run.job, run.attempt)
    return root


def end_removed(tx: Transaction, run: Run, job: str, step: str | None, *, why: str) -> None:
    """The row of a job could not be read and was removed: its run is stopped, or its step is cancelled.

    The caller has locked the run.
    """
    if step is not None:
        gone = replace(root_of(run), id=job, step=step, state=JobState.PENDING, attempt=1)
        _end_step(tx, run, gone, StepEnd(outcome=Outcome.CANCELLED, why=why))
    elif not stop_run(tx, run, by=why):
        close_if_over(tx, run)


def _close(
    tx: Transaction,
    job: Job,
    id: str,
    state: OccurrenceState,
    *,
    reason: str | None,
    report: Mapping[str, Any] | None = None,
) -> None:
    """End the occurrence that a job carries out."""
    occurrences.end(tx, id, state, reason=reason, report=report)
    tx.tell(Closed(job.definition, state, id, reason, job.source is Source.RECOVERY))


ENDS, FAILED = {Outcome.STALE: OccurrenceState.STALE}, (Outcome.FAILED, Outcome.TIMEOUT)
NO_TIME, WAKE_WITHIN = timedelta(0), timedelta(seconds=1)


def succeed_all(
    tx: Transaction, done: Sequence[tuple[Job, str | None, str | None]], *, keep_key: timedelta
) -> Collection[str]:
    """The work of many jobs is done, each with its result and message; return the ids of those whose lease was held.

    These are jobs that share a message, so none has an occurrence, a slot or anything that follows it.
    """
    if tx.dialect.changes_many:
        alike: dict[tuple[int, str | None], list[tuple[Job, str | None, str | None]]] = {}
        for one in done:
            alike.setdefault((one[0].attempt, one[0].claimed_by), []).append(one)
        return set().union(*(completion.succeed_all(tx, some, keep_key=keep_key) for some in alike.values()))
    held = jobs.remove_all_running(tx, [job for job, _, _ in done])
    mine = [(job, result, message) for job, result, message in done if job.id in held]
    recorded = executions.record_all(tx, [(job, message) for job, _, message in mine], Outcome.SUCCEEDED)
    for job, result, _ in mine:
        keys.keep_success(tx, job, recorded[job.id], result, keep_key)
    return held


def _finish(tx: Transaction, job: Job, ended: Ended | None) -> None:
    """End a running attempt, or find that it is no longer ours."""
    done = jobs.remove_running(tx, job) if ended is None else following.mark(tx, job, ended)
    if not done:
        raise LeaseLost(job.id, job.attempt)


def replaced(tx: Transaction, job: Job, ended: Ended | None, *, message: str) -> None:
    """The body put another call in its place: that one has the job's id, and passes the gate when it comes."""
    run = _run_of(tx, job)
    _finish(tx, job, ended)
    executions.record(tx, job, Outcome.REPLACED, message=message)
    _end(tx, job, OccurrenceState.COMPLETED, run, Outcome.REPLACED, reason=message)


def hand_over(tx: Transaction, job: Job, *, message: str) -> bool:
    """A plain Celery task was sent: its end will not be seen, so it counts as done. False: somebody was faster."""
    run = _run_of(tx, job)
    if not jobs.remove_waiting(tx, job.id, job.attempt):
        return False
    executions.record(tx, replace(job, state=JobState.PENDING), Outcome.SUCCEEDED, message=message)
    _end(tx, job, OccurrenceState.COMPLETED, run, Outcome.SUCCEEDED, reason=message)
    return True


def _end(
    tx: Transaction,
    job: Job,
    state: OccurrenceState,
    run: Run | None = None,
    outcome: Outcome = Outcome.SUCCEEDED,
    *,
    reason: str | None = None,
) -> None:
    """The job is no longer owed: its occurrence has ended, or a step of its run, and the next one of its key may go on."""
    if run is not None:
        _end_step(tx, run, job, StepEnd(outcome=outcome, why=reason))
        return
    if job.occurrence and not job.is_step:
        _close(tx, job, job.occurrence, state, reason=reason)
    lanes.free(tx, job)


def fail(
    tx: Transaction,
    job: Job,
    failure: Failure,
    then: TryAgain | Bury,
    *,
    ended: Ended | None = None,
    reports: bool = True,
) -> TryAgain | Bury | None:
    """The attempt failed: the job gets its next try or becomes a dead letter; None if it was cancelled instead.

    `reports` says whether the caller itself reports that to the result backend; else some worker does.
    """
    _run_of(tx, job)
    if isinstance(then, TryAgain) and not can_be_sent_again(job, then):
        then = Bury(NOT_KEPT)
    if isinstance(then, Bury) and not jobs.is_cancelled(tx, job):
        bury(tx, job, failure, then, ended=ended)
        return then
    if isinstance(then, TryAgain) and jobs.reschedule(tx, job, then, error=cut(failure.error, MAX_ERROR)):
        executions.record(tx, job, failure.outcome, failure=failure, next_delay=then.delay)
        if job.occurrence is None:
            lanes.free(tx, job)  # an occurrence keeps its slot until it has ended
        if then.delay < WAKE_WITHIN:
            tx.wake()
        return then
    stop(tx, job, message=f"cancelled while it ran; its last try ended with {failure.error}", reports=reports)
    return None


def bury(
    tx: Transaction,
    job: Job,
    failure: Failure,
    then: Bury,
    *,
    state: OccurrenceState | None = None,
    ended: Ended | None = None,
) -> None:
    """The tries, or the time, are used up: the job moves to the dead letters.

    With `ended` its row stays until what follows a failure is handed on, by the worker that has it.
    """
    then, state = then.of(failure), state or ENDS.get(failure.outcome, OccurrenceState.FAILED)
    run = _run_of(tx, job)
    running = job.state is JobState.RUNNING
    if running:
        _finish(tx, job, ended)
    elif not jobs.remove_waiting(tx, job.id, job.attempt):
        raise LeaseLost(job.id, job.attempt)
    if running:  # else its last attempt is recorded already
        executions.record(tx, job, failure.outcome, failure=failure)
    dead_letters.bury(tx, job, reason=then.reason, failure=failure)
    keys.keep_failed(tx, job)
    audit.note(tx, "bury", f"job:{job.id}", reason=then.reason, after={"task": job.task, "attempt": job.attempt})
    _end(tx, job, state, run, failure.outcome, reason=failure.error if run else then.reason)
    if job.occurrence and run is None:
        pausing.pause_if_failing(tx, job.occurrence)


def abandon(
    tx: Transaction,
    job: Job,
    failure: Failure,
    then: Bury,
    *,
    state: OccurrenceState | None = None,
    carries: Job | None = None,
) -> None:
    """Bury a job whose worker is gone: another one reports it, by a message of `carries` where its own cannot be sent."""
    bury(tx, job, failure, then, state=state)
    if job.args is not None:
        following.put(tx, carries or job, {"error": cut(failure.error, MAX_ERROR), "attempt": job.attempt})
        tx.wake()


def hand_back(tx: Transaction, job: Job, why: Failure) -> bool:
    """A worker that stops gives back a running attempt: it waits again and no try is used. False: it is gone."""
    _run_of(tx, job)
    if not can_be_sent_again(job):
        return fail(tx, job, why, Bury(NOT_KEPT), reports=False) is not None
    if not jobs.hand_back(tx, job):
        if not jobs.is_cancelled(tx, job):
            return False
        stop(tx, job, message=f"cancelled while it ran; {why.error}", reports=False)
        return True
    executions.record(tx, job, why.outcome, failure=why, next_delay=NO_TIME)
    tx.wake()
    return True


def forget(tx: Transaction, job: Job) -> bool:
    """A running attempt leaves no trace: its message goes back to the broker. False: it was cancelled while it ran."""
    if jobs.is_cancelled(tx, job):
        return False
    if jobs.remove_running(tx, job):
        lanes.free(tx, job)
    return True


def stop(tx: Transaction, job: Job, *, message: str | None = None, reports: bool = True) -> None:
    """A running attempt was cancelled and has stopped; unless the caller `reports` that, some worker does."""
    run = _run_of(tx, job)
    if not jobs.remove_running(tx, job):
        raise LeaseLost(job.id, job.attempt)
    executions.record(tx, job, Outcome.CANCELLED, message=message)
    keys.keep_cancelled(tx, job)
    _end(tx, job, OccurrenceState.CANCELLED, run, Outcome.CANCELLED, reason=(run and run.stopped_by) or message)
    if not reports and following.put(tx, job, {"revoked": "revoked", "attempt": job.attempt}):
        tx.wake()


def drop(
    tx: Transaction, job: Job, outcome: Outcome, *, reason: str, actor: str | None = None, result: str | None = None
) -> bool:
    """A job that is not running will not run: cancelled, expired or deduplicated. False: it has started meanwhile.

    `result` is what the job returned whose key this one has.
    """
    run = _run_of(tx, job)
    if not jobs.remove_waiting(tx, job.id, job.attempt):
        return False
    # The attempt did not start; whoever dispatched it is not its worker.
    executions.record(tx, replace(job, state=JobState.PENDING), outcome, message=reason, actor=actor)
    if outcome is not Outcome.DEDUPLICATED:
        keys.keep_cancelled(tx, job)
    if run is not None:
        _end_step(tx, run, job, StepEnd(outcome=outcome, why=reason, result=result))
    else:
        _end(tx, job, OccurrenceState.CANCELLED, reason=reason)
    return True


def deduplicate(tx: Transaction, job: Job, done: DoneKey) -> bool:
    """A job that has not started will not run, for its key has succeeded: its callbacks get the result of that success.

    False: it has started meanwhile.
    """
    reason = f"key {done.key!r} has succeeded in job {done.job}"
    if not drop(tx, job, Outcome.DEDUPLICATED, reason=reason, result=done.whole):
        return False
    if done.leaves_row(job) and following.put(tx, job, {**done.ended, "attempt": job.attempt}):
        tx.wake()
    return True


def expire(tx: Transaction, job: Job, *, leaves_row: bool | None = None) -> bool:
    """A job that has not started is too late to run. False: it has started meanwhile.

    With `leaves_row` a worker marks its result and tells its chord; unset: if a chain, a chord or a link waits for it.
    """
    leaves_row = job.is_awaited if leaves_row is None else leaves_row
    if not drop(tx, job, Outcome.EXPIRED, reason=f"it expired at {job.expires_at}"):
        return False
    if leaves_row and following.put(tx, job, {"revoked": "expired", "attempt": job.attempt}):
        tx.wake()
    return True
