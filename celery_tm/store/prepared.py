"""Statements that run for every job: built once, compiled once per database, and handed to the driver as they are.

Built and compiled anew each time, such a statement costs several times what the database needs to run it. SQLAlchemy still
writes the text and knows the types; only its machinery around each run is left out. In a caller's own transaction, and where
somebody listens to the engine's events, statements take the usual way, so that nothing goes unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Executable
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.engine import Dialect as Driver
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

from .clocks import Clock
from .dialect_base import Dialect

Row = Sequence[Any]
Processor = Callable[[Any], Any]


class Prepared:
    """One statement; `build` writes it for a kind of database, by a clock, with parameters by name.

    `returns` are the columns of its rows.
    """

    def __init__(self, build: Callable[[Dialect, Clock], Executable], *, returns: Sequence[ColumnElement[Any]] = ()) -> None:
        self._build = build
        self._returns = returns
        self._built: dict[tuple[str, type[Clock]], tuple[Executable, Clock]] = {}
        self._texts: dict[tuple[type[Driver], str | None, type[Clock]], Text] = {}

    def statement(self, dialect: Dialect, clock: type[Clock]) -> tuple[Executable, Clock]:
        """Return the statement for a database, by a kind of clock."""
        kind = (dialect.name, clock)
        found = self._built.get(kind)
        if found is None:
            made = clock()
            found = self._built[kind] = (self._build(dialect, made), made)
        return found

    def text(self, dialect: Dialect, clock: type[Clock], driver: Driver, schema: str | None) -> Text:
        """Return the statement as a driver takes it."""
        kind = (type(driver), schema, clock)
        found = self._texts.get(kind)
        if found is None:
            statement, made = self.statement(dialect, clock)
            found = self._texts[kind] = Text(statement, made, self._returns, driver, schema)
        return found


class Text:
    """A compiled statement and what its values have to go through."""

    def __init__(
        self, statement: Any, clock: Clock, returns: Sequence[ColumnElement[Any]], driver: Driver, schema: str | None
    ) -> None:
        schemas = {"schema_translate_map": {None: schema}, "render_schema_translate": True} if schema else {}
        compiled = statement.compile(dialect=driver, **schemas)
        self.clock = clock
        self.text = str(compiled)
        self._order: Sequence[str] | None = compiled.positiontup if compiled.positional else None
        given: Mapping[str, BindParameter[Any]] = compiled.binds
        self._into = {name: made for name, one in given.items() if (made := _into(one.type, driver)) is not None}
        self._fixed = {name: self._bound(name, one.effective_value) for name, one in given.items() if not one.required}
        self._driver, self._returns = driver, returns
        self._out_of: Sequence[tuple[int, Processor]] | None = None  # known when the first rows come

    def _bound(self, name: str, value: Any) -> Any:
        process = self._into.get(name)
        return value if process is None else process(value)

    def given(self, values: Mapping[str, Any]) -> Any:
        """Return the values as the driver takes them; one that cannot be stored is refused here."""
        given = self._fixed | {name: self._bound(name, value) for name, value in values.items()}
        return given if self._order is None else [given[name] for name in self._order]

    def run(self, cursor: Any, given: Any) -> list[Row]:
        """Run the statement and return its rows; where it gives back none, one that says how many it changed."""
        cursor.execute(self.text, given)
        if not self._returns:
            return [(cursor.rowcount,)]
        if self._out_of is None:
            self._out_of = self._processors(cursor)
        return [_read(row, self._out_of) for row in cursor.fetchall()]

    def _processors(self, cursor: Any) -> Sequence[tuple[int, Processor]]:
        """Return what the columns that need it go through."""
        found = []
        for place, (column, described) in enumerate(zip(self._returns, cursor.description, strict=True)):
            process = column.type.dialect_impl(self._driver).result_processor(self._driver, described[1])
            found += [] if process is None else [(place, process)]
        return found


def _read(row: Sequence[Any], processors: Sequence[tuple[int, Processor]]) -> Row:
    values = list(row)
    for place, process in processors:
        if values[place] is not None:
            values[place] = process(values[place])
    return values


def _into(kind: TypeEngine[Any], driver: Driver) -> Processor | None:
    return kind.dialect_impl(driver).bind_processor(driver)


class Bare:
    """A connection of the pool, with as much around it as `run_raw` needs."""

    __slots__ = ("connection", "dialect")

    def __init__(self, engine: Engine) -> None:
        self.dialect = engine.dialect
        try:
            self.connection = engine.raw_connection()
        except self.dialect.loaded_dbapi.Error as error:
            raise _wrapped(error, self.dialect, None, is_gone=False) from error

    def invalidate(self, error: BaseException | None = None) -> None:
        """Throw the connection away."""
        self.connection.invalidate(error)


def _wrapped(error: Any, driver: Driver, statement: str | None, *, is_gone: bool) -> BaseException:
    return DBAPIError.instance(
        statement, None, error, driver.loaded_dbapi.Error,
        hide_parameters=True, connection_invalidated=is_gone, dialect=driver,
    )  # fmt: skip


def run_raw(connection: Connection | Bare, text: Text, values: Mapping[str, Any]) -> list[Row]:
    """Run a statement past SQLAlchemy's machinery; errors come, and end a broken connection, as they do with it."""
    driver, pooled = connection.dialect, connection.connection
    given = text.given(values)
    cursor = pooled.cursor()
    try:
        return text.run(cursor, given)
    except driver.loaded_dbapi.Error as error:
        is_gone = driver.is_disconnect(error, pooled.dbapi_connection, cursor)
        if is_gone:
            connection.invalidate(error)
        raise _wrapped(error, driver, text.text, is_gone=is_gone) from error
    except BaseException:  # cut off in the middle: what is on the wire belongs to nobody
        connection.invalidate()
        raise
    finally:
        with suppress(driver.loaded_dbapi.Error):  # of a connection that was thrown away, which would hide why
            cursor.close()
