"""What tracing adds to a call where it is made is on every attempt, whoever publishes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.signals import before_task_publish
from tmtest.courier import Courier

from celery_tm import Task, TimeManagement, defer, defer_many
from celery_tm.domain.job import Status

AGAIN = {"kind": "fixed", "delay": 0}


@pytest.fixture
def trace() -> Iterator[list[str]]:
    """The trace that is active here; beat's is another."""
    active, heard = ["callers"], []

    def inject(sender: str = "", headers: dict[str, Any] | None = None, **_: Any) -> None:
        assert headers is not None
        heard.append(sender)
        headers["traceparent"] = f"00-{active[0]}"

    before_task_publish.connect(inject)
    yield active
    before_task_publish.disconnect(inject)
    assert heard, "nobody asked"


def traces(messages: list[Any]) -> list[Any]:
    return [one.headers.get("traceparent") for one in messages]


def test_a_retry_by_policy_is_in_the_trace_of_its_call(app: Celery, tm: TimeManagement, trace: list[str]) -> None:
    courier = Courier(tm)
    handle = defer(app.tasks["fails"].s(1), retry=AGAIN)
    trace[0] = "beats"
    seen = []
    for _ in range(3):
        messages = courier.collect()
        seen += traces(messages)
        for message in messages:
            courier.deliver(message)
        courier.dispatch()
    assert (seen, handle.state) == (["00-callers"] * 3, Status.FAILED)


def test_what_the_broker_did_not_take_at_first_is_in_the_trace_of_its_call(
    app: Celery, tm: TimeManagement, trace: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise OSError("connection refused")

    courier = Courier(tm)
    with monkeypatch.context() as patch:
        patch.setattr("kombu.messaging.Producer.publish", away)
        defer(app.tasks["effect"].s(1))
    trace[0] = "beats"
    courier.dispatch()
    assert traces(courier.collect()) == ["00-callers"]


def test_jobs_that_share_a_message_have_their_own_traces(app: Celery, tm: TimeManagement, trace: list[str]) -> None:
    seen = []

    @app.task(base=Task, bind=True, name="traced", shared=False, chunk=5, max_retries=1, retry=AGAIN)
    def traced(self: Task) -> None:
        seen.append(self.request.get("traceparent"))
        if self.job.attempt == 1:
            raise ValueError("again")

    courier = Courier(tm)
    defer_many([traced.s() for _ in range(2)])
    trace[0] = "beats"
    courier.deliver_all()
    assert seen == ["00-callers"] * 4
