"""What is said to a database, by SQLAlchemy's events; while somebody listens, prepared statements take the usual way too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event

from celery_tm.store.database import Database


@dataclass
class Said:
    """Statements with their parameters, BEGIN left out, and how many transactions they were said in."""

    statements: list[tuple[str, Any]] = field(default_factory=list)
    transactions: int = 0

    @property
    def texts(self) -> list[str]:
        return [statement.strip() for statement, _ in self.statements]


@contextmanager
def listening(database: Database) -> Iterator[Said]:
    """Note what is said in this block."""
    database.check_schema()
    said, engine = Said(), database.engine

    def note(conn: object, cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if not statement.startswith("BEGIN"):
            said.statements.append((statement, parameters))

    def begun(conn: object) -> None:
        said.transactions += 1

    event.listen(engine, "before_cursor_execute", note)
    event.listen(engine, "begin", begun)
    try:
        yield said
    finally:
        event.remove(engine, "before_cursor_execute", note)
        event.remove(engine, "begin", begun)
