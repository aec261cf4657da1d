"""Publishing on every broker that is there: each message is the one that Celery itself would have sent, in bulk or not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery, signals
from conftest import broker_conf, prepare
from kombu import Exchange, Queue
from tmtest.app import make_app

from celery_tm import TimeManagement, defer, defer_many
from celery_tm.domain.job import Status
from celery_tm.installation import Installation
from celery_tm.publisher import bulk, sending
from celery_tm.scheduler.dispatcher import Dispatched, Dispatcher

BROKERS = ("memory", "files", "redis", "rabbitmq")
SOON = timedelta(milliseconds=1)
MADE_ANEW = frozenset({"id", "root_id", "tm", "origin", "expires"})
QUICKLY = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody listens to Celery's signals of publishing, as some of the tasks for tests do, unless a test says so."""
    for signal in sending.SIGNALS:
        monkeypatch.setattr(signal, "receivers", [])
        signal.sender_receivers_cache.clear()
    yield
    for signal in sending.SIGNALS:
        signal.sender_receivers_cache.clear()


@pytest.fixture
def make(request: pytest.FixtureRequest, sqlite_url: str, tmp_path: Path) -> Iterator[Any]:
    """Return how to make an app on a broker."""
    prepare(sqlite_url)
    made: list[Celery] = []

    def build(broker: str, **conf: Any) -> Celery:
        own = {"broker_url": "memory://"} if broker == "memory" else broker_conf(request, broker, tmp_path)
        queue = f"publishing-{time.monotonic_ns()}"
        queues = [
            Queue(queue, Exchange(queue, type="direct"), routing_key=queue),
            Queue(f"{queue}-second", Exchange(queue, type="direct"), routing_key="second"),
            Queue(f"{queue}-topic", Exchange(f"{queue}-topic", type="topic"), routing_key="any.#"),
        ]
        app = make_app({**own, "task_default_queue": queue, "task_queues": queues, "tm_database_url": sqlite_url,
                        "tm_publish_retry": QUICKLY, **conf})  # fmt: skip
        made.append(app)
        return app

    yield build
    for app in made:
        Installation.of(app).database.dispose()
        app.close()


@pytest.fixture(params=BROKERS)
def app(request: pytest.FixtureRequest, make: Any) -> Celery:
    """An app on each broker."""
    found: Celery = make(request.param)
    return found


@pytest.fixture
def on_redis(make: Any) -> Celery:
    found: Celery = make("redis")
    return found


def dispatch(app: Celery) -> Dispatched:
    time.sleep(0.01)
    return Dispatcher(Installation.of(app), "beat@test").dispatch_due()


def received(app: Celery) -> list[Any]:
    """Take everything out of the app's queues."""
    found = []
    with app.connection_for_read() as connection:
        for queue in app.amqp.queues.values():
            bound = queue(connection.default_channel)
            bound.declare()
            while (message := bound.get(no_ack=True)) is not None:
                found.append(message)
    return found


def seen(message: Any) -> dict[str, Any]:
    """Return what of a message does not depend on which job it carries."""
    headers = {name: value for name, value in message.headers.items() if name not in MADE_ANEW}
    properties = {
        name: value
        for name, value in message.properties.items()
        if name not in ("correlation_id", "delivery_tag", "expiration", "reply_to", "application_headers")
    }
    info = {name: message.delivery_info.get(name) for name in ("exchange", "routing_key", "priority")}
    message.accept = {"application/json", "application/x-python-serialize"}
    content = (message.content_type, message.content_encoding, message.payload)
    return {"headers": headers, "properties": properties, "info": info, "content": content}


SAID: dict[str, dict[str, Any]] = {
    "plain": {},
    "priority": {"priority": 7},
    "queue": {"queue": "{}-second"},
    "alias": {"queue": "other"},
    "headers": {"headers": {"tenant": 7, "deep": {"x": [1]}}},
    "expires": {"expires": 3600},
    "limits": {"time_limit": 30, "soft_time_limit": 20},
    "shadow": {"shadow": "another name"},
    "compression": {"compression": "zlib"},
    "serializer": {"serializer": "pickle"},
    "exchange": {"exchange": "{}", "routing_key": "second"},
    "topic": {"queue": "{}-topic", "routing_key": "any.thing"},
    "transient": {"delivery_mode": 1},
    "result": {"ignore_result": True},
}


@pytest.mark.parametrize("said", SAID)
def test_a_message_is_the_one_that_celery_would_have_sent(app: Celery, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.conf.task_default_queue
    app.conf.update(accept_content=["json", "pickle"], tm_queue_aliases={"other": f"{queue}-second"})
    options = {name: value.format(queue) if isinstance(value, str) else value for name, value in SAID[said].items()}
    signature = app.tasks["effect"].s('it\'s "so"').set(**options)
    received(app)  # declares the queues
    ours = defer(signature, delay=SOON)
    assert dispatch(app).sent == 1
    [mine] = received(app)
    monkeypatch.setattr(sending, "has_own_way", lambda app: True)  # then Celery sends
    theirs = defer(signature, delay=SOON)
    assert dispatch(app).sent == 1
    [other] = received(app)
    assert (mine.headers["id"], other.headers["id"]) == (ours.id, theirs.id)
    assert seen(mine) == seen(other)
    for message in (mine, other):
        assert message.headers["root_id"] == message.properties["correlation_id"] == message.headers["id"]
        assert "expiration" not in message.properties  # its row has the expiry, and the gate judges it
        assert (message.headers["expires"] is None) == ("expires" not in options)


def test_a_batch_arrives_whole_and_in_order(app: Celery, request: pytest.FixtureRequest) -> None:
    handles = defer_many([app.tasks["effect"].s(n) for n in range(50)], delay=SOON)
    assert dispatch(app).sent == 50
    found = received(app)
    assert sorted(message.headers["id"] for message in found) == sorted(handle.id for handle in handles)
    if "files" not in request.node.name:  # files of the same moment come as the folder likes
        assert [message.payload[0][0] for message in found] == list(range(50))


def test_on_redis_a_batch_is_one_command_for_each_list(on_redis: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    app, pushed = on_redis, []
    push = redis.Redis.lpush
    monkeypatch.setattr(redis.Redis, "lpush", lambda self, key, *texts: pushed.append(len(texts)) or push(self, key, *texts))
    second = f"{app.conf.task_default_queue}-second"
    defer_many([app.tasks["effect"].s(n) for n in range(30)], delay=SOON)
    defer_many([app.tasks["effect"].s(n) for n in range(20)], delay=SOON, queue=second)
    defer_many([app.tasks["effect"].s(n) for n in range(10)], delay=SOON, queue=second, priority=9)
    assert dispatch(app).sent == 60
    assert sorted(pushed) == [10, 20, 30]
    assert len(received(app)) == 60


def test_a_batch_that_is_large_travels_in_parts(on_redis: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    app, pushed = on_redis, []
    push = redis.Redis.lpush
    monkeypatch.setattr(redis.Redis, "lpush", lambda self, key, *texts: pushed.append(len(texts)) or push(self, key, *texts))
    monkeypatch.setattr(bulk, "FULL", 10_000)
    defer_many([app.tasks["effect"].s("x" * 4000) for _ in range(10)], delay=SOON)
    assert dispatch(app).sent == 10
    assert max(pushed) <= 3
    assert len(received(app)) == 10


def test_when_redis_goes_in_the_middle_what_it_did_not_confirm_is_given_back(
    on_redis: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, tm = on_redis, TimeManagement(on_redis)
    second = f"{app.conf.task_default_queue}-second"
    sent = defer_many([app.tasks["effect"].s(n) for n in range(5)], delay=SOON)
    kept = defer_many([app.tasks["effect"].s(n) for n in range(5)], delay=timedelta(milliseconds=2), queue=second)
    push = redis.Redis.lpush

    def breaks(self: Any, key: str, *texts: str) -> Any:
        if key.endswith("second"):
            raise redis.ConnectionError("gone")
        return push(self, key, *texts)

    with monkeypatch.context() as patch:
        patch.setattr(redis.Redis, "lpush", breaks)
        done = dispatch(app)
    assert done.sent == 5
    assert "gone" in (done.error or "")
    assert {message.headers["id"] for message in received(app)} == {handle.id for handle in sent}
    assert {job.id for job in tm.jobs(state="pending")} == {handle.id for handle in kept}
    assert all(job.dispatches == 0 for job in tm.jobs(state="pending"))
    assert dispatch(app).sent == 5
    assert {message.headers["id"] for message in received(app)} == {handle.id for handle in kept}


def test_a_short_break_is_bridged(on_redis: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, push = [True], redis.Redis.lpush

    def breaks_once(self: Any, key: str, *texts: str) -> Any:
        if broken and broken.pop():
            raise redis.ConnectionError("gone")
        return push(self, key, *texts)

    monkeypatch.setattr(redis.Redis, "lpush", breaks_once)
    defer_many([on_redis.tasks["effect"].s(n) for n in range(5)], delay=SOON)
    done = dispatch(on_redis)
    assert (done.sent, done.error) == (5, None)
    assert len(received(on_redis)) == 5


def test_one_that_makes_no_message_holds_up_nobody(app: Celery) -> None:
    bad = defer(app.tasks["effect"].s(1).set(serializer="nope"), delay=SOON, max_retries=0)
    good = defer_many([app.tasks["effect"].s(n) for n in range(5)], delay=timedelta(milliseconds=2))
    done = dispatch(app)
    assert (done.sent, done.error) == (5, None)
    assert {message.headers["id"] for message in received(app)} == {handle.id for handle in good}
    assert TimeManagement(app).job(bad.id).state == Status.FAILED


def test_a_router_is_asked_about_each_message(make: Any) -> None:
    asked: list[Any] = []
    app = make("redis")
    second = f"{app.conf.task_default_queue}-second"

    def route(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any) -> Any:
        asked.append((name, args, task))
        return {"queue": second} if args[0] % 2 else None

    app.conf.task_routes = (route,)
    defer_many([app.tasks["effect"].s(n) for n in range(4)], delay=SOON)
    assert dispatch(app).sent == 4
    assert asked == [("effect", [n], app.tasks["effect"]) for n in range(4)]
    assert [message.delivery_info["routing_key"] for message in received(app)].count(second) == 2


def test_an_app_s_own_way_to_send_is_used(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, send = [], app.send_task

    def own(name: str, *args: Any, **options: Any) -> Any:
        sent.append(name)
        return send(name, *args, **options)

    monkeypatch.setattr(app, "send_task", own, raising=False)
    defer_many([app.tasks["effect"].s(n) for n in range(3)], delay=SOON)
    assert dispatch(app).sent == 3
    assert sent == ["effect"] * 3
    assert len(received(app)) == 3


def test_the_event_of_a_sent_message_follows_it(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make("redis", task_send_sent_event=True)
    told: list[tuple[str, str, str]] = []

    def note(kind: str, fields: Any, producer: Any, **_: Any) -> None:
        told.append((kind, fields["uuid"], fields["queue"]))

    monkeypatch.setattr(app.amqp._event_dispatcher, "publish", note)
    handles = defer_many([app.tasks["effect"].s(n) for n in range(3)], delay=SOON)
    assert dispatch(app).sent == 3
    assert told == [("task-sent", handle.id, app.conf.task_default_queue) for handle in handles]


@pytest.fixture
def heard() -> Iterator[list[tuple[str, str]]]:
    """What receivers of Celery's signals of publishing hear."""
    found: list[tuple[str, str]] = []

    def before(headers: Any = None, **_: Any) -> None:
        found.append(("before", headers["id"]))

    def after(headers: Any = None, **_: Any) -> None:
        found.append(("after", headers["id"]))

    signals.before_task_publish.connect(before)
    signals.after_task_publish.connect(after)
    yield found
    signals.before_task_publish.disconnect(before)
    signals.after_task_publish.disconnect(after)


def test_a_call_is_announced_once_where_it_is_made(app: Celery, heard: list[tuple[str, str]]) -> None:
    handles = [
        defer(app.tasks["effect"].s(1), delay=SOON),
        app.tasks["effect"].apply_async((2,), countdown=300),
        *defer_many([app.tasks["effect"].s(n) for n in range(2)], delay=SOON),
    ]
    pairs = [(signal, handle.id) for handle in handles for signal in ("before", "after")]
    assert heard == pairs
    assert dispatch(app).sent == 3
    assert heard == pairs
    assert all("tm_announced" not in message.headers for message in received(app))


def test_what_is_sent_at_once_is_announced_as_it_is_sent(app: Celery, heard: list[tuple[str, str]]) -> None:
    handle = defer(app.tasks["effect"].s(1))
    assert heard == [("before", handle.id), ("after", handle.id)]
    assert len(received(app)) == 1


def test_what_nobody_has_announced_is_announced_by_beat_message_by_message(
    app: Celery, heard: list[tuple[str, str]]
) -> None:
    tm = TimeManagement(app)
    for n in range(3):
        tm.definitions.add(name=f"d{n}", task="effect", schedule="0 0 1 1 *")
        tm.trigger(f"d{n}")
    assert heard == []
    assert dispatch(app).sent == 3
    order = [id for _, id in heard[::2]]
    assert heard == [(signal, id) for id in order for signal in ("before", "after")]
    assert {message.headers["id"] for message in received(app)} == set(order)


def test_what_was_deferred_where_nobody_listened_is_announced_by_beat(app: Celery) -> None:
    handle = defer(app.tasks["effect"].s(1), delay=SOON)
    seen: list[str] = []

    def note(headers: Any = None, **_: Any) -> None:
        headers["by"] = "beat"
        seen.append(headers["id"])

    signals.before_task_publish.connect(note)
    try:
        assert dispatch(app).sent == 1
    finally:
        signals.before_task_publish.disconnect(note)
    assert seen == [handle.id]
    assert [message.headers["by"] for message in received(app)] == ["beat"]
