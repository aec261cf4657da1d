"""Every version of every definition, as it was stated, with who made it and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, insert, select

from ..domain.audit_line import SYSTEM
from ..domain.definition import Definition, stated
from ..domain.execution import MAX_MESSAGE, cut
from . import rows, tables
from .database import Transaction

version = tables.version
DECLARING = ("add", "seed", "load")  # the actions by which files and code write


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """One row of `tm_version`."""

    definition: str
    version: int
    at: datetime
    actor: str
    action: str
    reason: str | None
    stated: Mapping[str, Any]


def keep(tx: Transaction, value: Definition, *, action: str, actor: str | None, reason: str | None = None) -> None:
    """Write down a version as it takes effect."""
    values = {"definition": value.id, "version": value.version, "action": action, "reason": cut(reason, MAX_MESSAGE)}
    tx.execute(insert(version).values(at=tx.now, actor=actor or SYSTEM, stated=stated(value), **values))


def of_definition(tx: Transaction, definition: str, *, limit: int = 100) -> list[Version]:
    """Return the versions of a definition, the latest first."""
    query = select(version).where(version.c.definition == definition).order_by(version.c.version.desc()).limit(limit)
    return rows.read_all(tx, query, read_version, version)


def with_actions(tx: Transaction, definition: str, actions: Sequence[str], *, limit: int = 100) -> list[Version]:
    """Return the versions of a definition that were made by some actions, the latest first."""
    mine = (version.c.definition == definition, version.c.action.in_(actions))
    query = select(version).where(*mine).order_by(version.c.version.desc()).limit(limit)
    return rows.read_all(tx, query, read_version, version)


def in_force(tx: Transaction, definition: str, at: datetime) -> Version | None:
    """Return the version that was in force at an instant, or None if there was none yet."""
    query = select(version).where(version.c.definition == definition, version.c.at <= at)
    found = rows.read_all(tx, query.order_by(version.c.version.desc()).limit(1), read_version, version)
    return found[0] if found else None


def find(tx: Transaction, definition: str, number: int) -> Version | None:
    """Return one version."""
    query = select(version).where(version.c.definition == definition, version.c.version == number)
    found = rows.read_all(tx, query, read_version, version)
    return found[0] if found else None


def latest_declared(tx: Transaction, definition: str) -> Version | None:
    """Return the last version that was not a person's edit: when it was added, seeded or loaded."""
    mine = (version.c.definition == definition, version.c.action.in_(DECLARING))
    query = select(version).where(*mine).order_by(version.c.version.desc()).limit(1)
    return next(iter(rows.read_all(tx, query, read_version, version)), None)


def read_version(row: Row[Any]) -> Version:
    """Return a row as a value."""
    if not isinstance(row.stated, Mapping):
        raise TypeError("what was stated is no object")
    return Version(**row._mapping)
