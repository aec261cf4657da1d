"""What `doctor` asks of the tables: a bounded number of rows for each question, found by an index if there is one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import and_, exists, func, select

from ..domain.execution import Outcome
from ..domain.steps import read_steps
from . import tables
from .conditions import IS_ACTIVE, IS_LEASED, IS_OCCURRING
from .database import Transaction

SOME, MOST = 10_000, 50
DAY, A_WHILE = timedelta(days=1), timedelta(minutes=10)
TRIES = 3
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


def stuck_occurrences(tx: Transaction) -> list[str]:
    """Return occurrences that are owed with no job left, or that run past their deadline; beat should have ended them."""
    since = tx.later(-A_WHILE)
    has_job = exists(select(job.c.id).where(job.c.occurrence == occurrence.c.id, job.c.occurrence.is_not(None)))
    owed = select(occurrence.c.id).where(IS_ACTIVE, occurrence.c.decided_at < since, ~has_job).limit(MOST)
    late = select(occurrence.c.id).where(IS_OCCURRING, occurrence.c.deadline_at < since).limit(MOST)
    return sorted({row[0] for query in (owed, late) for row in tx.execute(query)})


def tasks_of_definitions(tx: Transaction) -> dict[str, list[str]]:
    """Return the tasks of definitions that are on, those of steps included, each with names of such definitions."""
    columns = select(definition.c.name, definition.c.task, definition.c.steps).where(IS_FIRING)
    found: dict[str, list[str]] = {}
    for name, task, steps in tx.execute(columns.order_by(definition.c.name).limit(SOME)):
        own = [step.task for stage in read_steps(steps) for step in stage] if steps else [task]
        for one in dict.fromkeys(own):
            found.setdefault(one, []).append(name)
    return found


def tasks_owed(tx: Transaction) -> dict[str, int]:
    """Return how many jobs of each task are owed, of the first so many."""
    some = select(job.c.task).limit(SOME).subquery()
    return {row[0]: row[1] for row in tx.execute(select(some.c.task, func.count()).group_by(some.c.task))}


def without_next_run(tx: Transaction) -> tuple[list[str], list[str]]:
    """Return definitions that are on and have no next instant: those that ran as often as they may, and the others."""
    has_none = and_(definition.c.next_run_at.is_(None), definition.c.enabled, definition.c.retired_at.is_(None))
    is_spent = and_(definition.c.max_runs.is_not(None), definition.c.runs >= definition.c.max_runs)
    query = select(definition.c.name, is_spent).where(has_none, definition.c.paused.is_(False)).order_by(definition.c.name)
    rows = tx.execute(query.limit(MOST)).all()
    return [row[0] for row in rows if row[1]], [row[0] for row in rows if not row[1]]


def paused_longest(tx: Transaction) -> list[tuple[str, datetime]]:
    """Return the definitions that are paused, those that were not touched for longest first."""
    query = select(definition.c.name, definition.c.updated_at).where(definition.c.paused, IS_FIRING)
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
    return tx.execute(select(func.max(tables.dead_letter.c.buried_at))).scalar()


def oldest(tx: Transaction) -> Mapping[str, datetime]:
    """Return of when the oldest rows are that may be pruned, by kind; a kind that has none is not there."""
    owed = exists(select(job.c.id).where(job.c.id == execution.c.job))
    first: dict[str, Any] = {
        "executions": select(execution.c.completed_at).where(~owed).order_by(execution.c.completed_at),
        "logs": select(tables.log.c.at).order_by(tables.log.c.at),
    }
    found = {kind: tx.execute(query.limit(1)).scalar() for kind, query in first.items()}
    return {kind: at for kind, at in found.items() if at is not None}
