"""Fills `tm_definition` and `tm_job` in bulk, and watches what the store says to the database.

One row made the usual way is the template; it is copied by the database. Copies differ in id, name and time, and their ids
sort like ids made in a row. Statements are counted as the server runs them, and PostgreSQL is asked whether
it would answer them by index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import Celery
from celery.canvas import Signature
from sqlalchemy import Table, event, text
from sqlalchemy.engine import Connection, Engine

from celery_tm import TimeManagement, defer
from celery_tm.installation import Installation
from celery_tm.store.tables import definition, job

from .services import TASK

CHANGED = "tm_definition, tm_occurrence, tm_job, tm_version, tm_audit, tm_lane, tm_execution"
NUMBERED_ID = "left(one.id, 24) || lpad(to_hex(n), 12, '0')"
LATER = "CAST(:{} AS timestamptz) + n * CAST(:apart AS interval)"
LONG_AGO, FAR_AHEAD = timedelta(days=-1), timedelta(days=30)


def empty(app: Celery) -> None:
    """Delete definitions and all that came of them."""
    with engine_of(app).begin() as connection:
        connection.execute(text(f"TRUNCATE {CHANGED}"))


def add_many(
    app: Celery,
    count: int,
    *,
    name: str,
    planned_until: datetime,
    next_run_at: datetime,
    apart: timedelta = timedelta(0),
    **values: Any,
) -> None:
    """Add `count` definitions whose next instants begin at `next_run_at` and are `apart` from each other."""
    one = TimeManagement(app).definitions.add(name=name, task=TASK, **values)
    copied = {
        "id": NUMBERED_ID,
        "name": "one.name || '-' || n",
        "planned_until": "CAST(:planned_until AS timestamptz)",
        "next_run_at": LATER.format("next_run_at"),
    }
    times = {"planned_until": planned_until, "next_run_at": next_run_at, "apart": apart}
    _copy(app, definition, one.id, count, copied, times)


def add_jobs(app: Celery, count: int, signature: Signature, *, delay: timedelta, apart: timedelta = timedelta(0)) -> None:
    """Add `count` jobs that are due after `delay` and `apart` from each other; a delay below zero makes them due."""
    one = defer(signature, delay=FAR_AHEAD, app=app)
    first = datetime.now(UTC) + delay
    _copy(app, job, one.id, count, {"id": NUMBERED_ID, "run_at": LATER.format("run_at")}, {"run_at": first, "apart": apart})


def _copy(app: Celery, table: Table, id: str, count: int, copied: Mapping[str, str], values: Mapping[str, Any]) -> None:
    """Replace one row by `count` copies of it."""
    columns = [column.name for column in table.c]
    chosen = ", ".join(copied.get(column, f'one."{column}"') for column in columns)
    copy = f"""
        INSERT INTO {table.name} ({", ".join(f'"{column}"' for column in columns)})
        SELECT {chosen} FROM {table.name} one, generate_series(1, :count) n WHERE one.id = :id
    """
    with engine_of(app).begin() as connection:
        connection.execute(text(copy), {"count": count, "id": id, **values})
        connection.execute(table.delete().where(table.c.id == id))


def settle(app: Celery, table: str = "tm_definition") -> None:
    """Have what was filled written before anything is timed, and PostgreSQL know about it."""
    analyze(app, table)
    with _alone(app) as connection:
        connection.execute(text("CHECKPOINT"))


def analyze(app: Celery, table: str) -> None:
    """Let PostgreSQL know what it has, as autovacuum would have by then."""
    with _alone(app) as connection:
        connection.execute(text(f"VACUUM (ANALYZE) {table}"))


def _alone(app: Celery) -> Connection:
    return engine_of(app).connect().execution_options(isolation_level="AUTOCOMMIT")


def forget_dispatched(app: Celery) -> None:
    """Delete the jobs that were handed to the broker, and leave alone those that wait."""
    with engine_of(app).begin() as connection:
        connection.execute(text("DELETE FROM tm_job WHERE state <> 'pending'"))


def engine_of(app: Celery) -> Engine:
    """Return the engine that the app's store uses."""
    return Installation.of(app).database.engine


@dataclass
class Said:
    """What was said to the database: calls of the driver, statements they made the server run, and transactions."""

    calls: int = 0
    statements: int = 0
    transactions: int = 0
    texts: list[tuple[str, Any]] = field(default_factory=list)


@contextmanager
def listening(engine: Engine) -> Iterator[Said]:
    """Count what is said within the block. A call with many rows of parameters is that many statements to the server."""
    said = Said()

    def on_execute(_: Any, __: Any, statement: str, parameters: Any, ___: Any, executemany: bool) -> None:
        said.calls += 1
        said.statements += len(parameters) if executemany else 1
        if not executemany:
            said.texts.append((statement, parameters))

    def on_begin(_: Any) -> None:
        said.transactions += 1

    event.listen(engine, "before_cursor_execute", on_execute)
    event.listen(engine, "begin", on_begin)
    try:
        yield said
    finally:
        event.remove(engine, "before_cursor_execute", on_execute)
        event.remove(engine, "begin", on_begin)


def scans(engine: Engine, said: Said, table: str = "tm_definition") -> list[str]:
    """Return how PostgreSQL would read `table` for these statements: "Index Scan", "Seq Scan" and so on."""
    found = []
    with engine.connect() as connection:
        for statement, parameters in said.texts:
            if table in statement and statement.lstrip().upper().startswith(("SELECT", "WITH", "UPDATE")):
                answer = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters).scalar_one()
                found += [node["Node Type"] for node in _nodes(answer[0]["Plan"]) if node.get("Relation Name") == table]
    return found


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in node.get("Plans", ()):
        yield from _nodes(below)
