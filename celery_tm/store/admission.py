"""The statements that let a delivery in: a job's attempt, many attempts at once, a direct call.

Where the database can, each is a single statement that commits by itself, and the body begins when that is on the disk:
a database that crashes forgets no start, so nobody else is let in for the same attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Executable, String, Update, and_, any_, bindparam, func, literal, or_, select, update

from ..domain.job import Job, JobState
from ..domain.occurrence import OccurrenceState
from . import insertion, occurrences, tables
from .clocks import Clock, ahead
from .conditions import IS_DISPATCHED, IS_PENDING, NEEDS_NO_SLOT
from .database import Transaction
from .given import as_texts, given_array
from .jobs import among, columns_of, in_order, read_job
from .prepared import Prepared
from .types import Duration

job, occurrence = tables.job, tables.occurrence
ONE = job.c.id == bindparam("job_id")
ROW = list(job.c)


def admit(tx: Transaction, id: str, attempt: int, *, worker: str, lease: timedelta, task: str | None = None) -> Job | None:
    """Let one delivery of this attempt in: dispatched, or pending and due → running. None: it is not to run.

    `task` is what the delivery calls: of another task's job it may do nothing.
    """
    values = {"job_id": id, "attempt_": attempt, "worker": worker, "lease": lease, "task_": task}
    if tx.dialect.gives_back_updates:
        rows = tx.run(_ADMIT, **values)
    else:
        ((changed,),) = tx.run(_ADMIT_UNSEEN, **values)
        rows = tx.run(_FIND, job_id=id) if changed else []
    return read_job(rows[0]) if rows else None


def admit_occurring(
    tx: Transaction,
    id: str,
    attempt: int,
    *,
    worker: str,
    lease: timedelta,
    stuck_after: timedelta,
    task: str | None = None,
) -> Job | None:
    """Let in one delivery of an attempt that carries out an occurrence: both start."""
    if not tx.dialect.changes_many:
        admitted = admit(tx, id, attempt, worker=worker, lease=lease, task=task)
        if admitted is not None:
            start_occurrence(tx, admitted, stuck_after=stuck_after)
        return admitted
    values = {"job_id": id, "attempt_": attempt, "worker": worker, "lease": lease, "task_": task}
    values |= {"stuck_after": stuck_after}
    rows = tx.run(_ADMIT_OCCURRING, **values)
    return read_job(rows[0]) if rows else None


def start_occurrence(tx: Transaction, admitted: Job, *, stuck_after: timedelta) -> None:
    """Mark the occurrence that a job carries out as running."""
    if admitted.occurrence and admitted.ended is None:
        occurrences.start(tx, admitted.occurrence, deadline=tx.later(admitted.execution_timeout or stuck_after))


def _admitting(clock: Clock, chosen: ColumnElement[bool] = ONE) -> Update:
    mine = and_(chosen, job.c.attempt == bindparam("attempt_"), _calls(bindparam("task_", type_=String)))
    change = {
        "state": JobState.RUNNING,
        "claimed_by": bindparam("worker"),
        "claimed_at": clock.now,
        "lease_until": clock.later("lease"),
    }
    return update(job).where(mine, _may_start(clock.now)).values(change)


def _calls(task: Any) -> ColumnElement[bool]:
    """A job is of this task; of any, where none is named."""
    return job.c.task == func.coalesce(task, job.c.task)


def _admitting_occurring(clock: Clock) -> Executable:
    admitted = _admitting(clock).returning(*ROW).cte("admitted")
    allowed = func.coalesce(admitted.c.execution_timeout, bindparam("stuck_after", type_=Duration))
    deadline = ahead(clock.now, allowed)
    started = (
        update(occurrence)
        .where(occurrence.c.id == admitted.c.occurrence, admitted.c.ended.is_(None))
        .values(
            state=OccurrenceState.RUNNING,
            started_at=func.coalesce(occurrence.c.started_at, clock.now),
            deadline_at=func.coalesce(occurrence.c.deadline_at, deadline),
        )
        .returning(occurrence.c.id)
        .cte("started")
    )
    return select(admitted).add_cte(started)


_ADMIT = Prepared(lambda _, clock: _admitting(clock).returning(*ROW), returns=ROW)
_ADMIT_OCCURRING = Prepared(lambda _, clock: _admitting_occurring(clock), returns=ROW)
_ADMIT_ALL = Prepared(
    lambda _, clock: (
        _admitting(clock, job.c.id == any_(given_array("ids"))).values(carrier=bindparam("carrier_")).returning(*ROW)
    ),
    returns=ROW,
)
_ADMIT_UNSEEN = Prepared(lambda _, clock: _admitting(clock))
_FIND = Prepared(lambda *_: select(*ROW).where(job.c.id == bindparam("job_id")), returns=ROW)


def admit_all(
    tx: Transaction,
    attempts: Sequence[tuple[str, int]],
    *,
    worker: str,
    lease: timedelta,
    carrier: str,
    task: str | None = None,
) -> list[Job]:
    """Let in one delivery that carries many attempts, and return those that may run."""
    if tx.dialect.changes_many:
        by_attempt: dict[int, list[str]] = {}
        for id, attempt in attempts:
            by_attempt.setdefault(attempt, []).append(id)
        given = {"worker": worker, "lease": lease, "carrier_": carrier, "task_": task}
        parts = (tx.run(_ADMIT_ALL, attempt_=n, **as_texts({"ids": ids}), **given) for n, ids in by_attempt.items())
        return in_order(read_job(row) for rows in parts for row in rows)
    mine = select(job.c.id).where(among(tx, attempts), _calls(literal(task, String)), _may_start(tx.now))
    change = {"state": JobState.RUNNING, "claimed_by": worker, "claimed_at": tx.now, "lease_until": tx.later(lease)}
    rows = tx.update_returning(job, mine, update(job).values(change | {"carrier": carrier}))
    return in_order(map(read_job, rows))


def _may_start(now: Any) -> ColumnElement[bool]:
    """Dispatched, or pending and due; not too late; and its key has not succeeded."""
    key = tables.key
    has_succeeded = (
        select(key.c.job)
        .where(key.c.task == job.c.task, key.c.key == job.c.dedupe_key, key.c.kept_until > now)
        .correlate(job)
        .exists()
    )
    is_due = or_(IS_DISPATCHED, and_(IS_PENDING, NEEDS_NO_SLOT, job.c.run_at <= now))
    in_time = or_(job.c.expires_at.is_(None), job.c.expires_at > now)
    return and_(is_due, in_time, ~has_succeeded)


def insert_running(tx: Transaction, value: Job, *, lease: timedelta) -> Job | None:
    """Insert a direct call as running; None if its id or key is taken. Whether it ran before is to be asked afterwards."""
    timed = {"created_at": None, "run_at": None, "delay": timedelta(0), "lease": lease}
    written = insertion.insert_one(tx, columns_of(value) | timed)
    if written is None:
        return None
    now = written.now
    return replace(value, created_at=now, run_at=now, claimed_at=now, lease_until=now + lease)
