"""The figures of `tm.status`: each is one look at one stretch of an index, and no count goes beyond a cap.

So it costs the same with a million executions as with none, and pages and scrapers may ask often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, func, literal_column, select, union_all

from .. import clock
from ..domain.definition import Standing
from ..domain.status import SILENT_AFTER, Node, OldestDue, Status
from . import nodes, schema, tables
from .conditions import (
    IS_DISPATCHED,
    IS_LEASED,
    IS_OWED,
    IS_PENDING,
    IS_RUNNING,
    MAY_TAKE_SLOT,
    NEEDS_NO_SLOT,
    WAITS_FOR_SLOT,
)
from .database import Database, Transaction
from .definitions import STANDING

CAP = 10_000
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
job, execution, occurrence, definition = tables.job, tables.execution, tables.occurrence, tables.definition
ONE: Any = literal_column("1")


def status(database: Database, *, at: datetime | None = None, cap: int = CAP) -> Status:
    """Return what is going on, or what would be if it were `at`."""
    with clock.moved_to(at) if at is not None else nullcontext():
        revision = schema.current(database)
        with database.transaction(write=False) as tx:
            return _status(tx, database, revision, cap)


def _status(tx: Transaction, database: Database, revision: str | None, cap: int) -> Status:
    now = tx.read_now()
    counts = _counts(tx, now, cap)
    free, open_, held = (counts.pop(name) for name in ("free", "open", "held"))
    standings = _standings(tx, cap)
    recent, decided = _outcomes(tx, now - HOUR, cap), _decided(tx, now - DAY, now, cap)
    totals = {**counts, "pending": free + open_ + held, "waiting_for_turn": held}
    totals |= {"definitions": sum(standings.values()), "recent": sum(recent.values())}
    totals |= {"occurrences_recent": sum(decided.values())}
    oldest = _oldest_due(tx, now)
    return Status(
        now=now,
        schema=revision,
        definitions=standings,
        jobs={name: min(totals[name], cap) for name in ("pending", "due", "waiting_for_turn", "dispatched", "running")},
        lag=0.0 if oldest is None else max((now - oldest.run_at).total_seconds(), 0.0),
        oldest_due=oldest,
        in_flight=min(counts["in_flight"], cap),
        max_in_flight=database.settings.tm_max_in_flight,
        expired_leases=min(counts["expired_leases"], cap),
        dead_letters=min(counts["dead_letters"], cap),
        next_run_at=tx.execute(select(func.min(definition.c.next_run_at))).scalar(),
        recent=recent,
        occurrences_recent=decided,
        nodes=[_node(row, now) for row in nodes.select_nodes(tx)],
        cap=cap,
        capped=[name for name, count in totals.items() if count > cap],
    )


def _counts(tx: Transaction, now: datetime, cap: int) -> dict[str, int]:
    """Return the numbers of jobs and dead letters, each to one more than the cap, in one statement."""
    is_due = job.c.run_at <= now
    looks: dict[str, Sequence[ColumnElement[bool]]] = {
        "free": [IS_PENDING, NEEDS_NO_SLOT],
        "open": [IS_PENDING, MAY_TAKE_SLOT],
        "held": [IS_PENDING, job.c.slot.is_not(None), WAITS_FOR_SLOT],
        "free_due": [IS_PENDING, NEEDS_NO_SLOT, is_due],
        "open_due": [IS_PENDING, MAY_TAKE_SLOT, is_due],
        "dispatched": [IS_LEASED, IS_DISPATCHED],
        "running": [IS_LEASED, IS_RUNNING, IS_OWED],
        # A job that stands for a run has no lease: it is its steps that are in flight.
        "in_flight": [IS_LEASED, job.c.lease_until.is_not(None)],
        "expired_leases": [IS_LEASED, job.c.lease_until <= now],
    }
    asked = {name: _counted(select(ONE).select_from(job).where(*where), cap) for name, where in looks.items()}
    asked["dead_letters"] = _counted(select(ONE).select_from(tables.dead_letter), cap)
    found = dict(zip(asked, tx.execute(select(*asked.values())).one(), strict=True))
    found["due"] = found.pop("free_due") + found.pop("open_due")
    return found


def _counted(rows: Select[Any], cap: int) -> Any:
    return select(func.count()).select_from(rows.limit(cap + 1).subquery()).scalar_subquery()


def _grouped(tx: Transaction, rows: Select[Any], cap: int) -> dict[str, int]:
    """Return how many of the first rows have each value of their only column."""
    some = rows.limit(cap + 1).subquery()
    word = next(iter(some.c))
    return {row[0]: row[1] for row in tx.execute(select(word, func.count()).group_by(word).order_by(word))}


def _standings(tx: Transaction, cap: int) -> dict[str, int]:
    found = _grouped(tx, select(STANDING.label("standing")), cap)
    return {str(word): found.get(word, 0) for word in Standing}


def _outcomes(tx: Transaction, since: datetime, cap: int) -> Mapping[str, int]:
    ended = execution.c.completed_at
    return _grouped(tx, select(execution.c.outcome).where(ended >= since).order_by(ended.desc()), cap)


def _decided(tx: Transaction, since: datetime, until: datetime, cap: int) -> Mapping[str, int]:
    at = occurrence.c.scheduled_at
    return _grouped(tx, select(occurrence.c.state).where(at >= since, at <= until).order_by(at.desc()), cap)


def _oldest_due(tx: Transaction, now: datetime) -> OldestDue | None:
    first = []
    for slot in (NEEDS_NO_SLOT, MAY_TAKE_SLOT):
        query = select(job.c.id, job.c.task, job.c.run_at).where(IS_PENDING, slot, job.c.run_at <= now)
        first.append(select(query.order_by(job.c.run_at).limit(1).subquery()))
    found = [OldestDue(**row._mapping) for row in tx.execute(union_all(*first))]
    return min(found, key=lambda one: one.run_at, default=None)


def _node(row: Mapping[str, Any], now: datetime) -> Node:
    return Node(**row, is_silent=now - row["seen_at"] > SILENT_AFTER)
