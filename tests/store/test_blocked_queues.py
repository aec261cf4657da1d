"""One queue that cannot be used holds up its own jobs only: on RabbitMQ, where the broker may say so late, and on Redis."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from conftest import broker_conf, prepare
from kombu import Exchange, Queue
from tmtest.app import make_app

from celery_tm import Task, TimeManagement, clock, defer, defer_many, events
from celery_tm.domain.job import Job
from celery_tm.domain.queues import publish_error, read_blocked
from celery_tm.installation import Installation
from celery_tm.publisher import refusal, sending
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import jobs

SOON, LATER = timedelta(milliseconds=1), timedelta(milliseconds=5)


@pytest.fixture(params=["celery sends", "made here"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether Celery sends the messages, as it does where somebody listens to its signals."""
    monkeypatch.setattr(sending, "is_heard", lambda: request.param == "celery sends")
    way: str = request.param
    return way


@pytest.fixture
def make(request: pytest.FixtureRequest, sqlite_url: str, tmp_path: Path) -> Iterator[Any]:
    prepare(sqlite_url)
    made: list[Celery] = []

    def build(broker: str, **conf: Any) -> Celery:
        app = make_app({**broker_conf(request, broker, tmp_path), "tm_database_url": sqlite_url, **conf})
        made.append(app)
        return app

    yield build
    for app in made:
        Installation.of(app).database.dispose()
        app.close()


def count(app: Celery, queue: str) -> int:
    """Take all messages out of a queue and return their number."""
    with app.connection_for_read() as connection:
        bound = Queue(queue)(connection.default_channel)
        found = 0
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            if bound.get(no_ack=True) is None:
                break
            found += 1
        return found


def spoil(app: Celery, broker: str) -> dict[str, Any]:
    """Make a queue that cannot be used, and return how to send something there."""
    bad = f"bad-{time.monotonic_ns()}"
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        if broker == "redis":
            with channel.conn_or_acquire() as client:
                client.set(bad, "no list")
        else:
            Queue(bad, queue_arguments={"x-max-length": 7}, auto_delete=True)(channel).declare()
    return {"queue": bad}


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_a_queue_that_cannot_be_declared_holds_up_its_own_jobs_only(make: Any, broker: str) -> None:
    app = make(broker)
    tm = TimeManagement(app)
    bad = defer_many([app.tasks["effect"].s(n) for n in range(5)], delay=SOON, **spoil(app, broker))
    good = defer_many([app.tasks["effect"].s(n) for n in range(20)], delay=LATER)
    heard: list[Any] = []
    events.queue_blocked.connect(receiver := (lambda **values: heard.append(values["queue"])))
    time.sleep(0.02)
    beat = Dispatcher(tm.installation, "beat@test")
    done = beat.dispatch_due()
    events.queue_blocked.disconnect(receiver)
    assert (done.sent, done.error) == (20, None)
    assert count(app, app.conf.task_default_queue) == 20
    waiting = {job.id: job for job in tm.jobs(state="pending")}
    assert set(waiting) == {handle.id for handle in bad}
    assert {handle.id for handle in good}.isdisjoint(waiting)
    for job in waiting.values():
        assert "PRECONDITION" in (job.last_error or "") or "WRONGTYPE" in (job.last_error or "")
        assert (job.dispatches, job.attempt) == (0, 1)
    assert len(heard) == 1
    [finding] = [one for one in tm.doctor() if one.check == "queues"]
    assert (str(finding.level), finding.objects) == ("error", heard)
    assert finding.text.startswith(f"queue {heard[0]} cannot be used: ")
    assert finding.text.endswith("; 5 jobs wait")


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_the_oldest_bad_jobs_starve_nobody_and_go_on_when_their_queue_can_be_used(make: Any, broker: str) -> None:
    app = make(broker, tm_claim_batch=10)
    tm = TimeManagement(app)
    where = spoil(app, broker)
    bad = defer_many([app.tasks["effect"].s(n) for n in range(50)], delay=SOON, **where)
    defer_many([app.tasks["effect"].s(n) for n in range(30)], delay=LATER)
    time.sleep(0.02)
    beat, sent = Dispatcher(tm.installation, "beat@test"), 0
    for _ in range(8):
        sent += beat.dispatch_due().sent
    assert sent == 30
    with app.connection_for_write() as connection:
        if broker == "redis":
            with connection.default_channel.conn_or_acquire() as client:
                client.delete(where["queue"])
        else:
            connection.default_channel.queue_delete(where["queue"])
    deadline = time.monotonic() + 30
    while sent < 80 and time.monotonic() < deadline:
        sent += beat.dispatch_due().sent
        time.sleep(0.05)
    assert sent == 80
    assert count(app, where["queue"]) == len(bad)


def test_an_exchange_that_rabbitmq_does_not_know_is_blamed_and_not_its_neighbours(make: Any) -> None:
    app = make("rabbitmq")
    tm = TimeManagement(app)
    defer_many([app.tasks["effect"].s(n) for n in range(5)], delay=SOON)
    nowhere = app.tasks["effect"].s(1).set(exchange="nowhere", routing_key="x")
    bad = defer(nowhere, delay=timedelta(milliseconds=2))
    defer_many([app.tasks["effect"].s(n) for n in range(5)], delay=LATER)
    time.sleep(0.02)
    done = Dispatcher(tm.installation, "beat@test").dispatch_due()
    assert (done.sent, done.error) == (10, None)
    [waiting] = tm.jobs(state="pending")
    assert waiting.id == bad.id
    assert "NOT_FOUND" in (waiting.last_error or "")
    assert count(app, app.conf.task_default_queue) >= 10


def test_an_exchange_that_is_not_there_is_named_and_not_the_default_queue(make: Any) -> None:
    app = make("rabbitmq")
    tm = TimeManagement(app)
    name = f"nowhere-{uuid.uuid4().hex[:8]}"  # the same error is told once a minute
    defer(app.tasks["effect"].s(1).set(exchange=name, routing_key="x"), delay=SOON)
    heard: list[Any] = []
    events.queue_blocked.connect(receiver := (lambda **values: heard.append((values["queue"], values["exchange"]))))
    time.sleep(0.02)
    Dispatcher(tm.installation, "beat@test").dispatch_due()
    events.queue_blocked.disconnect(receiver)
    assert heard == [(None, name)]
    [waiting] = tm.jobs(state="pending")
    assert (waiting.last_error or "").startswith(f"exchange {name} cannot be used: ")
    assert publish_error(waiting)
    [finding] = [one for one in tm.doctor() if one.check == "queues"]
    assert finding.text.startswith(f"exchange {name} cannot be used: ")
    assert (finding.objects, (finding.advice or "").partition(",")[0]) == ([name], "declare the exchange at the broker")


def test_plain_tasks_beside_an_exchange_that_rabbitmq_does_not_know_are_sent_once(make: Any) -> None:
    """They have no gate: what is sent a second time runs a second time."""
    app = make("rabbitmq")
    tm = TimeManagement(app)
    for n in range(6):
        defer(app.tasks["plain"].s(n), delay=SOON)
        lost = app.tasks["plain" if n % 2 else "effect"].s(n).set(exchange=f"nowhere-{n}", routing_key="x")
        defer(lost, delay=SOON)
        defer(app.tasks["effect"].s(n), delay=SOON)
    time.sleep(0.05)
    done = Dispatcher(tm.installation, "beat@test").dispatch_due()
    assert done.error is None
    names = received(app, app.conf.task_default_queue)
    assert names.count("plain") == 6
    assert names.count("effect") >= 6
    assert len(tm.jobs(state="pending")) == 6


def received(app: Celery, queue: str) -> list[str]:
    """Take all messages out of a queue and return the names of their tasks."""
    with app.connection_for_read() as connection:
        bound = Queue(queue)(connection.default_channel)
        return [message.headers["task"] for message in iter(lambda: bound.get(no_ack=True), None)]


def test_a_held_job_of_the_same_key_goes_on_while_another_one_s_queue_cannot_be_used(make: Any) -> None:
    app = make("rabbitmq")
    tm = TimeManagement(app)
    bad = defer(app.tasks["effect"].s(1), delay=SOON, concurrency_key="k", **spoil(app, "rabbitmq"))
    good = defer(app.tasks["effect"].s(2), delay=LATER, concurrency_key="k")
    time.sleep(0.02)
    beat = Dispatcher(tm.installation, "beat@test")
    beat.dispatch_due()
    assert beat.dispatch_due().sent == 1
    assert [job.id for job in tm.jobs(state="dispatched")] == [good.id]
    assert [job.id for job in tm.jobs(state="pending")] == [bad.id]


def test_what_a_caller_defers_to_such_a_queue_is_kept_and_says_why_it_waits(make: Any) -> None:
    app = make("rabbitmq")
    tm = TimeManagement(app)
    bad = defer(app.tasks["effect"].s(1), **spoil(app, "rabbitmq"))
    assert "PRECONDITION" in (tm.job(bad.id).last_error or "")
    assert [job.id for job in tm.jobs(state="pending")] == [bad.id]


def test_a_message_that_is_too_large_for_rabbitmq_is_never_counted_as_sent(make: Any) -> None:
    app = make("rabbitmq")
    tm = TimeManagement(app)
    defer_many([app.tasks["effect"].s(n) for n in range(5)], delay=SOON)
    large = defer(app.tasks["effect"].s(1).set(headers={"much": ["x" * 1000] * 300}), delay=timedelta(milliseconds=2))
    defer_many([app.tasks["effect"].s(n) for n in range(5)], delay=LATER)
    time.sleep(0.02)
    done = Dispatcher(tm.installation, "beat@test").dispatch_due()
    assert (done.sent, done.error) == (10, None)
    [waiting] = tm.jobs(state="pending")
    assert waiting.id == large.id
    assert waiting.last_error
    assert count(app, app.conf.task_default_queue) >= 10


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
@pytest.mark.parametrize("length", [32, 155])
def test_a_chunk_of_thousands_arrives(make: Any, broker: str, length: int) -> None:
    app = make(broker, tm_claim_batch=5000)

    @app.task(base=Task, name="huge", chunk=10_000, shared=False, ignore_result=True)
    def huge(n: int) -> None: ...

    tm = TimeManagement(app)
    ids = [f"{time.monotonic_ns()}-{n}".ljust(length, "x") for n in range(3000)]
    drafts = [Job(id=id, task="huge", args="[1]", kwargs="{}", run_at=clock.now(), created_at=clock.now(),
                  original_delay=timedelta(0)) for id in ids]  # fmt: skip
    tm.installation.database.run(lambda tx: jobs.insert_many(tx, drafts))
    assert Dispatcher(tm.installation, "beat@test").dispatch_due().sent == 3000
    found: list[str] = []
    with app.connection_for_read() as connection:
        bound = Queue(app.conf.task_default_queue)(connection.default_channel)
        while (message := bound.get(no_ack=True)) is not None:
            found += [id for id, _ in message.headers["tm"]["chunk"]]
    assert sorted(found) == sorted(ids)


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_a_broker_that_is_away_is_an_outage_and_no_queue_s_fault(make: Any, broker: str) -> None:
    app = make(broker)
    app.conf.broker_url = {"redis": "redis://127.0.0.1:1/0", "rabbitmq": "amqp://127.0.0.1:1//"}[broker]
    tm = TimeManagement(app)
    defer_many([app.tasks["effect"].s(n) for n in range(5)], delay=SOON)
    time.sleep(0.02)
    done = Dispatcher(tm.installation, "beat@test").dispatch_due()
    assert done.sent == 0
    assert done.error
    errors = {job.last_error or "" for job in tm.jobs(state="pending")}
    assert {error.partition(":")[0] for error in errors} == {"not published"}
    assert {read_blocked(error) for error in errors} == {None}


def test_a_route_is_left_alone_for_longer_each_time_and_forgotten_once_it_works() -> None:
    routes, route = refusal.BlockedRoutes(), ("task", "queue")
    assert routes.error_of(route) is None
    pauses = []
    for _ in range(8):
        routes.add(route, "no")
        pauses.append(round(routes.pause_of(route)))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert routes.error_of(route) == "no"
    routes.discard(route)
    assert routes.error_of(route) is None


def test_exchanges_of_their_own_and_topics_go_on_as_before(make: Any) -> None:
    app = make("rabbitmq")
    name = f"own-{time.monotonic_ns()}"
    app.conf.task_queues = [Queue(name, Exchange(name, type="topic", auto_delete=True), routing_key="a.#", auto_delete=True)]
    defer(app.tasks["effect"].s(1), delay=SOON, queue=name)
    time.sleep(0.02)
    assert Dispatcher(Installation.of(app), "beat@test").dispatch_due().sent == 1
