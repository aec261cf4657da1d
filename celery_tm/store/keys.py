"""Keys that have succeeded, kept so that the same work is not done again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Executable, Row, bindparam, select

from . import tables
from .clocks import Clock
from .database import Transaction
from .dialects import Dialect
from .given import ByPairs
from .prepared import Prepared

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
    rows = tx.run(_KEPT, task_=task, key_=key_text)
    return DoneKey(**dict(zip(key.c.keys(), rows[0], strict=True))) if rows else None


def _kept(dialect: Dialect, clock: Clock) -> Executable:
    query = select(key).where(key.c.task == bindparam("task_"), key.c.key == bindparam("key_"), *_is_kept(clock.now))
    return dialect.latest(query)


def _is_kept(now: Any) -> Sequence[ColumnElement[bool]]:
    return (key.c.kept_until > now,)


_KEPT = Prepared(_kept, returns=list(key.c))
_KEPT_AMONG = ByPairs(key.c, (key.c.task, key.c.key), _is_kept)


def find_all_kept(tx: Transaction, wanted: Sequence[tuple[str, str]]) -> dict[tuple[str, str], DoneKey]:
    """Return the successes of these (task, key) pairs that are still kept."""
    return {(row["task"], row["key"]): DoneKey(**row) for row in _KEPT_AMONG.find(tx, wanted)}


def find_by_job(tx: Transaction, job: str) -> DoneKey | None:
    """Return the success that a job left behind."""
    row = tx.execute(select(key).where(key.c.job == job)).first()
    return _read(row) if row else None


def _read(row: Row[Any]) -> DoneKey:
    return DoneKey(**row._mapping)
