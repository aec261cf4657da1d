"""Reads rows so that one that cannot be read does not hide the others, and removes such a row.

A row is unreadable where a newer release, a person or a damaged disk has left a word, a JSON text or an instant in it that
this release does not know. Lists return the others and name it; a command removes it (`celery tm rows remove`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, FromClause, Row, Select, Table, delete, select, update
from sqlalchemy.exc import DataError

from ..domain.occurrence import OccurrenceState
from ..domain.paging import Page
from ..domain.set_aside import BadRow
from ..errors import InvalidValue, RowUnreadable, TmError, shown
from . import tables
from .conditions import IS_ACTIVE
from .database import Transaction

T = TypeVar("T")
UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError, DataError)
KEYS = "`celery -A app tm rows list` shows the rows that cannot be read"
MAX_ERROR = 300
AT_A_TIME = 200
EARLIEST, LATEST = datetime(1900, 1, 1, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
# Rows of `tm_scope` are never read by themselves: one that cannot be read finds no execution.
TABLES: Mapping[str, Table] = {table.name: table for table in tables.metadata.sorted_tables if table is not tables.scope}


def read_all(
    tx: Transaction, query: Select[Any], read: Callable[[Row[Any]], T], table: Table, *, source: FromClause | None = None
) -> Page[T]:
    """Return what a query for whole rows of a table finds; `unreadable` of it names those that cannot be read.

    `source` is what the query selects from, where that is not the table itself.
    """
    found = _ask(tx, query)
    if found is not None:
        with suppress(*UNREADABLE):
            return Page([read(row) for row in found])
    return _one_by_one(tx, query, read, table, table if source is None else source)


def _ask(tx: Transaction, query: Select[Any]) -> Iterable[Row[Any]] | None:
    """Return what a query finds; None where a row cannot be read. A value that no column holds is the caller's mistake."""
    try:
        return tx.execute(query)
    except TmError:  # of the value; on PostgreSQL this transaction takes no further question
        raise
    except UNREADABLE:
        return None


def _one_by_one(
    tx: Transaction, query: Select[Any], read: Callable[[Row[Any]], T], table: Table, source: FromClause
) -> Page[T]:
    page: Page[T] = Page()
    for key in tx.execute(query.with_only_columns(*(source.c[column.name] for column in table.primary_key))).all():
        try:
            row = tx.execute(select(table).where(*_is(table, key))).first()
            if row is not None:
                page.append(read(row))
        except UNREADABLE as error:
            page.unreadable.append(bad_row(table, key, error))
    return page


def is_instant(column: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition that an instant can be read; else a bad one, being the first or last, hides the others."""
    return column.between(EARLIEST, LATEST)


def read_one(tx: Transaction, query: Select[Any], read: Callable[[Row[Any]], T], table: Table) -> T | None:
    """Return the row that a query finds; raise `RowUnreadable`, which names it, if it cannot be read."""
    found = read_all(tx, query, read, table)
    for bad in found.unreadable:
        raise RowUnreadable(bad.table, bad.id, bad.error)
    return found[0] if found else None


def look(tx: Transaction, table: Table, read: Callable[[Row[Any]], Any], *, limit: int) -> list[BadRow]:
    """Return the rows of a table that cannot be read, of the latest so many; a few at a time, for rows may be large."""
    found: list[BadRow] = []
    for start in range(0, limit, AT_A_TIME):
        query = select(table).order_by(*(column.desc() for column in table.primary_key))
        page = read_all(tx, query.offset(start).limit(min(AT_A_TIME, limit - start)), read, table)
        found += page.unreadable
        if len(page) + len(page.unreadable) < AT_A_TIME:
            break
    return found


def bad_row(table: Table, key: Sequence[Any], error: BaseException) -> BadRow:
    """Return what is reported about a row that cannot be read."""
    return BadRow(table.name, " ".join(map(str, key)), told(error))


def told(error: BaseException) -> str:
    """Return an error in one line; a driver's own, without the statement."""
    said = str(error.orig if isinstance(error, DataError) else error)
    if isinstance(error, KeyError):
        said = f"{said} is a word that this release does not know"
    return f"{type(error).__name__}: {' '.join(said.split())}"[:MAX_ERROR]


@contextmanager
def readable(table: Table, id: str) -> Iterator[None]:
    """Say which row it is that cannot be read, where one is looked for."""
    try:
        yield
    except TmError:
        raise
    except UNREADABLE as error:
        raise RowUnreadable(table.name, id, told(error)) from error


def remove_unreadable(
    tx: Transaction, table: Table, key: Sequence[str], read: Callable[[Row[Any]], Any], *, closes: bool = True
) -> BadRow | None:
    """Delete a row that cannot be read; None where the row is fine or gone. The caller writes the audit.

    With `closes` the occurrence ends that the row's job was for.
    """
    named = _is(table, key)
    if tx.execute(select(*table.primary_key).where(*named)).first() is None:
        return None
    try:
        row = tx.execute(select(table).where(*named)).first()
        if row is not None:
            read(row)
        return None
    except UNREADABLE as error:
        bad = bad_row(table, key, error)
    if closes and table is tables.job:
        _end_occurrence(tx, key[0], bad)
    if table is tables.execution:
        tx.execute(delete(tables.scope).where(tables.scope.c.execution == key[0]))
    return bad if tx.execute(delete(table).where(*named)).rowcount == 1 else None


def _end_occurrence(tx: Transaction, job: str, bad: BadRow) -> None:
    occurrence = tables.occurrence
    id = tx.execute(select(tables.job.c.occurrence).where(tables.job.c.id == job, tables.job.c.step.is_(None))).scalar()
    values = {"state": OccurrenceState.CANCELLED, "reason": f"its job could not be read: {bad.error}", "ended_at": tx.now}
    if id is not None:
        tx.execute(update(occurrence).where(occurrence.c.id == id, IS_ACTIVE).values(values))


def _is(table: Table, key: Sequence[Any]) -> list[Any]:
    return [column == _typed(column, value) for column, value in zip(table.primary_key, key, strict=True)]


def _typed(column: Any, value: Any) -> Any:
    if column.type.python_type is not int:
        return value
    try:
        return int(value)
    except ValueError:
        raise InvalidValue("key", f"{shown(value)} is not a number, as {column.name} is", KEYS) from None
