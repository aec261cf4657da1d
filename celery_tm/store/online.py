"""The steps that migrations are made of: they change big tables while everybody goes on working with them.

On a server each step commits by itself and holds a table for moments only. It looks first for what an earlier run has done
that was interrupted, so that a migration killed at any point is completed by the next upgrade: the version is written last.
SQLite, which has one writer anyway, does a whole upgrade in one transaction.

Migrations import nothing of Alembic; a test sees to it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from alembic import op
from sqlalchemy import Column, MetaData, Table, bindparam, inspect, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateColumn

from ..errors import InvalidValue, TableInUse
from .dialects import DIALECTS
from .types import Instant

# While we wait for a table, whoever comes after us waits behind us. So we wait for moments, go away, and come back.
LOCK_WAIT = 0.2  # seconds; whole ones on MySQL, which counts in them
PATIENCE = 600.0  # seconds for which we come back
SMALL = 10_000  # rows of a table that is indexed in milliseconds, without a second look at it
BATCH = 1_000  # rows that are changed in one transaction


def create_tables(metadata: MetaData) -> None:
    """Create the tables, and those of their indexes, that are not there."""
    bind = op.get_bind()
    metadata.create_all(bind, checkfirst=True)
    for table in metadata.sorted_tables:
        known = {index["name"] for index in inspect(bind).get_indexes(table.name, schema=schema())}
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            if index.name not in known:
                index.create(bind, checkfirst=True)


def drop_tables(metadata: MetaData) -> None:
    """Drop the tables that are there."""
    for table in reversed(metadata.sorted_tables):
        _briefly(table.name, f"DROP TABLE IF EXISTS {named(table.name)}")


def add_columns(table: str, *columns: Column[Any]) -> None:
    """Add the columns that are not there, all at once, without rewriting a row."""
    for column in columns:
        if not column.nullable and column.server_default is None:
            why, hint = "rows that are there have no value for it", "let it be empty, or give a constant default"
            raise InvalidValue(f"column {table}.{column.name}", why, hint)
    dialect, missing = op.get_bind().dialect, [column for column in columns if column.name not in _columns(table)]
    Table(table, MetaData(), *missing)  # what a column is, is told by its table
    told = [f"ADD COLUMN {CreateColumn(column).compile(dialect=dialect)}" for column in missing]
    for change in [", ".join(told)] if told and kind() != "sqlite" else told:
        _alter(table, change)


def drop_columns(table: str, *names: str) -> None:
    """Drop the columns that are there."""
    told = [f"DROP COLUMN {quoted(name)}" for name in names if name in _columns(table)]
    for change in [", ".join(told)] if told and kind() != "sqlite" else told:
        _alter(table, change)


def rename_column(table: str, old: str, new: str) -> None:
    """Give a column another name. No release before knows it: only for what was never released."""
    if old in _columns(table):
        _alter(table, f"RENAME COLUMN {quoted(old)} TO {quoted(new)}")


def add_index(
    name: str,
    table: str,
    *columns: str,
    where: str | None = None,
    plain: tuple[str, ...] | None = None,
    unique: bool = False,
) -> None:
    """Index a table, or its rows that `where` names; MySQL, which knows none such, indexes `plain` or all rows."""
    if _has_index(name, table):
        return
    drop_index(name, table)  # an interrupted run leaves one behind that is not valid
    listed = ", ".join(quoted(column) for column in (plain if plain and kind() == "mysql" else columns))
    on = f"{quoted(name)} ON {named(table)} ({listed})"
    some = f" WHERE {where}" if where else ""
    what = "UNIQUE INDEX" if unique else "INDEX"
    if kind() == "mysql":
        _briefly(table, f"ALTER TABLE {named(table)} ADD {what} {quoted(name)} ({listed}), ALGORITHM=INPLACE, LOCK=NONE")
    elif kind() == "sqlite" or _is_small(table):
        _briefly(table, f"CREATE {what} {on}{some}")
    else:
        _patiently(f"CREATE {what} CONCURRENTLY {on}{some}")


def drop_index(name: str, table: str) -> None:
    """Drop an index if it is there."""
    if kind() == "mysql":
        if _has_index(name, table):
            _briefly(table, f"ALTER TABLE {named(table)} DROP INDEX {quoted(name)}, ALGORITHM=INPLACE, LOCK=NONE")
    else:
        _briefly(table, f"DROP INDEX IF EXISTS {named(name)}")


def drop_unique(name: str, table: str) -> None:
    """Drop a constraint of the first tables if it is there; SQLite, which cannot, copies the table."""
    if name not in _uniques(table):
        return
    if kind() == "postgresql":
        _briefly(table, f"ALTER TABLE {named(table)} DROP CONSTRAINT IF EXISTS {quoted(name)}")
    elif kind() == "mysql":
        drop_index(name, table)
    else:
        with op.batch_alter_table(table, recreate="always") as batch:
            batch.drop_constraint(name, type_="unique")


def add_unique(name: str, table: str, *columns: str) -> None:
    """Add a constraint to a small table unless it is there; SQLite copies the table."""
    if name in _uniques(table):
        return
    listed = ", ".join(quoted(column) for column in columns)
    if kind() == "sqlite":
        with op.batch_alter_table(table, recreate="always") as batch:
            batch.create_unique_constraint(name, list(columns))
    else:
        _briefly(table, f"ALTER TABLE {named(table)} ADD CONSTRAINT {quoted(name)} UNIQUE ({listed})")


def _uniques(table: str) -> set[str | None]:
    return {one["name"] for one in inspect(op.get_bind()).get_unique_constraints(table, schema=schema())}


def joined(*parts: str) -> str:
    """Return texts one after the other, as SQL."""
    return f"CONCAT({', '.join(parts)})" if kind() == "mysql" else " || ".join(parts)


def add_marks(prefix: str, value: str, *, table: str, where: str) -> None:
    """Write a mark for each value that an SQL expression has in the rows that `where` names, unless it is there."""
    mark, name = named("tm_mark"), joined(f"'{prefix}'", "found.v")
    some = f"SELECT DISTINCT {value} AS v FROM {named(table)} WHERE {where}"
    new = f"NOT EXISTS (SELECT 1 FROM {mark} m WHERE m.name = {name})"
    columns = ", ".join(quoted(column) for column in ("name", "value", "at"))
    bind = op.get_bind()
    bind.execute(
        text(f"INSERT INTO {mark} ({columns}) SELECT {name}, found.v, :now FROM ({some}) AS found WHERE {new}").bindparams(
            bindparam("now", datetime.now(UTC), type_=Instant)
        )
    )


def fill(table: str, column: str, value: str, *, where: str, key: str = "id", batch: int = BATCH) -> None:
    """Set a column by an SQL expression in the rows that `where` names, in which a row that is done is not named again."""
    _in_batches(table, f"UPDATE {named(table)} SET {quoted(column)} = {value}", where, key, batch)


def delete_rows(table: str, *, where: str, key: str = "id", batch: int = BATCH) -> None:
    """Delete the rows that `where` names."""
    _in_batches(table, f"DELETE FROM {named(table)}", where, key, batch)


def named(table: str) -> str:
    """Return the name of a table, or of an index, as SQL."""
    return ".".join(quoted(part) for part in (schema(), table) if part)


def quoted(name: str) -> str:
    """Return the name of a column as SQL."""
    return op.get_bind().dialect.identifier_preparer.quote(name)


def schema() -> str | None:
    """Return the schema of the tables."""
    return op.get_context().opts.get("version_table_schema")


def kind() -> str:
    """Return which of the three kinds of database this is."""
    return DIALECTS[op.get_bind().dialect.name].name


def has_column(table: str, name: str) -> bool:
    """Say whether a column is there: a downgrade that was interrupted may have dropped it."""
    return name in _columns(table)


def _columns(table: str) -> set[str]:
    return {column["name"] for column in inspect(op.get_bind()).get_columns(table, schema=schema())}


def _has_index(name: str, table: str) -> bool:
    """Say whether there is such an index, and a whole one."""
    bind = op.get_bind()
    if kind() == "postgresql":
        asked = text("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)")
        return bool(bind.execute(asked, {"name": named(name)}).scalar())
    return name in {index["name"] for index in inspect(bind).get_indexes(table, schema=schema())}


def _is_small(table: str) -> bool:
    some = f"SELECT 1 FROM {named(table)} LIMIT {SMALL + 1}"
    return op.get_bind().exec_driver_sql(f"SELECT count(*) FROM ({some}) AS found").scalar_one() <= SMALL


def _alter(table: str, change: str) -> None:
    """Change a table's description; MySQL, which could copy the table for it, is told not to."""
    statement = f"ALTER TABLE {named(table)} {change}"
    if kind() != "mysql":
        return _briefly(table, statement)
    try:
        _briefly(table, f"{statement}, ALGORITHM=INSTANT")
    except DBAPIError as error:
        if getattr(error.orig, "args", (0,))[0] not in (1845, 1846):  # not at once; beside its writers, then
            raise
        _briefly(table, f"{statement}, ALGORITHM=INPLACE, LOCK=NONE")


def _briefly(table: str, statement: str) -> None:
    """Run a statement that nobody may work on the table for; where somebody does for long, let others pass and try again."""
    bind, until = op.get_bind(), time.monotonic() + PATIENCE
    while True:
        try:
            _say_briefly(bind, statement)
        except DBAPIError as error:
            _give_way(error, table, until)
        else:
            return


def _say_briefly(connection: Connection, statement: str) -> None:
    """Run a statement that fails if it has to wait long for a lock."""
    if kind() == "postgresql":  # in one message, which is a transaction: a pooler may give the next one another session
        limited = f"SET LOCAL lock_timeout = {int(LOCK_WAIT * 1000)}; {statement}"
        connection.exec_driver_sql(limited, execution_options={"no_parameters": True})
        return
    if kind() == "mysql":
        connection.exec_driver_sql(f"SET SESSION lock_wait_timeout = {max(1, int(LOCK_WAIT))}")
    connection.exec_driver_sql(statement)


def _patiently(statement: str) -> None:
    """Run a statement that lets others read and write, however long it has to wait for them."""
    if kind() == "mysql":
        op.get_bind().exec_driver_sql("SET SESSION lock_wait_timeout = 1")
    op.get_bind().exec_driver_sql(statement)


def _give_way(error: DBAPIError, table: str, until: float) -> None:
    """Go away for a moment, if others were in the way and there is time left."""
    if not DIALECTS[op.get_bind().dialect.name]().is_transient(error):
        raise error
    if time.monotonic() > until:
        raise TableInUse(table, PATIENCE) from error
    time.sleep(random.uniform(0.5, 1.0))


def _in_batches(table: str, change: str, where: str, key: str, batch: int) -> None:
    """Change the rows that `where` names, some of them at a time, in transactions of their own."""
    if kind() == "sqlite":
        op.get_bind().exec_driver_sql(f"{change} WHERE {where}")
        return
    for stretch, bounds in _stretches(table, quoted(key), batch):
        here, until = f"{stretch} AND ({where})", time.monotonic() + PATIENCE
        while _in_transaction(lambda connection: _change_some(connection, table, change, here, quoted(key), bounds)):  # noqa: B023
            if time.monotonic() > until:
                raise TableInUse(table, PATIENCE)
            time.sleep(0.1)


def _stretches(table: str, key: str, batch: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Walk over a table by its key; rows that come while we walk are written by who knows how, or are met on the way."""
    after, seen = "true", dict[str, Any]()
    while True:
        some = f"SELECT {key} AS k FROM {named(table)} WHERE {after} ORDER BY {key} LIMIT {batch}"
        last = op.get_bind().execute(text(f"SELECT max(k) FROM ({some}) AS found"), seen).scalar()
        if last is None:
            return
        yield f"{after} AND {key} <= :last", seen | {"last": last}
        after, seen = f"{key} > :after", {"after": last}


def _in_transaction(work: Callable[[Connection], int]) -> int:
    with op.get_bind().engine.begin() as connection:
        return work(connection)


def _change_some(connection: Connection, table: str, change: str, where: str, key: str, bounds: dict[str, Any]) -> int:
    """Change rows that nobody holds, and return how many are left."""
    # Whoever holds one is not waited for, so that we are never in anybody's way, or in a deadlock.
    free = text(f"SELECT {key} FROM {named(table)} WHERE {where} FOR UPDATE SKIP LOCKED")
    keys = list(connection.execute(free, bounds).scalars())
    if keys:
        changed = text(f"{change} WHERE {key} IN :keys").bindparams(bindparam("keys", expanding=True))
        connection.execute(changed, {"keys": keys})
    return connection.execute(text(f"SELECT count(*) FROM {named(table)} WHERE {where}"), bounds).scalar_one()
