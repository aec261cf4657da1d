"""Named calendars: the days on which definitions that name them do not fire."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Text, delete, select, type_coerce, update

from ..domain.codec import decode
from ..domain.paging import Page
from . import rows, tables
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
    """Return what these calendars say, by name; one that does not exist or cannot be read is not there."""
    if not wanted:
        return {}
    raw = select(calendar.c.name, type_coerce(calendar.c.entries, Text)).where(calendar.c.name.in_(list(wanted)))
    read = ((name, _entries(text)) for name, text in tx.execute(raw))
    return {name: value for name, value in read if value is not None}


def _entries(text: str) -> tuple[str, ...] | None:
    """Return the entries that a row holds; None if nobody can read them."""
    try:
        value = decode(text)
    except ValueError:
        return None
    return tuple(value) if isinstance(value, list) and all(isinstance(entry, str) for entry in value) else None


def put(tx: Transaction, name: str, value: Sequence[str], *, actor: str | None, declared: Sequence[str] | None) -> None:
    """Write a calendar, whether there was one or not; `declared` is what a file said last."""
    said = None if declared is None else list(declared)
    values = {"name": name, "entries": list(value), "updated_at": tx.now, "updated_by": actor, "declared": said}
    tx.execute(tx.dialect.upsert(calendar, values, ("name",)))


def declared(tx: Transaction, name: str) -> tuple[str, ...] | None:
    """Return what a file said about a calendar last; nothing where only people wrote it, None where nobody knows."""
    text = tx.execute(select(type_coerce(calendar.c.declared, Text)).where(calendar.c.name == name)).scalar()
    return None if text is None else _entries(text)


def declare(tx: Transaction, name: str, said: Sequence[str]) -> None:
    """Write what a file says about a calendar, and nothing else of it."""
    tx.execute(update(calendar).where(calendar.c.name == name).values(declared=list(said)))


def remove(tx: Transaction, name: str) -> bool:
    """Delete a calendar."""
    return tx.execute(delete(calendar).where(calendar.c.name == name)).rowcount == 1


def select_calendars(tx: Transaction) -> Page[Calendar]:
    """Return all calendars by name; `unreadable` of it names those that cannot be read."""
    return rows.read_all(tx, select(calendar).order_by(calendar.c.name), _read, calendar)


def _read(row: Row[Any]) -> Calendar:
    if not isinstance(row.entries, list) or not all(isinstance(entry, str) for entry in row.entries):
        raise TypeError(f"entries that are no list of texts: {str(row.entries)[:50]!r}")
    values = {name: row._mapping[name] for name in ("name", "updated_at", "updated_by")}
    return Calendar(**values, entries=tuple(row.entries))
