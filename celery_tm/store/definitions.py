"""Recurring rules, as rows. The database is the authority: an edit counts from the next tick on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, bindparam, select, update

from ..domain.definition import COLUMNS, Definition
from ..domain.dst import Fold, Gap
from ..domain.overlap import Overlap
from ..domain.recovery import Recovery
from . import tables
from .database import Transaction

definition = tables.definition


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    """A definition that this release cannot read or plan."""

    id: str
    name: str
    error: str


def lock_due(tx: Transaction, *, limit: int) -> tuple[list[Definition], list[Broken]]:
    """Lock and return definitions with an instant to decide, the most overdue first, and those that cannot be read.

    The lock makes one beat plan a definition at a time; what others hold is passed over.
    """
    query = select(definition).where(definition.c.next_run_at <= tx.now).order_by(definition.c.next_run_at).limit(limit)
    due: list[Definition] = []
    broken: list[Broken] = []
    for row in tx.execute(tx.dialect.locked(query)).all():
        try:
            due.append(read_definition(row))
        except ValueError as error:  # written by a newer release, or by hand
            broken.append(Broken(id=row.id, name=row.name, error=str(error)))
    return due, broken


def postpone(tx: Transaction, id: str, delay: timedelta) -> None:
    """Look at a definition again after a while."""
    tx.execute(update(definition).where(definition.c.id == id).values(next_run_at=tx.later(delay)))


def advance(tx: Transaction, moved: Sequence[tuple[str, datetime, datetime | None, datetime | None]]) -> None:
    """Move definitions (id, planned_until, next_run_at, last_run_at) forward past what was decided."""
    if not moved:
        return
    change = (
        update(definition)
        .where(definition.c.id == bindparam("the_id"))
        .values(planned_until=bindparam("planned"), next_run_at=bindparam("following"), last_run_at=bindparam("last"))
    )
    tx.execute(change, [{"the_id": i, "planned": p, "following": n, "last": last} for i, p, n, last in moved])


def add(tx: Transaction, value: Definition) -> bool:
    """Insert a definition; False if its name is taken."""
    return tx.insert_new(definition, {name: getattr(value, name) for name in COLUMNS})


def save(tx: Transaction, value: Definition, *, version: int) -> bool:
    """Overwrite a definition that is still at `version`; False if somebody was faster."""
    values = {name: getattr(value, name) for name in COLUMNS if name not in ("id", "created_at", "created_by")}
    same = (definition.c.id == value.id, definition.c.version == version)
    return tx.execute(update(definition).where(*same).values(values)).rowcount == 1


def find(tx: Transaction, name: str, *, lock: bool = False) -> Definition | None:
    """Return the definition of this name."""
    query = select(definition).where(definition.c.name == name)
    if lock and tx.dialect.skips_locked:
        query = query.with_for_update()
    row = tx.execute(query).first()
    return read_definition(row) if row else None


def select_definitions(tx: Transaction, *, group: str | None = None, limit: int | None = None) -> list[Definition]:
    """Return definitions by name."""
    query = select(definition).order_by(definition.c.name).limit(limit)
    if group is not None:
        query = query.where(definition.c.group == group)
    return [read_definition(row) for row in tx.execute(query)]


def names(tx: Transaction) -> list[str]:
    """Return all names, for suggestions."""
    return list(tx.execute(select(definition.c.name).limit(10_000)).scalars())


def remove(tx: Transaction, id: str) -> bool:
    """Delete a definition; its occurrences and executions stay as history."""
    return tx.execute(definition.delete().where(definition.c.id == id)).rowcount == 1


def read_definition(row: Row[Any]) -> Definition:
    """Return a row as a value."""
    values = {name: row._mapping[name] for name in COLUMNS}
    values["gap"] = Gap(values["gap"])
    values["fold"] = Fold(values["fold"]) if values["fold"] else None
    values["overlap"], values["recovery"] = Overlap(values["overlap"]), Recovery(values["recovery"])
    values["options"] = values["options"] or {}
    return Definition(**values)
