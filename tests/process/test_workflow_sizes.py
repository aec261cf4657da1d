"""Wide workflows on a real worker: a thousand steps at once end in one join, and a run keeps within its limit."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tmtest.stand import Stand
from tmtest.workflow_tasks import facts

from celery_tm.store import tables

WIDE = 1000


def fan_out(stand: Stand, width: int, seconds: float = 0, **values: Any) -> Any:
    """Run a group of so many steps, a join, and a hook; return the report."""
    group = [{"name": f"part {n}", "task": "steps.work", "args": [seconds]} for n in range(width)]
    steps = [group, {"name": "join", "task": "steps.work"}]
    stand.tm.definitions.add(name="wide", schedule="0 3 * * *", steps=steps, on_complete="steps.told", **values)
    run = stand.tm.trigger("wide").id
    stand.wait_until_settled(seconds=200)
    return stand.tm.report(run)


def most_at_once(stand: Stand) -> int:
    """Return how many bodies ran at one time at most, by what they wrote."""
    instants = [(fact["at"], 1) for fact in facts(stand.effects_file, "begin")]
    instants += [(fact["at"], -1) for fact in facts(stand.effects_file, "end")]
    most = now = 0
    for _, change in sorted(instants):
        now += change
        most = max(most, now)
    return most


def assert_each_ran_once(stand: Stand, report: Any, width: int) -> None:
    run = report["run"]
    assert (report["state"], report["counts"]) == ("completed", {"succeeded": width + 1})
    names = [f"part {n}" for n in range(width)]
    for kind in ("begin", "end"):
        ran = Counter(fact["name"] for fact in facts(stand.effects_file, kind, run) if fact["name"] != "on_complete")
        assert ran == Counter([*names, "join"])
    [joined] = facts(stand.effects_file, "begin", run, "join")
    assert joined["at"] >= max(fact["at"] for fact in facts(stand.effects_file, "end", run) if fact["name"] != "join")
    assert len(facts(stand.effects_file, "told completed", run)) == 1
    # The tables say the same: an execution for each step, one for the run, and one for its hook.
    assert stand.outcomes(task="celery_tm.workflow") == Counter(succeeded=1)
    assert stand.outcomes(occurrence=run) == Counter(succeeded=width + 2)
    assert stand.outcomes() == Counter(succeeded=width + 3)
    assert stand.count(tables.occurrence) == 1


@pytest.mark.timeout(240)
def test_a_thousand_steps_at_once_end_in_one_join_and_one_completion(stand: Stand) -> None:
    stand.beat()
    stand.worker(concurrency=8)
    report = fan_out(stand, WIDE)
    print(f"{WIDE} steps in {report['seconds']:.1f} s")
    assert_each_ran_once(stand, report, WIDE)


@pytest.mark.timeout(240)
def test_a_run_has_no_more_steps_at_work_than_it_says(stand: Stand, thorough: bool) -> None:
    width = WIDE if thorough else 100
    stand.beat()
    stand.worker(concurrency=12)
    report = fan_out(stand, width, 0.4, max_parallel=8)
    print(f"{width} steps, eight at a time, in {report['seconds']:.1f} s")
    assert_each_ran_once(stand, report, width)
    assert 4 < most_at_once(stand) <= 8
