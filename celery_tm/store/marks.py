"""Small facts that all nodes share, by name: which tz database the plans were made with."""

from __future__ import annotations

from sqlalchemy import select

from . import tables
from .database import Transaction

mark = tables.mark


def read(tx: Transaction, name: str) -> str | None:
    """Return what was last written under a name."""
    return tx.execute(select(mark.c.value).where(mark.c.name == name)).scalar()


def write(tx: Transaction, name: str, value: str) -> None:
    """Write a fact."""
    tx.execute(tx.dialect.upsert(mark, {"name": name, "value": value, "at": tx.now}, ("name",)))
