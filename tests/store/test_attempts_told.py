"""Every attempt of a job or step is told with its start, duration, outcome, error and the backoff that followed."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from tmtest.commands import Cli
from tmtest.flower import serving
from tmtest.ledger import MINUTE, NOON, add, claim, start

from celery_tm import TimeManagement, defer
from celery_tm.testing import MovableClock
from celery_tm.worker.release import record_handed_back

TWICE: dict[str, Any] = {"max_retries": 1, "retry": {"kind": "fixed", "delay": "2m"}}


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def run_twice(tm: TimeManagement, noon: MovableClock) -> None:
    for _ in range(3):
        tm.run_due_jobs()
        noon.forward("2m")


def test_a_job_keeps_the_backoff_of_every_attempt(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    handle = defer(app.tasks["fails"].s(1), **TWICE)
    run_twice(tm, noon)
    second, first = tm.job(handle.id).executions
    assert (first.started_at, first.run_at, first.next_delay) == (NOON, NOON, 2 * MINUTE)
    assert (second.started_at, second.run_at, second.next_delay) == (NOON + 2 * MINUTE, NOON + 2 * MINUTE, None)
    shown = Cli(app).run("jobs", "show", handle.id).stdout
    assert "next delay" in shown
    assert [one["next_delay"] for one in Cli(app).json("jobs", "show", handle.id)["executions"]] == [None, 120.0]
    with serving(app) as flower:
        assert "next 2 min later" in flower.client().get(f"/tm/job/{handle.id}").text


def test_an_attempt_that_was_released_has_no_backoff(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    handle = defer(app.tasks["effect"].s(1), delay="1s")
    noon.forward("2s")
    assert claim(tm) == [handle.id]
    start(tm, handle.id)
    assert record_handed_back(tm.installation, [(handle.id, 1)], "stops", workers={"worker"})
    [one] = tm.job(handle.id).executions
    assert (str(one.outcome), one.next_delay) == ("interrupted", timedelta(0))


def test_explain_tells_the_attempts_of_a_run(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, task="fails", schedule="0 13 * * *", **TWICE)
    noon.forward("1h")
    run_twice(tm, noon)
    lines = tm.explain("tick").lines
    [first] = [line for line in lines if line.startswith("attempt 1 failed")]
    assert "started at 2026-06-01 13:00:00 UTC, the next one 2m later: ValueError: no 1" in first
    [second] = [line for line in lines if line.startswith("attempt 2 failed")]
    assert "started at 2026-06-01 13:02:00 UTC: ValueError" in second


def test_the_report_of_a_workflow_tells_the_attempts_of_each_step(
    tm: TimeManagement, app: Celery, noon: MovableClock
) -> None:
    steps = [{"name": "fetch", "task": "effect"}, {"name": "load", "task": "fails", **TWICE}]
    tm.definitions.add(name="flow", steps=steps, schedule="0 13 * * *")
    noon.forward("1h")
    for _ in range(4):
        run_twice(tm, noon)
    [run] = tm.occurrences("flow")
    fetch, load = tm.report(run.id)["steps"]
    assert [one["next_delay"] for one in fetch["tries"]] == [None]
    told = [(one["attempt"], one["outcome"], one["next_delay"]) for one in load["tries"]]
    assert told == [(1, "failed", 120.0), (2, "failed", None)]
    first, second = (datetime.fromisoformat(one["started_at"]) for one in load["tries"])
    assert second - first >= 2 * MINUTE
    assert any("step 'load', attempt 1 failed" in line and "2m later" in line for line in tm.explain("flow").lines)
    assert "next delay" in Cli(app).run("report", run.id).stdout
    with serving(app) as flower:
        assert "next 2 min later" in flower.client().get(f"/tm/run/{run.id}").text
