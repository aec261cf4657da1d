"""What is told of a run, on every database: whole while it runs and afterwards, also where there is too much to keep."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_tm import TimeManagement, defer, workflow
from celery_tm.domain import run as runs
from celery_tm.errors import InvalidValue, OccurrenceNotFound
from celery_tm.store import executions, jobs, occurrences
from celery_tm.testing import MovableClock

MANY = 30
BROKEN = {"name": "break", "task": "fails", "max_retries": 0, "after": ["n1"]}
LAST = {"name": "last", "task": "effect", "after": ["break"]}


def fan(app: Celery) -> Any:
    """Return a workflow of many steps that succeed, one that fails and one that waits for it."""
    steps = [{"name": f"n{n}", "task": "effect", "args": [n]} for n in range(MANY)]
    return workflow([*steps, BROKEN, LAST], mode="parallel", on_complete="hook:told")


@pytest.fixture
def told(tm: TimeManagement) -> list[Any]:
    """What the hook was told."""
    found: list[Any] = []
    tm.hook("told")(lambda occurrence, report: found.append((occurrence, report)))
    return found


def kept(tm: TimeManagement, id: str) -> Any:
    with tm.installation.database.transaction(write=False) as tx:
        found = occurrences.find(tx, id)
        assert found is not None
        return found.report


@pytest.mark.parametrize(
    ("most", "names"),
    [(12_000, [*(f"n{n}" for n in range(MANY)), "break", "last"]), (3_000, ["break", "last"])],
)
def test_a_report_that_is_too_long_is_kept_in_short_and_told_in_full(
    app: Celery, tm: TimeManagement, noon: MovableClock, told: list[Any], monkeypatch: pytest.MonkeyPatch,
    most: int, names: list[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(runs, "MAX_REPORT", most)
    handle = defer(fan(app), app=app)
    tm.run_due_jobs(now=noon.now, limit=200)
    short, whole = kept(tm, handle.id), tm.report(handle.id)
    assert (handle.state, short["state"], short["shortened"]) == ("FAILED", "failed", True)
    assert short["counts"] == whole["counts"] == {"succeeded": MANY, "failed": 1, "cancelled": 1}
    assert [step["name"] for step in short["steps"]] == names
    assert not any("tries" in step for step in short["steps"])
    assert len(whole["steps"]) == MANY + 2
    assert all(step["tries"] for step in whole["steps"] if step["state"] != "cancelled")
    assert (whole["ended_at"], whole["reason"], "shortened" in whole) == (short["ended_at"], short["reason"], False)
    [(occurrence, report)] = told
    assert (occurrence["state"], report) == ("failed", short)


def test_of_very_many_failures_the_first_are_kept(
    app: Celery, tm: TimeManagement, noon: MovableClock, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MAX_REPORT", 100)
    monkeypatch.setattr(runs, "FIRST_STEPS", 2)
    steps = [{"name": f"n{n}", "task": "fails", "args": ["x" * 500]} for n in range(4)]
    handle = defer(workflow(steps, mode="parallel", failure_strategy="continue"), app=app)
    tm.run_due_jobs(now=noon.now)
    report = kept(tm, handle.id)
    assert [step["name"] for step in report["steps"]] == ["n0", "n1"]
    assert all(len(step["error"]) <= runs.FIRST_WORDS for step in report["steps"])
    assert [len(step["error"]) for step in tm.report(handle.id)["steps"]] == [len("ValueError: no ") + 500] * 4


def test_a_run_that_is_going_on_is_told_as_it_stands(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    steps = [{"name": "a", "task": "effect"}, {"name": "b", "task": "fails"}, {"name": "c", "task": "effect"}]
    handle = defer(workflow(steps), app=app)
    with pytest.raises(InvalidValue, match="has not begun"):
        tm.report(handle.id)
    tm.run_due_jobs(now=noon.now)
    report = tm.report(handle.id)
    assert (report["state"], report["reason"], "ended_at" in report) == ("running", None, True)
    assert {step["name"]: step["state"] for step in report["steps"]} == {"a": "succeeded", "b": "owed", "c": "waiting"}
    assert [one["error"] for one in report["steps"][1]["tries"]] == ["ValueError: no None"]
    with tm.installation.database.transaction(write=False) as tx:
        assert [job.step for job in jobs.of_occurrence(tx, handle.id) if job.step] == ["b"]
        assert len(executions.of_occurrence(tx, handle.id)) == 2


def test_what_is_no_run_has_no_report(tm: TimeManagement, noon: MovableClock) -> None:
    tm.definitions.add(name="tick", task="effect", schedule="* * * * *")
    made = tm.trigger("tick")
    with pytest.raises(InvalidValue, match=r"is no run of a workflow; tm\.explain tells what became of it"):
        tm.report(made.id)
    with pytest.raises(OccurrenceNotFound):
        tm.report("nothing")
