"""Decides whether one delivery of a message may run.

A broker may deliver a message twice, and two workers may hold it at once. The gate turns that into one promise: for each
job and attempt at most one delivery gets in, and none after the key has succeeded. It only decides: running the body is
`worker.running`; keeping the lease alive is `worker.lease`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from ..domain.execution import Failure, Outcome
from ..domain.job import WAITS_FOR_KEY, Job, JobState
from ..domain.retry import Bury
from ..errors import InvalidValue
from ..installation import Installation
from ..store import admission, executions, following, jobs, keys, lanes, settlement
from ..store.database import UNNAMED, Transaction
from ..store.keys import DoneKey
from ..telling import tell_started
from .decision import Call, Decision, Refusal, Verdict, job_of

KEY_SUCCEEDED = "its key has succeeded already"
RECORDED = "an attempt of it is recorded already"
NOT_KEPT_WAITS = "they are not JSON, or too long, so the call cannot wait in the job table for its key or a free slot"


def admit_job(
    installation: Installation,
    id: str,
    attempt: int,
    *,
    worker: str,
    occurring: bool = False,
    task: str | None = None,
    limit: timedelta | None = None,
) -> Decision:
    """Admit a delivery of a job's attempt, or say why not. `occurring`: it carries out an occurrence.

    `task` is what the delivery calls; a job of another task is not its own. `limit` is how long the attempt may run before
    it counts as stuck; unset: `tm_stuck_after`.
    """
    limit = limit or installation.settings.tm_stuck_after
    decision = _admit_job(installation, id, attempt, worker=worker, occurring=occurring, task=task, limit=limit)
    if decision.refusal is Refusal.OTHER_APP and installation.database.is_of_another_app():
        decision = _admit_job(installation, id, attempt, worker=worker, occurring=occurring, task=task, limit=limit)
    return decision


def _admit_job(
    installation: Installation,
    id: str,
    attempt: int,
    *,
    worker: str,
    occurring: bool,
    task: str | None,
    limit: timedelta,
) -> Decision:
    database, settings = installation.database, installation.settings
    lease, stuck_after = settings.tm_lease, settings.tm_stuck_after

    def work(tx: Transaction) -> Job | None:
        said: dict[str, Any] = {"worker": worker, "lease": lease, "limit": limit, "task": task}
        if occurring:
            return admission.admit_occurring(tx, id, attempt, stuck_after=stuck_after, **said)
        return admission.admit(tx, id, attempt, **said)

    job = database.run(work, alone=database.dialect.changes_many or not occurring)
    if job is None:
        return _refused(installation, id, attempt, task)
    if WAITS_FOR_KEY in job.options and job.ended is None:
        waiting = job
        decision = database.run(lambda tx: _take_key(tx, waiting))
        if decision.job is None:
            return decision
        job = decision.job
    if job.occurrence and not occurring and not job.is_step:  # a message that does not say so
        database.run(lambda tx: admission.start_occurrence(tx, job, stuck_after=stuck_after))
    _tell(installation, job)
    return _run(job)


def _tell(installation: Installation, job: Job) -> None:
    if job.ended is None:  # else only what follows is handed on
        tell_started(installation.app, job, verbose=installation.settings.tm_verbose)


def admit_all(
    installation: Installation,
    attempts: Sequence[tuple[str, int]],
    *,
    carrier: str,
    worker: str,
    task: str | None = None,
    limit: timedelta | None = None,
) -> tuple[Sequence[Job], Sequence[tuple[str, Decision]]]:
    """Let in a delivery that carries many attempts; return those that may run, and why the others may not."""
    database, lease = installation.database, installation.settings.tm_lease
    limit = limit or installation.settings.tm_stuck_after
    said: dict[str, Any] = {"worker": worker, "carrier": carrier, "task": task, "limit": limit}
    single = database.dialect.changes_many and len({attempt for _, attempt in attempts}) == 1
    admitted = database.run(lambda tx: admission.admit_all(tx, attempts, lease=lease, **said), alone=single)
    for job in admitted:
        _tell(installation, job)
    ids = {job.id for job in admitted}
    refused = [(id, attempt) for id, attempt in attempts if id not in ids]
    if not refused:
        return admitted, []
    decisions = [(id, _refused(installation, id, attempt, task)) for id, attempt in refused]
    if any(one.refusal is Refusal.OTHER_APP for _, one in decisions) and database.is_of_another_app():
        more, others = admit_all(installation, refused, **said)
        return [*admitted, *more], others
    return admitted, decisions


def _refused(installation: Installation, id: str, attempt: int, task: str | None) -> Decision:
    """Say why a delivery is refused, and settle a job that will never run. One look is enough for most."""
    database = installation.database
    seen = database.run(lambda tx: admission.find(tx, id), alone=True)
    return _reason(seen, attempt, task, database.app) or database.run(lambda tx: _refusal(tx, id, attempt, task))


def _reason(job: Job | None, attempt: int, task: str | None, app: str) -> Decision | None:
    """Return why a delivery is refused whose job is another's, elsewhere, or gone."""
    if job is None:
        return _skip(Refusal.SETTLED, "it is settled already")
    if job.app not in (app, UNNAMED):
        why = f"it belongs to the app {job.app!r}, which has the same database; let the two use queues of their own"
        return _skip(Refusal.OTHER_APP, why, job)
    if task is not None and job.task != task:
        return _skip(Refusal.OTHER_TASK, f"the job of this id is one of {job.task}", job)
    if job.attempt != attempt:
        return _skip(Refusal.OTHER_ATTEMPT, f"attempt {job.attempt} is the present one", job)
    if job.state is JobState.RUNNING:
        return _skip(Refusal.RUNNING, f"it runs on {job.claimed_by}", job)
    return None


def _refusal(tx: Transaction, id: str, attempt: int, task: str | None) -> Decision:
    job = jobs.find(tx, id)
    reason = _reason(job, attempt, task, tx.app)
    if reason is not None or job is None:
        return reason or _skip(Refusal.SETTLED, "it is settled already")
    if job.dedupe_key and (done := keys.find_kept(tx, job.task, job.dedupe_key)):
        settlement.deduplicate(tx, job, done)
        return _skip(Refusal.KEY, KEY_SUCCEEDED, job, None if done.leaves_row(job) else done)
    if job.is_expired(tx.read_now()):
        settlement.expire(tx, job)
        return _skip(Refusal.EXPIRED, "it has expired", job, revoked=not job.is_awaited)
    return _skip(Refusal.NOT_DUE, "it is not due yet", job)


def _take_key(tx: Transaction, job: Job) -> Decision:
    """Let an admitted job run that waited for its key, once no other job has that; else let it wait on.

    If the key has succeeded meanwhile, its callbacks are published with that result.
    """
    key = job.options[WAITS_FOR_KEY]
    done = keys.find_kept(tx, job.task, key)
    other = None if done else jobs.find_by_key(tx, job.task, key)
    taken = None if done or other else admission.take_key(tx, job, key)
    if taken is not None:
        # Asked once the key is taken: the job that had it may have succeeded after the first question.
        done = keys.find_kept(tx, job.task, key)
        if done is None:
            return _run(taken)
    waiting = admission.wait_for_key(tx, job, other)
    if waiting is None:
        return _skip(Refusal.RUNNING, "its lease was lost", job)
    if done is None:
        lanes.free(tx, job)
        return _skip(Refusal.WAITS, "another job with its key is in process", job)
    settlement.deduplicate(tx, waiting, done)
    return _skip(Refusal.KEY, KEY_SUCCEEDED, job, None if done.leaves_row(job) else done)


def admit_call(installation: Installation, call: Call, *, worker: str) -> Decision:
    """Let in a direct call by inserting its row as running: leased, fenced and recovered like any job."""
    made = _running(call, worker)
    lease, limit = installation.settings.tm_lease, call.limit or installation.settings.tm_stuck_after
    most = installation.settings.tm_max_in_flight
    fault = call.fault or (_not_kept(made) if made.concurrency_key is not None else None)

    def work(tx: Transaction) -> Decision:
        own = _take_place(tx, call, installation.app.tasks, made) if call.replaces else call
        job = made if own is call else _running(own, worker)
        refusal = _ran_before(tx, own) if tx.dialect.asks_key_first else None
        if refusal:
            return _answered(tx, own, job, refusal)
        waits = job.concurrency_key is not None and fault is None
        running = job if fault is None else replace(job, slot=None)
        written = _insert_waiting(tx, job) if waits else admission.insert_running(tx, running, lease=lease, limit=limit)
        # Asked after the insert: if that waited for an earlier delivery's success to commit, it shows here.
        refusal = _ran_before(tx, own)
        if refusal is not None:
            if written is not None:
                jobs.remove_inserted(tx, written)
            return _answered(tx, own, job, refusal)
        if written is None:
            return _wait_for_key(tx, own, job)
        if fault is not None:
            return _bury(tx, written, fault)
        if waits:
            return _skip(Refusal.SLOT, "it waits for a slot of its concurrency key")
        return (_hold(tx, own, job) if most is not None and lanes.exceeds(tx, most) else None) or _run(written)

    decision = installation.database.run(work)
    if decision.begins_at is not None:
        return admit_call(installation, replace(call, attempt=decision.begins_at), worker=worker)
    if decision.verdict is Verdict.RUN and decision.job is not None:
        _tell(installation, decision.job)
    return decision


def _hold(tx: Transaction, call: Call, job: Job) -> Decision | None:
    """Let a call that was just inserted wait until fewer jobs are in flight; in the broker, if no row can keep it.

    None: no row can keep it and it replaces an attempt, so it runs.
    """
    can_wait = _not_kept(job) is None
    if call.replaces and not can_wait:
        return None
    jobs.remove_inserted(tx, job)
    held = _skip(Refusal.LIMIT, "as many jobs are in flight as tm_max_in_flight allows")
    return held if can_wait and _insert_waiting(tx, job) else replace(held, verdict=Verdict.LATER)


def _running(call: Call, worker: str) -> Job:
    return replace(job_of(call), state=JobState.RUNNING, claimed_by=worker, dispatches=1)


def _take_place(tx: Transaction, call: Call, tasks: Mapping[str, Any], made: Job) -> Call:
    """Delete the row of the attempt that a call replaces, and return the call with what it gets from that."""
    if _replaces_nothing(tx, call) is not None:
        return call
    before = jobs.find(tx, call.id)
    following.call_off(tx, call.id)
    if before is None:
        last = next(iter(executions.of_job(tx, call.id)), None)  # it has no row where it could not be sent again
        return call if last is None else replace(call, entity_id=last.entity_id, scope=last.scope)
    own = replace(call, entity_id=before.entity_id, scope=before.scope)
    if before.ended is not None and before.dedupe_key is not None and call.key is None and before.task == call.task:
        keep = {"keep_failed": before.keep_failed, "keep_cancelled": before.keep_cancelled}
        own = replace(own, key=before.dedupe_key, keep_key=before.keep_key, keep=keep)
    if call.concurrency_key is None and _not_kept(made) is None:  # else it cannot wait for a slot
        own = replace(own, concurrency_key=before.concurrency_key, concurrency=before.concurrency)
    return replace(own, max_retries=before.max_retries) if _states_retries(before, call, tasks) else own


def _states_retries(before: Job, call: Call, tasks: Mapping[str, Any]) -> bool:
    """Say whether a job's `max_retries` holds for the call that replaces it: not if it is only that of another task."""
    task = tasks.get(before.task)
    return before.task == call.task or task is None or task.max_retries != before.max_retries


def _run(job: Job) -> Decision:
    return Decision(verdict=Verdict.RUN, job=job)


def _insert_waiting(tx: Transaction, job: Job, *, delay: timedelta = timedelta(0)) -> Job | None:
    """Insert a direct call as a job that is due, which beat dispatches; None if its id or key is taken."""
    waiting = replace(job, state=JobState.PENDING, claimed_by=None, dispatches=0)
    if not jobs.insert_after(tx, waiting, delay=delay):
        return None
    tx.wake()
    return waiting


def _wait_for_key(tx: Transaction, call: Call, job: Job) -> Decision:
    """Refuse a call whose id or key is taken. One that others wait for is kept, and answered when its key ends.

    So is a replacement: its job has begun, and must end.
    """
    refused = _in_process(tx, call)
    if call.key is None or not (job.is_awaited or call.replaces) or jobs.find(tx, job.id) is not None:
        return refused
    fault = _not_kept(job)
    if fault is not None:
        unkeyed = admission.insert_running(tx, replace(job, dedupe_key=None, slot=None), lease=timedelta(seconds=1))
        return refused if unkeyed is None else _bury(tx, unkeyed, fault)
    waiting = replace(job, dedupe_key=None, options={**job.options, WAITS_FOR_KEY: call.key})
    if _insert_waiting(tx, waiting, delay=admission.KEY_WAIT) is None:
        return refused
    return _skip(Refusal.WAITS, "another job with its key is in process")


def _answered(tx: Transaction, call: Call, job: Job, refusal: Decision) -> Decision:
    """Let some worker publish the callbacks of a direct call whose key has succeeded, with the result of that success.

    A replacement is recorded and answered in any case: it is how its job ends.
    """
    done = refusal.done
    is_copy = done is not None and done.job == job.id and job.attempt == 1
    if done is None or is_copy:
        return refusal
    if not (done.leaves_row(job) or call.replaces):  # a copy of a call that has ended otherwise says nothing more
        return _settled(tx, job.id) if executions.is_recorded(tx, job.id, since=job.attempt) else refusal
    if not following.put(tx, job, {**done.ended, "attempt": job.attempt}):
        return _skip(Refusal.RUNNING, "its callbacks are being published")
    if executions.is_recorded(tx, job.id, since=job.attempt):  # asked after the insert, as above
        following.call_off(tx, job.id)
        return _skip(Refusal.SETTLED, RECORDED)
    why = f"key {done.key!r} has succeeded in job {done.job}"
    executions.record(tx, replace(job, state=JobState.PENDING, claimed_by=None), Outcome.DEDUPLICATED, message=why)
    tx.wake()
    return _skip(Refusal.KEY, KEY_SUCCEEDED)


def _not_kept(job: Job) -> InvalidValue | None:
    """Return why a call cannot wait in the job table, where its arguments cannot be kept there."""
    if job.args is not None and job.kwargs is not None:
        return None
    return InvalidValue("args", NOT_KEPT_WAITS, "pass plain values that fit, or drop the task's key= and concurrency_key=")


def _bury(tx: Transaction, job: Job, fault: InvalidValue) -> Decision:
    """Make a dead letter of a call that can never run; its errbacks hear of it from a worker, or from this delivery."""
    settlement.abandon(tx, job, Failure(error=f"InvalidValue: {fault}"), Bury(str(fault)))
    return _skip(Refusal.INVALID, str(fault), fault=None if job.args is not None else fault)


def _in_process(tx: Transaction, call: Call) -> Decision:
    """Refuse a call whose id or key is taken; another call with its id, as of a signature applied twice, has to wait."""
    found = jobs.find(tx, call.id) if call.call is not None else None
    if found is not None and found.call not in (None, call.call):
        return replace(_skip(Refusal.RUNNING, "another call with its id is in process", found), verdict=Verdict.LATER)
    return _skip(Refusal.RUNNING, "it, or another job with its key, is in process")


def _ran_before(tx: Transaction, call: Call) -> Decision | None:
    """Refuse a direct call that has been settled already."""
    if call.key and (done := keys.find_kept(tx, call.task, call.key)):
        again = _begins_later(tx, call) if done.job == call.id else None
        return again or _skip(Refusal.KEY, KEY_SUCCEEDED, done=done)
    if not executions.is_recorded(tx, call.id, since=call.attempt):
        return _replaces_nothing(tx, call) if call.replaces else None
    again = _begins_later(tx, call)
    if again is not None:
        return again
    return _settled(tx, call.id)


def _settled(tx: Transaction, id: str) -> Decision:
    last = executions.of_job(tx, id)[0].outcome
    return _skip(Refusal.SETTLED, RECORDED, revoked=last is Outcome.CANCELLED)


def _begins_later(tx: Transaction, call: Call) -> Decision | None:
    """Return the first attempt of a new call whose id was used before, unless it is at that already."""
    begins_at = None if call.replaces else executions.next_attempt(tx, call.id, call.call)
    return None if begins_at in (None, call.attempt) else Decision(verdict=Verdict.RUN, begins_at=begins_at)


def _replaces_nothing(tx: Transaction, call: Call) -> Decision | None:
    """Refuse a call that says it stands for an attempt which was not replaced."""
    recorded = executions.of_job(tx, call.id)  # none where they are deleted by now
    if not recorded or (recorded[0].outcome, recorded[0].attempt) == (Outcome.REPLACED, call.attempt - 1):
        return None
    return _skip(Refusal.SETTLED, "the attempt that it replaces was not replaced")


def _skip(
    refusal: Refusal,
    reason: str,
    job: Job | None = None,
    done: DoneKey | None = None,
    *,
    revoked: bool = False,
    fault: InvalidValue | None = None,
) -> Decision:
    definition = job.definition if job is not None else None
    return Decision(
        verdict=Verdict.SKIP, reason=reason, refusal=refusal, definition=definition, done=done, revoked=revoked, fault=fault
    )
