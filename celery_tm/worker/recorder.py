"""Writes how an attempt ended: in one transaction with the move of its row, and never for an attempt that lost its lease.

While the database is away, or another transaction has the row, a body's thread tries again for up to `LONGEST_OUTAGE`; after
that the sweeper has the job, and this attempt's outcome no longer counts. The worker's main process serves all its pool
processes, so it tries once, waits for nobody's row, and leaves the rest to the lease.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TypeVar

from ..domain.execution import MAX_ERROR, Failure, Outcome, cut
from ..domain.facts import Ended, Fact
from ..domain.job import Job, JobState
from ..domain.retry import Bury, TryAgain, after_failure
from ..errors import OUT_OF_REACH, DatabaseBusy, DatabaseUnavailable, LeaseLost
from ..installation import Installation
from ..store import completion, executions, following, jobs, rows, settlement, step_completion
from ..store.body import BodyTransaction
from ..store.database import Transaction
from ..store.settlement import Ended as Kept
from ..tracing import describe_job, span
from . import context as contexts
from .outcome_texts import result_text, step_result

logger = logging.getLogger(__name__)
T = TypeVar("T")
FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0
LONGEST_OUTAGE = 300.0  # seconds; after an outage beat gives running attempts one lease more, so their ends still count
NO_WAIT = timedelta(0)
NOTHING: Mapping[str, float] = {}


def record_success(
    installation: Installation,
    job: Job,
    result: object,
    *,
    message: str | None = None,
    ended: Kept | None = None,
    body: BodyTransaction | None = None,
) -> None:
    """The body returned: the work is done. With `body`, its own writes and this are one transaction."""
    kept = result_text(result) if job.dedupe_key is not None else step_result(result) if job.is_step else None
    keep_key = installation.settings.keep_keys["succeeded"]

    def work(tx: Transaction) -> None:
        settlement.succeed(tx, job, result=kept, message=message, keep_key=keep_key, ended=ended)

    def at_once(tx: Transaction) -> bool:
        return step_completion.succeed(tx, job, result=kept, message=message, keep_key=keep_key)

    dialect = installation.database.dialect
    single, quiet = completion.is_single(dialect, job, ended), step_completion.may_be_quiet(dialect, job, ended)
    _finish(
        installation, job, work, outcome=Outcome.SUCCEEDED, body=body, alone=single, first=at_once if quiet else None
    )  # fmt: skip


Success = tuple[Job, object, str | None]  # what a body returned, and its message


def record_all(
    installation: Installation, done: Sequence[Success], *, took: Mapping[str, float] = NOTHING, waits: bool = True
) -> Collection[str]:
    """Many bodies returned: write that in one transaction; return the ids of those that had lost their lease.

    Run again after a commit whose answer was lost, it finds its own records. `took` are the bodies' seconds, by job. Unless
    it `waits` for rows that other transactions have locked, it raises `DatabaseBusy` where there are any.
    """
    single = installation.database.dialect.changes_many and len({job.attempt for job, _, _ in done}) == 1
    with span("record", count=len(done)):
        return _patiently(
            installation, lambda: _record_successes(installation, done, took, single=single)[0], for_locks=waits
        )


def record_free(
    installation: Installation, done: Sequence[Success], *, took: Mapping[str, float] = NOTHING
) -> tuple[Collection[str], Collection[str]]:
    """Write the successes that can be written without waiting, and try once.

    Return the ids of those that had lost their lease, and of those whose rows other transactions have.
    """
    with span("record", count=len(done)):
        return _record_successes(installation, done, took, skips_locked=True)


def _record_successes(
    installation: Installation,
    done: Sequence[Success],
    took: Mapping[str, float],
    *,
    single: bool = False,
    skips_locked: bool = False,
) -> tuple[Collection[str], Collection[str]]:
    keep_key = installation.settings.keep_keys["succeeded"]
    results = [(job, result_text(result) if job.dedupe_key is not None else None, message) for job, result, message in done]
    database = installation.database

    def work(tx: Transaction) -> tuple[Collection[str], Collection[str]]:
        locked = jobs.lock_free(tx, [job for job, _, _ in done]) if skips_locked else ()
        free = [one for one in results if one[0].id not in locked]
        # MariaDB may read all of a small table for a list of ids, and then it waits for any row that is locked.
        parts = [[one] for one in free] if skips_locked and not tx.dialect.gives_back_updates else [free]
        held = {id for part in parts if part for id in settlement.succeed_all(tx, part, keep_key=keep_key)}
        tx.facts[:] = [_timed(fact, took) for fact in tx.facts]
        return held, locked

    held, locked = database.run(work, alone=single)
    lost = [job for job, _, _ in done if job.id not in held and job.id not in locked]
    ours = database.run(lambda tx: executions.succeeded_by(tx, lost)) if lost else ()
    database.tell([Ended(job, Outcome.SUCCEEDED, said, seconds=took.get(job.id)) for job, _, said in done if job.id in ours])
    return {job.id for job in lost if job.id not in ours}, locked


def _timed(fact: Fact, took: Mapping[str, float | None]) -> Fact:
    """Add to an end how long its body took."""
    if isinstance(fact, Ended) and fact.seconds is None and fact.job.id in took:
        return replace(fact, seconds=took[fact.job.id])
    return fact


def record_replaced(
    installation: Installation, job: Job, ended: Kept | None, *, message: str, body: BodyTransaction | None
) -> None:
    """The body put another call in its place."""
    work = partial(settlement.replaced, job=job, ended=ended, message=message)
    _finish(installation, job, work, outcome=Outcome.REPLACED, body=body)


def record_failure(
    installation: Installation,
    job: Job,
    failure: Failure,
    *,
    then: TryAgain | Bury | None = None,
    ended: Kept | None = None,
    seconds: float | None = None,
    reports: bool = True,
    waits: bool = True,
) -> TryAgain | Bury | None:
    """The attempt failed: decide what follows, by the job's policy unless the caller knows, and write both.

    None means that nothing follows, because the job was cancelled while it ran; unless the caller `reports` that to the
    result backend, some worker does. `seconds` is how long it ran, where its body was not called here. A caller that is not
    the thread of the body must not wait (`waits`): it raises what keeps the end from being written now.
    """
    vanished = failure.outcome is Outcome.ORPHANED
    wanted = then or after_failure(job, default=installation.default_policy, vanished=vanished)
    decided: list[TryAgain | Bury | None] = [wanted]

    def work(tx: Transaction) -> None:
        decided[:] = [settlement.fail(tx, job, failure, wanted, ended=ended, reports=reports)]

    _finish(installation, job, work, outcome=failure.outcome, seconds=seconds, waits=waits)
    return decided[0]


def attempt_of(installation: Installation, id: str, call: str, *, workers: Container[str | None]) -> int | None:
    """Return the attempt at which one of `workers` runs this call; None: none does, or there is no database to ask."""
    try:
        with installation.database.transaction(write=False) as tx:
            job = jobs.find(tx, id)
    except (*OUT_OF_REACH, *rows.UNREADABLE):
        return None
    return job.attempt if job is not None and job.call == call and job.claimed_by in workers else None


def record_vanished(
    installation: Installation, id: str, attempt: int, failure: Failure, *, workers: Container[str]
) -> TryAgain | Bury | None:
    """One of `workers` died or was killed in the middle of an attempt: write that now instead of waiting for its lease.

    None if it is for others to go on: another attempt has taken over, only what follows is left, another transaction has the
    row, or there is no database to write to. A call that was never let in has no row, and ends here.
    """
    try:
        with installation.database.transaction(write=False) as tx:
            try:
                job, now = jobs.find(tx, id), tx.read_now()
            except rows.UNREADABLE:
                return None  # beat sets the row aside
            if job is None and not executions.is_recorded(tx, id):
                return Bury("it vanished before it was let in")
        if job is not None and job.ended is not None and job.claimed_by in workers:
            installation.database.run(lambda tx: following.carry_on(tx, job))
        found = None if job is None else (job.attempt, job.state, job.ended)
        if job is None or found != (attempt, JobState.RUNNING, None) or job.claimed_by not in workers:
            return None
        if job.stuck_at is not None and job.stuck_at <= now:  # its pool process was ended because of that
            failure = Failure.stale(job.longest)
        timed = (Outcome.TIMEOUT, Outcome.STALE)  # when others ended nobody has seen
        since = job.claimed_at if failure.outcome in timed else None
        ran = None if since is None else (now - since).total_seconds()
        ended = {"error": cut(failure.error, MAX_ERROR), "attempt": attempt}
        return record_failure(installation, job, failure, seconds=ran, reports=False, ended=ended, waits=False)
    except (*OUT_OF_REACH, LeaseLost):
        return None


def record_reported(
    installation: Installation, id: str, attempt: int, *, workers: Container[str], by_others: bool = False
) -> None:
    """The end of an attempt that vanished is reported, so its row goes; or another worker reports it (`by_others`)."""

    def work(tx: Transaction) -> None:
        job = jobs.find(tx, id)
        if job is not None and job.ended is not None and job.attempt == attempt and job.claimed_by in workers:
            following.carry_on(tx, job) if by_others else following.forget(tx, job)

    with suppress(*OUT_OF_REACH):  # then its lease ends, and another worker reports it
        installation.database.run(work)


def record_revoked(
    installation: Installation,
    id: str,
    attempt: int,
    *,
    outcome: Outcome,
    reason: str,
    workers: Container[str | None],
    task: str,
    by_task: bool = False,
) -> None:
    """A worker discards or terminates a delivery: its job is not to run, or not to go on, and no try follows.

    When a job expires its row says, or its task for all its calls (`by_task`); a message alone is not believed.
    """

    def work(tx: Transaction) -> None:
        job = jobs.find(tx, id)
        if job is not None and job.is_replaced and outcome is Outcome.CANCELLED:
            following.call_off_replacement(tx, job, reason=reason)
            return
        if job is None or job.task != task or job.attempt != attempt or job.ended is not None:
            return
        stated = by_task or job.options.get("expires") is not None
        if outcome is Outcome.EXPIRED and not (stated if job.expires_at is None else job.is_expired(tx.read_now())):
            return
        if job.state is not JobState.RUNNING:
            settlement.drop(tx, job, outcome, reason=reason)
        elif job.claimed_by in workers:
            settlement.stop(tx, job, message=reason)

    try:
        installation.database.run(work)
    except (*OUT_OF_REACH, LeaseLost) as error:
        logger.warning("job %s was revoked, but that is not written: %s", id, error)


def record_cancelled(installation: Installation, job: Job, *, message: str | None = None) -> None:
    """The body noticed that it was cancelled, and stopped."""
    _finish(installation, job, lambda tx: settlement.stop(tx, job, message=message), outcome=Outcome.CANCELLED)


def _finish(
    installation: Installation,
    job: Job,
    work: Callable[[Transaction], T],
    *,
    outcome: Outcome,
    body: BodyTransaction | None = None,
    alone: bool = False,
    first: Callable[[Transaction], bool] | None = None,
    seconds: float | None = None,
    waits: bool = True,
) -> T | None:
    """Run the finishing transaction, waiting out an outage if it `waits`; `first` is a statement that may be enough.

    A commit whose answer was lost may have happened: then the row is gone, and the record tells that it was ours. The writes
    of a body are in that transaction too, so it cannot be run again without them: then the attempt has failed.
    """
    contexts.flush(job)
    told: list[Fact] = []
    work = _noting(work if waits else _unless_locked(installation, work, job), job, told, seconds)
    if body is not None and body.is_over and outcome is Outcome.SUCCEEDED:
        raise LeaseLost(job.id, job.attempt)  # somebody has rolled its writes back: it is not done
    if body is not None and body.is_open:
        with span("record", outcome=outcome):
            describe_job(job)
            return _finish_body(installation, job, body, work, outcome, told)
    quiet = None if first is None else _noting(first, job, told)
    unsure = False

    def once() -> T | None:
        nonlocal unsure
        try:
            if quiet is not None and installation.database.run(quiet, alone=True):
                return None
            return installation.database.run(work, alone=alone)
        except LeaseLost:
            if unsure and _was_ours(installation, job, outcome):
                installation.database.tell(told)
                return None
            raise
        except DatabaseUnavailable:
            unsure = True
            raise

    with span("record", outcome=outcome):
        describe_job(job)
        return _patiently(installation, once) if waits else once()


def _unless_locked(installation: Installation, work: Callable[[Transaction], T], job: Job) -> Callable[[Transaction], T]:
    """Let a finishing transaction raise `DatabaseBusy` at once where another one has the job's row, or its run's."""

    def tried(tx: Transaction) -> T:
        if not settlement.try_lock(tx, job):
            raise DatabaseBusy(installation.database.safe_url, f"another transaction has the row of job {job.id}")
        return work(tx)

    return tried


def _noting(
    work: Callable[[Transaction], T], job: Job, told: list[Fact], seconds: float | None = None
) -> Callable[[Transaction], T]:
    """Let what is told of the end say how long the body took; `told` keeps it, should the commit's answer be lost."""

    def noted(tx: Transaction) -> T:
        result = work(tx)
        took = {job.id: contexts.seconds_of(job) if seconds is None else seconds}
        if tx.facts:
            told[:] = tx.facts[:] = [_timed(fact, took) for fact in tx.facts]
        return result

    return noted


def _finish_body(
    installation: Installation,
    job: Job,
    body: BodyTransaction,
    work: Callable[[Transaction], T],
    outcome: Outcome,
    told: Sequence[Fact],
) -> T | None:
    try:
        return body.commit_with(work)
    except DatabaseUnavailable:
        if _patiently(installation, lambda: _was_ours(installation, job, outcome)):
            installation.database.tell(told)
            return None
        raise


def _patiently(installation: Installation, ask: Callable[[], T], *, for_locks: bool = True) -> T:
    """Ask again and again while the database is away: an end that is given up is a body that runs twice.

    A row that another transaction has locked is waited for too, unless the caller has more to do than that (`for_locks`).
    """
    deadline = time.monotonic() + max(installation.settings.tm_lease.total_seconds(), LONGEST_OUTAGE)
    wait = FIRST_WAIT
    while True:
        try:
            return ask()
        except DatabaseUnavailable as error:
            is_over = time.monotonic() + wait > deadline
            if is_over or (isinstance(error, DatabaseBusy) and not for_locks):
                raise
            time.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT)


def _was_ours(installation: Installation, job: Job, outcome: Outcome) -> bool:
    with installation.database.transaction(write=False) as tx:
        found = executions.find(tx, job.execution_id)
    return found is not None and (found.outcome, found.worker) == (outcome, job.claimed_by)
