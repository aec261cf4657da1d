"""Bringing the tables to this release, and telling when they are not.

The embedded SQLite database upgrades itself. A server's never does without being told (`celery -A app tm schema upgrade`,
or `tm_auto_upgrade`): it is somebody's production, and locks and grants are theirs to plan.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import TableClause, column, delete, select, table
from sqlalchemy.engine import Connection

from ..errors import InvalidValue, SchemaMissing, SchemaOutdated
from .database import Database
from .grants import VERSION_TABLE
from .tables import metadata

if TYPE_CHECKING:
    from alembic.config import Config

LATEST = "0007"  # the newest revision in migrations/versions; a test holds the two in step


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
    """Bring the tables to `revision` and return it; another node doing the same is waited for.

    On a server each step commits by itself, and one that was interrupted is completed by the next upgrade.
    """
    from alembic import command

    found = current(database)
    if found and found > LATEST:  # a later release was here; its steps are unknown to this one
        return found
    with _migrating(database) as config:
        command.upgrade(config, revision)
    return current(database) or ""


def downgrade(database: Database, revision: str | None = None) -> str:
    """Take the tables back to `revision`, or by one, and return where they are. No node of this release may run."""
    from alembic import command

    found = current(database)
    if found is None:
        raise SchemaMissing(database.safe_url)
    before = [known for known in revisions() if known < found]
    if found > LATEST or not before or revision not in (None, *before):
        whole = f"the tables are at {found}, and nothing leads from there to {revision or 'an earlier one'}"
        raise InvalidValue("revision", whole, f"give one of {', '.join(before) or 'a later release'}")
    with _migrating(database) as config:
        command.downgrade(config, revision or before[-1])
    return current(database) or ""


def revisions() -> list[str]:
    """Return the revisions that this release knows, the first one first."""
    from alembic.script import ScriptDirectory

    return sorted(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


@contextmanager
def _migrating(database: Database) -> Iterator[Config]:
    """Open a connection for the steps of migrations, while no other node takes any."""
    opened = _opened_on_server if database.dialect.is_server else _opened_embedded
    with database.translated_errors(), opened(database) as connection:
        config = _config()
        config.attributes["connection"] = connection.execution_options(
            schema_translate_map={None: database.schema} if database.schema else {}
        )
        config.attributes["schema"] = database.schema
        yield config


@contextmanager
def _opened_embedded(database: Database) -> Iterator[Connection]:
    # An immediate transaction, so one at a time; what does not end is not there.
    with database.engine.begin() as connection:
        yield connection


@contextmanager
def _opened_on_server(database: Database) -> Iterator[Connection]:
    with database.engine.connect() as turn, database.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        try:
            _wait_for_turn(turn, database)
            if database.dialect.name == "postgresql":
                if not database.manner.is_pooled:  # another client would get the session with this setting
                    connection.exec_driver_sql("SET statement_timeout = 0")  # an index takes as long as it takes
                    connection.exec_driver_sql("SET lock_timeout = 0")
                if database.schema:
                    connection.exec_driver_sql(f'CREATE SCHEMA IF NOT EXISTS "{database.schema}"')
            yield connection
        finally:
            for used in (connection, turn):
                used.invalidate()  # gives the turn back, and with it what was set for this session


def _wait_for_turn(connection: Connection, database: Database) -> None:
    """Wait until no other node is migrating these tables, however long it takes.

    On PostgreSQL the turn is a transaction's: a pooler would leave the lock of a session behind. It holds no snapshot, so
    no index that is made meanwhile waits for it.
    """
    if database.dialect.name == "mysql":
        whose = "MD5(DATABASE())"  # such locks are the server's, not the database's
        asked = f"SELECT GET_LOCK(CONCAT('celery_tm ', {whose}), 0)"
    else:
        asked = f"SELECT pg_try_advisory_xact_lock(hashtext('celery_tm schema {database.schema or ''}'))"
    # Asked again and again: whoever waits inside a statement keeps PostgreSQL from making an index beside writers.
    while not connection.exec_driver_sql(asked).scalar():
        connection.rollback()
        time.sleep(0.2)
    if database.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")


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
