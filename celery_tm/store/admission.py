"""The statements that let a delivery in: a job's attempt, many attempts at once, a direct call.

Where the database can, each is a single statement that commits by itself, and the body begins when that is on the disk:
a database that crashes forgets no start, so nobody else is let in for the same attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Executable,
    String,
    Update,
    and_,
    any_,
    bindparam,
    case,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from ..domain.job import WAITS_FOR_KEY, Job, JobState, Slot
from ..domain.occurrence import OccurrenceState
from . import insertion, occurrences, tables
from .clocks import Clock, ahead
from .conditions import IS_DISPATCHED, IS_PENDING, NEEDS_NO_SLOT
from .database import UNNAMED, Transaction
from .given import as_texts, given_array
from .jobs import among, columns_of, held_by, in_order, read_job
from .keys import IS_SUCCESS
from .prepared import Prepared
from .types import Duration

job, occurrence = tables.job, tables.occurrence
ONE = job.c.id == bindparam("job_id")
ROW = list(job.c)
STUCK_AFTER = timedelta(hours=24)  # the default of `tm_stuck_after`
NO_ANSWER = SQLAlchemyError  # whatever else a database says instead of an answer, where `errors` has no name for it


def admit(
    tx: Transaction,
    id: str,
    attempt: int,
    *,
    worker: str,
    lease: timedelta,
    limit: timedelta = STUCK_AFTER,
    task: str | None = None,
) -> Job | None:
    """Let one delivery of this attempt in: dispatched, or pending and due → running. None: it is not to run.

    `limit` is how long the attempt may run. `task` is what the delivery calls: of another task's job it may do nothing.
    """
    values = {"job_id": id, "attempt_": attempt, "worker": worker, "task_": task, **_time(lease, limit), **_ours(tx)}
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
    limit: timedelta = STUCK_AFTER,
    task: str | None = None,
) -> Job | None:
    """Let in one delivery of an attempt that carries out an occurrence: both start."""
    if not tx.dialect.changes_many:
        admitted = admit(tx, id, attempt, worker=worker, lease=lease, limit=limit, task=task)
        if admitted is not None:
            start_occurrence(tx, admitted, stuck_after=stuck_after)
        return admitted
    values = {"job_id": id, "attempt_": attempt, "worker": worker, "task_": task, "stuck_after": stuck_after}
    values |= {**_time(lease, limit), **_ours(tx)}
    rows = tx.run(_ADMIT_OCCURRING, **values)
    return read_job(rows[0]) if rows else None


def start_occurrence(tx: Transaction, admitted: Job, *, stuck_after: timedelta) -> None:
    """Mark the occurrence that a job carries out as running."""
    if admitted.occurrence and admitted.ended is None:
        occurrences.start(tx, admitted.occurrence, deadline=tx.later(admitted.execution_timeout or stuck_after))


def _time(lease: timedelta, limit: timedelta) -> dict[str, timedelta]:
    """Return how long an attempt is trusted without a renewal, never beyond its `limit`; publishing callbacks has none."""
    return {"lease": min(lease, limit), "limit": limit, "callbacks_lease": lease}


def _ours(tx: Transaction) -> dict[str, str]:
    """Return the app whose jobs run here, besides those that name none."""
    return {"of_app": tx.app}


def _admitting(clock: Clock, chosen: ColumnElement[bool] = ONE) -> Update:
    mine = and_(chosen, job.c.attempt == bindparam("attempt_"), _calls(bindparam("task_", type_=String)))
    mine = and_(mine, or_(job.c.app == bindparam("of_app"), job.c.app == UNNAMED))
    change = {
        "state": JobState.RUNNING,
        "claimed_by": bindparam("worker"),
        "claimed_at": clock.now,
        "lease_until": case((job.c.ended.is_(None), clock.later("lease")), else_=clock.later("callbacks_lease")),
        "stuck_at": case((job.c.ended.is_(None), clock.later("limit"))),
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


def _admitting_many(clock: Clock) -> Executable:
    chosen = _admitting(clock, job.c.id == any_(given_array("ids")))
    return chosen.values(carrier=bindparam("carrier_")).returning(*ROW)


_ADMIT = Prepared(lambda _, clock: _admitting(clock).returning(*ROW), returns=ROW)
_ADMIT_OCCURRING = Prepared(lambda _, clock: _admitting_occurring(clock), returns=ROW)
_ADMIT_MANY = Prepared(lambda _, clock: _admitting_many(clock), returns=ROW)
_ADMIT_UNSEEN = Prepared(lambda _, clock: _admitting(clock))
_FIND = Prepared(lambda *_: select(*ROW).where(job.c.id == bindparam("job_id")), returns=ROW)


def admit_all(
    tx: Transaction,
    attempts: Sequence[tuple[str, int]],
    *,
    worker: str,
    lease: timedelta,
    carrier: str,
    limit: timedelta = STUCK_AFTER,
    task: str | None = None,
) -> list[Job]:
    """Let in one delivery that carries many attempts, and return those that may run."""
    if tx.dialect.changes_many:
        by_attempt: dict[int, list[str]] = {}
        for id, attempt in attempts:
            by_attempt.setdefault(attempt, []).append(id)
        given = {"worker": worker, "carrier_": carrier, "task_": task, **_time(lease, limit), **_ours(tx)}
        parts = (tx.run(_ADMIT_MANY, attempt_=n, **as_texts({"ids": ids}), **given) for n, ids in by_attempt.items())
        return in_order(read_job(row) for rows in parts for row in rows)
    mine = select(job.c.id).where(among(tx, attempts), _calls(literal(task, String)), _may_start(tx.now))
    mine = mine.where(job.c.app.in_({tx.app, UNNAMED}))
    change = {"state": JobState.RUNNING, "claimed_by": worker, "claimed_at": tx.now, "carrier": carrier}
    change |= {"lease_until": tx.later(min(lease, limit)), "stuck_at": tx.later(limit)}
    rows = tx.update_returning(job, mine, update(job).values(change))
    return in_order(map(read_job, rows))


def _may_start(now: Any) -> ColumnElement[bool]:
    """Dispatched, or pending and due; not too late; and its key has not succeeded."""
    key = tables.key
    has_succeeded = (
        select(key.c.job)
        .where(key.c.task == job.c.task, key.c.key == job.c.dedupe_key, key.c.kept_until > now, IS_SUCCESS)
        .correlate(job)
        .exists()
    )
    is_due = or_(IS_DISPATCHED, and_(IS_PENDING, NEEDS_NO_SLOT, job.c.run_at <= now))
    in_time = or_(job.c.expires_at.is_(None), job.c.expires_at > now)
    return and_(is_due, in_time, ~has_succeeded)


def find(tx: Transaction, id: str) -> Job | None:
    """Return a job as it is now, by one prepared statement."""
    rows = tx.run(_FIND, job_id=id)
    return read_job(rows[0]) if rows else None


def take_key(tx: Transaction, one: Job, key: str) -> Job | None:
    """Give a running job the key that it waited for; None: another job has it, or the lease was lost."""
    options = {name: value for name, value in one.options.items() if name != WAITS_FOR_KEY}
    change = update(job).where(held_by(one)).values(dedupe_key=key, options=options)
    try:
        with tx.connection.begin_nested():
            changed = tx.execute(change).rowcount
    except IntegrityError:
        return None
    return replace(one, dedupe_key=key, options=options) if changed else None


def wait_for_key(tx: Transaction, one: Job, other: Job | None) -> Job | None:
    """Let a running job wait on for its key: running → pending, later each time.

    While `other`, which has the key, is not due, that is for some minutes at a time: it may be cancelled or run early, and
    what replaces a job comes at any time. None: the lease was lost.
    """
    wait = min(KEY_WAIT * 2 ** min(one.dispatches, 10), LONGEST_KEY_WAIT)
    if other is not None and other.state is JobState.PENDING and other.slot is not Slot.HELD and not other.is_replaced:
        wait = max(wait, min(other.run_at - tx.read_now(), LONGEST_NOT_DUE))
    change: dict[str, Any] = {
        "state": JobState.PENDING,
        "lease_until": None,
        "claimed_by": None,
        "claimed_at": None,
        "stuck_at": None,
    }
    changed = tx.execute(update(job).where(held_by(one)).values(change | {"run_at": tx.later(wait)})).rowcount
    return replace(one, **change) if changed else None


KEY_WAIT, LONGEST_KEY_WAIT = timedelta(seconds=1), timedelta(minutes=1)  # between two looks at a key that another job has
LONGEST_NOT_DUE = timedelta(minutes=10)  # the same where the other job is not due yet


def insert_running(tx: Transaction, value: Job, *, lease: timedelta, limit: timedelta = STUCK_AFTER) -> Job | None:
    """Insert a direct call as running; None if its id or key is taken. Whether it ran before is to be asked afterwards."""
    lease = min(lease, limit)
    timed: dict[str, Any] = {"created_at": None, "run_at": None, "delay": timedelta(0), "lease": lease, "limit": limit}
    written = insertion.insert_one(tx, columns_of(value) | timed)
    if written is None:
        return None
    now = written.now
    timed = {"created_at": now, "run_at": now, "claimed_at": now, "lease_until": now + lease, "stuck_at": now + limit}
    return replace(value, app=value.app or tx.app, **timed)
