"""Migrations on every database: they make the tables the code knows, can be repeated, and are asked for by name."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, inspect, text
from sqlalchemy.engine import make_url

from celery_tm.errors import SchemaMissing, SchemaOutdated
from celery_tm.settings import read_settings
from celery_tm.store import apps, definitions, occurrences, schema, tables
from celery_tm.store.database import Database
from celery_tm.store.dialects import with_driver

DATABASES = ("sqlite", "postgresql", "mysql")


@pytest.fixture(params=DATABASES)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """The URL of a database with nothing in it."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/empty.db"
        return
    url = make_url(request.getfixturevalue(f"{request.param}_url"))
    name = f"{url.database}_{tmp_path.name.replace('-', '_')[:20]}"[:60].lower()
    engine = create_engine(with_driver(url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield url.set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name}" + (" WITH (FORCE)" if request.param == "postgresql" else "")))
    engine.dispose()


def database_at(url: str, **conf: Any) -> Database:
    return Database(read_settings({"tm_database_url": url, **conf}, {}))


def shape(engine: Engine, schema: str | None = None) -> dict[str, Any]:
    """Return the columns and indexes of our tables as the database tells them."""
    seen = inspect(engine)
    found = {}
    for table in tables.metadata.tables:
        columns = {c["name"]: (str(c["type"]), c["nullable"]) for c in seen.get_columns(table, schema=schema)}
        indexes = {(i["name"], tuple(i["column_names"]), bool(i["unique"])) for i in seen.get_indexes(table, schema=schema)}
        found[table] = (columns, indexes, tuple(seen.get_pk_constraint(table, schema=schema)["constrained_columns"]))
    return found


def test_migrations_make_the_tables_the_code_knows(empty_url: str, tmp_path: Path) -> None:
    migrated = database_at(empty_url)
    schema.upgrade(migrated)
    by_migrations = shape(migrated.engine)
    with migrated.engine.begin() as connection:
        tables.metadata.drop_all(connection)
        tables.metadata.create_all(connection)
    assert by_migrations == shape(migrated.engine)
    migrated.dispose()


def test_no_table_refers_to_another(empty_url: str) -> None:
    """A foreign key would be looked up by each insert, and lock rows that others need."""
    migrated = database_at(empty_url)
    schema.upgrade(migrated)
    seen = inspect(migrated.engine)
    assert [table for table in tables.metadata.tables if seen.get_foreign_keys(table)] == []
    migrated.dispose()


def test_an_upgrade_can_be_repeated_and_says_where_it_is(empty_url: str) -> None:
    database = database_at(empty_url)
    assert schema.current(database) is None
    assert schema.upgrade(database) == schema.LATEST
    assert schema.upgrade(database) == schema.LATEST == schema.current(database)
    database.dispose()


def test_several_nodes_may_upgrade_at_once(empty_url: str) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        database = database_at(empty_url)
        try:
            schema.upgrade(database)
        except BaseException as error:
            errors.append(error)
        finally:
            database.dispose()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    database = database_at(empty_url)
    assert schema.current(database) == schema.LATEST
    database.dispose()


def test_a_server_is_never_upgraded_without_being_told(empty_url: str) -> None:
    database = database_at(empty_url)
    if database.dialect.is_server:
        with pytest.raises(SchemaMissing, match="celery -A app tm schema upgrade"):
            database.check_schema()
        assert schema.current(database) is None
        told = database_at(empty_url, tm_auto_upgrade=True)
        told.check_schema()
        told.dispose()
    else:
        database.check_schema()
    assert schema.current(database) == schema.LATEST
    database.dispose()


def test_tables_of_another_release_name_the_command(empty_url: str) -> None:
    database = database_at(empty_url, tm_auto_upgrade=False)
    schema.upgrade(database)
    with database.engine.begin() as connection:
        connection.execute(text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '0000'"))
    with pytest.raises(SchemaOutdated, match=f"are at 0000, this release needs {schema.LATEST}; run `celery"):
        database.check_schema()
    database.dispose()


def test_the_tables_of_a_later_release_are_used_as_they_are(empty_url: str) -> None:
    database = database_at(empty_url, tm_auto_upgrade=True)
    schema.upgrade(database)
    with database.engine.begin() as connection:
        connection.execute(text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'"))
    database.check_schema()
    assert schema.upgrade(database) == schema.current(database) == "9999"
    database.dispose()


def test_the_latest_revision_is_the_one_the_migrations_end_with() -> None:
    from alembic.script import ScriptDirectory

    assert ScriptDirectory.from_config(schema._config()).get_current_head() == schema.LATEST


def test_the_tables_may_live_in_a_schema_of_their_own(postgresql_url: str) -> None:
    from celery import Celery

    from celery_tm import Task, TimeManagement, defer

    app = Celery("schemed", broker="memory://", set_as_current=False)
    app.conf.update(tm_database_url=postgresql_url, tm_schema="time_management", tm_auto_upgrade=True)

    @app.task(base=Task, name="t", shared=False)
    def t() -> int:
        return 5

    tm = TimeManagement(app)
    handle = defer(t.s(), delay=0.001, key="k")
    import time

    time.sleep(0.05)
    assert tm.run_due_jobs().succeeded == 1
    assert handle.result == 5
    engine = tm.installation.database.engine
    assert set(tables.metadata.tables) <= set(inspect(engine).get_table_names(schema="time_management"))
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA time_management CASCADE"))
    tm.installation.database.dispose()


def test_an_engine_is_never_shared_across_a_fork(database_url: str) -> None:
    code = f"""
import os
from celery_tm.settings import read_settings
from celery_tm.store.database import Database
database = Database(read_settings({{"tm_database_url": {database_url!r}}}, {{}}))
with database.transaction() as tx:
    tx.read_now()
parent = database.engine
pid = os.fork()
if pid == 0:
    with database.transaction() as tx:
        tx.read_now()
    os._exit(0 if database.engine is not parent else 1)
_, status = os.waitpid(pid, 0)
with database.transaction() as tx:
    tx.read_now()
raise SystemExit(os.waitstatus_to_exitcode(status))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_rows_of_the_first_tables_are_carried_over(empty_url: str) -> None:
    database = database_at(empty_url)
    schema.upgrade(database, "0001")
    noon = "2026-06-01 12:00:00"
    at = ", ".join(["planned_until", "created_at", "updated_at"])
    with database.engine.begin() as connection:
        connection.execute(
            text(
                f"INSERT INTO tm_definition (id, name, task, args, kwargs, schedule_kind, schedule, timezone, gap, enabled, "
                f"paused, overlap, recovery, timeout, version, {at}) VALUES ('d', 'tick', 't', '[]', '{{}}', 'cron', "
                f"'* * * * *', 'UTC', 'shift', {_true(empty_url)}, {_false(empty_url)}, 'skip', 'last', 300, 4, "
                f"'{noon}', '{noon}', '{noon}')"
            )
        )
        connection.execute(
            text(
                f"INSERT INTO tm_occurrence (id, definition, version, scheduled_at, state, is_recovery) "
                f"VALUES ('o', 'd', 4, '{noon}', 'running', {_false(empty_url)})"
            )
        )
    schema.upgrade(database)
    database.serve_own_app()
    database.run(apps.register)  # as the first beat does
    database.run(lambda tx: apps.adopt(tx, origin="beat_schedule:default", tasks=()))
    with database.transaction(write=False) as tx:
        found = definitions.find(tx, "tick")
        owed = occurrences.count_active(tx, ["d"])
    assert found is not None
    assert (found.task_timeout, found.version, found.runs) == (timedelta(minutes=5), 4, 0)
    assert owed["d"].all == 1, "what ran before the upgrade is still known to run"
    database.dispose()


def test_jobs_and_executions_that_are_there_get_the_name_of_their_definition(empty_url: str) -> None:
    database = database_at(empty_url)
    schema.upgrade(database, "0004")
    noon, no, yes = "2026-06-01 12:00:00", _false(empty_url), _true(empty_url)
    with database.engine.begin() as connection:
        said = (
            "INSERT INTO tm_definition (id, name, task, args, kwargs, schedule_kind, schedule, timezone, gap, enabled, "
            "paused, overlap, recovery, version, planned_until, created_at, updated_at) "
            "VALUES ('d', 'tick', 't', '[]', '{}', 'cron', "
            f"'* * * * *', 'UTC', 'shift', {yes}, {no}, 'skip', 'last', 4, '{noon}', '{noon}', '{noon}')",
            "INSERT INTO tm_occurrence (id, definition, version, scheduled_at, state, is_recovery) "
            f"VALUES ('o', 'd', 4, '{noon}', 'running', {no}), ('of removed', 'e', 1, '{noon}', 'completed', {no})",
            *(_execution(id, where, noon) for id, where in (("x", "'o'"), ("y", "NULL"), ("z", "'of removed'"))),
            *(_job(table, id, where, noon, no) for table, more in (("tm_job", ""), ("tm_dead_letter", "buried"))
              for id, where in (("j" + more, "'o'"), ("k" + more, "NULL"))),
        )  # fmt: skip
        for statement in said:
            connection.execute(text(statement.replace(":", r"\:")))
    schema.upgrade(database)
    with database.engine.begin() as connection:
        for table, named in {"tm_execution": {"x"}, "tm_job": {"j"}, "tm_dead_letter": {"jburied"}}.items():
            found = connection.execute(text(f"SELECT id, definition FROM {table}")).all()
            assert {row.id for row in found if row.definition == "tick"} == named, table
            assert {row.definition for row in found if row.id not in named} == {None}, table
        # What the release before writes is taken still: it names no definition.
        for statement in (_execution("old", "'o'", noon), _job("tm_job", "old", "'o'", noon, no)):
            connection.execute(text(statement.replace(":", r"\:")))
    database.dispose()


def _execution(id: str, occurrence: str, at: str) -> str:
    columns = "id, job, task, source, occurrence, attempt, completed_at, outcome"
    return f"INSERT INTO tm_execution ({columns}) VALUES ('{id}', 'j', 't', 'scheduled', {occurrence}, 1, '{at}', 'failed')"


def _job(table: str, id: str, occurrence: str, at: str, no: str) -> str:
    columns = "id, task, run_at, created_at, original_delay, state, attempt, tries_from, dispatches, source, occurrence, "
    values = f"'{id}', 't', '{at}', '{at}', 0, 'pending', 1, 1, 0, 'scheduled', {occurrence}, {no}"
    more, why = (", reason, buried_at", f", 'why', '{at}'") if table == "tm_dead_letter" else ("", "")
    return f"INSERT INTO {table} ({columns}cancel_requested{more}) VALUES ({values}{why})"


def test_an_upgrade_can_be_undone_and_done_again(empty_url: str) -> None:
    database = database_at(empty_url)
    schema.upgrade(database, "0001")
    first = columns_of(database.engine)
    schema.upgrade(database)
    latest = shape(database.engine)
    assert schema.downgrade(database, "0001") == "0001"
    assert columns_of(database.engine) == first
    schema.upgrade(database)
    assert shape(database.engine) == latest
    database.dispose()


def columns_of(engine: Engine) -> dict[str, set[str]]:
    """Return the columns of every table there is."""
    seen = inspect(engine)
    return {table: {column["name"] for column in seen.get_columns(table)} for table in seen.get_table_names()}


def _true(url: str) -> str:
    return "true" if url.startswith("postgresql") else "1"


def _false(url: str) -> str:
    return "false" if url.startswith("postgresql") else "0"
