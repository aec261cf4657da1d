"""The floor under `defer_many`: the same rows by one INSERT … SELECT unnest, into a table with the same indexes.

The columns are those that a job of ours fills; all values, ready-made, travel as arrays over psycopg in one statement that
commits. What is left out is making the values: whoever writes such rows by hand makes ids, JSON and instants as well, which
`made` adds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import psycopg

from celery_tm.domain.ids import new_id

from .services import libpq_url

LIKE_OURS = "CREATE TABLE IF NOT EXISTS raw_job (LIKE tm_job INCLUDING ALL)"
TYPES = (
    "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'raw_job'::regclass AND attnum > 0"
)


class RawInsert:
    """Writes rows like those in `tm_job`, of which there must be one at least."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(libpq_url(url), autocommit=True)
        self._connection.execute(LIKE_OURS)
        types: dict[str, str] = dict(self._connection.execute(TYPES).fetchall())
        rows = self._connection.execute("SELECT * FROM tm_job LIMIT 1")
        [row] = rows.fetchall()
        names = [column.name for column in rows.description or ()]
        self._one = {name: value for name, value in zip(names, row, strict=True) if value is not None}
        arrays = ", ".join(f"%s::{types[name]}[]" for name in self._one)
        self._statement = f"INSERT INTO raw_job ({', '.join(self._one)}) SELECT * FROM unnest({arrays})"

    def make(self, count: int) -> list[list[Any]]:
        """Return the values of `count` rows, one list for each column."""
        varying = {"id": lambda _: new_id(), "args": lambda number: json.dumps([number])}
        return [
            [varying[name](number) for number in range(count)] if name in varying else [value] * count
            for name, value in self._one.items()
        ]

    def insert(self, values: Sequence[list[Any]]) -> None:
        """Write rows and commit."""
        self._connection.execute(self._statement, values)

    def forget(self) -> None:
        """Delete what was written."""
        self._connection.execute("TRUNCATE raw_job")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
