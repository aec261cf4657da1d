"""Concurrency keys beside callers' transactions: at any isolation level, open for long, over a bare connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import Engine, create_engine, select, text, update
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session
from tmtest.app import make_app
from tmtest.ledger import claim, start

from celery_tm import Task, TimeManagement, cancel, defer
from celery_tm.domain.job import Job
from celery_tm.publisher import Published, put_back
from celery_tm.recovery.reaper import reap
from celery_tm.recovery.sweeper import sweep
from celery_tm.scheduler import Scheduler, dispatcher
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import jobs, tables
from celery_tm.store.dialects import with_driver
from celery_tm.worker import recorder

SOON = timedelta(milliseconds=1)


@pytest.fixture
def strict(database_url: str) -> Iterator[Engine]:
    """A caller's engine at REPEATABLE READ."""
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer at a time")
    engine = create_engine(with_driver(make_url(database_url)), isolation_level="REPEATABLE READ")
    yield engine
    engine.dispose()


def lane_of(app: Celery, count: int, **options: Any) -> list[str]:
    values = {"concurrency_key": "k", "delay": SOON} | options
    made = []
    for n in range(count):
        made.append(defer(app.tasks["effect"].s(n), **values).id)
        time.sleep(0.002)
    return made


def test_the_next_one_goes_on_after_a_cancel_at_repeatable_read(app: Celery, tm: TimeManagement, strict: Engine) -> None:
    first = lane_of(app, 1)[0]
    assert claim(tm) == [first]
    with Session(strict) as session:
        session.execute(select(tables.job.c.id)).all()  # its snapshot is from before the second
        second = lane_of(app, 1)[0]
        assert claim(tm) == []
        assert cancel(id=first, app=app, session=session)
        session.commit()
    assert claim(tm) == [second]


def test_the_next_one_goes_on_after_a_commit_that_nobody_saw(app: Celery, tm: TimeManagement, strict: Engine) -> None:
    first, second = lane_of(app, 2)
    assert claim(tm) == [first]
    with strict.connect() as connection, connection.begin():
        assert cancel(id=first, app=app, session=connection)
    Dispatcher(tm.installation, "beat").relieve(at_once=True)
    assert claim(tm) == [second]


def test_beats_and_workers_go_on_while_a_caller_s_transaction_is_open(
    app: Celery, tm: TimeManagement, strict: Engine
) -> None:
    first, second, third = lane_of(app, 3, concurrency=2)
    due = lane_of(app, 1, concurrency_key="other")
    assert set(claim(tm)) == {first, second, *due}
    running = start(tm, second)
    with Session(strict) as session:
        assert cancel(id=first, app=app, session=session)
        ended = threading.Thread(target=recorder.record_success, args=(tm.installation, running, None))
        ended.start()
        ended.join(20)
        assert not ended.is_alive(), "a worker waits for a caller's transaction"
        assert claim(tm) == [third]
        beat = Scheduler(app, max_interval=5)
        began = time.monotonic()
        for _ in range(3):
            beat.work()
        assert time.monotonic() - began < 20
        beat.close()
        session.rollback()


def test_sweeps_and_reaps_pass_over_what_a_caller_has_locked(app: Celery, tm: TimeManagement, strict: Engine) -> None:
    database = tm.installation.database
    lost, other = lane_of(app, 1)[0], lane_of(app, 1, concurrency_key="other")[0]
    assert set(claim(tm)) == {lost, other}
    with database.transaction() as tx:
        tx.execute(update(tables.job).values(lease_until=tx.later(-timedelta(minutes=1))))
    with Session(strict) as session:
        assert cancel(id=lost, app=app, session=session)
        began = time.monotonic()
        swept = sweep(database, default=tm.installation.default_policy, limit=10)
        assert [job.id for job in swept.redispatched] == [other]
        assert reap(database, limit=10) == []
        assert time.monotonic() - began < 20
        session.rollback()


def test_a_raised_limit_reaches_jobs_that_are_held(app: Celery, tm: TimeManagement) -> None:
    old = lane_of(app, 5, concurrency=1)
    assert claim(tm) == old[:1]
    new = lane_of(app, 1, concurrency=3)
    in_flight = {*old[:1], *claim(tm), *claim(tm)}
    assert len(in_flight) == 3
    for id in in_flight:
        recorder.record_success(tm.installation, start(tm, id), None)
    rest = {*claim(tm), *claim(tm)}
    assert len(rest) == 3, "the new limit holds after the job that stated it"
    assert {*old, *new} == in_flight | rest


def test_of_two_tasks_with_different_limits_under_one_key_the_lower_holds(app: Celery, tm: TimeManagement) -> None:
    @app.task(base=Task, name="strict_one", shared=False)
    def strict_one() -> None: ...

    lane_of(app, 3, concurrency=5)
    defer(strict_one.s(), concurrency_key="k", concurrency=1, delay=SOON)
    lane_of(app, 3, concurrency=5)
    assert len(claim(tm)) == 1
    assert claim(tm) == []


@pytest.mark.parametrize(("broker", "expected"), [("redis", [1, 5, 9]), ("memory", [9, 5, 1])])
def test_priority_counts_while_jobs_wait_in_the_table(
    app: Celery, tm: TimeManagement, broker: str, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = lane_of(app, 1)[0]
    assert claim(tm) == [running]
    made = {priority: lane_of(app, 1, priority=priority)[0] for priority in (5, 1, 9)}
    monkeypatch.setattr(Dispatcher, "_low_first", broker == "redis")
    assert claim(tm) == []
    order, last = [], running
    for _ in range(3):
        recorder.record_success(tm.installation, start(tm, last), None)
        [last] = claim(tm)
        order.append(next(priority for priority, id in made.items() if id == last))
    assert order == expected


def test_a_reaper_and_a_worker_that_ends_the_same_run_never_wait_in_a_circle(app: Celery, tm: TimeManagement) -> None:
    database = tm.installation.database
    tm.definitions.add(name="slow", task="effect", schedule="every 1h", execution_timeout="1h")
    errors: list[BaseException] = []
    for _ in range(10):
        occurrence = tm.trigger("slow").id
        [id] = [job.id for job in tm.jobs() if job.occurrence == occurrence]
        claim(tm)
        running = start(tm, id)
        with database.transaction() as tx:
            late = {"deadline_at": tx.later(-timedelta(minutes=1)), "state": "running"}
            tx.execute(update(tables.occurrence).where(tables.occurrence.c.id == occurrence).values(late))
        _race(errors, lambda: reap(database, limit=10), lambda job=running: _succeed(tm, job))
        with database.transaction(write=False) as tx:
            states = select(tables.occurrence.c.state).where(tables.occurrence.c.id == occurrence)
            assert tx.execute(states).scalar() in ("completed", "stale")
    assert errors == []


def _succeed(tm: TimeManagement, job: Job) -> None:
    recorder.record_success(tm.installation, job, None)


def _race(errors: list[BaseException], *actions: Any) -> None:
    barrier = threading.Barrier(len(actions))

    def run(action: Any) -> None:
        barrier.wait(20)
        try:
            action()
        except Exception as error:
            if "deadlock" in str(error).lower():
                errors.append(error)

    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_the_reaper_locks_a_job_before_its_occurrence(app: Celery, tm: TimeManagement, strict: Engine) -> None:
    """Somebody who has the job and wants its occurrence next meets nobody who has the occurrence and wants the job."""
    database = tm.installation.database
    tm.definitions.add(name="slow", task="effect", schedule="every 1h", execution_timeout="1h")
    occurrence = tm.trigger("slow").id
    [id] = claim(tm)
    start(tm, id)
    with database.transaction() as tx:
        late = {"deadline_at": tx.later(-timedelta(minutes=1)), "state": "running"}
        tx.execute(update(tables.occurrence).where(tables.occurrence.c.id == occurrence).values(late))
    with strict.connect() as other, other.begin():
        other.execute(text("SELECT id FROM tm_job WHERE id = :id FOR UPDATE"), {"id": id})
        reaper = threading.Thread(target=reap, args=(database,), kwargs={"limit": 10})
        reaper.start()
        reaper.join(20)
        assert not reaper.is_alive(), "the reaper waits for a job that somebody else has"
        other.execute(text("SELECT id FROM tm_occurrence WHERE id = :id FOR UPDATE NOWAIT"), {"id": occurrence})
    assert [job.id for job, _, _ in reap(database, limit=10)] == [id]


def test_looking_after_held_jobs_is_done_some_keys_at_a_time(
    app: Celery, tm: TimeManagement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "KEYS", 2)
    for n in range(5):
        lane_of(app, 2, concurrency_key=f"k{n}")
    claimed = claim(tm)
    assert len(claimed) == 5
    with tm.installation.database.transaction() as tx:
        tx.execute(tables.job.delete().where(tables.job.c.id.in_(claimed)))
    beat, seen = Dispatcher(tm.installation, "beat"), []
    beat.relieve(at_once=True)
    while beat._relieved_to and len(seen) < 10:
        seen.append(beat._relieved_to)
        beat.relieve()  # the next keys, at once
    assert seen == ["k1", "k3"]
    assert len(claim(tm)) == 5


def test_what_a_broker_refuses_is_released_past_a_row_and_a_key_that_a_caller_holds(app: Celery, tm: TimeManagement) -> None:
    database = tm.installation.database
    if not database.dialect.skips_locked:
        pytest.skip("one writer locks all of SQLite")
    own = TimeManagement(make_app({"broker_url": "memory://", "tm_database_url": tm.settings.tm_database_url}))
    own.installation.database.serve(lock_timeout=0.05)
    made = [defer(app.tasks["effect"].s(n), delay=0.001, concurrency_key=f"key:{n}").id for n in range(4)]
    claim(tm)
    with database.transaction(write=False) as tx:
        held, free, *blocked = (jobs.find(tx, id) for id in made)
    with database.transaction() as theirs:
        theirs.execute(select(tables.job).where(tables.job.c.id == made[0]).with_for_update()).all()
        theirs.execute(select(tables.lane).where(tables.lane.c.key == "key:2").with_for_update()).all()
        put_back(own.installation, Published(refused=[held, free], blocked=[(one, "no") for one in blocked]))
        states = {job.id: str(job.state) for job in own.jobs()}
    assert [states[id] for id in made] == ["dispatched", "pending", "pending", "pending"]
    own.installation.database.dispose()
    own.app.close()
