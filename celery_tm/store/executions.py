"""Records of attempts: written once when an attempt ended, never changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Row, select

from ..domain.execution import MAX_ERROR, MAX_MESSAGE, MAX_TRACEBACK, Execution, Failure, Outcome, cut
from ..domain.ids import execution_id
from ..domain.job import Job, JobState, Source
from . import tables
from .database import Transaction

execution = tables.execution
COLUMNS = tuple(f.name for f in fields(Execution))


def record(
    tx: Transaction,
    job: Job,
    outcome: Outcome,
    *,
    message: str | None = None,
    failure: Failure | None = None,
    actor: str | None = None,
) -> str:
    """Write how `job`'s present attempt ended and return the record's id; a record that is there is never changed."""
    started = job.state is JobState.RUNNING
    values: dict[str, Any] = {
        "id": execution_id(job.id, job.attempt),
        "job": job.id,
        "task": job.task,
        "source": job.source,
        "occurrence": job.occurrence,
        "entity_id": job.entity_id,
        "attempt": job.attempt,
        "started_at": job.claimed_at if started else None,
        "completed_at": tx.now,
        "outcome": outcome,
        "message": cut(message, MAX_MESSAGE),
        "error": cut(failure.error, MAX_ERROR) if failure else None,
        "traceback": cut(failure.traceback, MAX_TRACEBACK) if failure else None,
        "worker": job.claimed_by if started else None,
        "actor": actor or job.actor,
    }
    tx.insert_new(execution, values)
    return str(values["id"])


def is_recorded(tx: Transaction, job: str) -> bool:
    """Say whether any attempt of a job is recorded, as committed now."""
    query = select(execution.c.id).where(execution.c.job == job).limit(1)
    return tx.execute(tx.dialect.latest(query)).first() is not None


def find(tx: Transaction, id: str) -> Execution | None:
    """Return one record."""
    row = tx.execute(select(execution).where(execution.c.id == id)).first()
    return read_execution(row) if row else None


def of_job(tx: Transaction, job: str) -> list[Execution]:
    """Return every recorded attempt of a job, the last one first."""
    query = select(execution).where(execution.c.job == job).order_by(execution.c.attempt.desc())
    return [read_execution(row) for row in tx.execute(query)]


def of_occurrence(tx: Transaction, occurrence: str) -> list[Execution]:
    """Return every recorded attempt of an occurrence, the last one first."""
    query = select(execution).where(execution.c.occurrence == occurrence).order_by(execution.c.attempt.desc())
    return [read_execution(row) for row in tx.execute(query)]


def latest(
    tx: Transaction, *, task: str | None = None, definition: str | None = None, job: str | None = None, limit: int = 50
) -> Sequence[Execution]:
    """Return the latest records, of a task, of a definition (by id) or of a job."""
    query = select(execution).order_by(execution.c.completed_at.desc(), execution.c.id).limit(limit)
    if task is not None:
        query = query.where(execution.c.task == task)
    if job is not None:
        query = query.where(execution.c.job == job)
    if definition is not None:
        occurrence = tables.occurrence
        mine = select(occurrence.c.id).where(occurrence.c.definition == definition)
        query = query.where(execution.c.occurrence.in_(mine))
    return [read_execution(row) for row in tx.execute(query)]


def read_execution(row: Row[Any]) -> Execution:
    """Return a row as a value."""
    mapping = row._mapping
    values = {name: mapping[name] for name in COLUMNS}
    values["source"], values["outcome"] = Source(values["source"]), Outcome(values["outcome"])
    return Execution(**values)
