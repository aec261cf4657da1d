"""The ledger of instants: one row for each, whatever was decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Row, func, insert, literal_column, select, update

from ..domain.occurrence import Occurrence, OccurrenceState
from . import tables
from .database import Transaction
from .tables import IS_ACTIVE

occurrence = tables.occurrence
COLUMNS = tuple(f.name for f in fields(Occurrence))


def known(tx: Transaction, ids: Sequence[str]) -> set[str]:
    """Return which of these instants are decided already."""
    found: set[str] = set()
    for start in range(0, len(ids), 1000):
        found.update(tx.execute(select(occurrence.c.id).where(occurrence.c.id.in_(ids[start : start + 1000]))).scalars())
    return found


def insert_many(tx: Transaction, rows: Sequence[Occurrence]) -> None:
    """Write decisions about instants; one that is decided already makes the whole transaction fail."""
    if rows:
        tx.execute(insert(occurrence), [{name: getattr(row, name) for name in COLUMNS} for row in rows])


def count_active(tx: Transaction, definitions: Sequence[str]) -> dict[str, int]:
    """Return how many occurrences of each definition are still owed: "is it running" is a question to the database."""
    if not definitions:
        return {}
    query = select(occurrence.c.definition, func.count()).where(IS_ACTIVE, occurrence.c.definition.in_(definitions))
    return {row[0]: row[1] for row in tx.execute(query.group_by(occurrence.c.definition))}


def queue(tx: Transaction, ids: Sequence[str]) -> None:
    """Mark occurrences as handed to the broker."""
    if ids:
        pending = occurrence.c.state == literal_column("'pending'")
        tx.execute(update(occurrence).where(occurrence.c.id.in_(ids), pending).values(state=OccurrenceState.QUEUED))


def start(tx: Transaction, id: str) -> None:
    """Mark an occurrence as running; its start is that of its first attempt."""
    first = func.coalesce(occurrence.c.started_at, tx.now)
    tx.execute(update(occurrence).where(occurrence.c.id == id).values(state=OccurrenceState.RUNNING, started_at=first))


def end(tx: Transaction, id: str, state: OccurrenceState, *, reason: str | None = None) -> None:
    """Mark an occurrence as ended."""
    tx.execute(update(occurrence).where(occurrence.c.id == id).values(state=state, reason=reason, ended_at=tx.now))


def reopen(tx: Transaction, id: str) -> None:
    """Mark an occurrence as owed again: its dead letter was revived."""
    values = {"state": OccurrenceState.PENDING, "reason": None, "ended_at": None}
    tx.execute(update(occurrence).where(occurrence.c.id == id).values(values))


def find(tx: Transaction, id: str) -> Occurrence | None:
    """Return one occurrence."""
    row = tx.execute(select(occurrence).where(occurrence.c.id == id)).first()
    return read_occurrence(row) if row else None


def of_definition(tx: Transaction, definition: str, *, limit: int = 50) -> list[Occurrence]:
    """Return the latest instants of a definition."""
    query = select(occurrence).where(occurrence.c.definition == definition).order_by(occurrence.c.scheduled_at.desc())
    return [read_occurrence(row) for row in tx.execute(query.limit(limit))]


def read_occurrence(row: Row[Any]) -> Occurrence:
    """Return a row as a value."""
    values = {name: row._mapping[name] for name in COLUMNS}
    values["state"] = OccurrenceState(values["state"])
    return Occurrence(**values)
