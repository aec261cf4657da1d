"""Thousands of values as a few parameters of one statement, for databases that can make a table of them.

A list as a parameter is put into the driver's form value by value, which takes longer than the database needs to store the
rows. Here the values of a column travel as one text, and the database takes it apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Select,
    String,
    Text,
    and_,
    bindparam,
    cast,
    column,
    func,
    literal_column,
    select,
)
from sqlalchemy.sql.selectable import TableValuedAlias

from ..domain.codec import encode
from ..errors import InvalidValue
from .clocks import Clock
from .database import Transaction
from .dialect_base import Dialect
from .dialects import pairs
from .prepared import Prepared

BETWEEN, NOTHING = "\x1f", "\x1e"  # what stands between two values, and what stands for none; neither occurs in ours
_BETWEEN, _NOTHING = (literal_column(f"E'\\x{ord(mark):02x}'", Text) for mark in (BETWEEN, NOTHING))


def given_rows(columns: Iterable[Column[Any]], name: str = "given") -> TableValuedAlias:
    """Return the table of values that `as_texts` passes in for these columns."""
    named = [c.name for c in columns]
    lists = [given_array(one) for one in named]
    return func.unnest(*lists).table_valued(*(column(one, Text) for one in named)).render_derived(name=name)


def given_array(name: str) -> ColumnElement[Any]:
    """Return the array of values that `as_texts` passes in for a name."""
    return func.string_to_array(bindparam(_list(name), type_=Text), _BETWEEN, _NOTHING)


def read_as(table: TableValuedAlias, wanted: Column[Any]) -> ColumnElement[Any]:
    """Return a column of such a table in the type it is stored as."""
    found = table.c[wanted.name]
    is_text = isinstance(getattr(wanted.type, "impl", wanted.type), String)
    return found if is_text else cast(found, wanted.type)  # a cast to a text with a limit would cut it silently


def as_texts(values: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """Return the parameters for columns of values."""
    return {_list(name): _joined(name, those) for name, those in values.items()}


def storable(text: str | None) -> str | None:
    """Return a text of somebody else such that `as_texts` takes it."""
    return None if text is None else text.translate(_MARKS)


_MARKS = {ord(BETWEEN): " ", ord(NOTHING): " "}


def _list(name: str) -> str:
    return f"{name}_list"


def _joined(name: str, values: Sequence[Any]) -> str:
    try:
        joined = BETWEEN.join(values)
    except TypeError:  # not all are text
        joined = BETWEEN.join([_text(value) for value in values])
    if joined.count(BETWEEN) != len(values) - 1:
        raise InvalidValue(name, "it has characters that cannot be seen", "remove them")
    return joined


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return NOTHING
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return repr(value.total_seconds())
    return encode(value, field="value") if isinstance(value, Mapping) else str(value)


def together(texts: ColumnElement[str]) -> ColumnElement[str]:
    """Return the texts of many rows as one, which `apart` takes apart again."""
    return func.string_agg(texts, _BETWEEN)


def apart(text: str | None) -> frozenset[str]:
    """Return the texts that `together` put together; None stands for no rows."""
    return frozenset() if text is None else frozenset(text.split(BETWEEN))


class ByPairs:
    """Finds rows by pairs of values that an index knows; `where` says what else is asked, at what time."""

    def __init__(
        self,
        columns: Iterable[Column[Any]],
        pair: tuple[Column[Any], Column[Any]],
        where: Callable[[Any], Sequence[ColumnElement[bool]]] = lambda _: (),
    ) -> None:
        self._columns, self._pair, self._where = list(columns), pair, where
        self._prepared = Prepared(self._by_tables, returns=self._columns)

    def find(self, tx: Transaction, wanted: Sequence[tuple[str, str]]) -> Iterable[Mapping[str, Any]]:
        """Return the rows that have one of the wanted pairs."""
        if not wanted:
            return
        if tx.dialect.takes_tables:
            first, second = self._pair
            lists = dict(zip((first.name, second.name), zip(*wanted, strict=True), strict=True))
            found: Iterable[Sequence[Any]] = tx.run(self._prepared, **as_texts(lists))
        else:
            found = (row for start in range(0, len(wanted), 500) for row in self._some(tx, wanted[start : start + 500]))
        names = [c.name for c in self._columns]
        for row in found:
            yield dict(zip(names, row, strict=True))

    def _by_tables(self, _: Dialect, clock: Clock) -> Select[Any]:
        first, second = self._pair
        given = given_rows(self._pair)
        is_given = (first == given.c[first.name], second == given.c[second.name])
        return select(*self._columns).join(given, and_(*is_given)).where(*self._where(clock.now))

    def _some(self, tx: Transaction, wanted: Sequence[tuple[str, str]]) -> Iterable[Sequence[Any]]:
        return tx.execute(select(*self._columns).where(pairs(*self._pair).in_(wanted), *self._where(tx.now))).all()
