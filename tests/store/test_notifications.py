"""How often PostgreSQL is asked to wake beat, and that beat sees everything in time nevertheless.

Commits that notify wait for each other, whatever database of the server they are in.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from celery import Celery
from sqlalchemy import make_url
from sqlalchemy.orm import Session
from tmtest import services
from tmtest.app import make_app

from celery_tm import TimeManagement, defer
from celery_tm.scheduler import Scheduler
from celery_tm.store.database import Database
from celery_tm.store.notifications import NOTIFY_EVERY

NEVER = 120  # seconds; far beyond what a test waits


class Ear:
    """Counts the notifications that leave the server."""

    def __init__(self, database: Database) -> None:
        url = make_url(database.url.render_as_string(hide_password=False)).set(drivername="postgresql")
        self._connection = psycopg.connect(url.render_as_string(hide_password=False), autocommit=True)
        self._connection.execute(f'LISTEN "{database.channel}"')

    def count(self, seconds: float = 0.0) -> int:
        """Return how many have come since the last time, after a wait of at most so long for the first."""
        found = len(list(self._connection.notifies(timeout=seconds, stop_after=1))) if seconds else 0
        self._connection.execute("SELECT 1")  # what was sent before is here when this is answered
        return found + len(list(self._connection.notifies(timeout=0)))

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def tm() -> Iterator[TimeManagement]:
    if not services.find("postgresql"):
        pytest.skip(services.why_missing("postgresql"))
    with services.own_database("postgresql", suffix="_notify") as url:
        made = TimeManagement(make_app({"broker_url": "memory://", "tm_database_url": url, "tm_poll_interval": NEVER}))
        made.upgrade()
        yield made
        made.installation.database.dispose()
        made.app.close()


@pytest.fixture
def app(tm: TimeManagement) -> Celery:
    return tm.app


@pytest.fixture
def database(tm: TimeManagement) -> Database:
    return tm.installation.database


@pytest.fixture
def ear(database: Database) -> Iterator[Ear]:
    made = Ear(database)
    yield made
    made.close()


KINDS: dict[str, Callable[[Celery], Any]] = {
    "soon": lambda app: defer(app.tasks["effect"].s(1), delay=0.5),
    "with a concurrency key": lambda app: defer(app.tasks["effect"].s(1), concurrency_key="one"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_that_defers_a_lot_notifies_at_once_and_then_now_and_then(app: Celery, ear: Ear, kind: str) -> None:
    KINDS[kind](app)
    assert ear.count(30) == 1, "the first one is not delayed"
    began = time.monotonic()
    for _ in range(60):
        KINDS[kind](app)
    took = time.monotonic() - began
    assert ear.count() <= took / NOTIFY_EVERY + 1


def test_in_callers_transactions_too(app: Celery, database: Database, ear: Ear) -> None:
    began = time.monotonic()
    for _ in range(40):
        with Session(database.engine) as session:
            defer(app.tasks["effect"].s(1), concurrency_key="one", session=session)
            session.commit()
    took = time.monotonic() - began
    assert 1 <= ear.count() <= took / NOTIFY_EVERY + 1


def test_a_caller_that_commits_late_notifies_after_its_commit(app: Celery, database: Database, ear: Ear) -> None:
    with Session(database.engine) as session:
        session.connection()
        database.run(lambda tx: tx.wake())
        assert ear.count(30) == 1
        database.throttle.sent()
        defer(app.tasks["effect"].s(1), concurrency_key="one", session=session)
        while not database.throttle.is_open:
            time.sleep(0.01)
        assert ear.count() == 0
        session.commit()
    assert ear.count(30) == 1


def test_where_a_commit_is_not_seen_each_one_notifies(app: Celery, database: Database, ear: Ear) -> None:
    for _ in range(3):
        with database.engine.begin() as connection:
            defer(app.tasks["effect"].s(1), concurrency_key="one", session=connection)
        assert ear.count(30) == 1


def test_a_notification_that_is_rolled_back_silences_nobody(database: Database, ear: Ear) -> None:
    def fail(tx: Any) -> None:
        tx.wake()
        tx.notify()
        raise LookupError

    with pytest.raises(LookupError):
        database.run(fail)
    database.run(lambda tx: tx.wake())
    assert ear.count(30) == 1


class Beat:
    """A beat in a thread, whose own poll is of no help."""

    def __init__(self, app: Celery) -> None:
        self._scheduler = Scheduler(app, max_interval=NEVER)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._scheduler.tick()
        self._scheduler.close()

    def stop(self, database: Database) -> None:
        self._stopped.set()
        with database.transaction() as tx:
            tx.wake()
            tx.notify(always=True)
        self._thread.join(30)
        assert not self._thread.is_alive()


def comes_true(holds: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.01)
    return holds()


def test_beat_sees_what_nobody_notified_it_of_long_before_its_poll(
    app: Celery, tm: TimeManagement, database: Database, ear: Ear
) -> None:
    def is_seen(number: int) -> Callable[[], bool]:
        made = defer(app.tasks["effect"].s(number), concurrency_key=str(number), app=app)
        return lambda: tm.job(made.id).job.dispatches > 0

    beat, seen = Beat(app), list[bool]()
    try:
        for number in range(0, 100, 2):
            assert comes_true(lambda: database.throttle.is_open, 30)
            assert comes_true(is_seen(number), 40), "what it was notified of"
            ear.count()
            time.sleep(NOTIFY_EVERY / 4)  # beat has looked, and waits again
            quiet = is_seen(number + 1)
            if ear.count() == 0:  # else this machine was too slow for it
                seen.append(comes_true(quiet, 5))
            if len(seen) == 6:
                break
    finally:
        beat.stop(database)
    assert len(seen) == 6
    assert sum(seen) >= 4, "a slow commit may come too late"
