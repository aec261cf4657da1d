"""A broker that takes nothing and says nothing, as RabbitMQ does when its memory is full: an outage, noticed in time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from conftest import prepare
from tmtest.app import make_app
from tmtest.servers import OwnRabbitMQ, OwnRedis

from celery_tm import TimeManagement, defer, defer_many, events
from celery_tm.publisher import refusal
from celery_tm.scheduler import Scheduler
from celery_tm.scheduler.dispatcher import Dispatcher

SOON = timedelta(milliseconds=1)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnRabbitMQ]:
    """A RabbitMQ whose memory alarm is on from the start."""
    server = OwnRabbitMQ(tmp_path_factory.mktemp("rabbit"))
    config = Path(server._env["RABBITMQ_CONFIG_FILE"])
    config.write_text(config.read_text() + "vm_memory_high_watermark.absolute = 1MiB\n")
    server.start()
    yield server
    server.close()


@pytest.mark.parametrize("confirms", [True, False])
def test_a_memory_alarm_is_an_outage_and_nothing_is_counted_as_sent(
    full: OwnRabbitMQ, sqlite_url: str, confirms: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusal, "PATIENCE", 1.0)
    prepare(sqlite_url)
    conf = {"broker_transport_options": {"confirm_publish": confirms}, "task_default_queue": f"full-{confirms}"}
    app = make_app({"broker_url": full.url, "tm_database_url": sqlite_url, **conf})
    tm = TimeManagement(app)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:  # the alarm comes on a moment after the server
        defer_many([app.tasks["effect"].s(n) for n in range(5)], delay=SOON)
        time.sleep(0.02)
        started = time.monotonic()
        done = Dispatcher(tm.installation, "beat@test").dispatch_due()
        if done.error:
            break
    assert done.error
    assert time.monotonic() - started < 30
    assert {job.state for job in tm.jobs() if job.dispatches == 0} == {"pending"}
    heard: list[str] = []
    events.outage_began.connect(receiver := (lambda **values: heard.append(values["what"])))
    beat = Scheduler(app, max_interval=5)
    beat.work()
    events.outage_began.disconnect(receiver)
    assert heard == ["broker"]
    beat.close()
    started = time.monotonic()
    defer(app.tasks["effect"].s(1))  # after commit the caller's process publishes: that returns too
    assert time.monotonic() - started < 30
    tm.installation.database.dispose()
    app.close()


def test_a_redis_that_stands_still_is_an_outage(broker: OwnRedis, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import signal

    monkeypatch.setattr(refusal, "PATIENCE", 4.0)
    prepare(sqlite_url)
    app = make_app({"broker_url": broker.url, "tm_database_url": sqlite_url})
    tm = TimeManagement(app)
    defer(app.tasks["effect"].s(0))
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        waits = defer(app.tasks["effect"].s(1), delay=SOON, queue="not declared yet")
        time.sleep(0.02)
        started = time.monotonic()
        done = Dispatcher(tm.installation, "beat@test").dispatch_due()
        assert done.error
        assert time.monotonic() - started < 2 * refusal.PATIENCE, "it was waited for once"
        assert waits.id in [job.id for job in tm.jobs(state="pending")]
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    deadline = time.monotonic() + 30
    while not Dispatcher(tm.installation, "beat@test").dispatch_due().sent:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    tm.installation.database.dispose()
    app.close()
