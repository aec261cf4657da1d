"""Reading the tables of other schedulers, in whatever database they are; nothing there is ever changed.

Rows come as the driver gives them, with the columns that are there: which columns a release of a scheduler has, and what
they mean, is for the caller to know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnClause, column, create_engine, inspect, select, table
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from ..domain.secrecy import hidden, secrets_in
from ..errors import DriverMissing, InvalidValue, SourceEmpty, SourceUnavailable
from .dialects import DIALECTS, DRIVERS, with_driver

Rows = list[dict[str, Any]]
_EXAMPLE = "use e.g. 'sqlite:///shop.db', 'postgresql://user@host/db' or 'mysql://user@host/db'"


def read_tables(url: str, names: Iterable[str], *, schema: str | None = None, needed: str) -> dict[str, Rows]:
    """Return the rows of those tables that exist, all as of one moment; the one that is `needed` must."""
    address = _read_url(url)
    safe = hidden(address.render_as_string(hide_password=True))
    engine = _engine(address, safe)
    try:
        with engine.connect() as connection:
            present = [name for name in names if inspect(connection).has_table(name, schema=schema)]
            if needed not in present:
                where = f"{safe}, schema {schema!r}" if schema else safe
                raise SourceEmpty(where, f"table {needed}", "give the database that the old beat uses with --from")
            return {name: _rows(connection, name, schema) for name in present}
    except SQLAlchemyError as error:
        raise SourceUnavailable(safe, hidden(_first_line(error), secrets_in([url]))) from error
    finally:
        engine.dispose()


def safe_url(url: str) -> str:
    """Return a database's URL without its password."""
    return hidden(_read_url(url).render_as_string(hide_password=True))


def make_text(parts: Mapping[str, Any]) -> str:
    """Return the URL of a database whose parts are stated apart: backend, user, password, host, port and name."""
    port = parts.get("port")
    url = URL.create(
        str(parts["backend"]),
        username=parts.get("user") or None,
        password=parts.get("password") or None,
        host=parts.get("host") or None,
        port=int(port) if port else None,
        database=str(parts.get("name") or "") or None,
        query=dict(parts.get("query") or {}),
    )
    return url.render_as_string(hide_password=False)


def _rows(connection: Connection, name: str, schema: str | None) -> Rows:
    there = inspect(connection).get_columns(name, schema=schema)
    # Untyped columns: a flag, a date or an enum that this release does not expect must not stop the reading.
    columns: list[ColumnClause[Any]] = [column(each["name"]) for each in there]
    query = select(*columns).select_from(table(name, *columns, schema=schema))
    rows = [dict(row._mapping) for row in connection.execute(query)]
    return sorted(rows, key=lambda row: (row.get("id") is None, row.get("id") or 0))


def _read_url(text: str) -> URL:
    try:
        url = with_driver(make_url(text))
        backend = url.get_backend_name()
        dialect = url.get_dialect()
    except NoSuchModuleError:
        raise InvalidValue("--from", f"unknown database or driver in {text.split(':')[0]!r}", _EXAMPLE) from None
    except (ArgumentError, ValueError, AttributeError, TypeError):  # its text is not shown: it may have a password
        raise InvalidValue("--from", "it is not a database URL", _EXAMPLE) from None
    if backend == "sqlite" and url.database not in (None, "", ":memory:") and not Path(str(url.database)).is_file():
        raise SourceUnavailable(hidden(url.render_as_string(hide_password=True)), "no such file")
    try:
        if dialect.is_async:
            raise ImportError(dialect.driver)
        dialect.import_dbapi()
    except ImportError as error:
        return _with_our_driver(url, backend, error)
    return url


def _with_our_driver(url: URL, backend: str, error: ImportError) -> URL:
    """Return the URL with the driver that we bring, where the one it names is not there or waits for nobody."""
    ours = url.set(drivername=DRIVERS.get(backend, backend))
    try:
        ours.get_dialect().import_dbapi()
    except (ImportError, NoSuchModuleError):
        extra = DIALECTS[backend].extra if backend in DIALECTS else backend
        raise DriverMissing(hidden(url.render_as_string(hide_password=True)), extra) from error
    return ours


def _engine(url: URL, safe: str) -> Engine:
    backend = url.get_backend_name()
    arguments = DIALECTS[backend]().connect_args() if backend in DIALECTS else {}
    isolation: dict[str, Any] = {} if backend == "sqlite" else {"isolation_level": "REPEATABLE READ"}
    try:
        return create_engine(url, connect_args=arguments, hide_parameters=True, poolclass=NullPool, **isolation)
    except (SQLAlchemyError, TypeError, ValueError) as error:
        raise SourceUnavailable(safe, f"{type(error).__name__} in its options") from None


def _first_line(error: SQLAlchemyError) -> str:
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
