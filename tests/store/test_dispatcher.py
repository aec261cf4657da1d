"""Dispatching on every database: batches reach the broker, one bad message holds up nobody, refusals cost nothing."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session
from tmtest.app import make_app
from tmtest.courier import Courier

from celery_tm import TimeManagement, defer, defer_many
from celery_tm.domain.job import Status
from celery_tm.installation import Installation
from celery_tm.scheduler import Scheduler
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store.dialects import with_driver

SOON = timedelta(milliseconds=1)


def received(app: Celery, queue: str | None = None) -> list[Any]:
    found = []
    with app.connection_for_read() as connection:
        simple = connection.SimpleQueue(queue or app.conf.task_default_queue)
        while True:
            try:
                message = simple.get(block=False)
            except simple.Empty:
                break
            found.append(message)
            message.ack()
        simple.close()
    return found


def dispatch(app: Celery, **options: Any) -> Any:
    time.sleep(0.01)
    return Dispatcher(Installation.of(app), "beat@test").dispatch_due(**options)


def test_a_message_is_an_ordinary_celery_message_with_our_header(app: Celery) -> None:
    handle = defer(app.tasks["effect"].s(5), delay=SOON, key="k", entity_id="42", scope={"tenant": 7}, priority=3)
    assert dispatch(app).sent == 1
    [message] = received(app)
    assert (message.headers["id"], message.headers["task"], message.headers["retries"]) == (handle.id, "effect", 0)
    assert message.payload[0] == [5]
    header = message.headers["tm"]
    assert (header["job"], header["attempt"], header["source"]) == (handle.id, 1, "deferred")
    expected = {"definition": None, "occurrence": None, "step": None, "entity_id": "42", "key": "k", "scope": {"tenant": 7}}
    assert header["metadata"] == expected


def test_the_message_of_a_run_names_its_definition_occurrence_and_step(app: Celery, tm: TimeManagement) -> None:
    tm.definitions.add(name="nightly", task="effect", schedule="0 3 * * *")
    tm.definitions.add(name="flow", steps=[{"name": "fetch", "task": "effect"}], schedule="0 3 * * *")
    runs = {name: tm.trigger(name).id for name in ("nightly", "flow")}
    for _ in range(2):
        dispatch(app)
    told = [message.headers["tm"]["metadata"] for message in received(app)]
    wanted = [("flow", runs["flow"], "fetch"), ("nightly", runs["nightly"], None)]
    assert sorted((one["definition"], one["occurrence"], one["step"]) for one in told) == wanted


def test_a_worker_ignores_what_it_does_not_know_in_the_header(app: Celery, tm: TimeManagement, effects: Any) -> None:
    handle = defer(app.tasks["effect"].s(5), delay=SOON)
    dispatch(app)
    courier = Courier(tm)
    [message] = courier.collect()
    message.headers["tm"]["later"] = {"a": 1}
    message.headers["tm"]["metadata"]["later"] = [1]
    courier.deliver(message)
    assert tm.job(handle.id).state == Status.SUCCEEDED


@pytest.mark.parametrize(("queue", "expected"), [("onprem", "onprem-queue"), ("special", "special"), (None, "house")])
def test_queues_are_resolved_by_alias_name_and_default(database_url: str, queue: str | None, expected: str) -> None:
    from tmtest.app import make_app

    app = make_app(
        {
            "broker_url": "memory://",
            "tm_database_url": database_url,
            "tm_queue_aliases": {"onprem": "onprem-queue"},
            "tm_default_queue": "house",
        }
    )
    handle = defer(app.tasks["effect"].s(1), queue=queue)
    assert [message.headers["id"] for message in received(app, expected)] == [handle.id]
    Installation.of(app).database.dispose()
    app.close()


@pytest.mark.parametrize("options", [{"serializer": "nope"}], ids=["serializer"])
def test_a_job_that_makes_no_message_is_buried_and_holds_up_nobody(
    app: Celery, tm: TimeManagement, options: dict[str, Any]
) -> None:
    bad = defer(app.tasks["effect"].s(1).set(**options), delay=SOON, max_retries=0)
    good = defer_many([app.tasks["effect"].s(n) for n in range(5)], delay=timedelta(milliseconds=2))
    done = dispatch(app)
    assert (done.sent, done.error) == (5, None)
    assert {message.headers["id"] for message in received(app)} == {handle.id for handle in good}
    assert tm.job(bad.id).state == Status.FAILED
    assert "makes no message" in (tm.job(bad.id).last_error or "")


def test_publishing_options_of_a_signature_do_not_collide_with_ours(app: Celery) -> None:
    defer(app.tasks["effect"].s(1).set(retry=False, retry_policy={"max_retries": 9}), delay=SOON)
    assert dispatch(app).sent == 1


def test_an_id_that_was_used_before_is_not_run_again(app: Celery, tm: TimeManagement, effects: Any) -> None:
    signature = app.tasks["effect"].s(1).set(task_id="mine")
    first = defer(signature, delay=SOON)
    assert first.id == "mine"
    assert not defer(signature, delay=SOON).created
    import time

    time.sleep(0.01)
    tm.run_due_jobs()
    again = defer(signature, delay=SOON)
    assert (again.created, again.state) == (False, Status.SUCCEEDED)
    assert [handle.created for handle in defer_many([signature, app.tasks["effect"].s(2)], delay=SOON)] == [False, True]
    assert len(effects.read_text().splitlines()) == 1


def test_a_savepoint_publishes_after_the_outer_commit(app: Celery, database_url: str) -> None:
    engine = create_engine(with_driver(make_url(database_url)))
    with Session(engine) as session:
        session.connection()
        with session.begin_nested():
            handle = defer(app.tasks["effect"].s(1), session=session)
        assert received(app) == []
        session.commit()
    engine.dispose()
    assert [message.headers["id"] for message in received(app)] == [handle.id]


def test_a_tick_plans_and_dispatches_and_says_how_long_to_wait(app: Celery, tm: TimeManagement) -> None:
    scheduler = Scheduler(app, max_interval=5)
    assert 0.9 < scheduler.work() <= 1.0, "nothing is due: the poll interval"
    defer(app.tasks["effect"].s(1), delay=0.4)
    assert 0.2 < scheduler.work() <= 0.4, "until the next due row"
    import time

    time.sleep(0.45)
    scheduler.work()
    assert len(received(app)) == 1
    scheduler.close()
    scheduler.close()


@pytest.mark.parametrize("seconds", [0.25, 20])
def test_beat_looks_again_after_the_polling_interval_that_is_stated(database_url: str, seconds: float) -> None:
    app = make_app({"broker_url": "memory://", "tm_database_url": database_url, "tm_poll_interval": seconds})
    app.conf.result_expires = None  # so that there is no job that cleans up results
    scheduler = Scheduler(app)
    for _ in range(2):  # the first round also does what beat does once
        waits = scheduler.work()
    scheduler.close()
    Installation.of(app).database.dispose()
    assert waits == seconds


def test_a_batch_is_small_where_publishing_is_slow(app: Celery, tm: TimeManagement, monkeypatch: pytest.MonkeyPatch) -> None:
    send = app.send_task

    def take_long(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.02)  # as a tracer that wraps each message, or a broker far away
        return send(*args, **kwargs)

    monkeypatch.setattr(app, "send_task", take_long)
    dispatcher = Dispatcher(tm.installation, "beat")
    for claimed, more in ((60, False), (25, True)):
        for n in range(60):
            defer(app.tasks["effect"].s(n), delay=timedelta(milliseconds=1))
        time.sleep(0.01)
        done = dispatcher.dispatch_due()
        assert (done.claimed, done.sent, done.more) == (claimed, claimed, more)


def test_a_lazy_scheduler_touches_nothing() -> None:
    from tmtest.app import make_app

    app = make_app({"broker_url": "memory://", "tm_database_url": "postgresql://ann:secret@127.0.0.1:1/nothing"})
    scheduler = Scheduler(app, lazy=True)
    assert "127.0.0.1:1" in scheduler.info
    assert "secret" not in scheduler.info
    scheduler.close()
    app.close()
