"""Keys in a caller's transaction at MySQL's default isolation level: nobody waits for it, and it meets no deadlock."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session
from tmtest.ledger import claim, start

from celery_tm import TimeManagement, defer
from celery_tm.domain.job import Status
from celery_tm.store.dialects import with_driver
from celery_tm.worker import recorder

SOON = timedelta(milliseconds=1)


@pytest.fixture
def strict(database_url: str) -> Iterator[Engine]:
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer at a time")
    engine = create_engine(with_driver(make_url(database_url)), isolation_level="REPEATABLE READ")
    yield engine
    engine.dispose()


def in_time(action: Any) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for a caller's open transaction"
    assert errors == []


def test_an_unrelated_job_with_a_key_ends_while_the_transaction_is_open(
    app: Celery, tm: TimeManagement, strict: Engine
) -> None:
    unrelated = defer(app.tasks["effect"].s(1), key="m", delay=SOON).id
    assert claim(tm) == [unrelated]
    running = start(tm, unrelated)
    with Session(strict) as session:
        session.execute(text("SELECT 1 FROM tm_job"))
        assert defer(app.tasks["effect"].s(2), key="a", session=session).created
        assert defer(app.tasks["effect"].s(2), key="z", session=session).created
        began = time.monotonic()
        in_time(lambda: recorder.record_success(tm.installation, running, None))
        assert time.monotonic() - began < 20
        session.commit()
    assert tm.job(unrelated).state == Status.SUCCEEDED


def test_a_job_ends_while_a_transaction_is_open_that_asked_for_its_key(
    app: Celery, tm: TimeManagement, strict: Engine
) -> None:
    first = defer(app.tasks["effect"].s(1), key="k", delay=SOON).id
    assert claim(tm) == [first]
    running = start(tm, first)
    with Session(strict) as session:
        session.execute(text("SELECT 1 FROM tm_job"))
        again = defer(app.tasks["effect"].s(1), key="k", session=session)
        assert (again.id, again.created) == (first, False)
        in_time(lambda: recorder.record_success(tm.installation, running, None))
        session.commit()
    assert tm.job(first).state == Status.SUCCEEDED


def test_a_key_that_has_succeeded_since_the_snapshot_is_seen(app: Celery, tm: TimeManagement, strict: Engine) -> None:
    first = defer(app.tasks["effect"].s(1), key="k", delay=SOON).id
    assert claim(tm) == [first]
    running = start(tm, first)
    with Session(strict) as session:
        session.execute(text("SELECT job FROM tm_key")).all()
        recorder.record_success(tm.installation, running, None)
        again = defer(app.tasks["effect"].s(1), key="k", session=session)
        session.commit()
    if tm.installation.database.dialect.name == "mysql":
        assert (again.id, again.created) == (first, False)


def test_callers_that_ask_for_keys_of_jobs_that_end_meet_no_deadlock(
    app: Celery, tm: TimeManagement, strict: Engine
) -> None:
    ids = [defer(app.tasks["effect"].s(n), key=f"k{n}", delay=SOON).id for n in range(20)]
    time.sleep(0.01)
    claim(tm)
    running = [start(tm, id) for id in ids]
    errors: list[BaseException] = []

    def ask() -> None:
        for n in range(20):
            try:
                with Session(strict) as session:
                    session.execute(text("SELECT 1 FROM tm_job"))
                    defer(app.tasks["effect"].s(n), key=f"k{n}", session=session)
                    session.commit()
            except Exception as error:
                if "eadlock" in str(error):
                    errors.append(error)

    askers = [threading.Thread(target=ask) for _ in range(2)]
    for thread in askers:
        thread.start()
    for job in running:
        recorder.record_success(tm.installation, job, None)
    for thread in askers:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []
