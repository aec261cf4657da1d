"""Progress and log lines of executions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select

from ..domain.execution import MAX_MESSAGE, cut
from . import tables
from .database import Transaction


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """One row of `tm_log`, and the attempt whose execution it is of, where that is known."""

    id: int
    execution: str
    attempt: int | None
    at: datetime
    level: str
    message: str


def write(tx: Transaction, execution: str, level: str, message: str) -> None:
    """Write one line."""
    values = {"execution": execution, "level": level, "message": cut(message, MAX_MESSAGE)}
    tx.execute(insert(tables.log).inline().values(at=tx.now, **values))  # as in `audit.note`


def of_execution(tx: Transaction, execution: str, *, limit: int = 1000) -> list[dict[str, Any]]:
    """Return the lines of one execution, in order."""
    query = select(tables.log).where(tables.log.c.execution == execution).order_by(tables.log.c.id).limit(limit)
    return [dict(row._mapping) for row in tx.execute(query)]
