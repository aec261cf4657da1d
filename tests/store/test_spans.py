"""Spans of OpenTelemetry where it is used: what beat, worker and caller do, with ids and names and never an argument."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
from celery import Celery
from tmtest.ledger import NOON, add

from celery_tm import Scheduler, TimeManagement, defer, defer_many
from celery_tm.testing import MovableClock

trace = pytest.importorskip("opentelemetry.trace")
Spans = Callable[[str], list[Any]]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    """The spans that have ended, by name, in the order in which they began."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)

    def found(name: str = "") -> list[Any]:
        ended = sorted(kept.get_finished_spans(), key=lambda one: one.start_time)
        return [one for one in ended if one.name == f"celery_tm.{name}" or not name]

    return found


@pytest.fixture(autouse=True)
def at_noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def test_a_job_has_a_span_where_it_is_deferred_let_in_and_recorded(
    tm: TimeManagement, app: Celery, at_noon: MovableClock, spans: Spans
) -> None:
    id = defer(app.tasks["effect"].s("s3cret"), delay="1m", key="s3cret-key").id
    defer_many([app.tasks["chunked"].s("s3cret") for _ in range(3)], delay="1m")
    add(tm, args=["s3cret"], max_runs=1)
    at_noon.forward("1m")
    tm.run_due_jobs()
    one, many = spans("defer")
    assert dict(one.attributes) == {"tm.job": id, "tm.task": "effect"}
    assert dict(many.attributes) == {"tm.count": 3}
    [gate] = [span for span in spans("gate") if span.attributes["tm.job"] == id]
    assert dict(gate.attributes) == {"tm.job": id, "tm.task": "effect", "tm.attempt": 1}
    [record] = [span for span in spans("record") if span.attributes["tm.job"] == id]
    assert record.attributes["tm.outcome"] == "succeeded"
    assert {span.attributes.get("tm.definition") for span in spans("record")} == {None, "tick"}
    assert "s3cret" not in "".join(span.to_json() for span in spans(""))


def test_a_tick_that_does_something_is_a_span_with_its_parts(
    tm: TimeManagement, app: Celery, at_noon: MovableClock, spans: Spans
) -> None:
    app.conf.result_expires = None
    scheduler = Scheduler(app)
    scheduler.work()  # what beat does once
    before = len(spans(""))
    scheduler.work()
    assert len(spans("")) == before, "an idle tick is no span"
    add(tm)
    at_noon.forward("1m")
    scheduler.work()
    tick = spans("tick")[-1]
    assert tick.attributes["tm.sent"] == 1
    inside = {span.name: span.parent.span_id for span in spans("") if span.parent}
    assert inside.items() >= {f"celery_tm.{part}": tick.context.span_id for part in ("plan", "claim", "publish")}.items()


def test_a_module_that_another_thread_is_still_importing_is_left_alone(
    app: Celery, tm: TimeManagement, monkeypatch: pytest.MonkeyPatch
) -> None:
    partly = ModuleType("opentelemetry.trace")  # nothing of it is defined yet
    partly.__spec__ = ModuleSpec("opentelemetry.trace", None)
    partly.__spec__._initializing = True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", partly)
    handle = defer(app.tasks["effect"].s(1), delay="1m")
    assert handle.created


def test_a_process_without_opentelemetry_does_not_load_it() -> None:
    code = (
        "import sys, celery_tm.tracing as tracing, celery_tm.worker.task, celery_tm.scheduler\n"
        "with tracing.span('gate', job='1'), tracing.aside('publish'): tracing.describe(count=1)\n"
        "assert not [name for name in sys.modules if name.startswith(('opentelemetry', 'prometheus_client'))]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
