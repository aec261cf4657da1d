"""Taking jobs back: what waits is deleted and recorded, what runs is asked to stop."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from celery import Celery

from .. import answers
from ..domain.execution import Outcome
from ..domain.job import MAX_ID, Job, JobState, Source
from ..domain.workflow import TASK
from ..errors import InvalidValue
from ..installation import Installation
from ..store import audit, executions, jobs, settlement, workflows
from ..store.database import Transaction
from .request import installation_for
from .writing import AfterCommit, write

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

    A job that waits is deleted and recorded as cancelled; one that runs is asked to stop (`job.cancelled`).
    """
    if id is None and key is None and entity_id is None:
        raise InvalidValue("cancel", "nothing says which job is meant", "pass id=, key= or entity_id=")
    installation = installation_for(task, app)
    name = getattr(task, "name", task)

    def work(tx: Transaction, after_commit: AfterCommit | None) -> bool:
        found = _locked(tx, id=id, key=key, entity_id=entity_id, task=name)
        whole = {job.occurrence for job in found if job.task == TASK}
        # The steps of a run that is cancelled as a whole are not cancelled one by one: its clean-ups still run.
        single = [job for job in found if not (job.is_step and job.occurrence in whole)]
        done = [job for job in single if _cancel_one(tx, job, actor=actor, reason=reason)]
        if after_commit is not None:
            after_commit(lambda: _tell(installation, done))
        return bool(done)

    return write(installation, session, work)


def revoke_all(installation: Installation, ids: Sequence[str]) -> None:
    """Cancel the jobs of these ids; one that is not known yet is refused when its message comes."""

    def work(tx: Transaction) -> list[Job]:
        done = []
        for id in ids:
            found = _locked(tx, id=id)
            if not found and len(id) <= MAX_ID and not executions.is_recorded(tx, id) and not _refuse_unseen(tx, id):
                found = _locked(tx, id=id)  # a worker was faster
            done += [job for job in found if _cancel_one(tx, job, actor=None, reason="revoked")]
        return done

    _tell(installation, installation.database.run(work))


def _refuse_unseen(tx: Transaction, id: str) -> bool:
    """Record that a call which no worker has seen is cancelled. False: its row is there by now.

    The row is inserted first and goes again, so that a gate which inserts it meanwhile waits for us, or we for it.
    """
    unseen = _unseen(id, tx.read_now())
    if not tx.insert_new(jobs.job, jobs.columns_of(unseen)):
        return False
    if executions.is_recorded(tx, id):
        jobs.remove_waiting(tx, id, unseen.attempt)
    else:
        settlement.drop(tx, unseen, Outcome.CANCELLED, reason="revoked before it was seen")
    return True


def _locked(tx: Transaction, **which: str | None) -> list[Job]:
    """Lock and return the jobs that fit; the runs that they belong to come first, as for everybody who changes a run."""
    for run in jobs.runs_of_matching(tx, **which):
        workflows.lock(tx, run)
    return jobs.lock_matching(tx, **which)


def _unseen(id: str, now: datetime) -> Job:
    return Job(
        id=id, task=UNSEEN, args=None, kwargs=None, run_at=now, created_at=now, original_delay=timedelta(0),
        source=Source.DIRECT,
    )  # fmt: skip


def _tell(installation: Installation, cancelled: Sequence[Job]) -> None:
    """Tell whoever waits for the results of jobs that will not run; those that run tell it themselves."""
    for job in cancelled:
        if job.state is not JobState.RUNNING and not answers.job_revoked(installation, job):
            return  # a backend that is away may take its time to say so: once is enough


def _cancel_one(tx: Transaction, job: Job, *, actor: str | None, reason: str | None) -> bool:
    why = reason or "cancelled by a caller"
    run = workflows.lock(tx, job.occurrence) if job.task == TASK else None
    if run is not None:
        done = settlement.stop_run(tx, run, by=why)
    elif job.state is JobState.RUNNING:
        done = jobs.request_cancel(tx, job.id, job.attempt)
    else:
        done = settlement.drop(tx, job, Outcome.CANCELLED, reason=why, actor=actor)
    if done:
        audit.note(tx, "cancel", f"job:{job.id}", actor=actor, before={"task": job.task, "state": job.state}, reason=reason)
    return done
