"""The settings that a step runs with: whose word counts, and what the strategy makes of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from celery_tm.domain.effective import CASCADED, OWN, Setting, effective, limit_of, values_of
from celery_tm.domain.planning import TaskDefaults
from celery_tm.domain.workflow import Step

FIXED, LINEAR = {"kind": "fixed", "delay": "1m"}, {"kind": "linear", "base": "10s", "cap": "1d"}
NEVER = {"kind": "never"}


def settings(own: dict[str, Any] | None = None, common: dict[str, Any] | None = None, **task: Any) -> Any:
    step = Step(name="a", task="t", own=own or {})
    return effective(step, common or {}, TaskDefaults(**task))


def test_where_nobody_says_anything_the_defaults_hold() -> None:
    found = settings(max_retries=None)
    assert found == {name: Setting(default, "default") for name, default in CASCADED.items()}
    assert found["failure_strategy"].value == "retry_on_failure"


@pytest.mark.parametrize(
    ("name", "of_step", "of_definition", "task", "of_task"),
    [
        ("max_retries", 1, 2, {"max_retries": 3}, 3),
        ("retry", FIXED, LINEAR, {"retry": NEVER}, NEVER),
        ("task_timeout", "1m", "2m", {"timeout": timedelta(minutes=3)}, "3m"),
    ],
)
def test_a_step_counts_before_its_definition_and_that_before_the_task(
    name: str, of_step: Any, of_definition: Any, task: dict[str, Any], of_task: Any
) -> None:
    assert settings({name: of_step}, {name: of_definition}, **task)[name] == Setting(of_step, "step")
    assert settings({}, {name: of_definition}, **task)[name] == Setting(of_definition, "definition")
    assert settings({}, {name: None}, **task)[name] == Setting(of_task, "task")
    assert settings({}, {}, **task)[name] == Setting(of_task, "task")


@pytest.mark.parametrize(("name", "mine", "theirs"), [("queue", "a", "b"), ("priority", 0, 9)])
def test_what_no_task_states_is_the_steps_or_the_definitions(name: str, mine: Any, theirs: Any) -> None:
    assert settings({name: mine}, {name: theirs})[name] == Setting(mine, "step")
    assert settings({}, {name: theirs})[name] == Setting(theirs, "definition")
    assert settings()[name] == Setting(None, "default")


def test_no_retries_at_all_is_a_word_that_counts() -> None:
    assert settings({"max_retries": 0}, {"max_retries": 5}, max_retries=7)["max_retries"] == Setting(0, "step")
    assert settings({}, {"max_retries": 0}, max_retries=7)["max_retries"] == Setting(0, "definition")


def test_a_workflow_that_no_definition_states_is_called_so() -> None:
    step = Step(name="a", task="t")
    found = effective(step, {"queue": "q"}, TaskDefaults(), level="workflow")
    assert found["queue"] == Setting("q", "workflow")


@pytest.mark.parametrize("strategy", ["fail_fast", "continue"])
@pytest.mark.parametrize("by", ["step", "definition"])
def test_the_first_failure_is_final_by_strategy(strategy: str, by: str) -> None:
    said = {"failure_strategy": strategy}
    found = settings(said if by == "step" else {}, said if by == "definition" else {}, max_retries=3, retry=FIXED)
    assert found["failure_strategy"] == Setting(strategy, by)
    assert found["retry"] == Setting(NEVER, "strategy")
    assert found["max_retries"] == Setting(3, "task")  # an attempt whose worker died is made again


@pytest.mark.parametrize("strategy", ["fail_fast", "continue"])
@pytest.mark.parametrize("own", [{"max_retries": 2}, {"retry": FIXED}, {"max_retries": 0}])
@pytest.mark.parametrize("by", ["step", "definition"])
def test_who_says_how_to_retry_is_heard_whatever_the_strategy(strategy: str, own: dict[str, Any], by: str) -> None:
    found = settings(
        {"failure_strategy": strategy} | (own if by == "step" else {}), own if by == "definition" else {}, retry=LINEAR
    )
    [(name, value)] = own.items()
    assert found[name] == Setting(value, by)
    assert found["retry"].origin != "strategy"


def test_to_retry_on_failure_leaves_the_task_its_way() -> None:
    found = settings({"failure_strategy": "retry_on_failure"}, {"failure_strategy": "fail_fast"}, retry=FIXED)
    assert found["retry"] == Setting(FIXED, "task")


def test_what_is_a_steps_alone_never_comes_from_elsewhere() -> None:
    theirs = {"key": "k", "concurrency_key": "c", "concurrency": 2, "options": {"a": 1}}
    assert not set(OWN) & settings({}, theirs).keys()
    mine = settings(theirs)
    assert {name: mine[name] for name in OWN} == {name: Setting(value, "step") for name, value in theirs.items()}


def test_a_run_keeps_values_and_nothing_that_is_not_there() -> None:
    assert values_of({"queue": Setting(None, "default"), "max_retries": Setting(0, "step")}) == {"max_retries": 0}


@pytest.mark.parametrize(
    ("own", "whole", "limit"),
    [
        ({}, None, None),
        ({"task_timeout": "5m"}, None, timedelta(minutes=5)),
        ({}, timedelta(minutes=7), timedelta(minutes=7)),
        ({"task_timeout": "5m"}, timedelta(minutes=7), timedelta(minutes=5)),
        ({"task_timeout": "9m"}, timedelta(minutes=7), timedelta(minutes=7)),
    ],
)
def test_an_attempt_takes_as_long_as_the_step_and_the_run_allow(own: Any, whole: Any, limit: Any) -> None:
    assert limit_of(own, whole) == limit
