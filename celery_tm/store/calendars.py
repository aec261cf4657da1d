"""Named calendars: the days on which definitions that name them do not fire."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, select

from . import tables
from .database import Transaction

calendar = tables.calendar


@dataclass(frozen=True, kw_only=True, slots=True)
class Calendar:
    """One row of `tm_calendar`."""

    name: str
    entries: tuple[str, ...]
    updated_at: datetime
    updated_by: str | None


def entries(tx: Transaction, wanted: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return what these calendars say, by name; one that does not exist is not there."""
    if not wanted:
        return {}
    query = select(calendar.c.name, calendar.c.entries).where(calendar.c.name.in_(list(wanted)))
    return {row.name: tuple(row.entries) for row in tx.execute(query)}


def put(tx: Transaction, name: str, value: Sequence[str], *, actor: str | None) -> None:
    """Write a calendar, whether there was one or not."""
    values = {"name": name, "entries": list(value), "updated_at": tx.now, "updated_by": actor}
    tx.execute(tx.dialect.upsert(calendar, values, ("name",)))


def remove(tx: Transaction, name: str) -> bool:
    """Delete a calendar."""
    return tx.execute(delete(calendar).where(calendar.c.name == name)).rowcount == 1


def select_calendars(tx: Transaction) -> list[Calendar]:
    """Return all calendars by name."""
    rows = tx.execute(select(calendar).order_by(calendar.c.name)).all()
    return [Calendar(**dict(row._mapping) | {"entries": tuple(row.entries)}) for row in rows]
