"""The ledger of instants: one row for each, whatever was decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, case, delete, func, select, union_all, update

from ..domain.occurrence import Occurrence, OccurrenceState
from ..domain.overlap import Active
from . import rows, tables
from .conditions import IS_ACTIVE, IS_OCCURRING, IS_PLANNED_AHEAD
from .database import Transaction
from .dialect_base import Moment
from .exclusions import leave_out

occurrence = tables.occurrence
COLUMNS = tuple(f.name for f in fields(Occurrence))


def known(tx: Transaction, ids: Sequence[str]) -> set[str]:
    """Return which of these instants are decided already."""
    found: set[str] = set()
    decided = occurrence.c.decided_at.is_not(None)
    for start in range(0, len(ids), 1000):
        chosen = select(occurrence.c.id).where(tx.dialect.among(occurrence.c.id, ids[start : start + 1000]), decided)
        found.update(tx.execute(chosen).scalars())
    return found


def insert_many(tx: Transaction, rows: Sequence[Occurrence]) -> None:
    """Write decisions about instants; one that is decided already makes the whole transaction fail."""
    tx.insert_all(occurrence, [{name: getattr(row, name) for name in COLUMNS} for row in rows])


def count_active(tx: Transaction, definitions: Sequence[str]) -> dict[str, Active]:
    """Return how many occurrences of each definition are still owed: "is it running" is a question to the database."""
    if not definitions:
        return {}
    regular = func.sum(case((occurrence.c.is_recovery.is_(True), 0), else_=1))
    query = select(occurrence.c.definition, func.count(), regular)
    query = query.where(IS_ACTIVE, tx.dialect.among(occurrence.c.definition, definitions))
    return {row[0]: Active(row[1], int(row[2])) for row in tx.execute(query.group_by(occurrence.c.definition))}


def active_of(tx: Transaction, definition: str) -> list[str]:
    """Return the ids of what a definition still owes, the oldest first."""
    query = select(occurrence.c.id).where(IS_ACTIVE, occurrence.c.definition == definition)
    return list(tx.execute(query.order_by(occurrence.c.scheduled_at)).scalars())


def is_active(tx: Transaction, id: str) -> bool:
    """Say whether an occurrence has not ended."""
    return tx.execute(select(occurrence.c.id).where(occurrence.c.id == id, IS_ACTIVE)).first() is not None


def planned_ahead(tx: Transaction, definition: str) -> dict[str, Occurrence]:
    """Return what is planned ahead of a definition, by id."""
    query = select(occurrence).where(IS_PLANNED_AHEAD, occurrence.c.definition == definition)
    return {row.id: read_occurrence(row) for row in tx.execute(query)}


def try_lock(tx: Transaction, ids: Sequence[str]) -> bool:
    """Make occurrences ours until the transaction ends; False if another transaction has locked one of them."""
    return _try_lock(tx, tx.dialect.among(occurrence.c.id, ids)) if ids else True


def try_lock_planned(tx: Transaction, definition: str) -> bool:
    """Make what is planned ahead of a definition ours; False if another transaction has locked some of it."""
    return _try_lock(tx, and_(IS_PLANNED_AHEAD, occurrence.c.definition == definition))


def _try_lock(tx: Transaction, wanted: ColumnElement[bool]) -> bool:
    mine = select(occurrence.c.id).where(wanted)
    locked = len(tx.execute(tx.dialect.locked(mine)).all())
    return locked == len(tx.execute(mine).all())


def remove_planned(tx: Transaction, ids: Sequence[str]) -> None:
    """Delete what was planned ahead: it is decided now, or will not come."""
    for start in range(0, len(ids), 1000):
        tx.execute(delete(occurrence).where(occurrence.c.id.in_(ids[start : start + 1000]), IS_PLANNED_AHEAD))


def queue(tx: Transaction, ids: Sequence[str]) -> None:
    """Mark occurrences as handed to the broker; one that another transaction has locked keeps its state until it starts."""
    if not ids:
        return
    # Written so that it fits no partial index: by its key a row is found at once, however much is owed.
    pending = func.coalesce(occurrence.c.state, "") == OccurrenceState.PENDING
    free = tx.dialect.locked(select(occurrence.c.id).where(tx.dialect.among(occurrence.c.id, ids), pending))
    change = update(occurrence).values(state=OccurrenceState.QUEUED)
    if tx.dialect.gives_back_updates:
        tx.execute(change.where(tx.dialect.picked_by(occurrence.c.id, free)))
    elif chosen := list(tx.execute(free).scalars()):
        tx.execute(change.where(occurrence.c.id.in_(chosen)))


def start(tx: Transaction, id: str, *, deadline: Moment) -> None:
    """Mark an occurrence as running; its start and its deadline are those of its first attempt."""
    first = {"started_at": tx.now, "deadline_at": deadline}
    values = {name: func.coalesce(occurrence.c[name], moment) for name, moment in first.items()}
    tx.execute(update(occurrence).where(occurrence.c.id == id).values(state=OccurrenceState.RUNNING, **values))


def end(
    tx: Transaction, id: str, state: OccurrenceState, *, reason: str | None = None, report: Mapping[str, Any] | None = None
) -> None:
    """Mark an occurrence as ended; without a reason it keeps the one it has."""
    values: dict[str, Any] = {"state": state, "ended_at": tx.now} | ({"reason": reason} if reason else {})
    values |= {"report": report} if report else {}
    tx.execute(update(occurrence).where(occurrence.c.id == id).values(values))


def allow(tx: Transaction, id: str, more: timedelta) -> None:
    """Give an occurrence that still runs more time, from now on."""
    mine = and_(occurrence.c.id == id, IS_OCCURRING)
    tx.execute(update(occurrence).where(mine).values(deadline_at=tx.later(more)))


def overdue_ids(tx: Transaction, *, limit: int, skip: Sequence[str] = ()) -> list[str]:
    """Return the ids of occurrences that run past their deadline, the longest first, not locked and not read."""
    query = select(occurrence.c.id).where(IS_OCCURRING, occurrence.c.deadline_at <= tx.now)
    query = leave_out(tx, query.order_by(occurrence.c.deadline_at), occurrence.c.id, skip, limit=limit)
    return list(tx.execute(query.limit(limit)).scalars())


def lock_overdue(tx: Transaction, id: str) -> Occurrence | None:
    """Lock and return an occurrence if it runs past its deadline, and nobody else has it. The caller has locked its jobs."""
    mine = select(occurrence).where(occurrence.c.id == id, IS_OCCURRING, occurrence.c.deadline_at <= tx.now)
    row = tx.execute(tx.dialect.locked(mine)).first()
    return read_occurrence(row) if row else None


def definition_name(tx: Transaction, definition: str) -> str | None:
    """Return what people call the definition of an occurrence."""
    names = select(tables.definition.c.name).where(tables.definition.c.id == definition)
    name: str | None = tx.execute(names).scalar()
    return name


def find_overdue(tx: Transaction, id: str) -> Occurrence | None:
    """Return an occurrence if it runs past its deadline, as committed now. The caller has locked its run."""
    mine = and_(occurrence.c.id == id, IS_OCCURRING, occurrence.c.deadline_at <= tx.now)
    row = tx.execute(tx.dialect.latest(select(occurrence).where(mine))).first()
    return read_occurrence(row) if row else None


def last_ended(tx: Transaction, definition: str, *, count: int) -> list[OccurrenceState]:
    """Return how the last runs of a definition ended, the latest first."""
    ends = (OccurrenceState.COMPLETED, OccurrenceState.FAILED, OccurrenceState.STALE)
    query = select(occurrence.c.state).where(occurrence.c.definition == definition, occurrence.c.state.in_(ends))
    rows = tx.execute(query.order_by(occurrence.c.scheduled_at.desc()).limit(count))
    return [OccurrenceState(state) for state in rows.scalars()]


def last_success(tx: Transaction, run: Occurrence) -> datetime | None:
    """Return when the last run that succeeded before this one began, by the order of their scheduled times.

    One that was never seen to begin, as of a plain Celery task, counts from its scheduled time.
    """
    earlier = and_(occurrence.c.definition == run.definition, occurrence.c.scheduled_at < run.scheduled_at)
    query = select(occurrence.c.started_at, occurrence.c.scheduled_at)
    query = query.where(earlier, occurrence.c.state == OccurrenceState.COMPLETED)
    row = tx.execute(query.order_by(occurrence.c.scheduled_at.desc()).limit(1)).first()
    return None if row is None else row.started_at or row.scheduled_at


def reopen(tx: Transaction, id: str) -> None:
    """Mark an occurrence as owed again: its dead letter was revived."""
    values = {"state": OccurrenceState.PENDING, "reason": None, "ended_at": None, "started_at": None, "deadline_at": None}
    tx.execute(update(occurrence).where(occurrence.c.id == id).values(values))


def find(tx: Transaction, id: str) -> Occurrence | None:
    """Return one occurrence."""
    return rows.read_one(tx, select(occurrence).where(occurrence.c.id == id), read_occurrence, occurrence)


def find_many(tx: Transaction, ids: Sequence[str]) -> list[Occurrence]:
    """Return those of these occurrences that there are."""
    found: list[Occurrence] = []
    for start in range(0, len(ids), 1000):
        chosen = select(occurrence).where(tx.dialect.among(occurrence.c.id, ids[start : start + 1000]))
        found += [read_occurrence(row) for row in tx.execute(chosen)]
    return found


def replays(tx: Transaction, definition: str, *, since: datetime) -> list[Occurrence]:
    """Return the replays of a definition's instants from an instant on; one of an earlier instant may be among them."""
    mine = (occurrence.c.definition == definition, occurrence.c.scheduled_at >= since)
    return [read_occurrence(row) for row in tx.execute(select(occurrence).where(*mine, occurrence.c.replay_of.is_not(None)))]


def of_definition(
    tx: Transaction, definition: str, *, limit: int = 50, until: datetime | None = None, since: datetime | None = None
) -> list[Occurrence]:
    """Return the latest instants of a definition, those planned ahead included."""
    query = select(occurrence).where(occurrence.c.definition == definition).order_by(occurrence.c.scheduled_at.desc())
    if until is not None:
        query = query.where(occurrence.c.scheduled_at <= until)
    if since is not None:
        query = query.where(occurrence.c.scheduled_at >= since)
    return rows.read_all(tx, query.limit(limit), read_occurrence, occurrence)


def latest_of_each(tx: Transaction, definitions: Sequence[str], *, count: int) -> dict[str, list[Occurrence]]:
    """Return the last decided instants of each definition: one statement, and one stretch of the index for each."""
    found: dict[str, list[Occurrence]] = {id: [] for id in definitions}
    for start in range(0, len(definitions), 100):
        parts = []
        for id in definitions[start : start + 100]:
            part = select(occurrence).where(occurrence.c.definition == id, occurrence.c.decided_at.is_not(None))
            parts.append(select(part.order_by(occurrence.c.scheduled_at.desc()).limit(count).subquery()))
        every = union_all(*parts).subquery()
        for one in rows.read_all(tx, select(every), read_occurrence, occurrence, source=every):
            found[one.definition].append(one)
    return {id: sorted(ones, key=lambda one: one.scheduled_at, reverse=True) for id, ones in found.items()}


def read_occurrence(row: Row[Any]) -> Occurrence:
    """Return a row as a value."""
    mapping = row._mapping
    values = {name: mapping[name] for name in COLUMNS}
    values["state"] = OccurrenceState(values["state"])
    return Occurrence(**values)
