"""Through PgBouncer in transaction mode: everything works without a setting, and nothing is left behind for other clients.

Debian's 1.18 does not keep prepared statements, and gives each transaction another session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url
from tmtest.app import make_app
from tmtest.servers import OwnPgBouncer, OwnPostgreSQL, OwnRedis
from tmtest.stand import Stand

from celery_tm import TimeManagement, defer, defer_many
from celery_tm.errors import DatabaseUnavailable, InvalidValue
from celery_tm.settings import read_settings
from celery_tm.store.database import Database

TIMEOUTS = ("lock_timeout", "statement_timeout", "DateStyle")
ROLE = "ALTER ROLE tester SET DateStyle = 'German'; ALTER ROLE tester SET default_transaction_isolation = 'serializable'"


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnPostgreSQL]:
    server = OwnPostgreSQL(tmp_path_factory.mktemp("pg"))
    server.start()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(ROLE)
    yield server
    server.stop()


@pytest.fixture(params=["", "ignore_startup_parameters = extra_float_digits,options\n"], ids=["plain", "ignoring"])
def pooler(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, postgres: OwnPostgreSQL
) -> Iterator[OwnPgBouncer]:
    pooler = OwnPgBouncer(tmp_path_factory.mktemp("pgbouncer"), postgres, settings=request.param)
    pooler.start()
    yield pooler
    pooler.stop()


@pytest.mark.timeout(240)
def test_everything_runs_once_through_a_pooler_that_keeps_no_prepared_statements(
    pooler: OwnPgBouncer, broker: OwnRedis, tmp_path: Path, effects: Path
) -> None:
    stand = Stand({"broker_url": broker.url, "tm_database_url": pooler.url, "tm_lease": 10}, tmp_path, effects)
    try:
        stand.tm.upgrade()
        beat, worker = stand.beat(), stand.worker()
        effect, keyed = stand.app.tasks["effect"], stand.app.tasks["keyed"]
        defer_many([(effect.s(f"later-{n}"), {"delay": 0.5 + n / 50}) for n in range(40)])
        for n in range(20):
            defer(effect.s(f"now-{n}"), concurrency_key="lane" if n % 2 else None)
            effect.delay(f"direct-{n}")
            keyed.delay(f"{pooler.port}-{n % 10}")
        names = {*(f"later-{n}" for n in range(40)), *(f"{how}-{n}" for how in ("now", "direct") for n in range(20))}
        stand.wait(lambda: {line[1] for line in stand.effects("effect")} >= names, seconds=120, what="all bodies")
        stand.wait_until_settled()
        assert Counter(line[1] for line in stand.effects("effect")) == Counter(dict.fromkeys(names, 1))
        assert Counter(line[1] for line in stand.effects("keyed")) == Counter(f"{pooler.port}-{n}" for n in range(10))
        for process in (beat, worker):
            assert "Traceback" not in process.text()
        stand.wait_for_text(beat, "a pooler passes on no notifications")
    finally:
        stand.close()


@pytest.mark.timeout(60)
def test_nothing_that_we_set_is_left_in_a_session_of_the_pooler(pooler: OwnPgBouncer, postgres: OwnPostgreSQL) -> None:
    database = Database(read_settings({"tm_database_url": pooler.url, "tm_auto_upgrade": True}, {}))
    database.serve(lock_timeout=0.5)
    with psycopg.connect(postgres.url) as direct:
        theirs = settings_of(direct)
    for _ in range(10):
        database.run(lambda tx: tx.read_now())
    assert database.manner.is_pooled
    with database.transaction() as tx:
        assert settings_of(tx.connection.connection.dbapi_connection)[:2] == ["500ms", "1min"]
    with (
        psycopg.connect(pooler.url, prepare_threshold=None) as one,
        psycopg.connect(pooler.url, prepare_threshold=None) as two,
    ):
        assert [settings_of(one), settings_of(two)] == [theirs, theirs]
    database.dispose()


def settings_of(connection: psycopg.Connection) -> list[str]:
    return [connection.execute(f"SHOW {name}").fetchone()[0] for name in TIMEOUTS]  # type: ignore[index]


@pytest.mark.timeout(60)
def test_an_upgrade_leaves_no_lock_behind_in_a_session_of_the_pooler(pooler: OwnPgBouncer, postgres: OwnPostgreSQL) -> None:
    database = Database(read_settings({"tm_database_url": pooler.url, "tm_schema": f"s{pooler.port}"}, {}))
    from celery_tm.store import schema

    schema.upgrade(database)
    with psycopg.connect(postgres.url) as direct:
        assert direct.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)
    database.dispose()


@pytest.mark.parametrize("value", ["0", "none"])
def test_the_url_may_say_that_nothing_is_prepared(postgres: OwnPostgreSQL, value: str) -> None:
    url = make_url(postgres.url).update_query_dict({"prepare_threshold": value}).render_as_string(hide_password=False)
    database = Database(read_settings({"tm_database_url": url, "tm_auto_upgrade": True}, {}))
    with database.transaction() as tx:
        assert tx.connection.connection.dbapi_connection.prepare_threshold is None
    assert not database.manner.is_pooled
    database.dispose()


def test_another_threshold_is_refused_in_words(postgres: OwnPostgreSQL) -> None:
    with pytest.raises(InvalidValue, match="prepare_threshold=7 is not 0 or none"):
        Database(read_settings({"tm_database_url": f"{postgres.url}?prepare_threshold=7"}, {}))


@pytest.mark.timeout(60)
def test_who_insists_on_prepared_statements_is_told_of_the_pooler(pooler: OwnPgBouncer) -> None:
    conf = {"broker_url": "memory://", "tm_database_url": pooler.url, "tm_auto_upgrade": True, "tm_prepare_statements": True}
    tms = [TimeManagement(make_app(conf)) for _ in range(3)]
    with pytest.raises(DatabaseUnavailable, match=r"pooler .* tm_prepare_statements=False"):
        defer_by_turns(tms)
    for tm in tms:
        tm.installation.database.dispose()
        tm.app.close()


def defer_by_turns(tms: list[TimeManagement]) -> None:
    for n in range(300):
        defer(tms[n % 3].app.tasks["effect"].s(n), delay="1h", app=tms[n % 3].app)
