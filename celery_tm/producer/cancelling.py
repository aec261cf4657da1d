"""Taking jobs back: what waits is deleted and recorded, what runs is asked to stop."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from celery import Celery

from .. import answers
from ..domain.execution import Execution, Outcome
from ..domain.job import MAX_ID, Job, JobState, Source
from ..domain.paging import Page
from ..domain.workflow import TASK
from ..errors import InvalidValue, RowUnreadable
from ..installation import Installation
from ..store import audit, executions, following, jobs, settlement, workflows
from ..store.body import joined_by
from ..store.database import Transaction
from .request import installation_for
from .writing import AfterCommit, write

logger = logging.getLogger(__name__)
UNSEEN = "unknown"  # the task of an id that was revoked before its message was seen


def cancel(
    *,
    id: str | None = None,
    key: str | None = None,
    entity_id: str | None = None,
    task: Any = None,
    session: Any = None,
    app: Celery | None = None,
    actor: str | None = None,
    reason: str | None = None,
) -> bool:
    """Cancel the jobs that fit all that is given; say whether there were any.

    A job that waits is deleted and recorded as cancelled; one that runs is asked to stop (`job.cancelled`). In the
    transaction of a body, its own job is not among them, unless `id` names it: its end is written there anyway. By `key`
    the job that has the key is cancelled; a call in a canvas that waits for that job runs next. By `entity_id` only jobs
    of this app are cancelled.
    """
    if id is None and key is None and entity_id is None:
        raise InvalidValue("cancel", "nothing says which job is meant", "pass id=, key= or entity_id=")
    installation = installation_for(task, app)
    name = getattr(task, "name", task)
    own = joined_by(installation.database, session)
    own_job = None if own is None else own.job
    if own is not None and own_job is not None and id == own_job:
        own.is_cancelled = True  # its row would say so only when it has ended
        return True

    def work(tx: Transaction, after_commit: AfterCommit | None) -> bool:
        found = _locked(tx, id=id, key=key, entity_id=entity_id, task=name, besides=own_job)
        whole = {job.occurrence for job in found if job.task == TASK}
        # The steps of a run that is cancelled as a whole are not cancelled one by one: its clean-ups still run.
        single = [job for job in found if not (job.is_step and job.occurrence in whole)]
        if own is not None and whole:
            own.holds_row = True  # it may be a step of one of them
        done = [job for job in single if _cancel_one(tx, job, actor=actor, reason=reason)]
        for bad in found.unreadable:
            if not found:
                raise RowUnreadable(bad.table, bad.id, bad.error)
            installation.skip_row(bad.table, bad.id, bad.error)
        if after_commit is None:  # the caller's commit is not seen here: a worker marks what the rows say
            _leave_rows(tx, installation, done)
        else:
            after_commit(lambda: _tell(installation, done, check=session is not None))
        return bool(done)

    return write(installation, session, work)


def revoke_all(installation: Installation, ids: Sequence[str]) -> None:
    """Cancel the jobs of these ids; one that is not known yet is refused when its message comes."""

    def work(tx: Transaction) -> list[Job]:
        done = []
        for id in ids:
            found = _locked(tx, id=id)
            if not found and len(id) <= MAX_ID and not _refuse_unseen(tx, id):
                found = _locked(tx, id=id)  # a worker was faster
            done += [job for job in found if _cancel_one(tx, job, actor=None, reason="revoked")]
        return done

    _tell(installation, installation.database.run(work))


def _refuse_unseen(tx: Transaction, id: str) -> bool:
    """Record that a call which no worker has seen is cancelled, if there may be one. False: its row is there by now.

    The row is inserted first and goes again, so that a gate which inserts it meanwhile waits for us, or we for it.
    """
    attempt = _unseen_attempt(executions.of_job(tx, id))
    if attempt is None:
        return True
    unseen = replace(_unseen(id, tx.read_now()), attempt=attempt, app=tx.app)
    if not tx.insert_new(jobs.job, jobs.columns_of(unseen)):
        return False
    if executions.is_recorded(tx, id, since=attempt):
        jobs.remove_waiting(tx, id, unseen.attempt)
    else:
        settlement.drop(tx, unseen, Outcome.CANCELLED, reason="revoked before it was seen")
    return True


def _unseen_attempt(recorded: Sequence[Execution]) -> int | None:
    """Return the attempt that a call which no worker has seen begins with: what replaces a job is the next one.

    `recorded` are the attempts of its id, the last one first. None: its job has ended.
    """
    if not recorded:
        return 1
    return recorded[0].attempt + 1 if recorded[0].outcome is Outcome.REPLACED else None


def _locked(tx: Transaction, **which: str | None) -> Page[Job]:
    """Lock and return the jobs that fit; the runs that they belong to come first, as for everybody who changes a run."""
    for run in jobs.runs_of_matching(tx, **which):
        workflows.lock(tx, run)
    return jobs.lock_matching(tx, **which)


def _unseen(id: str, now: datetime) -> Job:
    return Job(
        id=id, task=UNSEEN, args=None, kwargs=None, run_at=now, created_at=now, original_delay=timedelta(0),
        source=Source.DIRECT,
    )  # fmt: skip


def _leave_rows(tx: Transaction, installation: Installation, cancelled: Sequence[Job]) -> None:
    """Have a worker mark jobs that will not run as REVOKED, if this transaction commits."""
    for job in cancelled:
        waits = job.state is not JobState.RUNNING and job.task != TASK and job.args is not None
        if waits and installation.reports_end(job):
            following.put(tx, replace(job, ended=None), {"revoked": "revoked", "attempt": job.attempt})


def _tell(installation: Installation, cancelled: Sequence[Job], *, check: bool = False) -> None:
    """Mark jobs that will not run as REVOKED in their result backends; those that run do that themselves.

    With `check` the rows are looked at first: a savepoint that SQLAlchemy's session does not know may have been rolled back.
    """
    if check and cancelled:
        ids = [job.id for job in cancelled]
        try:
            alive = installation.database.run(lambda tx: jobs.unfinished(tx, ids))
        except Exception as error:
            logger.warning("%d jobs were cancelled, but their results do not say so: %s", len(ids), error)
            return
        cancelled = [job for job in cancelled if job.id not in alive]
    away = set[int]()  # a backend that does not answer may take its time to fail: each is tried until its first failure
    for job in cancelled:
        backend = id(answers.backend_of(installation, job))
        runs = job.state is JobState.RUNNING and not job.is_replaced
        if not runs and backend not in away and not answers.job_revoked(installation, job):
            away.add(backend)


def _cancel_one(tx: Transaction, job: Job, *, actor: str | None, reason: str | None) -> bool:
    why = reason or "cancelled by a caller"
    run = workflows.lock(tx, job.occurrence) if job.task == TASK else None
    if job.is_replaced:
        done = following.call_off_replacement(tx, job, reason=why, actor=actor)
    elif run is not None:
        done = settlement.stop_run(tx, run, by=why)
    elif job.state is JobState.RUNNING:
        done = jobs.request_cancel(tx, job.id, job.attempt)
    else:
        done = settlement.drop(tx, job, Outcome.CANCELLED, reason=why, actor=actor)
    if done:
        audit.note(tx, "cancel", f"job:{job.id}", actor=actor, before={"task": job.task, "state": job.state}, reason=reason)
    return done
