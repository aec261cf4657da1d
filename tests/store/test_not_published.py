"""A publish that failed is recorded on its job with the error, and explain and the pages tell it, on every database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import ChannelError, OperationalError
from tmtest.commands import Cli
from tmtest.flower import serving
from tmtest.ledger import NOON, add, claim, plan

from celery_tm import TimeManagement, defer
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.testing import MovableClock


@pytest.fixture
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


@contextmanager
def refusing(error: Exception) -> Iterator[None]:
    """Let the broker take no message."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("celery_tm.publisher.sending.Sender.send", refuse)
        yield


def away() -> Exception:
    return OperationalError("the broker is short of memory")


def test_a_refused_publish_is_recorded_and_explained(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    add(tm, schedule="0 13 * * *")
    noon.forward("1h")
    plan(tm)
    beat = Dispatcher(tm.installation, "beat")
    with refusing(away()):
        beat.dispatch_due()
    [job] = tm.jobs()
    assert (str(job.state), job.dispatches, job.attempt) == ("pending", 0, 1)
    assert job.last_error == "not published: OperationalError: the broker is short of memory"
    answer = tm.explain("tick").answer
    assert "was not published: OperationalError: the broker is short of memory." in answer
    assert "No worker has its message; a beat tries again." in answer
    assert "worker:" not in answer
    assert "the broker is short of memory" in Cli(app).run("jobs", "show", job.id).stdout
    with serving(app) as flower:
        page = flower.client().get(f"/tm/job/{job.id}").text
        assert "Its message was not published, so no worker has it" in page
        assert "the broker is short of memory" in page
    beat.dispatch_due()
    assert "waits for a free worker: its message was sent once" in tm.explain("tick").answer
    assert tm.job(job.id).last_error is None, "it is published now"


def test_a_caller_s_own_publish_is_recorded_too(tm: TimeManagement, app: Celery) -> None:
    with refusing(away()):
        handle = defer(app.tasks["effect"].s(1))
    story = tm.job(handle.id)
    assert (story.state, story.last_error) == (
        "SCHEDULED",
        "not published: OperationalError: the broker is short of memory",
    )


def test_a_direct_call_that_the_broker_does_not_take_is_kept_with_the_error(tm: TimeManagement, app: Celery) -> None:
    app.conf.update(broker_url="redis://127.0.0.1:1/0", task_publish_retry=False)
    result = app.tasks["effect"].delay(1)
    told = tm.job(result.id).last_error or ""
    assert told.startswith("not published: OperationalError: ")
    assert "refused" in told


def test_a_queue_that_cannot_be_used_is_explained(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    add(tm, schedule="0 13 * * *", queue="forbidden")
    noon.forward("1h")
    plan(tm)
    with refusing(ChannelError("access refused")):
        Dispatcher(tm.installation, "beat").dispatch_due()
    answer = tm.explain("tick").answer
    assert "was not published: queue forbidden cannot be used: ChannelError: access refused." in answer
    assert "a beat tries again at 2026-06-01 13:00:0" in answer


def test_a_message_that_cannot_be_made_says_so_at_once(tm: TimeManagement, app: Celery) -> None:
    with refusing(TypeError("Object of type set is not JSON serializable")):
        handle = defer(app.tasks["effect"].s(1), max_retries=0)
        assert tm.job(handle.id).last_error == (
            "not published: it makes no message: TypeError: Object of type set is not JSON serializable"
        )
        Dispatcher(tm.installation, "beat").dispatch_due()
    letter = tm.dead_letters.get(handle.id)
    assert letter.last_error == "it makes no message: TypeError: Object of type set is not JSON serializable"
    assert tm.job(handle.id).state == "FAILED"


def test_a_step_that_was_not_published_is_explained(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    tm.definitions.add(name="flow", steps=[{"name": "fetch", "task": "effect"}], schedule="0 13 * * *")
    noon.forward("1h")
    plan(tm)
    beat = Dispatcher(tm.installation, "beat")
    with refusing(away()):
        for _ in range(2):
            beat.dispatch_due()
    lines = tm.explain("flow").lines
    assert "step 'fetch' was not published: OperationalError: the broker is short of memory; a beat tries again" in lines


def test_an_error_of_publishing_does_not_hide_that_of_the_attempt_before(
    tm: TimeManagement, app: Celery, noon: MovableClock
) -> None:
    add(tm, task="fails", schedule="0 13 * * *", max_retries=3, retry={"kind": "fixed", "delay": "1m"})
    noon.forward("1h")
    tm.run_due_jobs()
    noon.forward("1m")
    with refusing(away()):
        Dispatcher(tm.installation, "beat").dispatch_due()
    told = tm.explain("tick")
    assert "It was not published: OperationalError" in told.answer
    assert any("attempt 1 failed" in line and "ValueError: no 1" in line for line in told.lines)
    assert claim(tm)
