"""The statements that move a job: insert, claim, release, renew, reschedule, remove; `store.admission` lets it in.

Each one that finishes, renews or moves work carries the attempt and who was let in, so a worker that lost its lease finds no
row and changes nothing. What else must happen in the same transaction (records, keys, dead letters) is `store.settlement`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Executable,
    Integer,
    Select,
    Update,
    and_,
    bindparam,
    case,
    delete,
    null,
    or_,
    select,
    update,
)

from ..domain.job import Job, JobState, Slot, Source, Status, status_of
from ..domain.retry import TryAgain
from ..domain.workflow import TASK
from . import insertion, tables
from .clocks import Clock
from .conditions import IS_DISPATCHED, IS_OWED, IS_PENDING, IS_RUNNING, NEEDS_NO_SLOT
from .database import Transaction
from .dialects import Dialect, Moment
from .given import ByPairs
from .prepared import Prepared

job = tables.job
COLUMNS = tuple(f.name for f in fields(Job))
FILL = {name: vars(Job)[name].__set__ for name in COLUMNS}
SLOTS_OF_JOB = [FILL[column.name] for column in job.columns]  # in the order in which a row has them
STATES, SOURCES = {str(state): state for state in JobState}, {str(source): source for source in Source}
SLOTS = {None: None} | {str(slot): slot for slot in Slot}
LONGEST_LEASE = 6  # a dispatch lease doubles at most this often


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


def find_by_key(tx: Transaction, task: str, key: str) -> Job | None:
    """Return the owed job that has this key, as it is committed now, even if the transaction's snapshot is older."""
    query = select(job).where(job.c.dedupe_key == key, job.c.task == task)
    row = tx.execute(tx.dialect.latest(query)).first()
    return read_job(row) if row else None


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


def claim_due(tx: Transaction, *, node: str, lease: timedelta, limit: int, since: datetime | None = None) -> list[Job]:
    """Take up to `limit` due jobs for `node`, oldest first: pending and due → dispatched, leased.

    Jobs whose number is limited by a key are claimed by `store.lanes`. With `since` no earlier ones are looked for.
    """
    bound = {} if since is None else {"since": since}
    if not tx.dialect.gives_back_updates:
        due = _due(tx.now, bounded=since is not None).params({"room": limit, **bound})
        return in_order(map(read_job, tx.update_returning(job, due, _claiming(tx, node, lease))))
    leases = {f"lease_{n}": lease * 2**n for n in range(LONGEST_LEASE + 1)}
    rows = tx.run(_claim_due(bounded=since is not None), node=node, room=limit, **leases, **bound)
    return in_order(map(read_job, rows))


@cache
def _claim_due(*, bounded: bool) -> Prepared:
    def build(dialect: Dialect, clock: Clock) -> Executable:
        due = dialect.locked(_due(clock.now, bounded=bounded))
        change = _claimed(clock.now, lambda n: clock.later(f"lease_{n}")).values(claimed_by=bindparam("node"))
        return change.where(dialect.picked_by(job.c.id, due)).returning(job)

    return Prepared(build, returns=list(job.c))


def _due(now: Moment, *, bounded: bool) -> Select[Any]:
    due = select(job.c.id).where(IS_PENDING, NEEDS_NO_SLOT, job.c.run_at <= now)
    due = due.where(job.c.run_at >= bindparam("since", type_=job.c.run_at.type)) if bounded else due
    return due.order_by(job.c.run_at).limit(bindparam("room", type_=Integer))


def claim(tx: Transaction, ids: Sequence[str], *, node: str, lease: timedelta) -> list[Job]:
    """Take these pending jobs for `node`. The caller has locked them."""
    if not ids:
        return []
    chosen = select(job.c.id).where(job.c.id.in_(ids), IS_PENDING)
    return in_order(map(read_job, tx.update_returning(job, chosen, _claiming(tx, node, lease))))


def _claiming(tx: Transaction, node: str, lease: timedelta) -> Update:
    return _claimed(tx.now, lambda n: tx.later(lease * 2**n)).values(claimed_by=node)


def _claimed(now: Moment, lease_after: Callable[[int], Moment]) -> Update:
    """Return the change from pending to dispatched, with the lease that a job has after so many dispatches.

    That is twice as long with each one, so that a slow queue is not flooded.
    """
    steps = [(job.c.dispatches == n, lease_after(n)) for n in range(LONGEST_LEASE)]
    lease_until = case(*steps, else_=lease_after(LONGEST_LEASE))
    return update(job).values(
        state=JobState.DISPATCHED, claimed_at=now, lease_until=lease_until, dispatches=job.c.dispatches + 1
    )


def in_order(taken: Iterable[Job]) -> list[Job]:
    """Return jobs as they are due."""
    return sorted(taken, key=lambda one: (one.run_at, one.id))


def begin_run(tx: Transaction, id: str, attempt: int, *, occurrence: str) -> bool:
    """Let a claimed job stand for a run that begins: dispatched → running, without a lease, until its steps have ended."""
    mine = and_(job.c.id == id, job.c.attempt == attempt, IS_DISPATCHED)
    change = {"state": JobState.RUNNING, "lease_until": null(), "claimed_at": tx.now, "occurrence": occurrence}
    return tx.execute(update(job).where(mine).values(change)).rowcount == 1


def release(tx: Transaction, claimed: Sequence[Job]) -> int:
    """Give back jobs whose message the broker did not take: dispatched → pending, no try and no dispatch used."""
    return _wait_again(tx, claimed, job.c.dispatches - 1)


def redispatch(tx: Transaction, lost: Sequence[Job]) -> int:
    """Give back jobs whose message got lost: dispatched → pending, no try used, the next lease longer."""
    return _wait_again(tx, lost, job.c.dispatches)


def _wait_again(tx: Transaction, claimed: Sequence[Job], dispatches: Any) -> int:
    if not claimed:
        return 0
    ours = among(tx, [(one.id, one.attempt) for one in claimed])
    return tx.execute(update(job).where(ours, IS_DISPATCHED).values(_WAITING | {"dispatches": dispatches})).rowcount


_WAITING = {"state": JobState.PENDING, "lease_until": null(), "claimed_by": null(), "claimed_at": null()}


def renew(tx: Transaction, running: Sequence[Job], *, lease: timedelta) -> dict[tuple[str, int], bool]:
    """Lengthen the leases of these attempts; return those still held, and whether each was asked to stop."""
    if not running:
        return {}
    held = _all_held(tx, running)
    change = update(job).where(held).values(lease_until=tx.later(lease))
    if tx.dialect.gives_back_updates:
        rows = tx.execute(change.returning(job.c.id, job.c.attempt, job.c.cancel_requested)).all()
    else:
        tx.execute(change)
        rows = tx.execute(select(job.c.id, job.c.attempt, job.c.cancel_requested).where(held)).all()
    return {(row.id, row.attempt): row.cancel_requested for row in rows}


def report_progress(tx: Transaction, one: Job, message: str) -> bool:
    """Show how far a running attempt has come; False if its lease was lost."""
    return tx.execute(update(job).where(held_by(one)).values(progress=message)).rowcount == 1


def remove_running(tx: Transaction, one: Job) -> bool:
    """End a running attempt's job: the row goes. False: the lease was lost, and nothing may be written."""
    return tx.execute(delete(job).where(held_by(one))).rowcount == 1


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
    change = _WAITING | {"attempt": one.attempt + 1, "run_at": tx.later(then.delay), "dispatches": 0}
    change |= {"last_error": error, "progress": null(), "carrier": null(), **then.changes}
    held = and_(held_by(one), job.c.cancel_requested.is_(False))
    return tx.execute(update(job).where(held).values(change)).rowcount == 1


def hand_back(tx: Transaction, one: Job) -> bool:
    """Let a running attempt's job wait again, at its old place: running → pending, attempt + 1, no try used."""
    change = _WAITING | {"attempt": one.attempt + 1, "tries_from": job.c.tries_from + 1, "dispatches": 0}
    held = and_(held_by(one), job.c.cancel_requested.is_(False))
    return tx.execute(update(job).where(held).values(change | {"progress": null(), "carrier": null()})).rowcount == 1


def request_cancel(tx: Transaction, id: str, attempt: int) -> bool:
    """Ask a running attempt to stop."""
    return tx.execute(update(job).where(is_running(id, attempt)).values(cancel_requested=True)).rowcount == 1


def is_cancelled(tx: Transaction, one: Job) -> bool:
    """Say whether a running attempt was asked to stop."""
    return tx.execute(select(job.c.id).where(held_by(one), job.c.cancel_requested.is_(True))).first() is not None


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
    return [read_job(row) for row in tx.execute(select(job).where(job.c.occurrence == occurrence, IS_OWED))]


def lock_of_occurrences(tx: Transaction, occurrences: Sequence[str]) -> list[Job]:
    """Lock and return the owed jobs of these occurrences."""
    if not occurrences:
        return []
    query = select(job).where(job.c.occurrence.in_(occurrences), IS_OWED)
    query = query.with_for_update() if tx.dialect.skips_locked else query
    return [read_job(row) for row in tx.execute(query)]


def lock_matching(
    tx: Transaction,
    *,
    id: str | None = None,
    key: str | None = None,
    entity_id: str | None = None,
    task: str | None = None,
) -> list[Job]:
    """Lock and return the owed jobs that fit all that is given."""
    query = select(job).where(_fits(id=id, key=key, entity_id=entity_id, task=task))
    query = query.with_for_update() if tx.dialect.skips_locked else query
    return [read_job(row) for row in tx.execute(query)]


def runs_of_matching(tx: Transaction, **which: str | None) -> list[str]:
    """Return the runs that the jobs which fit stand for, or are steps of."""
    several = or_(job.c.step.is_not(None), job.c.task == TASK)
    query = select(job.c.occurrence).where(_fits(**which), several, job.c.occurrence.is_not(None))
    return list(tx.execute(query.distinct().order_by(job.c.occurrence)).scalars())


def _fits(
    *, id: str | None = None, key: str | None = None, entity_id: str | None = None, task: str | None = None
) -> ColumnElement[bool]:
    given = ((job.c.id, id), (job.c.dedupe_key, key), (job.c.entity_id, entity_id), (job.c.task, task))
    return and_(IS_OWED, *(column == wanted for column, wanted in given if wanted is not None))


def replace_pending(tx: Transaction, value: Job, *, delay: timedelta | None) -> Job | None:
    """Overwrite the pending job that has the same key with new arguments and a new time; None if none is pending."""
    kept = ("id", "task", "dedupe_key", "state", "attempt", "created_at", "source")
    change = {name: v for name, v in columns_of(value).items() if name not in kept} | _WAITING
    change |= {"tries_from": job.c.attempt, "dispatches": 0}
    if delay is not None:
        change["run_at"] = tx.later(delay)
    existing = find_by_key(tx, value.task, value.dedupe_key or "")
    if existing is None or existing.is_step:  # a run waits for its step, as it was stated
        return None
    row = tx.update_one(job, existing.id, update(job).where(job.c.attempt == existing.attempt, IS_PENDING).values(change))
    return read_job(row) if row else None
