"""Keys that have succeeded, kept so that the same work is not done again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, select

from . import tables
from .database import Transaction
from .dialects import pairs

key = tables.key


@dataclass(frozen=True, kw_only=True, slots=True)
class DoneKey:
    """One row of `tm_key`: this key's work is done, by this job, with this result."""

    task: str
    key: str
    job: str
    execution: str
    result: str | None
    done_at: datetime
    kept_until: datetime


def keep(
    tx: Transaction, *, task: str, key_text: str, job: str, execution: str, result: str | None, keep: timedelta
) -> None:
    """Remember that a key has succeeded; an older success whose retention has ended is overwritten."""
    values: dict[str, Any] = {
        "task": task, "key": key_text, "job": job, "execution": execution, "result": result,
        "done_at": tx.now, "kept_until": tx.later(keep),
    }  # fmt: skip
    tx.execute(tx.dialect.upsert(key, values, ("task", "key")))


def find_kept(tx: Transaction, task: str, key_text: str) -> DoneKey | None:
    """Return the success of a key that is still kept."""
    query = select(key).where(key.c.task == task, key.c.key == key_text, key.c.kept_until > tx.now)
    row = tx.execute(tx.dialect.latest(query)).first()
    return _read(row) if row else None


def find_all_kept(tx: Transaction, wanted: Sequence[tuple[str, str]]) -> dict[tuple[str, str], DoneKey]:
    """Return the successes of these (task, key) pairs that are still kept."""
    found: dict[tuple[str, str], DoneKey] = {}
    for start in range(0, len(wanted), 500):
        condition = pairs(key.c.task, key.c.key).in_(list(wanted[start : start + 500]))
        for row in tx.execute(select(key).where(condition, key.c.kept_until > tx.now)):
            found[row.task, row.key] = _read(row)
    return found


def find_by_job(tx: Transaction, job: str) -> DoneKey | None:
    """Return the success that a job left behind."""
    row = tx.execute(select(key).where(key.c.job == job)).first()
    return _read(row) if row else None


def _read(row: Row[Any]) -> DoneKey:
    return DoneKey(**row._mapping)
