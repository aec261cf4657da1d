"""A hook on start that blocks ends before the first step begins, on every database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from tmtest.commands import Cli
from tmtest.ledger import NOON, claim, start

from celery_tm import Task, TimeManagement, defer, workflow
from celery_tm.errors import InvalidValue
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.scheduler.expanding import expand
from celery_tm.testing import MovableClock
from celery_tm.worker import recorder

STEPS = [
    [{"name": "left", "task": "note", "args": ["left"]}, {"name": "right", "task": "note", "args": ["right"]}],
    {"name": "load", "task": "note", "args": ["load"], "after": []},
    {"name": "sure", "task": "note", "args": ["sure"], "failure_strategy": "continue"},
    {"name": "tidy", "task": "note", "args": ["tidy"], "cleanup": True},
]
BLOCKING = {"task": "prepare", "blocking": True}


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


@pytest.fixture
def notes(app: Celery) -> Iterator[list[Any]]:
    found: list[Any] = []

    @app.task(base=Task, name="note", shared=False, lazy=False)
    def note(word: str) -> None:
        found.append(word)

    @app.task(base=Task, name="prepare", shared=False, lazy=False, max_retries=2, retry={"kind": "fixed", "delay": "10s"})
    def prepare(occurrence: Any, report: Any) -> str:
        found.append(("prepare", occurrence["state"], len(report["steps"])))
        if "broken" in found or found.count(("prepare", "running", 6)) < found.count("again") + 1:
            raise ConnectionError("no disk")
        return "ready"

    yield found
    for name in ("note", "prepare"):
        app.tasks.unregister(name)


def etl(tm: TimeManagement, **values: Any) -> Any:
    return tm.definitions.add(**({"name": "etl", "schedule": "0 3 * * *", "steps": STEPS, "on_start": BLOCKING} | values))


def run(tm: TimeManagement, clock: MovableClock, rounds: int = 12) -> None:
    for _ in range(rounds):
        tm.run_due_jobs(now=clock.now)
        clock.forward("5s")


def begin(tm: TimeManagement) -> None:
    """Start the runs that are due, as a beat does."""
    for root in Dispatcher(tm.installation, "beat").claim(10)[1]:
        expand(tm.installation, root)


def states(tm: TimeManagement, run: str) -> dict[str, str]:
    return {step["name"]: step["state"] for step in tm.report(run)["steps"]}


def owed_steps(tm: TimeManagement) -> list[str]:
    return sorted(job.step for job in tm.jobs() if job.step)


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_no_step_begins_before_the_hook_has_ended(tm: TimeManagement, notes: list[Any], mode: str) -> None:
    flat = [step for item in STEPS for step in (item if isinstance(item, list) else [item])]
    etl(tm, mode=mode, steps=flat if mode == "parallel" else STEPS)
    made = tm.trigger("etl")
    begin(tm)
    assert owed_steps(tm) == ["on_start"]
    [hook] = [one for one in tm.jobs() if one.step]
    claim(tm)
    started = start(tm, hook.id)
    assert owed_steps(tm) == ["on_start"], "it runs, and nothing else may"
    recorder.record_success(tm.installation, started, "ready")
    first = {"sequential": ["left", "load", "right"], "parallel": ["left", "load", "right", "sure"]}[mode]
    assert owed_steps(tm) == first
    assert states(tm, made.id)["on_start"] == "succeeded"


def test_the_hook_is_tried_again_and_then_the_steps_run(tm: TimeManagement, notes: list[Any], noon: MovableClock) -> None:
    notes.append("again")
    etl(tm, failure_strategy="fail_fast")
    made = tm.trigger("etl")
    run(tm, noon)
    hook = ("prepare", "running", 6)
    assert notes[:3] == ["again", hook, hook], "it has its own retries, whatever the strategy of the steps"
    assert sorted(notes[3:]) == ["left", "load", "right", "sure", "tidy"]
    assert set(states(tm, made.id).values()) == {"succeeded"}
    assert tm.occurrences("etl")[0].state == "completed"


def test_if_it_fails_for_good_the_run_fails_and_no_step_starts(
    tm: TimeManagement, notes: list[Any], noon: MovableClock
) -> None:
    told: list[str] = []
    tm.hook("over")(lambda occurrence, report: told.append(report["state"]))
    notes.append("broken")
    etl(tm, on_complete="hook:over")
    made = tm.trigger("etl")
    run(tm, noon)
    assert [note for note in notes if isinstance(note, str)] == ["broken"]
    assert len(notes) == 4, "three tries of the hook"
    [ended] = tm.occurrences("etl")
    assert (ended.state, told) == ("failed", ["failed"])
    assert "step 'on_start' failed: ConnectionError: no disk" in (ended.reason or "")
    assert states(tm, made.id) == {
        "on_start": "failed", **dict.fromkeys(("left", "right", "load", "sure", "tidy"), "cancelled"),
    }  # fmt: skip
    assert tm.jobs() == []


def test_a_function_may_block_and_a_deferred_workflow_may_wait_for_it(
    tm: TimeManagement, app: Celery, notes: list[Any], noon: MovableClock
) -> None:
    tm.hook("first")(lambda occurrence, report: notes.append("first"))
    steps = [{"name": "a", "task": "note", "args": ["a"]}]
    handle = defer(workflow(steps, on_start="hook:first", on_start_blocking=True), app=app)
    tm.definitions.add(
        name="one", task="note", args=["one"], schedule="@daily", on_start={"task": "hook:first", "blocking": True}
    )
    run(tm, noon, 4)
    assert (notes, handle.state) == (["first", "a"], "SUCCEEDED")
    tm.trigger("one")
    run(tm, noon, 4)
    assert notes == ["first", "a", "first", "one"]


def test_without_blocking_it_runs_beside_the_steps(tm: TimeManagement, notes: list[Any]) -> None:
    etl(tm, on_start="prepare")
    tm.trigger("etl")
    begin(tm)
    assert owed_steps(tm) == ["left", "load", "on_start", "right"]


def test_a_replay_of_all_runs_it_again(tm: TimeManagement, app: Celery, notes: list[Any], noon: MovableClock) -> None:
    etl(tm)
    made = tm.trigger("etl")
    run(tm, noon)
    notes.clear()
    tm.replay(made.id, reason="again")
    run(tm, noon)
    assert notes[0] == ("prepare", "running", 6)
    notes.clear()
    tm.replay(made.id, step="load", reason="again")
    run(tm, noon)
    assert notes == ["load"], "the hook keeps its outcome"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"on_start": None, "on_start_blocking": True}, "no on_start hook to wait for"),
        ({"on_start": {"blocking": True}}, "has no task"),
        ({"on_start": {"task": "prepare", "blocks": True}}, "did you mean 'blocking'"),
        ({"on_start": BLOCKING, "on_start_blocking": True}, "states it already"),
        ({"on_start": {"task": "prepare", "blocking": "yes"}}, "not true or false"),
        ({"on_start": {"task": "plain", "blocking": True}}, "plain Celery task"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(tm: TimeManagement, notes: list[Any], values: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        etl(tm, **values)
    with pytest.raises(InvalidValue, match="no on_start hook"):
        workflow([{"task": "note", "args": ["a"]}], on_start_blocking=True)


def test_files_edits_and_commands_state_it(tm: TimeManagement, app: Celery, notes: list[Any], tmp_path: Path) -> None:
    cli, file = Cli(app), tmp_path / "definitions.toml"
    etl(tm)
    file.write_text(cli.run("definitions", "export").stdout)
    assert "on_start_blocking = true" in file.read_text()
    assert tm.definitions.load(file).unchanged == ["etl"]
    cli.run("definitions", "edit", "etl", "--set", "on_start_blocking=false")
    assert tm.definitions.get("etl").on_start_blocking is False
    cli.run("definitions", "edit", "etl", "--set", 'on_start={"task": "prepare", "blocking": true}')
    assert tm.definitions.get("etl").on_start_blocking is True
    assert tm.definitions.update("etl", on_start=None).on_start_blocking is False
