"""Records of attempts: written once when an attempt ended, never changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any

from sqlalchemy import Executable, Row, bindparam, select

from ..domain.execution import MAX_ERROR, MAX_MESSAGE, MAX_TRACEBACK, Execution, Failure, Outcome, cut
from ..domain.facts import Ended
from ..domain.ids import execution_id
from ..domain.job import Job, JobState, Source
from ..domain.scope import refs_of
from . import rows, tables
from .clocks import Clock
from .database import Transaction
from .dialect_base import Dialect
from .prepared import Prepared

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
    next_delay: timedelta | None = None,
) -> str:
    """Write how `job`'s present attempt ended and return the record's id; a record that is there is never changed.

    `next_delay` is the time until the next attempt.
    """
    values = values_of(job, outcome, message=message, failure=failure, actor=actor) | {"next_delay": next_delay}
    now = tx.read_now() if job.scope else tx.now  # its scope is indexed by the same instant
    if tx.insert_new(execution, values | {"completed_at": now}):
        tx.insert_all_new(tables.scope, _refs(values, now))
        seconds = None if next_delay is None else next_delay.total_seconds()
        tx.tell(Ended(job, outcome, failure.error if failure else message, seconds, actor))
    return str(values["id"])


def _refs(values: Mapping[str, Any], completed_at: Any) -> list[dict[str, Any]]:
    """Return the rows of `tm_scope` for a record; none for most."""
    if not values["scope"]:
        return []
    common = {"completed_at": completed_at, "execution": values["id"]}
    return [{"name": name, "value": value, **common} for name, value in refs_of(values["scope"])]


def record_all(tx: Transaction, ended: Sequence[tuple[Job, str | None]], outcome: Outcome) -> dict[str, str]:
    """Write how the present attempts of many jobs ended, each with a message; return the records' ids by job."""
    rows = [values_of(job, outcome, message=message) for job, message in ended]
    if rows:
        now = tx.read_now()
        tx.insert_all_new(execution, [row | {"completed_at": now} for row in rows])
        tx.insert_all_new(tables.scope, [ref for row in rows for ref in _refs(row, now)])
    for job, message in ended:
        tx.tell(Ended(job, outcome, message))
    return {row["job"]: row["id"] for row in rows}


def values_of(
    job: Job,
    outcome: Outcome,
    *,
    message: str | None = None,
    failure: Failure | None = None,
    actor: str | None = None,
) -> dict[str, Any]:
    """Return the columns of a record but the time it is written at."""
    started = job.state is JobState.RUNNING
    return {
        "id": job.execution_id,
        "job": job.id,
        "task": job.task,
        "source": job.source,
        "occurrence": job.occurrence,
        "definition": job.definition,
        "entity_id": job.entity_id,
        "attempt": job.attempt,
        "started_at": job.claimed_at if started else None,
        "outcome": outcome,
        "message": cut(message, MAX_MESSAGE),
        "error": cut(failure.error, MAX_ERROR) if failure else None,
        "traceback": cut(failure.traceback, MAX_TRACEBACK) if failure else None,
        "worker": job.claimed_by if started else None,
        "actor": actor or job.actor,
        "dedupe_key": job.dedupe_key,
        "scope": job.scope,
        "run_at": job.run_at,
    }


def succeeded_by(tx: Transaction, jobs: Sequence[Job]) -> set[str]:
    """Return the ids of the jobs among these whose attempt is recorded as a success of the worker that has it."""
    if not jobs:
        return set()
    ids = {job.execution_id: job.claimed_by for job in jobs}
    query = select(execution).where(execution.c.id.in_(list(ids)), execution.c.outcome == Outcome.SUCCEEDED)
    return {row.job for row in tx.execute(query) if row.worker == ids[row.id]}


def is_recorded(tx: Transaction, job: str, *, since: int = 1) -> bool:
    """Say whether an attempt of a job, this one or a later one, is recorded, as committed now."""
    return bool(tx.run(_RECORDED, job_=job, since=since))


def next_attempt(tx: Transaction, job: str, call: str | None) -> int | None:
    """Return the attempt that a call begins with whose id has records already; None where they may be of this very call.

    A record does not name its call, but its id is made of it. One without a call may be of any.
    """
    if call is None:
        return None
    query = tx.dialect.latest(select(execution.c.id, execution.c.attempt).where(execution.c.job == job))
    recorded = {row.id: row.attempt for row in tx.execute(query)}
    own = {execution_id(job, attempt, one) for attempt in recorded.values() for one in (None, call)}
    return None if own & recorded.keys() else max(recorded.values(), default=0) + 1


def _since(dialect: Dialect, _: Clock) -> Executable:
    mine = (execution.c.job == bindparam("job_"), execution.c.attempt >= bindparam("since"))
    return dialect.latest(select(execution.c.id).where(*mine).limit(1))


_RECORDED = Prepared(_since, returns=[execution.c.id])


def find(tx: Transaction, id: str) -> Execution | None:
    """Return one record."""
    row = tx.execute(select(execution).where(execution.c.id == id)).first()
    return read_execution(row) if row else None


def of_job(tx: Transaction, job: str) -> list[Execution]:
    """Return every recorded attempt of a job, the last one first."""
    query = select(execution).where(execution.c.job == job).order_by(execution.c.attempt.desc())
    return rows.read_all(tx, query, read_execution, execution)


def of_occurrence(tx: Transaction, occurrence: str) -> list[Execution]:
    """Return every recorded attempt of an occurrence, the last one first."""
    query = select(execution).where(execution.c.occurrence == occurrence).order_by(execution.c.attempt.desc())
    return rows.read_all(tx, query, read_execution, execution)


def outcomes_of(tx: Transaction, occurrences: Sequence[str]) -> dict[str, set[Outcome]]:
    """Return how the attempts of these occurrences ended, by occurrence, for those of which any is recorded."""
    found: dict[str, set[Outcome]] = {}
    there = execution.c.occurrence.is_not(None)  # said, so that the index that is about these fits
    for start in range(0, len(occurrences), 1000):
        mine = tx.dialect.among(execution.c.occurrence, occurrences[start : start + 1000])
        for row in tx.execute(select(execution.c.occurrence, execution.c.outcome).where(mine, there)):
            found.setdefault(row.occurrence, set()).add(Outcome(row.outcome))
    return found


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
    if values["scope"] is not None and type(values["scope"]) is not dict:
        raise TypeError(f"a {type(values['scope']).__name__} in place of a scope: {str(values['scope'])[:50]!r}")
    return Execution(**values)
