"""What an explanation says of a run, to the letter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_tm.domain.job import Job, JobState, Slot
from celery_tm.domain.run_explanation import lines_of, standing_of

ONE = datetime(2026, 1, 1, 13, tzinfo=UTC)


def a_report(*steps: dict[str, Any], **values: Any) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for step in steps:
        counts[step["state"]] = counts.get(step["state"], 0) + 1
    return {"steps": list(steps), "counts": counts, "stopped_by": None, **values}


def a_step(name: str, state: str, **values: Any) -> dict[str, Any]:
    return {"name": name, "state": state, "attempts": 1, **values}


def a_job(**values: Any) -> Job:
    given = {"id": "j", "task": "shop.load", "args": "[]", "kwargs": "{}", "run_at": ONE, "created_at": ONE}
    return Job(original_delay=timedelta(0), occurrence="o", step="load", **{**given, **values})


def test_a_failure_names_its_step_and_what_it_cancelled() -> None:
    cause = "step 'break' failed: ValueError: no 2"
    report = a_report(
        a_step("fetch", "succeeded"),
        a_step("break", "failed", attempts=3, error="ValueError: no 2\nand more"),
        *(a_step(f"n{n}", "cancelled", cancelled_by=cause) for n in range(7)),
        a_step("late", "cancelled", cancelled_by="cancelled by kim"),
        stopped_by=cause,
    )
    assert lines_of(report, {}) == [
        "step 'break' failed in attempt 3: ValueError: no 2 …",
        "cancelled: 'n0', 'n1', 'n2', 'n3', 'n4' and 2 more, because step 'break' failed: ValueError: no 2",
        "cancelled: 'late', because cancelled by kim",
        "1 step succeeded",
    ]


@pytest.mark.parametrize(
    ("job", "line"),
    [
        (a_job(state=JobState.RUNNING, claimed_by="w1", attempt=2), "step 'load' is running in attempt 2 on w1"),
        (
            a_job(state=JobState.RUNNING, claimed_by="w1", cancel_requested=True),
            "step 'load' is running in attempt 1 on w1, and was asked to stop",
        ),
        (a_job(state=JobState.DISPATCHED), "step 'load' waits for a free worker"),
        (a_job(attempt=2, last_error="OSError: no"), "step 'load' is tried again at 2026-01-01 13:00:00 UTC: OSError: no"),
        (a_job(slot=Slot.HELD), "step 'load' waits for a slot"),
        (a_job(), "step 'load' waits for a beat to send it"),
        (None, "step 'load' has just ended"),
    ],
)
def test_a_step_that_is_owed_says_what_it_waits_for(job: Job | None, line: str) -> None:
    assert lines_of(a_report(a_step("load", "owed")), {"load": job} if job else {}) == [line]


def test_a_run_that_goes_on_says_how_far_it_is() -> None:
    steps = (a_step("fetch", "succeeded"), a_step("load", "owed"), a_step("mail", "waiting"), a_step("tidy", "waiting"))
    assert standing_of(a_report(*steps)) == "1 of 4 steps has ended, it waits for 'load'"
    assert lines_of(a_report(*steps), {})[1:] == ["'mail', 'tidy' wait for other steps", "1 step succeeded"]
    assert lines_of(a_report(*steps[:3]), {})[1] == "'mail' waits for other steps"
    stopped = a_report(a_step("a", "failed"), a_step("b", "cancelled"), a_step("c", "owed"), stopped_by="cancelled by kim")
    assert standing_of(stopped) == "2 of 3 steps have ended, it waits for 'c'; it was stopped: cancelled by kim"
    assert standing_of(a_report(a_step("a", "waiting"))) == "0 of 1 step has ended"


def test_many_failures_are_not_all_told() -> None:
    report = a_report(*(a_step(f"n{n}", "failed", attempts=0, error=None) for n in range(12)))
    lines = lines_of(report, {})
    assert lines[0] == "step 'n0' failed: no error was recorded"
    assert lines[10:] == ["and 2 more steps; `tm report` lists them all"]


def test_what_was_kept_from_another_run_is_told_so() -> None:
    kept = {"kept_from": "run-1"}
    report = a_report(a_step("a", "succeeded", **kept), a_step("b", "failed", error="no", **kept), a_step("c", "succeeded"))
    assert lines_of(report, {}) == [
        "step 'b' failed in attempt 1, in run run-1: no",
        "2 steps succeeded, 1 of them in the run that this one repeats",
    ]
