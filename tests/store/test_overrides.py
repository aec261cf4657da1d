"""One occurrence can be run with other arguments and settings, on every database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from tmtest.commands import Cli
from tmtest.ledger import HOUR, MINUTE, NOON, add

from celery_tm import Task, TimeManagement
from celery_tm.domain.codec import decode
from celery_tm.errors import InvalidValue, UnknownOption
from celery_tm.testing import MovableClock


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


@pytest.fixture
def calls(app: Celery) -> Iterator[list[tuple[Any, Any]]]:
    found: list[tuple[Any, Any]] = []

    @app.task(base=Task, name="report", max_retries=0, shared=False, lazy=False)
    def report(kind: str, deep: bool = False) -> None:
        found.append((kind, deep))

    yield found
    app.tasks.unregister("report")


def only_job(tm: TimeManagement) -> Any:
    [job] = tm.jobs()
    return job


def test_a_trigger_may_have_arguments_and_settings_of_its_own(tm: TimeManagement, calls: list[Any]) -> None:
    add(tm, task="report", args=["daily"], queue="slow")
    values = {"args": ["sales"], "kwargs": {"deep": True}, "queue": "fast", "priority": 7, "max_retries": 1, "timeout": "5m"}
    made = tm.trigger("tick", actor="ann", reason="audit", **values)
    job = only_job(tm)
    assert (decode(job.args), decode(job.kwargs)) == (["sales"], {"deep": True})
    assert (job.queue, job.priority, job.max_retries, job.timeout) == ("fast", 7, 1, timedelta(minutes=5))
    assert made.overrides == values
    assert tm.occurrences("tick")[0].overrides == values
    assert tm.audit(object="definition:tick")[0].after["overrides"] == values
    tm.run_due_jobs()
    assert calls == [("sales", True)]
    said = "\n".join(tm.explain("tick").lines)
    assert "args, kwargs, queue=fast" in said
    assert "sales" not in said, "arguments may be secret"
    assert tm.definitions.get("tick").version == 1, "the definition stays as it is"


def test_a_replay_keeps_the_values_of_the_original_and_may_change_them(tm: TimeManagement, calls: list[Any]) -> None:
    add(tm, task="report", args=["daily"])
    first = tm.trigger("tick", args=["sales"], queue="fast")
    tm.run_due_jobs()
    second = tm.replay(first.id, reason="again")
    tm.run_due_jobs()
    third = tm.replay(first.id, reason="again", args=["stock"])
    tm.run_due_jobs()
    assert [kind for kind, _ in calls] == ["sales", "sales", "stock"]
    assert (second.overrides, third.overrides) == (first.overrides, {"args": ["stock"], "queue": "fast"})


def test_a_run_with_its_own_arguments_is_no_longer_replayed_once_there_are_steps(
    tm: TimeManagement, calls: list[Any]
) -> None:
    add(tm, task="report", args=["daily"], overlap="allow")
    first, plain = tm.trigger("tick", args=["sales"]), tm.trigger("tick", queue="fast")
    tm.run_due_jobs()
    tm.definitions.update("tick", steps=[{"name": "s", "task": "report", "args": ["step"]}])
    with pytest.raises(
        InvalidValue, match=r"occurrence: it ran with arguments of its own.*; trigger the definition instead"
    ):
        tm.replay(first.id, reason="again")
    with pytest.raises(InvalidValue, match=r"args: 'tick' has steps.*leave args out"):
        tm.replay(first.id, reason="again", args=["stock"])
    assert tm.replay(plain.id, reason="again").overrides == {"queue": "fast"}


def test_a_backfill_may_have_values_of_its_own(tm: TimeManagement, calls: list[Any], noon: MovableClock) -> None:
    add(tm, task="report", args=["daily"], schedule="0 * * * *", recovery="skip", overlap="allow")
    tm.backfill("tick", since=NOON - 3 * HOUR, until=NOON - MINUTE, args=["past"], queue="bulk", reason="new")
    assert {job.queue for job in tm.jobs()} == {"bulk"}
    assert [one.overrides for one in tm.occurrences("tick")] == [{"args": ["past"], "queue": "bulk"}] * 3
    assert tm.audit(object="definition:tick")[0].after["overrides"]["queue"] == "bulk"
    tm.run_due_jobs()
    assert [kind for kind, _ in calls] == ["past"] * 3


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"args": []}, "does not take them"),
        ({"kwargs": {"depth": 3}}, "does not take them"),
        ({"args": "sales"}, "not a list"),
        ({"priority": 900}, "not a priority"),
        ({"timeout": "0s"}, "leaves no time"),
    ],
)
def test_bad_values_are_refused_and_nothing_runs(tm: TimeManagement, calls: list[Any], values: Any, words: str) -> None:
    add(tm, task="report", args=["daily"])
    with pytest.raises(InvalidValue, match=words):
        tm.trigger("tick", **values)
    with pytest.raises(UnknownOption, match="did you mean 'queue'"):
        tm.trigger("tick", quene="fast")
    assert (tm.occurrences("tick"), tm.jobs()) == ([], [])


def test_of_a_workflow_the_settings_hold_for_all_steps_that_state_none(tm: TimeManagement) -> None:
    steps = [[{"name": "a", "task": "effect", "args": [1]}, {"name": "b", "task": "effect", "args": [2], "queue": "own"}]]
    tm.definitions.add(name="etl", schedule="@daily", steps=steps, queue="slow")
    with pytest.raises(InvalidValue, match="has steps"):
        tm.trigger("etl", args=[1])
    made = tm.trigger("etl", queue="fast")
    from celery_tm.scheduler.dispatcher import Dispatcher
    from celery_tm.scheduler.expanding import expand

    for root in Dispatcher(tm.installation, "beat").claim(10)[1]:
        expand(tm.installation, root)
    assert {job.step: job.queue for job in tm.jobs() if job.step} == {"a": "fast", "b": "own"}
    tm.run_due_jobs()
    with pytest.raises(InvalidValue, match="with the settings they had"):
        tm.replay(made.id, step="a", queue="fast", reason="again")


def test_commands_take_them(tm: TimeManagement, app: Celery, calls: list[Any]) -> None:
    add(tm, task="report", args=["daily"])
    made = Cli(app).json(
        "definitions", "trigger", "tick", "--args", '["sales"]', "--kwargs", '{"deep": true}', "--queue", "q"
    )
    tm.run_due_jobs()
    again = ("--reason", "more", "--args", '["stock"]', "--max-retries", "2", "--timeout", "1m", "--priority", "3")
    Cli(app).run("replay", made["occurrence"], *again)
    assert (only_job(tm).max_retries, only_job(tm).priority) == (2, 3)
    tm.run_due_jobs()
    assert calls == [("sales", True), ("stock", True)]
    assert Cli(app).json("occurrences", "tick")[-1]["overrides"]["queue"] == "q"
    assert "is not JSON" in Cli(app).refused("definitions", "trigger", "tick", "--args", "sales")
    Cli(app).run("backfill", "tick", "--since", "2026-06-01T11:58Z", "--yes", "--args", '["past"]')
    assert decode(tm.jobs()[0].args) == ["past"]
