"""What our own connections are like, whatever the role, the URL or the driver says; and how errors of a server are named."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text
from tmtest import services
from tmtest.app import make_app
from tmtest.ledger import claim, start

from celery_tm import Scheduler, TimeManagement, clock, defer
from celery_tm.errors import DatabaseBusy, DatabaseReadOnly, DatabaseUnavailable
from celery_tm.scheduler.wakeup import ListeningWaiter
from celery_tm.store import tables
from celery_tm.store.body import BodyTransaction
from celery_tm.store.dialects import with_driver
from celery_tm.store.notifications import Listener

ODD_ROLE = ("DateStyle = 'German'", "default_transaction_isolation = 'serializable'", "lock_timeout = '7s'")


@pytest.fixture
def own_url() -> Iterator[str]:
    """An empty PostgreSQL database."""
    if not services.find("postgresql"):
        pytest.skip(services.why_missing("postgresql"))
    with services.own_database("postgresql", suffix="_conn") as url:
        yield url


def opened(url: str, **conf: Any) -> TimeManagement:
    return TimeManagement(make_app({"broker_url": "memory://", "tm_database_url": url, **conf}))


def close(*tms: TimeManagement) -> None:
    for tm in tms:
        tm.installation.database.dispose()
        tm.app.close()


def say(url: str, *statements: str) -> None:
    engine = create_engine(with_driver(make_url(url)), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def make_odd(url: str) -> None:
    say(url, *(f"ALTER DATABASE {make_url(url).database} SET {setting}" for setting in ODD_ROLE))


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_database_with_odd_defaults_works_like_any_other(own_url: str, driver: str) -> None:
    pytest.importorskip(driver)
    make_odd(own_url)
    tm = opened(make_url(own_url).set(drivername=f"postgresql+{driver}").render_as_string(hide_password=False))
    tm.upgrade()  # of an empty database
    handle = defer(tm.app.tasks["effect"].s(1), delay=0.001, key="k", app=tm.app)
    assert defer(tm.app.tasks["effect"].s(1), delay="1h", key="k", app=tm.app).id == handle.id
    tm.run_due_jobs(now=clock.now() + timedelta(minutes=1))
    assert tm.job(handle.id).state == "SUCCEEDED"
    with tm.installation.database.transaction() as tx:
        shown = [tx.execute(text(f"SHOW {name}")).scalar() for name in ("transaction_isolation", "DateStyle")]
        assert shown == ["read committed", "ISO, DMY"]
    close(tm)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_body_waits_for_locks_as_its_role_does_and_we_do_not(own_url: str, driver: str) -> None:
    make_odd(own_url)
    tm = opened(make_url(own_url).set(drivername=f"postgresql+{driver}").render_as_string(hide_password=False))
    tm.upgrade()
    database = tm.installation.database
    database.serve(lock_timeout=0.25)
    for _ in range(2):
        with database.transaction() as tx:
            assert tx.execute(text("SHOW lock_timeout")).scalar() == "250ms"
        body = BodyTransaction(database)
        assert body.session.execute(text("SHOW lock_timeout")).scalar() == "7s"
        assert body.session.execute(text("SHOW statement_timeout")).scalar() == "0"
        body.roll_back()
    close(tm)


def test_a_body_waits_for_locks_as_its_server_does_on_mysql(tm: TimeManagement) -> None:
    if tm.installation.database.dialect.name != "mysql":
        pytest.skip("each database has its own way")
    own = opened(tm.settings.tm_database_url)
    own.installation.database.serve(lock_timeout=1)
    for _ in range(2):
        with own.installation.database.transaction() as tx:
            assert tx.execute(text("SELECT @@innodb_lock_wait_timeout")).scalar() == 1
        body = BodyTransaction(own.installation.database)
        assert body.session.execute(text("SELECT @@innodb_lock_wait_timeout = @@GLOBAL.innodb_lock_wait_timeout")).scalar()
        body.roll_back()
    close(own)


@pytest.mark.timeout(60)
def test_a_lock_of_others_is_waited_for_once_and_is_no_outage(tm: TimeManagement) -> None:
    own = opened(tm.settings.tm_database_url)
    database = own.installation.database
    handle = defer(own.app.tasks["effect"].s(1), delay="1h", app=own.app)
    database.serve(lock_timeout=1)
    change = tables.job.update().where(tables.job.c.id == handle.id).values(priority=1)
    with tm.installation.database.transaction() as theirs:
        theirs.execute(change)
        began = time.monotonic()
        with pytest.raises(DatabaseBusy, match="is busy"):
            database.run(lambda tx: tx.execute(change))
        assert time.monotonic() - began < 20
    database.run(lambda tx: tx.execute(change))
    close(own)


@pytest.mark.timeout(120)
def test_beat_dispatches_while_others_hold_a_row_and_a_key(tm: TimeManagement) -> None:
    if not tm.installation.database.dialect.skips_locked:
        pytest.skip("one writer locks all of SQLite")
    own = opened(tm.settings.tm_database_url, tm_lease=0.5)
    effect = own.app.tasks["effect"]
    first = defer(effect.s(1), delay=0.001, concurrency_key="key", app=own.app)
    assert claim(own) == [first.id]
    assert start(own, first.id) is not None
    beat = Scheduler(own.app)
    with tm.installation.database.transaction() as theirs:
        theirs.execute(text("SELECT * FROM tm_lane FOR UPDATE")).all()  # as a caller that cancels a job of the key does
        time.sleep(0.6)  # its lease ends, and whoever sweeps it has to free the key
        free = defer(effect.s(2), delay=0.001, app=own.app)
        began = time.monotonic()
        while not is_dispatched(own, free.id) and time.monotonic() - began < 30:
            beat.work()
        assert is_dispatched(own, free.id)
        began = time.monotonic()
        for _ in range(10):
            beat.work()
        assert time.monotonic() - began < 20, "each round waits for the key"
        assert not beat.outages.pause("database")
    deadline = time.monotonic() + 30
    while own.job(first.id).state == "RUNNING" and time.monotonic() < deadline:
        beat.work()
    assert [str(one.outcome) for one in own.job(first.id).executions] == ["orphaned"]
    beat.waiter.close()
    close(own)


def is_dispatched(tm: TimeManagement, id: str) -> bool:
    with tm.installation.database.transaction(write=False) as tx:
        return tx.execute(tables.job.select().where(tables.job.c.id == id)).one().state == "dispatched"


def test_a_read_only_moment_counts_as_away_and_connects_anew(own_url: str) -> None:
    tm = opened(own_url)
    tm.upgrade()
    database = tm.installation.database
    name = make_url(own_url).database
    say(own_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    database.dispose()
    with pytest.raises(DatabaseReadOnly) as raised:
        defer(tm.app.tasks["effect"].s(1), delay="1h", app=tm.app)
    assert isinstance(raised.value, DatabaseUnavailable)
    say(own_url, "SET default_transaction_read_only = off", f"ALTER DATABASE {name} RESET default_transaction_read_only")
    assert defer(tm.app.tasks["effect"].s(1), delay="1h", app=tm.app)  # the old connection is read-only for ever
    close(tm)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_serialization_failure_is_no_outage(own_url: str, driver: str) -> None:
    tm = opened(make_url(own_url).set(drivername=f"postgresql+{driver}").render_as_string(hide_password=False))
    tm.upgrade()
    conflict = text("DO $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END $$")
    with pytest.raises(DatabaseBusy, match="conflict"):
        tm.installation.database.run(lambda tx: tx.execute(conflict))
    close(tm)


WAYS = {"two hosts": "host=127.0.0.1&host=127.0.0.1", "options": "options=-c%20search_path%3Dpublic"}


@pytest.mark.parametrize("way", WAYS)
def test_beat_listens_whatever_the_url_says(own_url: str, way: str) -> None:
    plain = make_url(own_url)
    url = f"{own_url}?{WAYS[way]}"
    if way == "two hosts":
        url = (
            f"postgresql://{plain.username}@/{plain.database}?host={plain.host}:{plain.port}&host={plain.host}:{plain.port}"
        )
    tm = opened(url)
    tm.upgrade()
    listener = Listener(tm.installation.database)
    listener.open()
    tm.installation.database.run(lambda tx: tx.wake())
    assert listener.wait(20)
    listener.close()
    close(tm)


def test_beat_says_once_that_it_cannot_listen(
    own_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tm = opened(own_url)
    tm.upgrade()
    tm.installation.database.manner.is_pooled = True
    monkeypatch.setattr(ListeningWaiter, "RECONNECT_EVERY", 0.0)
    waiter = ListeningWaiter(tm.installation.database)
    for _ in range(3):
        waiter.wait(0.01)
    assert caplog.text.count("beat cannot listen for notifications") == 1
    close(tm)
