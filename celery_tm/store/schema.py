"""Bringing the tables to this release, and telling when they are not.

The embedded SQLite database upgrades itself. A server's never does without being told (`celery -A app tm schema upgrade`,
or `tm_auto_upgrade`): it is somebody's production, and locks and grants are theirs to plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import TableClause, column, delete, select, table
from sqlalchemy.engine import Connection

from ..errors import SchemaMissing, SchemaOutdated
from .database import Database
from .grants import VERSION_TABLE
from .tables import metadata

if TYPE_CHECKING:
    from alembic.config import Config

LATEST = "0005"  # the newest revision in migrations/versions; a test holds the two in step


def ensure(database: Database) -> None:
    """Raise unless the tables are of this release or a later one; upgrade first where that is allowed."""
    found = current(database)
    if _is_enough(found):
        return
    wanted = database.settings.tm_auto_upgrade
    if wanted or (wanted is None and not database.dialect.is_server):
        upgrade(database)
    elif found is None:
        raise SchemaMissing(database.safe_url)
    else:
        raise SchemaOutdated(database.safe_url, found, LATEST)


def _is_enough(found: str | None) -> bool:
    # A schema only grows while the release before may still run on it, so that nodes can be upgraded one by one.
    return found is not None and found >= LATEST


def current(database: Database) -> str | None:
    """Return the revision the tables are at, or None where there are none."""
    try:
        with database.translated_errors(), database.engine.connect() as connection:
            connection = connection.execution_options(tm_write=False)
            return connection.execute(select(_version(database).c.version_num)).scalar()
    except SchemaMissing:
        return None


def _version(database: Database) -> TableClause:
    return table(VERSION_TABLE, column("version_num"), schema=database.schema)


def upgrade(database: Database, revision: str = "head") -> str:
    """Bring the tables to `revision` in one transaction and return it; another node doing the same is waited for."""
    from alembic import command

    found = current(database)
    if found and found > LATEST:  # a later release was here; its steps are unknown to this one
        return found

    with database.translated_errors(), database.engine.begin() as connection, _alone(connection, database):
        if database.schema and database.dialect.name == "postgresql":
            connection.exec_driver_sql(f'CREATE SCHEMA IF NOT EXISTS "{database.schema}"')
        config = _config()
        config.attributes["connection"] = connection.execution_options(
            schema_translate_map={None: database.schema} if database.schema else {}
        )
        config.attributes["schema"] = database.schema
        command.upgrade(config, revision)
    return current(database) or ""


@contextmanager
def _alone(connection: Connection, database: Database) -> Iterator[None]:
    """Let one node upgrade at a time. SQLite's immediate transaction already does."""
    if database.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('celery_tm schema'))")
    elif database.dialect.name == "mysql":
        connection.exec_driver_sql("SELECT GET_LOCK('celery_tm schema', 60)")
    yield
    if database.dialect.name == "mysql":
        connection.exec_driver_sql("SELECT RELEASE_LOCK('celery_tm schema')")


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config


def empty(database: Database) -> None:
    """Delete every row of every table, for a test to begin with nothing."""
    with database.transaction() as tx:
        for each in metadata.sorted_tables:
            tx.execute(delete(each))
