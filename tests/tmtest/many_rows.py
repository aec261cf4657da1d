"""A long past, made inside the database: a million rows in seconds, on every kind of database."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import text

from celery_tm import TimeManagement

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
_NOW = "2026-06-01 12:00:00"
DIGIT = "(" + " UNION ALL ".join(f"SELECT {digit} AS d" for digit in range(10)) + ")"


@dataclass(frozen=True)
class Words:
    """How a database says what rows are made of."""

    named: Callable[[str], str]  # a text that begins so, and ends with the number of the row
    before: Callable[[str], str]  # so many seconds before NOW
    false: str = "false"


WORDS = {
    "postgresql": Words(
        lambda start: f"'{start}-' || lpad(n::text, 7, '0')",
        lambda seconds: f"timestamptz '{_NOW}+00' - ({seconds}) * interval '1 second'",
    ),
    "mysql": Words(
        lambda start: f"concat('{start}-', lpad(n, 7, '0'))",
        lambda seconds: f"timestamp '{_NOW}' - interval ({seconds}) second",
    ),
    "sqlite": Words(
        lambda start: f"'{start}-' || printf('%07d', n)",
        lambda seconds: f"strftime('%Y-%m-%d %H:%M:%f000', '{_NOW}', (-1 * ({seconds})) || ' seconds')",
        "0",
    ),
}


def words_of(tm: TimeManagement) -> Words:
    """Return how the database of an installation says it."""
    return WORDS[tm.installation.database.dialect.name]


def insert(tm: TimeManagement, table: str, count: int, **columns: str) -> None:
    """Insert so many rows; a column is SQL in which `n` is the number of the row, from 1."""
    places = [f"{DIGIT} d{place}" for place in range(len(str(count - 1)))]
    number = " + ".join(f"d{place}.d * {10**place}" for place in range(len(places)))
    rows = f"SELECT n FROM (SELECT 1 + {number} AS n FROM {', '.join(places)}) AS numbers WHERE n <= {count}"
    statement = f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(columns.values())} FROM ({rows}) AS given"
    with tm.installation.database.engine.begin() as connection:
        connection.exec_driver_sql(statement.replace("%", "%%") if _escapes(tm) else statement)


def _escapes(tm: TimeManagement) -> bool:
    return tm.installation.database.dialect.is_server


@contextmanager
def indexed_afterwards(tm: TimeManagement, table: str) -> Iterator[None]:
    """Let a table have no indexes but its key in this block: made of all rows at once they take a fraction of the time."""
    key = f"{table}_pkey"
    told = {
        "postgresql": f"SELECT indexname, indexdef FROM pg_indexes WHERE tablename = '{table}' AND indexname <> '{key}'",
        "sqlite": f"SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = '{table}' AND sql IS NOT NULL",
    }.get(tm.installation.database.dialect.name)
    engine = tm.installation.database.engine
    with engine.begin() as connection:
        indexes = connection.exec_driver_sql(told).all() if told else []
        for name, _ in indexes:
            connection.exec_driver_sql(f"DROP INDEX {name}")
    yield
    with engine.begin() as connection:
        for _, statement in indexes:
            connection.exec_driver_sql(statement)


def executions(tm: TimeManagement, count: int, definition: str, *, every: int = 1, **columns: str) -> None:
    """Insert executions of a definition, so many seconds apart, the last one just before NOW."""
    say = words_of(tm)
    usual = {
        "id": say.named(f"{definition}-execution"), "job": say.named(f"{definition}-job"), "task": "'effect'",
        "source": "'scheduled'", "occurrence": say.named(f"{definition}-at"), "definition": f"'{definition}'",
        "attempt": "1", "started_at": say.before(f"n * {every} + 1"), "completed_at": say.before(f"n * {every}"),
        "outcome": "'succeeded'", "worker": "'worker'",
    }  # fmt: skip
    insert(tm, "tm_execution", count, **(usual | columns))


def jobs(tm: TimeManagement, count: int, **columns: str) -> None:
    """Insert pending jobs, a second apart, one half of them due."""
    say = words_of(tm)
    usual = {
        "id": say.named("job"), "task": "'effect'", "args": "'[]'", "kwargs": "'{}'", "created_at": say.before("0"),
        "run_at": say.before(f"{count // 2} - n"), "original_delay": "0", "state": "'pending'", "attempt": "1",
        "tries_from": "1", "dispatches": "0", "source": "'deferred'", "cancel_requested": say.false,
    }  # fmt: skip
    insert(tm, "tm_job", count, **(usual | columns))


def occurrences(tm: TimeManagement, count: int, definition: str, **columns: str) -> None:
    """Insert completed instants of a definition, a minute apart, the last one just before NOW."""
    say, id = words_of(tm), tm.definitions.get(definition).id
    usual = {
        "id": say.named(f"{definition}-at"), "definition": f"'{id}'", "version": "1", "is_recovery": say.false,
        "scheduled_at": say.before("n * 60"), "decided_at": say.before("n * 60"), "ended_at": say.before("n * 60 - 1"),
        "state": "'completed'",
    }  # fmt: skip
    insert(tm, "tm_occurrence", count, **(usual | columns))


def analyze(tm: TimeManagement) -> None:
    """Tell the database how many rows there are."""
    name = tm.installation.database.dialect.name
    with tm.installation.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for table in ("tm_execution", "tm_job", "tm_occurrence", "tm_dead_letter", "tm_audit"):
            word = {"postgresql": "VACUUM ANALYZE", "mysql": "ANALYZE TABLE", "sqlite": "ANALYZE"}[name]
            connection.execute(text(f"{word} {table}"))


def plan_of(tm: TimeManagement, statement: str, parameters: Any) -> list[str]:
    """Return how the database would find the rows of a statement, line by line."""
    word = "EXPLAIN QUERY PLAN" if tm.installation.database.dialect.name == "sqlite" else "EXPLAIN"
    with tm.installation.database.engine.connect() as connection:
        rows = connection.exec_driver_sql(f"{word} {statement}", parameters).all()
    return [" ".join(map(str, row)) for row in rows]


def is_whole_scan(line: str) -> bool:
    """Say whether a line of a plan means that every row of one of the big tables is looked at."""
    told = (r"Seq Scan on (tm_execution|tm_job|tm_occurrence)\b", r"SCAN (tm_execution|tm_job|tm_occurrence)$")
    in_mysql = r"\b(tm_execution|tm_job|tm_occurrence) (None )?ALL\b"
    return any(re.search(pattern, line) for pattern in (*told, in_mysql))
