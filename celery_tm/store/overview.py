"""The figures of `tm.status`: each is one look at one stretch of an index, and counts of what waits end at a cap.

So it costs the same with a million jobs as with none, and pages and scrapers may ask often. What ended lately is counted
exactly; where that is more than the cap, a count is kept for `KEPT_FOR` seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Column, ColumnElement, Select, func, literal_column, select, union_all

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
from .lists import Letters
from .rows import EARLIEST, is_instant

CAP = 10_000
KEPT_FOR = timedelta(seconds=30)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
job, execution, occurrence, definition = tables.job, tables.execution, tables.occurrence, tables.definition
ONE: Any = literal_column("1")
_kept: WeakKeyDictionary[Database, dict[Column[Any], tuple[datetime | None, Mapping[str, int]]]] = WeakKeyDictionary()


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
    recent, decided = _outcomes(tx, database, now, cap), _decided(tx, database, now, cap)
    totals = {**counts, "pending": free + open_ + held, "waiting_for_turn": held}
    totals |= {"definitions": sum(standings.values())}
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
        next_run_at=_next_run_at(tx),
        recent=recent,
        occurrences_recent=decided,
        nodes=[_node(row, now) for row in nodes.select_nodes(tx)],
        cap=cap,
        capped=[name for name, count in totals.items() if count > cap],
    )


def _next_run_at(tx: Transaction) -> datetime | None:
    at = definition.c.next_run_at
    return tx.execute(select(func.min(at)).where(definition.c.app == tx.app, is_instant(at))).scalar()


def _counts(tx: Transaction, now: datetime, cap: int) -> dict[str, int]:
    """Return the numbers of jobs and dead letters, each to one more than the cap, in one statement."""
    ours, is_due = job.c.app == tx.app, job.c.run_at <= now
    looks: dict[str, Sequence[ColumnElement[bool]]] = {
        "free": [ours, IS_PENDING, NEEDS_NO_SLOT],
        "open": [ours, IS_PENDING, MAY_TAKE_SLOT],
        "held": [ours, IS_PENDING, job.c.slot.is_not(None), WAITS_FOR_SLOT],
        "free_due": [ours, IS_PENDING, NEEDS_NO_SLOT, is_due],
        "open_due": [ours, IS_PENDING, MAY_TAKE_SLOT, is_due],
        "dispatched": [ours, IS_LEASED, IS_DISPATCHED],
        "running": [ours, IS_LEASED, IS_RUNNING, IS_OWED],
        # A job that stands for a run has no lease: it is its steps that are in flight. Of all apps, as `tm_max_in_flight`.
        "in_flight": [IS_LEASED, job.c.lease_until.is_not(None)],
        "expired_leases": [ours, IS_LEASED, job.c.lease_until <= now],
    }
    asked = {name: _counted(select(ONE).select_from(job).where(*where), cap) for name, where in looks.items()}
    asked["dead_letters"] = _counted(select(ONE).select_from(tables.dead_letter).where(*Letters().conditions(tx)), cap)
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
    found = _grouped(tx, select(STANDING.label("standing")).where(definition.c.app == tx.app), cap)
    return {str(word): found.get(word, 0) for word in Standing}


def _outcomes(tx: Transaction, database: Database, now: datetime, cap: int) -> Mapping[str, int]:
    ended = execution.c.completed_at
    return _exact(tx, database, select(execution.c.outcome).where(ended >= now - HOUR), ended, now, cap)


def _decided(tx: Transaction, database: Database, now: datetime, cap: int) -> Mapping[str, int]:
    at = occurrence.c.scheduled_at
    return _exact(tx, database, select(occurrence.c.state).where(at >= now - DAY, at <= now), at, now, cap)


def _exact(
    tx: Transaction, database: Database, rows: Select[Any], at: Column[Any], now: datetime, cap: int
) -> Mapping[str, int]:
    """Return how many rows have each value of their only column: all of them; a large count is kept for a while."""
    kept = _kept.setdefault(database, {})
    counted_at, found = kept.get(at, (None, {}))
    if counted_at is not None and timedelta(0) <= now - counted_at < KEPT_FOR:
        return found
    found = _grouped(tx, rows.order_by(at.desc()), cap)
    if sum(found.values()) > cap:
        word = rows.selected_columns[0]
        found = {row[0]: row[1] for row in tx.execute(rows.add_columns(func.count()).group_by(word).order_by(word))}
        kept[at] = now, found
    return found


def _oldest_due(tx: Transaction, now: datetime) -> OldestDue | None:
    first = []
    for slot in (NEEDS_NO_SLOT, MAY_TAKE_SLOT):
        is_due = job.c.run_at.between(EARLIEST, now)
        query = select(job.c.id, job.c.task, job.c.run_at).where(job.c.app == tx.app, IS_PENDING, slot, is_due)
        first.append(select(query.order_by(job.c.run_at).limit(1).subquery()))
    found = [OldestDue(**row._mapping) for row in tx.execute(union_all(*first))]
    return min(found, key=lambda one: one.run_at, default=None)


def _node(row: Mapping[str, Any], now: datetime) -> Node:
    return Node(**row, is_silent=now - row["seen_at"] > SILENT_AFTER)
