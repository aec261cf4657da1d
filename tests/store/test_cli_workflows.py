"""Workflows on the command line, on every database: stated, shown, reported, replayed, exported and loaded back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from tmtest.commands import Cli, rows

from celery_tm import TimeManagement, clock, defer, workflow
from celery_tm.store.database import Database

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
STEPS: list[Any] = [
    {"name": "fetch", "task": "effect", "args": [1], "queue": "slow"},
    [{"name": "left", "task": "effect", "kwargs": {"n": "two"}}, {"name": "right", "task": "fails", "max_retries": 0}],
    {"name": "load", "task": "effect", "args": [3]},
    {"name": "clean", "task": "effect", "cleanup": True},
]


@pytest.fixture
def cli(app: Celery, tm: TimeManagement) -> Iterator[Cli]:
    with clock.moved_to(NOON):
        yield Cli(app)


def add_etl(cli: Cli, *more: str, steps: Any = STEPS) -> Any:
    return cli.json("definitions", "add", "etl", "--schedule", "0 3 * * *", "--steps", json.dumps(steps), *more)


def run_etl(cli: Cli, tm: TimeManagement) -> str:
    """Run the definition once and return the id of its occurrence."""
    id: str = cli.json("definitions", "trigger", "etl")["occurrence"]
    tm.run_due_jobs(now=NOON)
    return id


# Stating and showing


def test_steps_are_stated_as_json_or_a_file(cli: Cli, tmp_path: Path) -> None:
    for place, (name, text) in enumerate({
        "steps.json": json.dumps(STEPS),
        "mapping.json": json.dumps({"steps": STEPS}),
        "steps.toml": '[[steps]]\nname = "fetch"\ntask = "effect"\n[[steps]]\ntask = "fails"\nafter = ["fetch"]\n',
        "steps.yaml": "- name: fetch\n  task: effect\n- - {name: left, task: effect}\n  - {name: right, task: effect}\n",
    }.items()):  # fmt: skip
        path = tmp_path / name
        path.write_text(text)
        cli.json("definitions", "add", f"n{place}", "--schedule", "@daily", "--steps", str(path))
    stated = [cli.json("definitions", "show", f"n{place}")["stated"]["steps"] for place in range(4)]
    assert stated[0] == stated[1] == STEPS
    assert stated[2] == [{"name": "fetch", "task": "effect"}, {"name": "fails", "task": "fails", "after": ["fetch"]}]
    assert [len(item) if isinstance(item, list) else 1 for item in stated[3]] == [1, 2]


def test_all_of_a_workflow_can_be_set(cli: Cli, tm: TimeManagement) -> None:
    tm.hook("told")(lambda occurrence, report: None)
    add_etl(
        cli, "--set", "terminate=true", "--set", "max_parallel=8", "--set", "failure_strategy=fail_fast",
        "--set", "on_complete=hook:told", "--set", "on_start=effect", "--set", "execution_timeout=1h",
    )  # fmt: skip
    stated = cli.json("definitions", "show", "etl")["stated"]
    assert {name: stated[name] for name in ("terminate", "max_parallel", "failure_strategy", "on_complete", "on_start")} == {
        "terminate": True, "max_parallel": 8, "failure_strategy": "fail_fast", "on_complete": "hook:told",
        "on_start": "effect",
    }  # fmt: skip
    assert "task" not in stated
    flat = [{"name": "a", "task": "effect"}, {"name": "b", "task": "effect"}]
    cli.run("definitions", "edit", "etl", "--set", f"steps={json.dumps(flat)}", "--set", "mode=parallel")
    stated = cli.json("definitions", "show", "etl")["stated"]
    assert (stated["steps"], stated["mode"]) == (flat, "parallel")
    cli.run("definitions", "edit", "etl", "--steps", "null", "--task", "effect", "--args", "[1]")
    stated = cli.json("definitions", "show", "etl")["stated"]
    assert (stated["task"], stated["args"], "steps" in stated) == ("effect", [1], False)


def test_the_list_counts_steps_and_names_no_task_of_ours(cli: Cli) -> None:
    add_etl(cli)
    cli.run("definitions", "add", "one", "--schedule", "@daily", "--set", 'steps=[{"task": "effect"}]')
    cli.run("definitions", "add", "plain", "--schedule", "@daily", "--task", "effect")
    table = cli.run("definitions", "list").stdout
    assert "5 steps" in table
    assert "1 step " in table
    assert "celery_tm" not in table
    assert [(one["task"], one["steps"] is None) for one in cli.json("definitions", "list")] == [
        (None, False), (None, False), ("effect", True),
    ]  # fmt: skip


def test_a_definition_is_shown_with_its_steps(cli: Cli) -> None:
    add_etl(cli)
    lines = cli.run("definitions", "show", "etl").stdout.splitlines()
    assert any(line.split() == ["steps", "5", "steps"] for line in lines)
    table = lines[lines.index("steps:") + 1 :]
    assert table[0].split() == ["step", "task", "arguments", "after", "else"]
    assert table[1].split() == ["fetch", "effect", "1", "–", "queue:", "slow"]
    assert table[2].split() == ["left", "effect", "n='two'", "fetch", "at", "the", "same", "time", "as:", "right"]
    assert table[4].split() == ["load", "effect", "3", "left,", "right", "–"]
    assert table[5].split() == ["clean", "effect", "–", "load", "cleanup:", "True"]
    steps = [{"name": f"n{n}", "task": "effect"} for n in range(5)] + [{"name": "z", "task": "effect", "cleanup": True}]
    cli.run("definitions", "edit", "etl", "--steps", json.dumps(steps), "--set", "mode=parallel")
    assert "n0, n1, n2 and 2 more" in cli.run("definitions", "show", "etl").stdout


def test_an_edit_of_steps_that_waits_is_told_in_short(cli: Cli) -> None:
    add_etl(cli)
    cli.run("definitions", "edit", "etl", "--steps", '[{"task": "effect"}]', "--policy", "graceful", "--actor", "bob")
    assert "UTC: steps=1 step, by bob" in cli.run("definitions", "show", "etl").stdout


# Running


def test_a_run_is_reported_step_by_step(cli: Cli, tm: TimeManagement) -> None:
    add_etl(cli, "--set", "failure_strategy=fail_fast", steps=[STEPS[0], STEPS[1][1], *STEPS[2:]])
    id = run_etl(cli, tm)
    told = cli.json("report", id)
    assert (told["state"], told["strategy"]) == ("failed", "fail_fast")
    assert told["reason"] == "step 'right' failed: ValueError: no None"
    assert {step["name"]: step["state"] for step in told["steps"]} == {
        "fetch": "succeeded", "right": "failed", "load": "cancelled", "clean": "succeeded",
    }  # fmt: skip
    head, _, table = cli.run("report", id).stdout.partition("\n\n")
    values = dict(line.split("  ", 1) for line in head.splitlines())
    assert {name: values[name].strip() for name in ("state", "strategy", "steps", "reason")} == {
        "state": "failed", "strategy": "fail_fast", "steps": "2 succeeded, 1 failed, 1 cancelled",
        "reason": "step 'right' failed: ValueError: no None",
    }  # fmt: skip
    assert values["started at"].strip() == "2026-06-01 12:00:00Z"
    lines = [line.rstrip() for line in table.splitlines()]
    assert lines[0].split() == ["step", "task", "state", "attempts", "seconds", "why"]
    assert lines[2].split()[:4] == ["right", "fails", "failed", "1"]
    assert lines[2].endswith("ValueError: no None")
    assert lines[3].split()[:5] == ["load", "effect", "cancelled", "0", "–"]
    assert lines[3].endswith("step 'right' failed: ValueError: no None")


def test_a_run_is_seen_in_every_list(cli: Cli, tm: TimeManagement) -> None:
    add_etl(cli, steps=[{"name": "fetch", "task": "effect"}, {"name": "load", "task": "fails", "max_retries": 0}])
    id = cli.json("definitions", "trigger", "etl")["occurrence"]
    [root] = cli.json("jobs", "list")
    assert (root["task"], root["run"], root["step"]) == ("celery_tm.workflow", id, None)
    tm.run_due_jobs(now=NOON)
    [letter] = cli.json("dead-letters", "list")
    assert (letter["step"], letter["run"]) == ("load", id)
    assert (cli.json("dead-letters", "show", letter["id"])["step"], id in cli.run("dead-letters", "list").stdout) == (
        "load",
        True,
    )
    story = cli.json("jobs", "show", letter["id"])
    assert (story["step"], story["run"]) == ("load", id)
    done = next(step["job"] for step in cli.json("report", id)["steps"] if step["name"] == "fetch")
    text = cli.run("jobs", "show", done).stdout.splitlines()
    assert {tuple(line.split()) for line in text} >= {("step", "fetch"), ("run", id)}
    assert cli.json("jobs", "show", root["id"])["run"] == id
    [occurrence] = cli.json("occurrences", "etl")
    assert (occurrence["steps"], "report" in occurrence) == ("1 succeeded, 1 failed", False)
    assert "1 succeeded, 1 failed" in cli.run("occurrences", "etl").stdout
    assert {(one["task"], one["step"]) for one in cli.json("history", "etl")} == {
        ("effect", "fetch"), ("fails", "load"), ("celery_tm.workflow", None),
    }  # fmt: skip


def test_a_step_that_is_tried_again_is_reported_with_its_last_error(cli: Cli, tm: TimeManagement) -> None:
    add_etl(cli, steps=[{"name": "load", "task": "fails"}, {"name": "mail", "task": "effect"}])
    id = run_etl(cli, tm)
    head, _, table = cli.run("report", id).stdout.partition("\n\n")
    assert "1 owed, 1 waiting" in head
    assert table.splitlines()[1].split() == ["load", "fails", "owed", "1", "–", "ValueError:", "no", "None"]
    [owed] = [line for line in cli.run("jobs", "list").stdout.splitlines() if " load " in line]
    assert owed.split()[-1] == id  # in one piece, however long the rest is


def test_lists_without_runs_have_no_columns_for_them(cli: Cli, tm: TimeManagement, app: Celery) -> None:
    job = defer(app.tasks["fails"].s(1), max_retries=0, delay="1m")
    assert "step" not in cli.run("jobs", "list").stdout
    assert "step" not in cli.run("jobs", "show", job.id).stdout
    with clock.moved_to(datetime(2026, 6, 1, 13, tzinfo=UTC)):
        tm.run_due_jobs()
    assert [one["run"] for one in cli.json("dead-letters", "list")] == [None]
    assert "step" not in cli.run("dead-letters", "list").stdout.splitlines()[0]


def test_a_step_that_is_owed_and_a_hook_name_their_run(cli: Cli, tm: TimeManagement, app: Celery) -> None:
    tm.hook("told")(lambda occurrence, report: None)
    handle = defer(workflow([{"task": "fails", "name": "load"}], on_start="hook:told"), app=app, delay="1s")
    [waiting] = cli.json("jobs", "list")
    assert waiting["run"] == handle.id
    later = datetime(2026, 6, 1, 12, 1, tzinfo=UTC)
    with clock.moved_to(later):
        tm.run_due_jobs(now=later, limit=1)  # only the run itself
        owed = {one["step"]: one["run"] for one in cli.json("jobs", "list")}
        assert owed == {None: handle.id, "load": handle.id, "on_start": handle.id}
        assert handle.id in cli.run("jobs", "list").stdout


def test_effective_settings_say_where_they_come_from(cli: Cli) -> None:
    steps = [{"name": "fetch", "task": "flaky", "args": [1, 0], "queue": "slow"}, {"name": "load", "task": "effect"}]
    add_etl(cli, "--set", "priority=3", steps=steps)
    told = cli.json("effective", "etl")
    assert told["fetch"]["queue"] == {"value": "slow", "origin": "step"}
    assert told["fetch"]["max_retries"] == {"value": 5, "origin": "task"}
    assert told["load"]["priority"] == {"value": 3, "origin": "definition"}
    assert told["load"]["queue"] == {"value": None, "origin": "default"}
    assert cli.json("effective", "etl", "fetch") == told["fetch"]
    lines = cli.run("effective", "etl", "fetch").stdout.splitlines()
    assert lines[0].split() == ["step", "setting", "value", "from"]
    assert ["fetch", "queue", "slow", "step"] in [line.split() for line in lines]
    assert cli.refused("effective", "etl", "fetsh") == "unknown step 'fetsh', did you mean 'fetch'?"
    assert cli.refused("effective", "elt").startswith("no definition named 'elt'; did you mean 'etl'?")


def test_a_run_is_replayed_whole_by_one_step_and_from_a_step_on(cli: Cli, tm: TimeManagement) -> None:
    steps = [{"name": name, "task": "effect"} for name in ("a", "b", "c")]
    add_etl(cli, "--set", "overlap=allow", steps=steps)
    id = run_etl(cli, tm)
    again = {}
    for more in ((), ("--step", "b"), ("--from-step", "b")):
        made = cli.json("replay", id, "--reason", "why not", "--actor", "ann", *more)
        assert made["replay_of"] == id
        tm.run_due_jobs(now=NOON)
        report = cli.json("report", made["occurrence"])
        again[more] = [step["name"] for step in report["steps"] if "kept_from" not in step]
    assert list(again.values()) == [["a", "b", "c"], ["b"], ["b", "c"]]
    assert f"as it ended in {id}" in cli.run("report", made["occurrence"]).stdout


# Files

AWKWARD = ' "quoted" \\back\\slash\ttab\nline żółć 😀 = [x] # no comment '
NAME = "\"quoted\" 'twice' \\ żółć 😀 = [x] # no comment"
FULL: list[Any] = [
    {
        "name": NAME, "task": "effect", "args": [{"a b": [1, {"ü.x": AWKWARD}]}], "queue": "q", "priority": 3,
        "max_retries": 4, "retry": {"kind": "exponential", "interval": "10s", "factor": 2.5, "cap": "10m"},
        "task_timeout": "5m", "key": "k:{run}", "concurrency_key": "lane", "concurrency": 2, "failure_strategy": "continue",
        "options": {"headers": {"x-y": AWKWARD, "deep": [{"a": 1.5}]}},
    },
    {"name": "second", "task": "effect", "kwargs": {"n": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)}, "after": []},
    {"name": "last", "task": "effect", "cleanup": True, "after": ["second", NAME]},
]  # fmt: skip


@pytest.mark.parametrize("form", ["toml", "yaml", "json"])
def test_what_is_exported_loads_back_unchanged(
    cli: Cli, tm: TimeManagement, database: Database, tmp_path: Path, form: str
) -> None:
    tm.hook("told")(lambda occurrence, report: None)
    tm.definitions.add(
        name="flat", schedule="@daily", steps=FULL, failure_strategy="fail_fast", max_parallel=8, terminate=True,
        on_start="effect", on_complete="hook:told", execution_timeout="1h",
    )  # fmt: skip
    tm.definitions.add(name="groups", schedule="@daily", steps=STEPS)
    tm.definitions.add(name="at once", schedule="@daily", steps=FULL[:2], mode="parallel")
    tm.definitions.add(name="hooked", schedule="@daily", task="effect", args=[1], on_complete="hook:told")
    path = tmp_path / f"definitions.{form}"
    path.write_text(cli.run("definitions", "export", "--format", form).stdout, encoding="utf-8")
    before = rows(database)
    told = cli.json("definitions", "load", str(path))
    assert (told["added"], told["changed"], len(told["unchanged"])) == ([], [], 4)
    assert rows(database) == before
    for name in told["unchanged"]:
        cli.run("definitions", "remove", name, "--yes")
    assert sorted(cli.json("definitions", "load", str(path))["added"]) == sorted(told["unchanged"])
    assert cli.run("definitions", "export", "--format", form).stdout == path.read_text(encoding="utf-8")


def test_steps_are_tables_of_their_own_where_they_can(cli: Cli) -> None:
    add_etl(cli, steps=[{"name": "fetch", "task": "effect"}, {"name": "load", "task": "effect", "args": [1]}])
    assert cli.run("definitions", "export").stdout == (
        '[[definitions]]\nname = "etl"\nschedule = "0 3 * * *"\ntimezone = "UTC"\n\n'
        '[[definitions.steps]]\nname = "fetch"\ntask = "effect"\n\n'
        '[[definitions.steps]]\nname = "load"\ntask = "effect"\nargs = [1]\n'
    )
    cli.run("definitions", "edit", "etl", "--steps", json.dumps(STEPS[:2]))
    assert cli.run("definitions", "export").stdout == (
        '[[definitions]]\nname = "etl"\nschedule = "0 3 * * *"\ntimezone = "UTC"\nsteps = [\n'
        '  { name = "fetch", task = "effect", args = [1], queue = "slow" },\n  [\n'
        '    { name = "left", task = "effect", kwargs = { n = "two" } },\n'
        '    { name = "right", task = "fails", max_retries = 0 },\n  ],\n]\n'
    )
    cli.run("definitions", "edit", "etl", "--steps", '[{"task": "effect", "args": [null]}]')
    assert cli.refused("definitions", "export") == (
        "format: TOML has no null, and etl: steps[0].args[0] is null; use --format yaml or json"
    )
