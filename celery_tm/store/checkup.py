"""What `doctor` asks of the tables: a bounded number of rows for each question, found by an index if there is one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from statistics import median_high
from typing import Any

from sqlalchemy import Text, and_, exists, false, func, or_, select, type_coerce

from ..domain.codec import decode
from ..domain.declared import open_conflicts
from ..domain.execution import Outcome
from ..domain.queues import BLOCKED_LIKE, read_blocked
from ..domain.steps import read_steps
from . import definitions, retention, tables
from .conditions import IS_ACTIVE, IS_LEASED, IS_OCCURRING, IS_PENDING
from .database import Transaction
from .lists import Letters
from .rows import EARLIEST, UNREADABLE, is_instant

SOME, MOST = 10_000, 50
DAY, A_WHILE = timedelta(days=1), timedelta(minutes=10)
TRIES = 3
LATEST = 50  # executions of a task that say how long it usually takes
BLOCKED_FOR = timedelta(minutes=2)  # longer than jobs are postponed whose queue cannot be used
job, execution, occurrence, definition = tables.job, tables.execution, tables.occurrence, tables.definition
IS_FIRING = and_(definition.c.enabled, definition.c.retired_at.is_(None))


def clock_and_speed(tx: Transaction) -> tuple[timedelta, timedelta]:
    """Return how far this machine's clock is ahead of the database's, and how long a statement takes at best."""
    looks = [_look(tx) for _ in range(TRIES)]
    return min(looks, key=lambda look: look[1])


def _look(tx: Transaction) -> tuple[timedelta, timedelta]:
    before, start = datetime.now(UTC), time.monotonic()
    now = tx.dialect.now()
    there = tx.execute(select(now)).scalar_one() if not isinstance(now, datetime) else now
    took = timedelta(seconds=time.monotonic() - start)
    return before + took / 2 - there, took


def dispatched_again(tx: Transaction, times: int) -> list[tuple[str, str, int]]:
    """Return jobs that were handed to the broker so often and have not started: id, task, how often."""
    in_flight = select(job.c.id, job.c.task, job.c.state, job.c.dispatches).where(IS_LEASED).limit(SOME).subquery()
    query = select(in_flight.c.id, in_flight.c.task, in_flight.c.dispatches)
    query = query.where(in_flight.c.state == "dispatched", in_flight.c.dispatches >= times)
    return [(row[0], row[1], row[2]) for row in tx.execute(query.order_by(in_flight.c.dispatches.desc()).limit(MOST))]


def running_longest(tx: Transaction, since: timedelta) -> list[tuple[str, str, timedelta, timedelta | None]]:
    """Return the attempts that have run for so long, the longest first: job, task, how long, how long is usual.

    Usual is the median of the latest successes of the task; None where it has none.
    """
    ours = (IS_LEASED, job.c.app == tx.app, job.c.lease_until.is_not(None))
    some = select(job.c.id, job.c.task, job.c.state, job.c.claimed_at).where(*ours).limit(SOME).subquery()
    query = select(some.c.id, some.c.task, some.c.claimed_at)
    query = query.where(some.c.state == "running", some.c.claimed_at.between(EARLIEST, tx.later(-since)))
    found, now = tx.execute(query.order_by(some.c.claimed_at).limit(MOST)).all(), tx.read_now()
    usual = {task: _usual_duration(tx, task) for task in {row.task for row in found}}
    return [(row.id, row.task, now - row.claimed_at, usual[row.task]) for row in found]


def _usual_duration(tx: Transaction, task: str) -> timedelta | None:
    begun = and_(execution.c.task == task, execution.c.started_at.is_not(None))
    query = select(execution.c.started_at, execution.c.completed_at, execution.c.outcome).where(begun)
    latest = tx.execute(query.order_by(execution.c.completed_at.desc()).limit(LATEST)).all()
    took = [row.completed_at - row.started_at for row in latest if row.outcome == Outcome.SUCCEEDED]
    return median_high(took) if took else None


def stuck_occurrences(tx: Transaction) -> list[str]:
    """Return occurrences that are owed with no job left, or that run past their deadline; beat should have ended them."""
    since = tx.later(-A_WHILE)
    has_job = exists(select(job.c.id).where(job.c.occurrence == occurrence.c.id, job.c.occurrence.is_not(None)))
    owed = select(occurrence.c.id).where(IS_ACTIVE, occurrence.c.decided_at < since, ~has_job).limit(MOST)
    late = select(occurrence.c.id).where(IS_OCCURRING, occurrence.c.deadline_at < since).limit(MOST)
    return sorted({row[0] for query in (owed, late) for row in tx.execute(query)})


def tasks_of_definitions(tx: Transaction) -> dict[str, list[str]]:
    """Return the tasks of definitions that are on, those of steps included, each with names of such definitions."""
    steps = type_coerce(definition.c.steps, Text())
    columns = select(definition.c.name, definition.c.task, steps).where(IS_FIRING, definition.c.app == tx.app)
    found: dict[str, list[str]] = {}
    for name, task, text in tx.execute(columns.order_by(definition.c.name).limit(SOME)):
        for one in dict.fromkeys(_tasks_in(text) or [task]):
            found.setdefault(one, []).append(name)
    return found


def _tasks_in(steps: str | None) -> list[str]:
    """Return the tasks of steps; none where they cannot be read, which is a finding of its own."""
    try:
        return [step.task for stage in read_steps(decode(steps) or []) for step in stage] if steps else []
    except UNREADABLE:
        return []


def broken_definitions(tx: Transaction) -> dict[str, str]:
    """Return the definitions that this process cannot plan, of the first so many, and why."""
    found = ((one.name, one.problem) for one in definitions.select_definitions(tx, retired=False, limit=SOME))
    return {name: problem for name, problem in found if problem is not None}


def conflicting_definitions(tx: Transaction) -> dict[str, list[str]]:
    """Return definitions with fields that a file or the code may not change, because a person has."""
    found = definitions.select_conflicting(tx, limit=MOST)
    return {one.name: fields for one in found if (fields := sorted(open_conflicts(one)))}


def overdue_definitions(tx: Transaction, after: timedelta, *, limit: int = MOST) -> list[tuple[str, datetime]]:
    """Return definitions whose next instant has come so long ago and is not decided, the most overdue first."""
    query = select(definition.c.name, definition.c.next_run_at).where(definition.c.app == tx.app)
    query = query.where(definition.c.next_run_at.between(EARLIEST, tx.later(-after))).order_by(definition.c.next_run_at)
    return [(row[0], row[1]) for row in tx.execute(query.limit(limit))]


def blocked_queues(tx: Transaction) -> dict[str, tuple[int, str]]:
    """Return the queues and exchanges that jobs could not be published to, each with how many wait and the answer."""
    is_blocked = or_(*(job.c.last_error.like(pattern) for pattern in BLOCKED_LIKE))
    waiting = select(job.c.last_error).where(job.c.app == tx.app, IS_PENDING, is_blocked)
    some = waiting.where(job.c.run_at <= tx.later(BLOCKED_FOR)).limit(SOME).subquery()
    found: dict[str, tuple[int, str]] = {}
    for error, count in tx.execute(select(some.c.last_error, func.count()).group_by(some.c.last_error)):
        read = read_blocked(error)
        if read is not None:
            place, answer = read
            found[place] = (found.get(place, (0, ""))[0] + count, answer)
    return found


def tasks_owed(tx: Transaction) -> dict[str, int]:
    """Return how many jobs of each task are owed, of the first so many."""
    some = select(job.c.task).where(job.c.app == tx.app).limit(SOME).subquery()
    return {row[0]: row[1] for row in tx.execute(select(some.c.task, func.count()).group_by(some.c.task))}


def without_next_run(tx: Transaction) -> tuple[list[str], list[str]]:
    """Return definitions that are on and have no next instant: those that ran as often as they may, and the others.

    What was to run once and has, and what has reached its stated end, is over as somebody meant it: it is not among them.
    """
    is_over = or_(
        and_(definition.c.schedule_kind == "once", definition.c.last_run_at.is_not(None)), definition.c.ends_at <= tx.now
    )
    has_none = and_(
        definition.c.app == tx.app,
        definition.c.next_run_at.is_(None),
        definition.c.enabled,
        definition.c.retired_at.is_(None),
    )
    has_none = and_(has_none, func.coalesce(is_over, false()).is_(False))
    is_spent = and_(definition.c.max_runs.is_not(None), definition.c.runs >= definition.c.max_runs)
    query = select(definition.c.name, is_spent).where(has_none, definition.c.paused.is_(False)).order_by(definition.c.name)
    rows = tx.execute(query.limit(MOST)).all()
    return [row[0] for row in rows if row[1]], [row[0] for row in rows if not row[1]]


def paused_longest(tx: Transaction) -> list[tuple[str, datetime]]:
    """Return the definitions that are paused, those that were not touched for longest first."""
    at = definition.c.updated_at
    query = select(definition.c.name, at).where(definition.c.app == tx.app, definition.c.paused, IS_FIRING, is_instant(at))
    return [(row[0], row[1]) for row in tx.execute(query.order_by(definition.c.updated_at).limit(MOST))]


def last_day(tx: Transaction) -> tuple[dict[str, int], dict[str, timedelta]]:
    """Return of the latest executions of the last day how many were orphaned and how long the longest took, by task."""
    columns = (execution.c.task, execution.c.outcome, execution.c.started_at, execution.c.completed_at)
    query = select(*columns).where(execution.c.completed_at >= tx.later(-DAY))
    orphaned: dict[str, int] = {}
    longest: dict[str, timedelta] = {}
    for task, outcome, started_at, completed_at in tx.execute(query.order_by(execution.c.completed_at.desc()).limit(SOME)):
        if outcome == Outcome.ORPHANED:
            orphaned[task] = orphaned.get(task, 0) + 1
        elif started_at is not None:
            longest[task] = max(longest.get(task, timedelta(0)), completed_at - started_at)
    return orphaned, longest


def last_buried_at(tx: Transaction) -> datetime | None:
    """Return when the latest dead letter was buried."""
    at = tables.dead_letter.c.buried_at
    return tx.execute(select(func.max(at)).where(is_instant(at), *Letters().conditions(tx))).scalar()


def definitions_on(tx: Transaction) -> list[Any]:
    """Return the definitions that are on, of the first so many."""
    return [one for one in definitions.select_definitions(tx, retired=False, limit=SOME) if one.enabled]


def oldest(tx: Transaction, *, keep: int) -> Mapping[str, datetime]:
    """Return of when the oldest rows are that may be pruned, by kind; a kind that has none is not there.

    The newest `keep` executions of each task and definition may not.
    """
    line = select(tables.log.c.at).where(is_instant(tables.log.c.at)).order_by(tables.log.c.at).limit(1)
    found = {"executions": retention.oldest_execution(tx, keep=keep), "logs": tx.execute(line).scalar()}
    return {kind: at for kind, at in found.items() if at is not None}
