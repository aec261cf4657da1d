"""Writes how an attempt ended: in one transaction with the move of its row, and never for an attempt that lost its lease.

While the database is away the worker waits and tries again as long as its lease would last; after that the sweeper has
the job, and this attempt's outcome no longer counts.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Container
from typing import TypeVar

from .. import events
from ..domain.codec import encode
from ..domain.execution import Failure, Outcome
from ..domain.ids import execution_id
from ..domain.job import Job, JobState
from ..domain.retry import Bury, TryAgain, after_failure
from ..errors import DatabaseUnavailable, InvalidValue, LeaseLost
from ..installation import Installation
from ..store import executions, jobs, settlement
from ..store.database import Transaction

T = TypeVar("T")
FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0


def record_success(installation: Installation, job: Job, result: object, *, message: str | None = None) -> None:
    """The body returned: the work is done."""
    kept = _result_text(result) if job.dedupe_key is not None else None
    keep_key = installation.settings.tm_keep_keys
    _finish(
        installation,
        job,
        lambda tx: settlement.succeed(tx, job, result=kept, message=message, keep_key=keep_key),
        outcome=Outcome.SUCCEEDED,
    )
    events.emit(
        installation.app,
        events.ExecutionCompleted(
            job=job.id,
            task=job.task,
            attempt=job.attempt,
            execution=execution_id(job.id, job.attempt),
            occurrence=job.occurrence,
        ),
        verbose=installation.settings.tm_verbose,
    )


def record_failure(
    installation: Installation, job: Job, failure: Failure, *, then: TryAgain | Bury | None = None
) -> TryAgain | Bury | None:
    """The attempt failed: decide what follows, by the job's policy unless the caller knows, and write both.

    None means that nothing follows, because the job was cancelled while it ran.
    """
    wanted = then or after_failure(job, default=installation.default_policy)
    decided: list[TryAgain | Bury | None] = [wanted]

    def work(tx: Transaction) -> None:
        decided[:] = [settlement.fail(tx, job, failure, wanted)]

    _finish(installation, job, work, outcome=failure.outcome)
    if decided[0] is not None:
        events.emit_failure(installation.app, job, failure, decided[0])
    return decided[0]


def record_vanished(
    installation: Installation, id: str, attempt: int, failure: Failure, *, workers: Container[str]
) -> TryAgain | Bury | None:
    """One of `workers` died or was killed in the middle of an attempt: write that now instead of waiting for its lease.

    None if there is nothing to write, or no database to write to: then the sweeper will.
    """
    try:
        with installation.database.transaction(write=False) as tx:
            job = jobs.find(tx, id)
        if job is None or (job.attempt, job.state) != (attempt, JobState.RUNNING) or job.claimed_by not in workers:
            return None
        return record_failure(installation, job, failure)
    except (DatabaseUnavailable, LeaseLost):
        return None


def record_cancelled(installation: Installation, job: Job, *, message: str | None = None) -> None:
    """The body noticed that it was cancelled, and stopped."""
    _finish(installation, job, lambda tx: settlement.stop(tx, job, message=message), outcome=Outcome.CANCELLED)


def failure_of(error: BaseException, *, outcome: Outcome = Outcome.FAILED) -> Failure:
    """Return an exception as the failure it means."""
    lines = "".join(traceback.format_exception(error)) if error.__traceback__ else None
    return Failure(error=f"{type(error).__name__}: {error}", traceback=lines, outcome=outcome)


def _finish(installation: Installation, job: Job, work: Callable[[Transaction], T], *, outcome: Outcome) -> T | None:
    """Run the finishing transaction, waiting out an outage up to the lease.

    A commit whose answer was lost may have happened: then the row is gone, and the record tells that it was ours.
    """
    deadline = time.monotonic() + installation.settings.tm_lease.total_seconds()
    wait, unsure = FIRST_WAIT, False
    while True:
        try:
            return installation.database.run(work)
        except LeaseLost:
            if unsure and _was_ours(installation, job, outcome):
                return None
            raise
        except DatabaseUnavailable:
            unsure = True
            if time.monotonic() + wait > deadline:
                raise
            time.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT)


def _was_ours(installation: Installation, job: Job, outcome: Outcome) -> bool:
    with installation.database.transaction(write=False) as tx:
        found = executions.find(tx, execution_id(job.id, job.attempt))
    return found is not None and (found.outcome, found.worker) == (outcome, job.claimed_by)


def _result_text(result: object) -> str | None:
    """Return a result as JSON for its key; what is not JSON is kept as its representation."""
    try:
        return encode(result, field="result")
    except InvalidValue:
        return encode(repr(result)[:1000], field="result")
