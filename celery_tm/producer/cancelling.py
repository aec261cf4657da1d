"""Taking jobs back: what waits is deleted and recorded, what runs is asked to stop."""

from __future__ import annotations

from typing import Any

from celery import Celery

from ..domain.execution import Outcome
from ..domain.job import Job, JobState
from ..errors import InvalidValue
from ..store import audit, jobs, settlement
from ..store.database import Transaction
from .request import installation_for
from .writing import AfterCommit, write


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

    def work(tx: Transaction, _: AfterCommit | None) -> bool:
        found = jobs.lock_matching(tx, id=id, key=key, entity_id=entity_id, task=name)
        done = [_cancel_one(tx, job, actor=actor, reason=reason) for job in found]
        return any(done)

    return write(installation, session, work)


def _cancel_one(tx: Transaction, job: Job, *, actor: str | None, reason: str | None) -> bool:
    if job.state is JobState.RUNNING:
        done = jobs.request_cancel(tx, job.id, job.attempt)
    else:
        done = settlement.drop(tx, job, Outcome.CANCELLED, reason=reason or "cancelled by a caller", actor=actor)
    if done:
        audit.note(tx, "cancel", f"job:{job.id}", actor=actor, before={"task": job.task, "state": job.state}, reason=reason)
    return done
