"""What long lists are sorted by, and the statement for one page: it begins at a place in an index, whatever lies before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sqlalchemy import Column, ColumnElement, FromClause, Row, Select, Table, and_, or_

from ..domain.paging import Page, Place, checked_limit, read_cursor, write_cursor
from . import rows, tables
from .database import Transaction

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """The order of a kind of list: by an instant, and by the id among those of the same one, or by the id alone."""

    kind: str
    at: Column[Any] | None
    id: Column[Any]
    newest_first: bool = True
    by: tuple[Column[Any], Column[Any]] | None = None  # columns of another table with the same values, which has an index

    @property
    def table(self) -> Table:
        """Return the table whose rows are sorted."""
        found: Table = self.id.table
        return found

    @property
    def columns(self) -> list[ColumnElement[Any]]:
        """Return what to sort by."""
        found = list(self.by) if self.by else [self.id] if self.at is None else [self.at, self.id]
        return [column.desc() for column in found] if self.newest_first else list(found)

    def place_in(self, cursor: str) -> Place:
        """Return the place that a cursor of this order means."""
        field = "before" if self.newest_first else "after"
        numbered = self.id.type.python_type is int
        return read_cursor(self.kind, cursor, field=field, timed=self.at is not None, numbered=numbered)

    def beyond(self, place: Place) -> ColumnElement[bool]:
        """Return the condition that a row comes after a place."""
        at, id = place
        if self.at is None:
            return self.id < id if self.newest_first else self.id > id
        # The first part by itself, so that every database begins there: not all see it in a comparison of pairs.
        by_at, by_id = self.by or (self.at, self.id)
        if self.newest_first:
            return and_(by_at <= at, or_(by_at < at, by_id < id))
        return and_(by_at >= at, or_(by_at > at, by_id > id))

    def cursor_at(self, row: Row[Any]) -> str:
        """Return the cursor that asks for what follows a row."""
        found = row._mapping
        return write_cursor(self.kind, (None if self.at is None else found[self.at.name], found[self.id.name]))


EXECUTIONS = Order(kind="executions", at=tables.execution.c.completed_at, id=tables.execution.c.id)
BY_SCOPE = replace(EXECUTIONS, by=(tables.scope.c.completed_at, tables.scope.c.execution))
JOBS = Order(kind="jobs", at=tables.job.c.run_at, id=tables.job.c.id, newest_first=False)
OCCURRENCES = Order(kind="occurrences", at=tables.occurrence.c.scheduled_at, id=tables.occurrence.c.id)
DEAD_LETTERS = Order(kind="dead letters", at=tables.dead_letter.c.buried_at, id=tables.dead_letter.c.id)
AUDIT = Order(kind="audit", at=tables.audit.c.at, id=tables.audit.c.id)
LOG = Order(kind="log", at=None, id=tables.log.c.id, newest_first=False)


def fetch(
    tx: Transaction,
    query: Select[Any],
    order: Order,
    *,
    cursor: str | None,
    limit: int,
    read: Callable[[Row[Any]], T],
) -> Page[T]:
    """Return a page of what a query finds, from a cursor on."""
    return page_of(tx, sorted_from(query, order, cursor=cursor, limit=limit), order, limit=limit, read=read)


def sorted_from(query: Select[Any], order: Order, *, cursor: str | None, limit: int) -> Select[Any]:
    """Return a query for the rows of a page, and one more: it tells whether another page follows."""
    checked_limit(limit)
    if cursor is not None:
        query = query.where(order.beyond(order.place_in(cursor)))
    return query.order_by(*order.columns).limit(limit + 1)


def page_of(
    tx: Transaction,
    query: Select[Any],
    order: Order,
    *,
    limit: int,
    read: Callable[[Row[Any]], T],
    source: FromClause | None = None,
) -> Page[T]:
    """Return what a sorted query finds as a page; `source` is what it selects from, where that is not the table itself."""

    def read_with_place(row: Row[Any]) -> tuple[T, str]:
        return read(row), order.cursor_at(row)

    found = rows.read_all(tx, query, read_with_place, order.table, source=source)
    more = len(found) + len(found.unreadable) > limit
    shown = (found[:-1] or found) if more else found  # the cursor is the place of the last one that can be read
    return Page([one for one, _ in shown], next=shown[-1][1] if more and shown else None, unreadable=found.unreadable)
