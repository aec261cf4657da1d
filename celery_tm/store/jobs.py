"""The statements that move a job: insert, renew, reschedule, remove; `store.claims` claims it, `store.admission` lets it in.

Each one that finishes, renews or moves work carries the attempt and who was let in, so a worker that lost its lease finds no
row and changes nothing. What else must happen in the same transaction (records, keys, dead letters) is `store.settlement`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    and_,
    case,
    delete,
    func,
    null,
    or_,
    select,
    update,
)

from ..domain.job import Job, JobState, Slot, Source, Status, status_of
from ..domain.paging import Page
from ..domain.retry import TryAgain
from ..domain.workflow import TASK
from . import insertion, rows, tables
from .conditions import IS_OWED, IS_PENDING, IS_RUNNING
from .database import UNNAMED, Transaction
from .given import ByPairs

job = tables.job
COLUMNS = tuple(f.name for f in fields(Job))
FILL = {name: vars(Job)[name].__set__ for name in COLUMNS}
SLOTS_OF_JOB = [FILL[column.name] for column in job.columns]  # in the order in which a row has them
STATES, SOURCES = {str(state): state for state in JobState}, {str(source): source for source in Source}
SLOTS = {None: None} | {str(slot): slot for slot in Slot}


def read_job(row: Sequence[Any]) -> Job:
    """Return a row as a value, filled slot by slot: a frozen value's own constructor takes five times as long."""
    value = object.__new__(Job)
    for fill, given in zip(SLOTS_OF_JOB, row, strict=False):  # of a dead letter more follows
        fill(value, given)
    FILL["state"](value, STATES[value.state])
    FILL["source"](value, SOURCES[value.source])
    FILL["slot"](value, SLOTS[value.slot])
    if value.options is None:
        FILL["options"](value, {})
    for part in (value.options, value.retry, value.scope, value.ended):
        if part is not None and type(part) is not dict:
            raise TypeError(f"a {type(part).__name__} in place of a mapping: {str(part)[:50]!r}")
    return value


def columns_of(value: Job) -> dict[str, Any]:
    """Return a job as the columns of its row."""
    return {name: getattr(value, name) for name in COLUMNS}


def insert_after(tx: Transaction, value: Job, *, delay: timedelta) -> bool:
    """Insert a job due `delay` from now by the database's clock; False if its id or key is taken."""
    draft = columns_of(value) | {"created_at": None, "run_at": None, "delay": delay}
    return insertion.insert_one(tx, draft) is not None


def insert_many(tx: Transaction, values: Sequence[Job]) -> None:
    """Insert jobs at once; those whose key is taken are left out."""
    if values:
        insertion.insert_many(tx, [columns_of(value) for value in values])


def find(tx: Transaction, id: str) -> Job | None:
    """Return a job that is still owed."""
    row = tx.execute(select(job).where(job.c.id == id)).first()
    return read_job(row) if row else None


def find_by_key(tx: Transaction, task: str, key: str, *, locking: bool = True) -> Job | None:
    """Return the owed job that has this key, as it is committed now, even if the transaction's snapshot is older.

    Not `locking`: as the snapshot has it.
    """
    query = select(job).where(job.c.dedupe_key == key, job.c.task == task)
    return rows.read_one(tx, tx.dialect.latest(query) if locking else query, read_job, job)


class Owed(NamedTuple):
    """What a caller is told about a job that has the key it asked for."""

    id: str
    run_at: datetime
    status: Status


def find_by_keys(tx: Transaction, wanted: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Owed]:
    """Return the owed jobs that have these (task, key) pairs."""
    return {(row["task"], row["dedupe_key"]): _owed(row) for row in _BY_KEY.find(tx, wanted)}


_KNOWN = [job.c[name] for name in ("task", "dedupe_key", "id", "run_at", "state", "attempt", "tries_from")]
_BY_KEY = ByPairs(_KNOWN, (job.c.task, job.c.dedupe_key))


def _owed(row: Mapping[str, Any]) -> Owed:
    status = status_of(JobState(row["state"]), attempt=row["attempt"], tries_from=row["tries_from"])
    return Owed(row["id"], row["run_at"], status)


def select_jobs(
    tx: Transaction,
    *,
    state: str | None = None,
    task: str | None = None,
    entity_id: str | None = None,
    ended: bool = False,
    limit: int = 100,
) -> list[Job]:
    """Return owed jobs, those due first in front; with `ended` also those of which only what follows is left."""
    query = select(job).order_by(job.c.run_at, job.c.id).limit(limit)
    if not ended:
        query = query.where(IS_OWED)
    for column, wanted in ((job.c.state, state), (job.c.task, task), (job.c.entity_id, entity_id)):
        if wanted is not None:
            query = query.where(column == wanted)
    return [read_job(row) for row in tx.execute(query)]


def in_order(taken: Iterable[Job]) -> list[Job]:
    """Return jobs as they are due."""
    return sorted(taken, key=lambda one: (one.run_at, one.id))


WAITING = {"state": JobState.PENDING, "lease_until": null(), "claimed_by": null(), "claimed_at": null()}
WAITING |= {"stuck_at": null()}


class Renewed(NamedTuple):
    """What a renewal found: attempts that are still held, each with whether it was asked to stop, and those not reached."""

    held: Mapping[tuple[str, int], bool]
    locked: Collection[tuple[str, int]] = ()  # held too, but another transaction has their rows: to be renewed soon


def renew(tx: Transaction, running: Sequence[Job], *, lease: timedelta) -> Renewed:
    """Lengthen the leases of these attempts, without waiting for rows that another transaction has locked.

    No lease goes beyond the stuck limit of its attempt: from then on it ends, however healthy the worker looks.
    """
    if not running:
        return Renewed({})
    held, found = _all_held(tx, running), (job.c.id, job.c.attempt, job.c.cancel_requested)
    chosen = tx.dialect.locked(select(job.c.id).where(held))
    until = tx.later(lease)
    change = update(job).values(lease_until=case((job.c.stuck_at < until, job.c.stuck_at), else_=until))
    if tx.dialect.gives_back_updates:
        rows = tx.execute(change.where(tx.dialect.picked_by(job.c.id, chosen)).returning(*found)).all()
    else:
        ids = list(tx.execute(chosen).scalars())
        if ids:
            tx.execute(change.where(job.c.id.in_(ids)))
        rows = tx.execute(select(*found).where(job.c.id.in_(ids), held)).all() if ids else []
    renewed = {(row.id, row.attempt): row.cancel_requested for row in rows}
    return Renewed(renewed, _locked(tx, [one for one in running if (one.id, one.attempt) not in renewed]))


def _locked(tx: Transaction, passed_over: Sequence[Job]) -> set[tuple[str, int]]:
    """Return which attempts that were passed over are held all the same: another transaction has locked their rows."""
    if not passed_over or not tx.dialect.skips_locked:
        return set()
    rows = tx.execute(select(job.c.id, job.c.attempt).where(_all_held(tx, passed_over)))
    return {(row.id, row.attempt) for row in rows}


def report_progress(tx: Transaction, one: Job, message: str) -> bool:
    """Show how far a running attempt has come; False if its lease was lost."""
    return tx.execute(update(job).where(held_by(one)).values(progress=message)).rowcount == 1


def remove_running(tx: Transaction, one: Job) -> bool:
    """End a running attempt's job: the row goes. False: the lease was lost, and nothing may be written."""
    return tx.execute(delete(job).where(held_by(one))).rowcount == 1


def remove_inserted(tx: Transaction, one: Job) -> None:
    """Take back a row that this transaction has inserted."""
    tx.execute(delete(job).where(job.c.id == one.id))


def remove_all_running(tx: Transaction, attempts: Sequence[Job]) -> set[str]:
    """End the jobs of these running attempts: their rows go. Returns the ids of those that were still held."""
    held = and_(_all_held(tx, attempts), IS_OWED)
    if tx.dialect.gives_back_updates:
        return set(tx.execute(delete(job).where(held).returning(job.c.id)).scalars())
    found = set(tx.execute(select(job.c.id).where(held).with_for_update()).scalars())
    if found:
        tx.execute(delete(job).where(job.c.id.in_(found)))
    return found


def remove_all_waiting(tx: Transaction, attempts: Sequence[tuple[str, int]]) -> None:
    """End jobs that are not running: their rows go."""
    if attempts:
        tx.execute(delete(job).where(among(tx, attempts), ~IS_RUNNING))


def remove_waiting(tx: Transaction, id: str, attempt: int) -> bool:
    """End a job that is not running: the row goes. False: it runs, or is gone."""
    waiting = and_(job.c.id == id, job.c.attempt == attempt, ~IS_RUNNING)
    return tx.execute(delete(job).where(waiting)).rowcount == 1


def reschedule(tx: Transaction, one: Job, then: TryAgain, *, error: str | None) -> bool:
    """Give a running attempt's job its next try: running → pending, attempt + 1.

    False: the lease was lost, or the job was cancelled meanwhile and is not to be tried again.
    """
    change = WAITING | {"attempt": one.attempt + 1, "run_at": tx.later(then.delay), "dispatches": 0}
    change |= {"last_error": error, "progress": null(), "carrier": null(), **then.changes}
    held = and_(held_by(one), job.c.cancel_requested.is_(False))
    return tx.execute(update(job).where(held).values(change)).rowcount == 1


def lock_free(tx: Transaction, running: Sequence[Job]) -> set[str]:
    """Lock the rows of running attempts without waiting; return the ids of those whose rows another transaction has."""
    ours = set(tx.execute(tx.dialect.locked(select(job.c.id).where(_all_held(tx, running)))).scalars())
    return {id for id, _ in _locked(tx, [one for one in running if one.id not in ours])}


def hand_back(tx: Transaction, one: Job) -> bool:
    """Let a running attempt's job wait again, at its old place: running → pending, attempt + 1, no try used."""
    change = WAITING | {"attempt": one.attempt + 1, "tries_from": job.c.tries_from + 1, "dispatches": 0}
    held = and_(held_by(one), job.c.cancel_requested.is_(False))
    return tx.execute(update(job).where(held).values(change | {"progress": null(), "carrier": null()})).rowcount == 1


def request_cancel(tx: Transaction, id: str, attempt: int) -> bool:
    """Ask a running attempt to stop."""
    return tx.execute(update(job).where(is_running(id, attempt)).values(cancel_requested=True)).rowcount == 1


def is_cancelled(tx: Transaction, one: Job) -> bool:
    """Say whether a running attempt was asked to stop."""
    return tx.execute(select(job.c.id).where(held_by(one), job.c.cancel_requested.is_(True))).first() is not None


def cancelled_among(tx: Transaction, attempts: Sequence[tuple[str, int]]) -> set[str]:
    """Return the ids of those of these running attempts that were asked to stop."""
    asked = select(job.c.id).where(among(tx, attempts), job.c.cancel_requested.is_(True))
    return {row[0] for row in tx.execute(asked)}


def among(tx: Transaction, attempts: Sequence[tuple[str, int]]) -> Any:
    """Return the condition that a row is one of these attempts, as few lists of ids: these an index finds at once."""
    by_attempt: dict[int, list[str]] = {}
    for id, attempt in attempts:
        by_attempt.setdefault(attempt, []).append(id)
    return or_(*(and_(tx.dialect.among(job.c.id, ids), job.c.attempt == attempt) for attempt, ids in by_attempt.items()))


def held_by(one: Job) -> ColumnElement[bool]:
    """Return the condition that an attempt is still that of the worker which was let in.

    Its number alone would not do: a database that lost a start, as one that fails over may, lets in a second worker for it.
    """
    return and_(is_running(one.id, one.attempt), job.c.claimed_by == one.claimed_by)


def _all_held(tx: Transaction, attempts: Sequence[Job]) -> ColumnElement[bool]:
    """Return the condition that a row is one of these attempts, which the workers that have them were let in for."""
    workers = {one.claimed_by for one in attempts}
    return and_(among(tx, [(one.id, one.attempt) for one in attempts]), job.c.claimed_by.in_(workers), IS_RUNNING)


def is_running(id: str, attempt: int) -> ColumnElement[bool]:
    """Return the condition that an attempt runs, whoever was let in."""
    return and_(job.c.id == id, job.c.attempt == attempt, IS_RUNNING)


def of_occurrence(tx: Transaction, occurrence: str) -> list[Job]:
    """Return the owed jobs of an occurrence."""
    return rows.read_all(tx, select(job).where(job.c.occurrence == occurrence, IS_OWED), read_job, job)


def lock_of_occurrences(tx: Transaction, occurrences: Sequence[str]) -> list[Job]:
    """Lock and return the owed jobs of these occurrences."""
    return _lock_where(tx, job.c.occurrence.in_(occurrences)) if occurrences else []


def lock_steps(tx: Transaction, run: str) -> list[Job]:
    """Lock and return the owed jobs of a run's steps; not the run's own, which they do without if it cannot be read."""
    return _lock_where(tx, and_(job.c.occurrence == run, job.c.step.is_not(None)))


def _lock_where(tx: Transaction, wanted: ColumnElement[bool]) -> list[Job]:
    query = select(job).where(wanted, IS_OWED)
    query = query.with_for_update() if tx.dialect.skips_locked else query
    return [read_job(row) for row in tx.execute(query)]


def try_lock_of_occurrence(tx: Transaction, occurrence: str) -> list[Job] | None:
    """Lock and return the owed jobs of an occurrence; None if somebody else has one of them."""
    found = tx.execute(tx.dialect.locked(select(job).where(job.c.occurrence == occurrence, IS_OWED))).all()
    return [read_job(row) for row in found] if len(found) == _count_of(tx, occurrence) else None


def may_lock_of_run(tx: Transaction, run: str) -> bool:
    """Lock the owed jobs of a run, none of which is read; False if somebody else has one of them."""
    found = tx.execute(tx.dialect.locked(select(job.c.id).where(job.c.occurrence == run, IS_OWED))).all()
    return len(found) == _count_of(tx, run)


def _count_of(tx: Transaction, occurrence: str) -> int:
    query = select(func.count()).select_from(job).where(job.c.occurrence == occurrence, IS_OWED)
    return int(tx.execute(query).scalar_one())


def keys_of_occurrence(tx: Transaction, occurrence: str) -> set[str]:
    """Return the concurrency keys under which jobs of an occurrence, that are owed and do not run, have or want a slot."""
    waiting = and_(job.c.occurrence == occurrence, IS_OWED, ~IS_RUNNING, job.c.slot.is_not(None))
    query = select(job.c.concurrency_key).where(waiting)
    return {key for key in tx.execute(query).scalars() if key is not None}


def place_of(tx: Transaction, id: str) -> tuple[str | None, str | None]:
    """Return the occurrence and the step of a job, whatever else of it cannot be read."""
    found = tx.execute(select(job.c.occurrence, job.c.step).where(job.c.id == id)).first()
    return (found.occurrence, found.step) if found else (None, None)


def lock_matching(
    tx: Transaction,
    *,
    id: str | None = None,
    key: str | None = None,
    entity_id: str | None = None,
    task: str | None = None,
    besides: str | None = None,
) -> Page[Job]:
    """Lock and return the unfinished jobs that fit all that is given, `besides` one; also those that wait for a replacement.

    `unreadable` of it names those that cannot be read; they are locked too.
    """
    query = select(job).where(_fits(tx, id=id, key=key, entity_id=entity_id, task=task, besides=besides))
    query = query.with_for_update() if tx.dialect.skips_locked else query
    found = rows.read_all(tx, query, read_job, job)
    found[:] = [one for one in found if one.ended is None or one.is_replaced]
    return found


def unfinished(tx: Transaction, ids: Collection[str]) -> set[str]:
    """Return which of these jobs are still to run or running."""
    return set(tx.execute(select(job.c.id).where(job.c.id.in_(ids), IS_OWED)).scalars())


def runs_of_matching(tx: Transaction, **which: str | None) -> list[str]:
    """Return the runs that the jobs which fit stand for, or are steps of."""
    several = or_(job.c.step.is_not(None), job.c.task == TASK)
    query = select(job.c.occurrence).where(IS_OWED, _fits(tx, **which), several, job.c.occurrence.is_not(None))
    return list(tx.execute(query.distinct().order_by(job.c.occurrence)).scalars())


def _fits(
    tx: Transaction,
    *,
    id: str | None = None,
    key: str | None = None,
    entity_id: str | None = None,
    task: str | None = None,
    besides: str | None = None,
) -> ColumnElement[bool]:
    given = ((job.c.id, id), (job.c.dedupe_key, key), (job.c.entity_id, entity_id), (job.c.task, task))
    wanted = [column == value for column, value in given if value is not None]
    if (
        entity_id is not None and tx.app != UNNAMED
    ):  # keys and ids mean one job, whichever app asks; entities are an app's own
        wanted.append(job.c.app.in_((tx.app, UNNAMED)))
    return and_(*wanted, *([] if besides is None else [job.c.id != besides]))


def replace_pending(tx: Transaction, value: Job, *, delay: timedelta | None) -> Job | None:
    """Overwrite the pending job that has the same key with new arguments and a new time; None if none is pending."""
    existing = find_by_key(tx, value.task, value.dedupe_key or "")
    if existing is None or existing.is_step or existing.ended is not None:  # a run waits for its step, as it was stated
        return None
    kept = ("id", "task", "dedupe_key", "state", "attempt", "created_at", "source", "app")
    change = {name: v for name, v in columns_of(value.replacing(existing)).items() if name not in kept} | WAITING
    change |= {"tries_from": job.c.attempt, "dispatches": 0}
    if delay is not None:
        change["run_at"] = tx.later(delay)
    row = tx.update_one(job, existing.id, update(job).where(job.c.attempt == existing.attempt, IS_PENDING).values(change))
    return read_job(row) if row else None
