"""Mistakes about workflows: one clear error, the same from a call, a command and a file, and nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, group
from sqlalchemy import select
from tmtest.commands import Cli

from celery_tm import TimeManagement, clock, defer, workflow
from celery_tm.domain.workflow import MAX_STEPS
from celery_tm.errors import TmError
from celery_tm.store import tables
from celery_tm.store.database import Database

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
KEPT = (
    tables.definition, tables.version, tables.audit, tables.occurrence, tables.job, tables.workflow, tables.step,
    tables.execution,
)  # fmt: skip


@pytest.fixture
def cli(app: Celery, tm: TimeManagement) -> Iterator[Cli]:
    tm.hook("told")(lambda occurrence, report: None)
    with clock.moved_to(NOON):
        yield Cli(app)


def everything(database: Database) -> dict[str, list[str]]:
    with database.transaction(write=False) as tx:
        return {table.name: sorted(map(repr, tx.execute(select(table)))) for table in KEPT}


def step(name: str = "a", task: str = "effect", **values: Any) -> dict[str, Any]:
    return {"name": name, "task": task, **values}


MANY = [step(f"n{n}") for n in range(MAX_STEPS + 1)]
BAD: list[tuple[dict[str, Any], str]] = [
    ({"steps": [step(), step()]}, "steps: two are called 'a'; give each a name of its own"),
    ({"steps": [step(), [step("b"), step()]]}, "steps: two are called 'a'"),
    ({"steps": [step(task="efect")]}, "unknown task 'efect', did you mean 'effect'?"),
    ({"steps": [step(task="no.such")]}, "unknown task 'no.such'; import its module"),
    ({"steps": [step(task="plain")]}, "step 'a': plain is a plain Celery task, whose end is not seen; give the task base="),
    ({"steps": [step(after=["b"]), step("b", after=["a"])]}, "steps: they wait for each other: a → b → a; leave one"),
    ({"steps": [step(after=["a"])]}, "steps: they wait for each other: a → a"),
    ({"steps": [step(), step("b", after=["aa"])]}, "unknown step 'aa', did you mean 'a'?"),
    ({"steps": [step(), step("b", after=5)]}, "steps[1].after: 5 is not a list of names; give e.g. ['fetch']"),
    ({"steps": [step(max_retrys=5)]}, "unknown option 'steps[0].max_retrys', did you mean 'max_retries'?"),
    ({"steps": [step(), [step("b", zzz=5)]]}, "unknown option 'steps[1][0].zzz'"),
    ({"steps": [step(max_retries=-1)]}, "steps[0].max_retries: "),
    ({"steps": [step(task_timeout="long")]}, "steps[0].task_timeout: 'long' is not a duration"),
    ({"steps": [step(failure_strategy="continu")]}, "steps[0].failure_strategy: 'continu' is not one of its values"),
    ({"steps": [step(args={"a": 1})]}, "steps[0].args: "),
    ({"steps": [step("x" * 101)]}, "steps[0].name: 101 characters"),
    ({"steps": [step("on_start")]}, "steps: 'on_start' is the name of a hook; call the step something else"),
    ({"steps": [{"name": "a"}]}, "steps[0]: it has no task; add task=…"),
    ({"steps": []}, "steps: there are none; give at least one, or leave steps out and name a task"),
    ({"steps": [[]]}, "steps[0]: the group has no steps; leave it out"),
    ({"steps": [[[step()]]]}, "steps[0][0]: "),
    ({"steps": "effect"}, "steps: 'effect' is not a list; give e.g. [{'name': 'fetch', 'task': 'shop.fetch'}]"),
    ({"steps": ["effect"]}, "steps[0]: 'effect' is not a step; give a mapping with a name and a task"),
    ({"steps": MANY}, "steps: 5,001 are too many; stay within 5,000"),
    ({"steps": [step(args=["x" * 950_000])]}, "characters of JSON; stay within 900,000, pass ids"),
    ({"steps": [[step(), step("b")]], "mode": "parallel"}, "steps[0]: all steps run at the same time already; use mode="),
    ({"steps": [step()], "mode": "paralel"}, "did you mean 'parallel'?"),
    ({"steps": [step()], "task": "effect"}, "task: each step has a task of its own; drop task=, or set steps to None"),
    ({"steps": [step()], "args": [1]}, "args: each step has arguments of its own; state args and kwargs in the steps"),
    ({"steps": [step()], "kwargs": {"n": 1}}, "args: each step has arguments of its own"),
    ({"steps": [step()], "max_parallel": 0}, "max_parallel: 0 is not a count"),
    ({"steps": [step()], "terminate": "yes"}, "terminate: 'yes' is not true or false"),
    ({"steps": [step()], "failure_strategy": "fail_fsat"}, "did you mean 'fail_fast'?"),
    ({"steps": [step()], "on_complete": "hook:tod"}, "unknown hook 'tod', did you mean"),
    ({"steps": [step()], "on_complete": "hook:zzz"}, "unknown hook 'zzz'; check that a module which the workers import"),
    ({"steps": [step()], "on_start": "efect"}, "unknown task 'efect', did you mean 'effect'?"),
    ({"task": "effect", "on_strat": "effect"}, "unknown option 'on_strat', did you mean 'on_start'?"),
    ({}, "task: definition 'bad' has none; add task=…, or steps=[…]"),
]  # fmt: skip


def stating(values: dict[str, Any]) -> list[str]:
    """Return values as the options of a command."""
    texts = {field: value if isinstance(value, str) else json.dumps(value) for field, value in values.items()}
    return [word for field, text in texts.items() for word in ("--set", f"{field}={text}")]


def test_a_call_a_command_and_a_file_are_refused_alike(
    cli: Cli, tm: TimeManagement, database: Database, tmp_path: Path
) -> None:
    before = everything(database)
    path = tmp_path / "bad.json"
    for stated, words in BAD:  # in one test per database, for the sake of time
        values = {"schedule": "* * * * *", **stated}
        with pytest.raises(TmError) as refused:
            tm.definitions.add(name="bad", **values)
        text = str(refused.value)
        assert words in text
        assert cli.refused("definitions", "add", "bad", "--schedule", "* * * * *", *stating(stated)) == text
        path.write_text(json.dumps({"definitions": [{"name": "bad", **values}]}))
        told = cli.refused("definitions", "load", str(path))
        assert told == f"definition 'bad': {text}; nothing of {path} was loaded"
    assert everything(database) == before


EDITS: list[tuple[dict[str, Any], str]] = [
    *((stated, words) for stated, words in BAD if "steps" in stated and stated["steps"] is not MANY),
    ({"steps": None}, "task: it has no steps left to run; name a task, or give steps=[…]"),
    ({"task": "effect"}, "task: each step has a task of its own"),
    ({"args": [1]}, "args: each step has arguments of its own"),
    ({"mode": "parallel"}, "steps[1]: all steps run at the same time already"),
]


@pytest.mark.parametrize("policy", ["immediate", "graceful"])
def test_a_bad_edit_is_refused_alike_whenever_it_is_to_count(
    cli: Cli, tm: TimeManagement, database: Database, tmp_path: Path, policy: str
) -> None:
    tm.definitions.add(name="etl", schedule="0 3 * * *", steps=[step("z"), [step("y"), step("x")]])
    before = everything(database)
    path = tmp_path / "bad.json"
    for stated, words in EDITS:
        with pytest.raises(TmError) as refused:
            tm.definitions.update("etl", policy=policy, **stated)
        text = str(refused.value)
        assert words in text
        assert cli.refused("definitions", "edit", "etl", "--policy", policy, *stating(stated)) == text
        if "steps" not in stated:
            continue  # with --force a file that states none of the steps means that there are none
        path.write_text(json.dumps({"definitions": [{"name": "etl", **stated}]}))
        told = cli.refused("definitions", "load", str(path), "--force")  # else what the person has added stays
        assert told == f"definition 'etl': {text}; nothing of {path} was loaded"
    assert everything(database) == before


def test_steps_of_a_command_that_cannot_be_read_are_one_line(cli: Cli, tmp_path: Path) -> None:
    add = ("definitions", "add", "x", "--schedule", "@daily", "--steps")
    assert cli.refused(*add, "[{]").startswith("steps: '[{]' is not JSON (")
    assert "none.json: it cannot be read" in cli.refused(*add, str(tmp_path / "none.json"))
    other = tmp_path / "other.toml"
    other.write_text('[[definitions]]\nname = "x"\n')
    assert cli.refused(*add, str(other)).endswith(
        "it has no list of steps, or more than that; start each one with [[steps]], or write a list"
    )
    assert "steps is stated twice" in cli.misused(*add, '[{"task": "effect"}]', "--set", "steps=[]")


# Deferred workflows

Make = Callable[[Any], Any]
WRONG: list[tuple[str, Make, str]] = [
    ("a chain", lambda effect: workflow(chain(effect.s(1), effect.s(2))), "is not a list; give e.g. [fetch.s(), load.s()]"),
    ("a signature", lambda effect: workflow(effect.s(1)), "is not a list; give e.g. [fetch.s(), load.s()]"),
    ("a name", lambda effect: workflow("effect"), "steps: 'effect' is not a list"),
    ("nothing", lambda effect: workflow([]), "steps: there are none"),
    ("a number", lambda effect: workflow([1]), "steps[0]: 1 is not a step"),
    ("chain inside", lambda effect: workflow([chain(effect.s(1), effect.s(2))]), "steps: a chain is several tasks; list"),
    ("group inside", lambda effect: workflow([group(effect.s(1), effect.s(2))]), "steps: a group is several tasks; list"),
    ("countdown", lambda effect: workflow([effect.s(1).set(countdown=5)]), "effect says countdown=, which the workflow"),
    ("a link", lambda effect: workflow([effect.s(1).on_error(effect.s(2)).set(link=[effect.s(3)])]), "says link="),
    ("a typo", lambda effect: workflow([effect.s(1)], max_paralel=3), "unknown option 'max_paralel', did you mean 'max_p"),
    ("a step's typo", lambda effect: workflow([(effect.s(1), {"nmae": "x"})]), "unknown option 'nmae', did you mean"),
    ("a step's task", lambda effect: workflow([(effect.s(1), {"task": "x"})]), "unknown option 'task'"),
    ("a circle", lambda effect: workflow([(effect.s(1), {"name": "a", "after": ["a"]})]), "they wait for each other: a → a"),
    ("no time", lambda effect: workflow([effect.s(1)], execution_timeout=0), "execution_timeout: 0 leaves no time"),
    ("twice", lambda effect: workflow([(effect.s(1), {"name": "a"}), (effect.s(2), {"name": "a"})]), "two are called 'a'"),
    ("many", lambda effect: workflow(MANY), "steps: 5,001 are too many; stay within 5,000"),
    ("unknown task", lambda effect: defer(workflow([step(task="efect")]), app=effect.app), "did you mean 'effect'?"),
    ("plain", lambda effect: defer(workflow([effect.app.tasks["plain"].s()])), "step 'plain': plain is a plain Celery task"),
    ("arguments", lambda effect: defer(workflow([effect.s(1, 2, 3)])), "args: effect does not take them"),
    ("no hook", lambda effect: defer(workflow([effect.s(1)], on_start="hook:tod")), "unknown hook 'tod', did you mean"),
    ("hook's task", lambda effect: defer(workflow([effect.s(1)], on_start="efect")), "unknown task 'efect', did you mean"),
    ("args", lambda effect: defer(workflow([effect.s(1)]), args=[1]), "args: it is a matter of the steps; state it"),
    ("timeout", lambda effect: defer(workflow([effect.s(1)]), timeout="5m"), "timeout: it is a matter of the steps"),
    ("retries", lambda effect: defer(workflow([effect.s(1)]), max_retries=1), "max_retries: it is a matter of the steps"),
    ("queue", lambda effect: defer(workflow([effect.s(1)]), queue="slow"), "queue: it is a matter of the steps"),
    ("priority", lambda effect: defer(workflow([effect.s(1)]), priority=1), "priority: it is a matter of the steps"),
]  # fmt: skip


def test_a_wrong_workflow_is_refused_where_it_is_made(cli: Cli, app: Celery, database: Database) -> None:
    before = everything(database)
    for what, make, words in WRONG:
        with pytest.raises(TmError) as refused:
            make(app.tasks["effect"])
        assert words in str(refused.value), what
    assert everything(database) == before


def test_what_only_the_workers_have_is_taken_as_said(cli: Cli, app: Celery) -> None:
    assert defer(workflow([step(task="no.such")], on_complete="hook:theirs"), app=app, remote=True).created


# Replays


def test_a_replay_that_cannot_be_is_refused_alike(cli: Cli, tm: TimeManagement, database: Database) -> None:
    steps = [step("fetch"), step("load", "fails", max_retries=0)]
    tm.definitions.add(name="etl", schedule="0 3 * * *", steps=steps)
    tm.definitions.add(name="slow", schedule="0 3 * * *", steps=[step("fetch"), step("load", "fails", max_retries=3)])
    tm.definitions.add(name="tick", schedule="0 3 * * *", task="effect")
    ended, running, plain = (tm.trigger(name).id for name in ("etl", "slow", "tick"))
    tm.run_due_jobs(now=NOON)
    before = everything(database)
    wrong: list[tuple[str, dict[str, str], str]] = [
        ("nothing", {}, "no occurrence 'nothing'; it may have been pruned"),
        ("nothing", {"step": "fetch"}, "no occurrence 'nothing'"),
        (running, {}, f"occurrence: {running} is still running; wait for its end, or cancel its job"),
        (running, {"from_step": "load"}, "is still running"),
        (ended, {"step": "fetsh"}, "unknown step 'fetsh', did you mean 'fetch'?"),
        (ended, {"from_step": "lode"}, "unknown step 'lode', did you mean 'load'?"),
        (ended, {"step": "zzz"}, "unknown step 'zzz'; its definition, or its report, lists them"),
        (ended, {"step": "fetch", "from_step": "load"}, "replay: step= and from_step= are two replays; give one of them"),
        (plain, {"step": "fetch"}, f"step: no steps of {plain} are kept; replay all of it"),
    ]
    for occurrence, wanted, words in wrong:
        with pytest.raises(TmError) as refused:
            tm.replay(occurrence, reason="why not", **wanted)
        assert words in str(refused.value)
        options = [word for name, value in wanted.items() for word in (f"--{name.replace('_', '-')}", value)]
        assert cli.refused("replay", occurrence, "--reason", "why not", *options) == str(refused.value)
    assert everything(database) == before


def test_a_report_that_cannot_be_is_refused_alike(cli: Cli, tm: TimeManagement) -> None:
    tm.definitions.add(name="tick", schedule="0 3 * * *", task="effect")
    for occurrence in ("nothing", tm.trigger("tick").id):
        with pytest.raises(TmError) as refused:
            tm.report(occurrence)
        assert cli.refused("report", occurrence) == str(refused.value)
