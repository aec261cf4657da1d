"""Decides whether one delivery of a message may run.

A broker may deliver a message twice, and two workers may hold it at once. The gate turns that into one promise: for each
job and attempt at most one delivery gets in, and none after the key has succeeded.

The gate only decides. Running the body is `worker.task`; keeping the lease alive is `worker.lease`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum, auto
from typing import Any

from ..domain.codec import encode
from ..domain.execution import Outcome
from ..domain.job import MAX_ID, Job, JobState, Slot, Source
from ..domain.retry import read_policy, write_policy
from ..errors import InvalidValue
from ..installation import Installation
from ..store import admission, executions, following, jobs, keys, settlement
from ..store.database import Transaction
from ..store.keys import DoneKey
from ..telling import tell_started

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Verdict(Enum):
    """What to do with this delivery."""

    RUN = auto()  # the lease is ours, run the body
    SKIP = auto()  # settled already, or somebody else's; acknowledge and forget


class Refusal(StrEnum):
    """Why a delivery is refused, in one word."""

    SETTLED = "settled"  # its job is done, or an attempt of the direct call is recorded
    OTHER_ATTEMPT = "other_attempt"  # the job is at a later attempt
    OTHER_TASK = "other_task"  # the job is another task's: somebody else's message with its id
    RUNNING = "running"  # it, or another job with its key, is in process
    KEY = "key"  # its key has succeeded
    EXPIRED = "expired"
    NOT_DUE = "not_due"
    SLOT = "slot"  # it waits for a slot of its concurrency key


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The gate's answer: the job if it may run, else why not, and the success of its key where that is the reason."""

    verdict: Verdict
    job: Job | None = None
    reason: str = ""
    refusal: Refusal | None = None
    definition: str | None = None  # of the job that was refused, where it is known
    done: DoneKey | None = None
    revoked: bool = False  # somebody took it back before it came


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A direct `.delay()`: everything needed to send it again if its worker dies."""

    id: str
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    key: str | None
    keep_key: timedelta | None
    max_retries: int | None
    retry: Any
    options: Mapping[str, Any]
    attempt: int = 1  # later ones are calls that were put in the place of an earlier attempt
    queue: str | None = None
    priority: int | None = None
    concurrency_key: str | None = None
    concurrency: int | None = None


def admit_job(
    installation: Installation, id: str, attempt: int, *, worker: str, occurring: bool = False, task: str | None = None
) -> Decision:
    """Let in a delivery of a job's attempt, or say why not. `occurring`: it carries out an occurrence.

    `task` is what the delivery calls; a job of another task is not its own.
    """
    database, settings = installation.database, installation.settings
    lease, stuck_after = settings.tm_lease, settings.tm_stuck_after

    def work(tx: Transaction) -> Job | None:
        if occurring:
            return admission.admit_occurring(tx, id, attempt, worker=worker, lease=lease, stuck_after=stuck_after, task=task)
        return admission.admit(tx, id, attempt, worker=worker, lease=lease, task=task)

    job = database.run(work, alone=database.dialect.changes_many or not occurring)
    if job is None:
        return database.run(lambda tx: _refusal(tx, id, attempt, task))
    if job.occurrence and not occurring and not job.is_step:  # a message that does not say so
        database.run(lambda tx: admission.start_occurrence(tx, job, stuck_after=stuck_after))
    _tell(installation, job)
    return Decision(verdict=Verdict.RUN, job=job)


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
) -> tuple[Sequence[Job], Sequence[tuple[str, Decision]]]:
    """Let in a delivery that carries many attempts; return those that may run, and why the others may not."""
    database, lease = installation.database, installation.settings.tm_lease
    single = database.dialect.changes_many and len({attempt for _, attempt in attempts}) == 1
    admitted = database.run(
        lambda tx: admission.admit_all(tx, attempts, worker=worker, lease=lease, carrier=carrier, task=task), alone=single
    )
    for job in admitted:
        _tell(installation, job)
    ids = {job.id for job in admitted}
    refused = [(id, attempt) for id, attempt in attempts if id not in ids]
    if not refused:
        return admitted, []
    return admitted, database.run(lambda tx: [(id, _refusal(tx, id, attempt, task)) for id, attempt in refused])


def _refusal(tx: Transaction, id: str, attempt: int, task: str | None) -> Decision:
    """Say why a delivery is refused, and settle a job that will never run."""
    job = jobs.find(tx, id)
    if job is None:
        return _skip(Refusal.SETTLED, "it is settled already")
    if task is not None and job.task != task:
        return _skip(Refusal.OTHER_TASK, f"the job of this id is one of {job.task}", job)
    if job.attempt != attempt:
        return _skip(Refusal.OTHER_ATTEMPT, f"attempt {job.attempt} is the present one", job)
    if job.state is JobState.RUNNING:
        return _skip(Refusal.RUNNING, f"it runs on {job.claimed_by}", job)
    if job.dedupe_key and (done := keys.find_kept(tx, job.task, job.dedupe_key)):
        why = f"key {job.dedupe_key!r} has succeeded in job {done.job}"
        settlement.drop(tx, job, Outcome.DEDUPLICATED, reason=why, result=done.result)
        return _skip(Refusal.KEY, "its key has succeeded already", job, done)
    if job.is_expired(tx.read_now()):
        settlement.drop(tx, job, Outcome.EXPIRED, reason=f"it expired at {job.expires_at}")
        return _skip(Refusal.EXPIRED, "it has expired", job)
    return _skip(Refusal.NOT_DUE, "it is not due yet", job)


def admit_call(installation: Installation, call: Call, *, worker: str) -> Decision:
    """Let in a direct call by inserting its row as running: leased, fenced and recovered like any job."""
    job = replace(_job_of(call), state=JobState.RUNNING, claimed_by=worker, dispatches=1)
    lease = installation.settings.tm_lease

    def work(tx: Transaction) -> Decision:
        refusal = _ran_before(tx, call) if tx.dialect.asks_key_first else None
        if refusal:
            return refusal
        if job.concurrency_key is not None:
            return _ran_before(tx, call) or _take_a_number(tx, job)
        if call.attempt > 1 and _replaces_nothing(tx, call) is None:
            following.call_off(tx, call.id)  # here is what follows it
        written = admission.insert_running(tx, job, lease=lease)
        # Asked after the insert: if that waited for an earlier delivery's success to commit, it shows here.
        refusal = _ran_before(tx, call)
        if refusal is None and written is not None:
            return Decision(verdict=Verdict.RUN, job=written)
        if written is not None:
            jobs.remove_running(tx, written)
        return refusal or _skip(Refusal.RUNNING, "it, or another job with its key, is in process")

    decision = installation.database.run(work)
    if decision.verdict is Verdict.RUN and decision.job is not None:
        _tell(installation, decision.job)
    return decision


def _take_a_number(tx: Transaction, job: Job) -> Decision:
    """Keep a direct call whose number is limited as a job that is due: beat dispatches it when a slot is free."""
    waiting = replace(job, state=JobState.PENDING, claimed_by=None, dispatches=0)
    written = jobs.insert_after(tx, waiting, delay=timedelta(0))
    tx.wake()
    if written:
        return _skip(Refusal.SLOT, "it waits for a slot of its concurrency key")
    return _skip(Refusal.RUNNING, "it, or another job with its key, is owed")


def _ran_before(tx: Transaction, call: Call) -> Decision | None:
    """Refuse a direct call that has been settled already."""
    if call.key and (done := keys.find_kept(tx, call.task, call.key)):
        return _skip(Refusal.KEY, "its key has succeeded already", done=done)
    if not executions.is_recorded(tx, call.id, since=call.attempt):
        return None if call.attempt == 1 else _replaces_nothing(tx, call)
    last = executions.of_job(tx, call.id)[0].outcome
    return _skip(Refusal.SETTLED, "an attempt of it is recorded already", revoked=last is Outcome.CANCELLED)


def _replaces_nothing(tx: Transaction, call: Call) -> Decision | None:
    """Refuse a call that says it stands for an attempt which was not replaced."""
    recorded = executions.of_job(tx, call.id)  # none where they are deleted by now
    if not recorded or (recorded[0].outcome, recorded[0].attempt) == (Outcome.REPLACED, call.attempt - 1):
        return None
    return _skip(Refusal.SETTLED, "the attempt that it replaces was not replaced")


def _job_of(call: Call) -> Job:
    if not call.id or len(call.id) > MAX_ID:
        raise InvalidValue("task_id", f"{call.id!r} is empty or too long", f"stay within {MAX_ID} characters")
    args, kwargs, options = _text(list(call.args), "args"), _text(dict(call.kwargs), "kwargs"), call.options
    if _text(dict(options), "options") is None:
        args = kwargs = None  # without its links it were another call
        options = {}
    return Job(
        id=call.id,
        task=call.task,
        args=args,
        kwargs=kwargs,
        run_at=EPOCH,  # the database's clock sets it
        created_at=EPOCH,
        original_delay=timedelta(0),
        max_retries=call.max_retries,
        retry=None if call.retry is None else write_policy(read_policy(call.retry)),
        dedupe_key=call.key,
        keep_key=call.keep_key,
        attempt=call.attempt,
        tries_from=call.attempt,
        source=Source.DIRECT,
        options=options,
        queue=call.queue,
        priority=call.priority,
        concurrency_key=call.concurrency_key,
        concurrency=call.concurrency,
        slot=Slot.OPEN if call.concurrency_key else None,
    )


def _text(value: Any, field: str) -> str | None:
    """Return arguments as JSON, or None: such a call runs, but cannot be sent again."""
    try:
        return encode(value, field=field)
    except InvalidValue:
        return None


def _skip(
    refusal: Refusal, reason: str, job: Job | None = None, done: DoneKey | None = None, *, revoked: bool = False
) -> Decision:
    definition = job.definition if job is not None else None
    return Decision(
        verdict=Verdict.SKIP, reason=reason, refusal=refusal, definition=definition, done=done, revoked=revoked
    )  # fmt: skip
