"""Adding and removing steps, on every database: an edit affects coming runs only, each keeps what it began with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tmtest.ledger import NOON, claim, plan, rows

from celery_tm import TimeManagement
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import workflows
from celery_tm.testing import MovableClock

FETCH = {"name": "fetch", "task": "effect", "args": [1]}
LOAD = {"name": "load", "task": "effect", "args": [2]}
MAIL = {"name": "mail", "task": "effect", "args": [3]}


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def add_etl(tm: TimeManagement, **values: Any) -> Any:
    given = {"name": "tick", "schedule": "* * * * *", "overlap": "allow", "recovery": "all", "steps": [FETCH, LOAD]}
    return tm.definitions.add(**(given | values))


def ran(tm: TimeManagement) -> list[list[str]]:
    """Return the steps of each run that has ended, the oldest first."""
    reports = [tm.report(row.id) for row in rows(tm) if row.ended_at]
    assert all(report["state"] == "completed" for report in reports)
    return [[step["name"] for step in report["steps"]] for report in reports]


def run_all(tm: TimeManagement, clock: MovableClock) -> None:
    while tm.run_due_jobs(now=clock.now).claimed:
        pass


def test_a_run_that_was_planned_before_an_edit_has_the_steps_of_its_own_version(
    tm: TimeManagement, noon: MovableClock
) -> None:
    add_etl(tm)
    noon.forward("1m")
    plan(tm)
    tm.definitions.update("tick", steps=[FETCH, MAIL, LOAD])  # one comes
    noon.forward("1m")
    plan(tm)
    tm.definitions.update("tick", steps=[MAIL])  # two go
    noon.forward("1m")
    run_all(tm, noon)
    assert ran(tm) == [["fetch", "load"], ["fetch", "mail", "load"], ["mail"]]
    assert [row.version for row in rows(tm)] == [1, 2, 3]


def test_an_instant_that_was_due_before_an_edit_is_decided_by_the_steps_of_then(
    tm: TimeManagement, noon: MovableClock
) -> None:
    add_etl(tm)
    noon.forward("2m")  # no beat has planned them
    tm.definitions.update("tick", steps=[MAIL])
    noon.forward("1m")
    run_all(tm, noon)
    assert ran(tm) == [["fetch", "load"], ["fetch", "load"], ["mail"]]


def test_a_run_that_is_going_on_is_not_touched(tm: TimeManagement, noon: MovableClock) -> None:
    add_etl(tm)
    noon.forward("1m")
    plan(tm)
    dispatcher = Dispatcher(tm.installation, "beat")
    dispatcher.expand(dispatcher.claim(10)[1])
    [first] = rows(tm)
    assert [step["state"] for step in tm.report(first.id)["steps"]] == ["owed", "waiting"]
    tm.definitions.update("tick", steps=[MAIL], max_retries=7)
    run_all(tm, noon)
    assert ran(tm) == [["fetch", "load"]]
    tm.definitions.remove("tick")
    assert [step["name"] for step in tm.report(first.id)["steps"]] == ["fetch", "load"]


def test_a_run_that_was_planned_goes_on_although_its_definition_was_removed(tm: TimeManagement, noon: MovableClock) -> None:
    add_etl(tm)
    noon.forward("1m")
    plan(tm)
    [first] = rows(tm)
    tm.definitions.remove("tick")
    run_all(tm, noon)
    report = tm.report(first.id)
    assert (report["state"], [step["name"] for step in report["steps"]]) == ("completed", ["fetch", "load"])


def test_a_graceful_edit_of_steps_takes_over_after_the_next_run(tm: TimeManagement, noon: MovableClock) -> None:
    add_etl(tm)
    waiting = tm.definitions.update("tick", steps=[FETCH, [LOAD, MAIL]], policy="graceful")
    assert (waiting.version, waiting.steps) == (1, [FETCH, LOAD])
    for _ in range(2):
        noon.forward("1m")
        run_all(tm, noon)
    assert ran(tm) == [["fetch", "load"], ["fetch", "load", "mail"]]
    assert tm.definitions.get("tick").steps == [FETCH, [LOAD, MAIL]]


@pytest.mark.parametrize(("policy", "runs"), [("immediate", 2), ("graceful", 1), ("windowed", 2)])
def test_a_definition_becomes_a_workflow_and_a_single_task_again(
    tm: TimeManagement, noon: MovableClock, policy: str, runs: int
) -> None:
    add_etl(tm, steps=None, task="effect", args=[9], plan_ahead="10m")

    def twice() -> int:
        """Let two instants come; return how many of them ran as workflows."""
        for _ in range(2):
            noon.forward("1m")
            run_all(tm, noon)
        return sum(row.report is not None for row in [row for row in rows(tm) if row.ended_at][-2:])

    tm.definitions.update("tick", steps=[FETCH, LOAD], policy=policy)
    assert twice() == runs
    tm.definitions.update("tick", steps=None, task="effect", args=[9], policy=policy)
    assert twice() == 2 - runs
    after = tm.definitions.get("tick")
    assert (after.task, after.args, after.steps) == ("effect", "[9]", None)


def test_a_file_adds_and_removes_steps(tm: TimeManagement, noon: MovableClock, tmp_path: Path) -> None:
    path = tmp_path / "definitions.toml"

    def load(*names: str) -> Any:
        steps = "".join(f'[[definitions.steps]]\nname = "{name}"\ntask = "effect"\n' for name in names)
        path.write_text(f'[[definitions]]\nname = "tick"\nschedule = "* * * * *"\noverlap = "allow"\n{steps}')
        return tm.definitions.load(path)

    assert load("fetch", "load").added == ["tick"]
    noon.forward("1m")
    plan(tm)
    assert load("fetch", "load").unchanged == ["tick"]
    assert load("fetch", "mail", "load").changed == ["tick"]
    run_all(tm, noon)
    noon.forward("1m")
    run_all(tm, noon)
    assert load("load").changed == ["tick"]
    noon.forward("1m")
    run_all(tm, noon)
    assert ran(tm) == [["fetch", "load"], ["fetch", "mail", "load"], ["load"]]


def test_a_yaml_file_has_groups_as_lists(tm: TimeManagement, noon: MovableClock, tmp_path: Path) -> None:
    path = tmp_path / "definitions.yaml"
    path.write_text(
        "definitions:\n- name: tick\n  schedule: '* * * * *'\n  steps:\n  - {name: fetch, task: effect}\n"
        "  - - {name: load, task: effect}\n    - {name: mail, task: effect}\n"
    )
    assert tm.definitions.load(path).added == ["tick"]
    noon.forward("1m")
    run_all(tm, noon)
    [report] = [tm.report(row.id) for row in rows(tm)]
    assert [step["name"] for step in report["steps"]] == ["fetch", "load", "mail"]


def test_the_settings_of_a_run_are_kept_with_it(tm: TimeManagement, noon: MovableClock) -> None:
    add_etl(tm, steps=[FETCH | {"max_retries": 1}, LOAD], max_retries=4, task_timeout="5m", failure_strategy="continue")
    noon.forward("1m")
    run_all(tm, noon)
    [first] = rows(tm)
    tm.definitions.update("tick", steps=[LOAD], max_retries=9, task_timeout=None, failure_strategy="fail_fast")
    noon.forward("1m")
    run_all(tm, noon)
    _, second = rows(tm)
    common = {"task_timeout": "5m", "failure_strategy": "continue"}
    assert settings(tm, first.id) == {"fetch": common | {"max_retries": 1}, "load": common | {"max_retries": 4}}
    assert settings(tm, second.id) == {"load": {"max_retries": 9, "failure_strategy": "fail_fast"}}
    assert tm.effective("tick", "load")["max_retries"].value == 9
    assert tm.report(first.id)["strategy"] == "continue"


def settings(tm: TimeManagement, run: str) -> dict[str, Any]:
    with tm.installation.database.transaction(write=False) as tx:
        return {step.name: dict(step.settings) for step in workflows.steps_of(tx, run)}


def test_a_replay_of_some_steps_has_the_steps_of_the_original_and_a_whole_one_those_of_today(
    tm: TimeManagement, noon: MovableClock
) -> None:
    add_etl(tm)
    noon.forward("1m")
    run_all(tm, noon)
    [first] = rows(tm)
    tm.definitions.update("tick", steps=[MAIL])
    some = tm.replay(first.id, from_step="load", reason="again")
    whole = tm.replay(first.id, reason="again")
    run_all(tm, noon)
    assert [step["name"] for step in tm.report(some.id)["steps"]] == ["fetch", "load"]
    assert [step["name"] for step in tm.report(whole.id)["steps"]] == ["mail"]
    assert claim(tm) == []
