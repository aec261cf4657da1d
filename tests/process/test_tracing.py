"""A trace that is active when a job is deferred goes on in its body, though beat sends the message later.

With the real instrumentations, which put their headers into a message when it is sent: OpenTelemetry by the signal
`before_task_publish`, Sentry by wrapping `Task.apply_async` and `Celery.send_task`. Plain Celery's `apply_async` is the
oracle: there the message is sent where the trace is active.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tmtest import tracing
from tmtest.canvas_tasks import OURS, PLAIN
from tmtest.stand import Stand
from tmtest.twice import Side

from celery_tm import defer

MODULES = {"opentelemetry": "opentelemetry.instrumentation.celery", "sentry": "sentry_sdk"}


@pytest.fixture(params=MODULES)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An instrumentation, on in this process and in all that are started."""
    pytest.importorskip(MODULES[request.param])
    monkeypatch.setenv(tracing.VARIABLE, request.param)
    tracing.start(request.param)
    yield request.param
    tracing.stop(request.param)


@pytest.mark.parametrize("own_canvas", ["sqlite+files"], indirect=True)
def test_a_trace_goes_on_in_the_body_however_it_is_called(own_canvas: Stand, kind: str) -> None:
    stand = own_canvas
    stand.beat()
    stand.worker(concurrency=2)
    plain, ours = Side(stand, PLAIN), Side(stand, OURS)
    with tracing.active(kind) as trace:
        ids = {
            "plain apply_async": plain.sees.apply_async(countdown=0.3).id,
            "ours apply_async": ours.sees.apply_async().id,
            "ours countdown": ours.sees.apply_async(countdown=0.3).id,
            "ours retry": ours.sees_after_retry.apply_async().id,
            "deferred at once": defer(ours.sees.s()).id,
            "deferred": defer(ours.sees.s(), delay=0.3).id,
            "deferred, retry": defer(ours.sees_after_retry.s(), delay=0.3).id,
            "deferred plain": defer(plain.sees.s(), delay=0.3).id,
            "deferred, own header": defer(ours.sees.s().set(headers={"x-mine": "1"}), delay=0.3).id,
        }
    assert len(trace) == 32
    seen = {name: (plain if "plain" in name else ours).wait_for("seen", id=id)[0]["trace"] for name, id in ids.items()}
    assert seen == dict.fromkeys(ids, trace)


@pytest.mark.parametrize("own_canvas", ["sqlite+files"], indirect=True)
def test_what_no_trace_has_asked_for_starts_one_of_its_own(own_canvas: Stand, kind: str) -> None:
    stand = own_canvas
    stand.beat()
    stand.worker(concurrency=2)
    ours = Side(stand, OURS)
    ids = [defer(ours.sees.s(), delay=0.2).id for _ in range(3)]
    traces = [ours.wait_for("seen", id=id)[0]["trace"] for id in ids]
    assert None not in traces
    if kind == "opentelemetry":  # Sentry's scope of a process has a trace, which all that it sends shares
        assert len(set(traces)) == 3
