"""Upgrades beside everybody's work: big tables are not locked, what is killed is completed, and all can be taken back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, inspect, text
from tmtest import services
from tmtest.old_tables import LockWatch, old_tables, upgrade_in_a_process, writers

from celery_tm import TimeManagement
from celery_tm.errors import InvalidValue, SchemaMissing, TableInUse
from celery_tm.settings import read_settings
from celery_tm.store import online, schema, tables
from celery_tm.store.database import Database

ROWS = 12_000  # more than `online.SMALL`: indexes are made beside writers
# Seconds that a writer may wait for a lock; MySQL counts its patience in whole ones. In one transaction it is 3 and more.
LONGEST = {"postgresql": 0.5, "mysql": 1.5}
DATABASES = ("sqlite", "postgresql", "mysql")
MakeOld = Callable[..., tuple[str, TimeManagement]]


@pytest.fixture
def make_old(tmp_path: Path) -> Iterator[MakeOld]:
    """Return how to make a database of a kind, with tables of an earlier revision and a past in them."""
    with ExitStack() as stack:

        def make(kind: str, count: int, **options: Any) -> tuple[str, TimeManagement]:
            if kind == "sqlite":
                url = f"sqlite:///{tmp_path}/old.db"
            else:
                if not services.find(kind):
                    pytest.skip(services.why_missing(kind))
                url = stack.enter_context(services.own_database(kind, suffix=f"_old_{os.getpid()}_{time.monotonic_ns()}"))
            tm = old_tables(url, count, **options)
            stack.callback(tm.app.close)
            stack.callback(tm.installation.database.dispose)
            return url, tm

        yield make


def database_of(url: str, **conf: Any) -> Database:
    return Database(read_settings({"tm_database_url": url, **conf}, {}))


def scalar(tm: TimeManagement, statement: str) -> Any:
    with tm.installation.database.engine.begin() as connection:
        return connection.execute(text(statement)).scalar()


def check_whole(tm: TimeManagement, rows: int) -> None:
    """Hold the tables to what an upgrade makes of them."""
    assert schema.current(tm.installation.database) == schema.LATEST
    assert scalar(tm, "SELECT count(*) FROM tm_execution WHERE definition = 'tick'") == rows
    assert scalar(tm, "SELECT count(*) FROM tm_execution WHERE occurrence IS NOT NULL AND definition IS NULL") == 0
    assert scalar(tm, "SELECT count(*) FROM tm_job WHERE occurrence IS NOT NULL AND definition IS NULL") == 0
    assert invalid_indexes(tm) == []
    found = {index["name"] for index in inspect(tm.installation.database.engine).get_indexes("tm_execution")}
    assert {index.name for index in tables.execution.indexes} <= found


def invalid_indexes(tm: TimeManagement) -> list[str]:
    if tm.installation.database.dialect.name != "postgresql":
        return []
    with tm.installation.database.engine.begin() as connection:
        asked = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid"
        return list(connection.execute(text(asked)).scalars())


# While everybody writes


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_nobody_waits_for_a_big_table_that_is_upgraded(make_old: MakeOld, kind: str, thorough: bool) -> None:
    if kind == "mysql" and not thorough:
        pytest.skip("runs with --thorough")
    rows = {"postgresql": 2_000_000, "mysql": 500_000}[kind] if thorough else 2 * ROWS
    url, tm = make_old(kind, rows)
    with LockWatch(url) as locks, writers(url) as busy:
        time.sleep(0.3)
        began, before = time.monotonic(), [len(writer.waits) for writer in busy]
        told, _ = upgrade_in_a_process(url).communicate(timeout=1500)
        took = time.monotonic() - began
    longest = max(max(writer.waits[start:]) for writer, start in zip(busy, before, strict=True))
    print(
        f"\n{kind}, {rows} rows: {took:.1f} s; {locks.longest:.3f} s for a lock, {longest:.3f} s for a transaction at most"
    )
    assert told.strip() == schema.LATEST, told
    assert [writer.errors for writer in busy] == [[], []]
    assert min(writer.ended for writer in busy) > 10
    assert locks.looks > 10
    assert locks.longest < LONGEST[kind]
    check_whole(tm, rows)


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_a_long_transaction_holds_up_the_upgrade_and_nobody_else(make_old: MakeOld, kind: str, thorough: bool) -> None:
    if kind == "mysql" and not thorough:
        pytest.skip("runs with --thorough")
    url, tm = make_old(kind, 100)
    with LockWatch(url) as locks, tm.installation.database.engine.connect() as reader, reader.begin(), writers(url) as busy:
        reader.execute(text("SELECT count(*) FROM tm_execution")).all()
        process = upgrade_in_a_process(url)
        while locks.longest < online.LOCK_WAIT / 2 and process.poll() is None:
            time.sleep(0.05)  # until somebody had to wait behind it
        ended = [writer.ended for writer in busy]
        time.sleep(2)
        assert process.poll() is None, "it cannot have changed a table that somebody reads"
        assert all(writer.ended > before + 10 for writer, before in zip(busy, ended, strict=True))
        reader.rollback()
        told, _ = process.communicate(timeout=60)
    assert told.strip() == schema.LATEST, told
    assert [writer.errors for writer in busy] == [[], []]
    assert locks.longest < LONGEST[kind]
    check_whole(tm, 100)


def test_rows_that_somebody_holds_are_filled_when_they_are_free(make_old: MakeOld) -> None:
    url, tm = make_old("postgresql", 100)
    with tm.installation.database.engine.connect() as holder, holder.begin():
        other = threading.Thread(target=begin, args=(url, []))
        # Only the row is held: columns were added before.
        schema_with_columns(tm)
        holder.execute(text("UPDATE tm_job SET claimed_by = 'x' WHERE id = 'job-0000003'"))
        other.start()
        time.sleep(1.5)
        assert scalar(tm, "SELECT count(*) FROM tm_job WHERE definition = 'tick'") == 9
        assert schema.current(tm.installation.database) == "0004"
        holder.commit()
    other.join(30)
    check_whole(tm, 100)
    assert scalar(tm, "SELECT claimed_by FROM tm_job WHERE id = 'job-0000003'") == "x"


def schema_with_columns(tm: TimeManagement) -> None:
    with tm.installation.database.engine.begin() as connection:
        for table in ("tm_job", "tm_dead_letter", "tm_execution"):
            connection.execute(text(f"ALTER TABLE {table} ADD COLUMN definition varchar(100)"))


def test_a_table_that_is_never_free_is_said_to_be_in_use(make_old: MakeOld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online, "PATIENCE", 0.1)
    _, tm = make_old("postgresql", 10)
    with tm.installation.database.engine.connect() as reader, reader.begin():
        reader.execute(text("SELECT count(*) FROM tm_job")).all()
        with pytest.raises(TableInUse, match=r"tm_job was in use .* tm schema upgrade` again"):
            schema.upgrade(tm.installation.database)
    assert schema.upgrade(tm.installation.database) == schema.LATEST


# Several at once


def begin(url: str, errors: list[Exception]) -> None:
    """Do what a beat or a worker does first."""
    database = database_of(url, tm_auto_upgrade=True)
    try:
        database.check_schema()
        assert schema.current(database) == schema.LATEST
    except Exception as error:
        errors.append(error)
    finally:
        database.dispose()


def test_of_several_that_upgrade_at_once_one_does_and_the_others_wait(make_old: MakeOld) -> None:
    url, tm = make_old("postgresql", ROWS)
    errors: list[Exception] = []
    threads = [threading.Thread(target=begin, args=(url, errors)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    check_whole(tm, ROWS)


# Killed


# Upgrades again and again, each time killed after a statement that none was killed after before, until one gets to the end.
KILLED = """
import os, sys
from sqlalchemy import event
from celery_tm.settings import read_settings
from celery_tm.store import schema
from celery_tm.store.database import Database

url, step = sys.argv[1], int(sys.argv[2])
schema.revisions()  # whatever is imported, is imported before the forks
CHANGES = ("CREATE", "ALTER", "DROP", "INSERT", "UPDATE", "DELETE")

def upgrade(known, tell):
    database = Database(read_settings({"tm_database_url": url}, {}))
    new = []
    @event.listens_for(database.engine, "after_cursor_execute")
    def after(_, __, statement, *___):
        if statement.rpartition("; ")[2].split()[0] in CHANGES and statement not in known and statement not in new:
            new.append(statement)
            if len(new) == step:
                os.write(tell, chr(0).join(new).encode())
                os.kill(os.getpid(), 9)
    schema.upgrade(database)
    os._exit(0)

known, deaths = set(), 0
while True:
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        upgrade(known, tell)
    os.close(tell)
    with open(hear, "rb") as told:
        known |= set(told.read().decode().split(chr(0)))
    _, status = os.waitpid(child, 0)
    if status == 0:
        break
    assert os.WIFSIGNALED(status), status
    deaths += 1
print(deaths)
"""


def upgrade_with_deaths(url: str, *, every: int) -> int:
    """Upgrade, killed after every so many changes, and return how often it was killed."""
    argv = [sys.executable, "-c", KILLED, url, str(every)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("kind", DATABASES)
def test_an_upgrade_that_is_killed_after_each_of_its_steps_is_completed(make_old: MakeOld, kind: str) -> None:
    url, tm = make_old(kind, 50, revision="0004")
    assert upgrade_with_deaths(url, every=1) >= 8
    check_whole(tm, 50)
    assert shape(tm.installation.database.engine) == fresh_shape(tm)


@pytest.mark.parametrize("kind", DATABASES)
def test_the_first_tables_too_are_completed_when_their_making_is_killed(
    make_old: MakeOld, kind: str, thorough: bool
) -> None:
    url, tm = make_old(kind, 1)
    with tm.installation.database.engine.begin() as connection:
        for table in inspect(connection).get_table_names():
            connection.execute(text(f"DROP TABLE {table}"))
    assert upgrade_with_deaths(url, every=1 if thorough else 20) >= 3
    assert shape(tm.installation.database.engine) == fresh_shape(tm)


def shape(engine: Engine) -> dict[str, Any]:
    """Return columns and indexes as the database tells them."""
    seen = inspect(engine)
    return {
        table: (
            {(column["name"], str(column["type"]), column["nullable"]) for column in seen.get_columns(table)},
            {(index["name"], tuple(index["column_names"])) for index in seen.get_indexes(table)},
        )
        for table in tables.metadata.tables
    }


def fresh_shape(tm: TimeManagement) -> dict[str, Any]:
    """Return the shape of tables that are made anew, in place of those that are there."""
    with tm.installation.database.engine.begin() as connection:
        tables.metadata.drop_all(connection)
        tables.metadata.create_all(connection)
    return shape(tm.installation.database.engine)


def test_an_index_that_was_left_half_made_is_made_again(make_old: MakeOld) -> None:
    url, tm = make_old("postgresql", ROWS)
    engine = tm.installation.database.engine
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as reader, reader.begin():
        # It sees the tables as they are now, and so keeps an index from being finished.
        reader.execute(text("SELECT count(*) FROM tm_definition")).all()
        process = upgrade_in_a_process(url)
        making = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'CREATE INDEX CONC%'"
        waited = time.monotonic() + 60
        while not (pid := scalar(tm, making)) or not invalid_indexes(tm):
            assert time.monotonic() < waited
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        scalar(tm, f"SELECT pg_terminate_backend({pid})")
    assert invalid_indexes(tm) == ["tm_execution_definition"]
    assert schema.current(tm.installation.database) == "0004"
    assert schema.upgrade(tm.installation.database) == schema.LATEST
    check_whole(tm, ROWS)


# And back


def rows_of(tm: TimeManagement) -> dict[str, list[Any]]:
    """Return every row, without what the last revision added."""
    found = {}
    with tm.installation.database.engine.begin() as connection:
        for table in sorted(tables.metadata.tables.keys() - ADDED_TABLES):
            known = inspect(connection).get_columns(table)
            columns = [column["name"] for column in known if (table, column["name"]) not in ADDED]
            listed = ", ".join(connection.dialect.identifier_preparer.quote(name) for name in columns)
            found[table] = sorted(map(tuple, connection.execute(text(f"SELECT {listed} FROM {table}"))), key=str)
    return found


ADDED_TABLES = {"tm_scope"}
ADDED = {*(("tm_execution", name) for name in ("dedupe_key", "scope", "run_at", "next_delay")), ("tm_key", "outcome")}
ADDED |= {(table, name) for table in ("tm_job", "tm_dead_letter") for name in ("stuck_at", "keep_failed", "keep_cancelled")}
ADDED |= {("tm_definition", name) for name in ("declared", "groups", "on_start_blocking")}
ADDED |= {("tm_calendar", "declared"), ("tm_occurrence", "overrides")}


@pytest.mark.parametrize("kind", DATABASES)
def test_the_last_revision_can_be_taken_back_and_done_again_with_all_rows(make_old: MakeOld, kind: str) -> None:
    _, tm = make_old(kind, 200, revision="head")
    database = tm.installation.database
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE tm_execution SET definition = 'tick'"))
        connection.execute(text("UPDATE tm_job SET definition = 'tick'"))
    latest, rows = shape(database.engine), rows_of(tm)
    assert len(rows["tm_execution"]) == 200
    assert schema.downgrade(database) == schema.revisions()[-2]
    assert "scope" not in {column["name"] for column in inspect(database.engine).get_columns("tm_execution")}
    assert "stuck_at" not in {column["name"] for column in inspect(database.engine).get_columns("tm_job")}
    assert "tm_scope" not in inspect(database.engine).get_table_names()
    assert rows_of(tm) == rows
    assert schema.upgrade(database) == schema.LATEST
    assert shape(database.engine) == latest
    assert rows_of(tm) == rows
    check_whole(tm, 200)


@pytest.mark.parametrize("kind", DATABASES)
def test_attempts_that_were_stuck_are_timeouts_for_the_release_before(make_old: MakeOld, kind: str) -> None:
    _, tm = make_old(kind, 3, revision="head")
    with tm.installation.database.engine.begin() as connection:
        connection.execute(text("UPDATE tm_execution SET outcome = 'stale'"))
    schema.downgrade(tm.installation.database, "0006")
    assert scalar(tm, "SELECT count(*) FROM tm_execution WHERE outcome = 'timeout'") == 3
    schema.upgrade(tm.installation.database)


@pytest.mark.parametrize("kind", DATABASES)
def test_definitions_of_two_apps_with_one_name_survive_the_way_back(make_old: MakeOld, kind: str) -> None:
    _, tm = make_old(kind, 1, revision="head")
    database = tm.installation.database
    own, other = tables.definition, "INSERT INTO tm_definition ({0}) SELECT {1} FROM tm_definition"
    with database.engine.begin() as connection:
        quoted = {name: connection.dialect.identifier_preparer.quote(name) for name in (column.name for column in own.c)}
        values = {**quoted, "id": "'another'", "app": "'other'"}
        connection.execute(text(other.format(", ".join(quoted.values()), ", ".join(values.values()))))
    schema.downgrade(database, "0005")
    assert scalar(tm, "SELECT count(*) FROM tm_definition WHERE name IN ('tick', 'tick@other')") == 2
    schema.upgrade(database)
    assert scalar(tm, "SELECT count(*) FROM tm_definition WHERE name IN ('tick', 'tick@other')") == 2


@pytest.mark.parametrize("kind", DATABASES)
def test_definitions_that_code_has_seeded_belong_to_its_app_after_an_upgrade(make_old: MakeOld, kind: str) -> None:
    _, tm = make_old(kind, 1)
    with tm.installation.database.engine.begin() as connection:
        connection.execute(text("UPDATE tm_definition SET origin = 'beat_schedule:shop' WHERE name = 'tick'"))
    schema.upgrade(tm.installation.database)
    assert scalar(tm, "SELECT app FROM tm_definition WHERE name = 'tick'") == "shop"
    assert scalar(tm, "SELECT value FROM tm_mark WHERE name = 'app:shop'") == "shop"


def test_nothing_leads_to_what_is_not_there(make_old: MakeOld, tmp_path: Path) -> None:
    _, tm = make_old("sqlite", 1)
    for wrong in ("0004", "0005", "9999", "-1", "base"):
        with pytest.raises(InvalidValue, match=r"the tables are at 0004, .* give one of 0001, 0002, 0003"):
            schema.downgrade(tm.installation.database, wrong)
    with pytest.raises(SchemaMissing):
        schema.downgrade(database_of(f"sqlite:///{tmp_path}/nothing.db"))


def test_a_statement_limit_of_the_server_does_not_end_an_upgrade(make_old: MakeOld) -> None:
    _, tm = make_old("postgresql", 1)
    with tm.installation.database.engine.begin() as connection:
        connection.execute(text(f"ALTER DATABASE {connection.engine.url.database} SET statement_timeout = 5000"))
    tm.installation.database.dispose()
    limits = []

    @event.listens_for(tm.installation.database.engine, "after_cursor_execute")
    def after(_: Any, cursor: Any, statement: str, *__: Any) -> None:
        if "ALTER" in statement:
            cursor.execute("SHOW statement_timeout")
            limits.append(cursor.fetchone()[0])

    schema.upgrade(tm.installation.database)
    assert set(limits) == {"0"}
