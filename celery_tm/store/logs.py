"""Progress and log lines of executions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select, type_coerce

from ..domain.execution import MAX_MESSAGE, cut
from ..domain.job import Job
from . import tables
from .database import Transaction
from .jobs import held_by

AT_A_TIME = 1000  # lines in one statement


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


def write_all(tx: Transaction, execution: str, lines: Sequence[tuple[str, str]]) -> None:
    """Write lines, each with its level, in order."""
    if len(lines) == 1:
        write(tx, execution, *lines[0])
        return
    now = tx.read_now() if lines else None
    for start in range(0, len(lines), AT_A_TIME):
        some = lines[start : start + AT_A_TIME]
        tx.insert_all(tables.log, [{"execution": execution, "at": now, "level": one, "message": said} for one, said in some])


def write_all_if_held(tx: Transaction, one: Job, lines: Sequence[tuple[str, str]]) -> None:
    """Write lines of a running attempt; one that has lost its lease has nothing more to say."""
    if tx.execute(select(tables.job.c.id).where(held_by(one))).first() is not None:
        write_all(tx, one.execution_id, lines)


def write_if_held(tx: Transaction, one: Job, level: str, message: str) -> None:
    """Write one line of a running attempt; one that has lost its lease has nothing more to say."""
    log = tables.log
    said = {"execution": one.execution_id, "level": level, "message": cut(message, MAX_MESSAGE)}
    stated = [type_coerce(value, log.c[name].type) for name, value in (said | {"at": tx.now}).items()]
    tx.execute(insert(log).from_select([*said, "at"], select(*stated).where(held_by(one))))


def of_execution(tx: Transaction, execution: str, *, limit: int = 1000) -> list[dict[str, Any]]:
    """Return the lines of one execution, in order."""
    query = select(tables.log).where(tables.log.c.execution == execution).order_by(tables.log.c.id).limit(limit)
    return [dict(row._mapping) for row in tx.execute(query)]
