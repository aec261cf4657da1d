"""What people state about steps: what is kept of it, and what is refused with which words."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_tm.domain.retry import Fixed
from celery_tm.domain.steps import MAX_STEP_NAME, OVERRIDES, check_steps, read_steps
from celery_tm.domain.workflow import MAX_STEPS, MAX_WAITS, Mode, Step
from celery_tm.errors import InvalidValue, UnknownOption, UnknownStep


def checked(*steps: Any, mode: Mode = Mode.SEQUENTIAL) -> Any:
    return check_steps(list(steps), mode)


def one(**values: Any) -> dict[str, Any]:
    return {"name": "a", "task": "t", **values}


def test_no_steps_are_stated_with_none() -> None:
    assert check_steps(None, Mode.SEQUENTIAL) is None


def test_a_step_needs_no_more_than_a_task_and_is_called_after_it() -> None:
    assert checked({"task": "shop.fetch"}) == [{"name": "fetch", "task": "shop.fetch"}]
    assert checked({"task": "fetch"}) == [{"name": "fetch", "task": "fetch"}]


def test_only_what_differs_is_kept() -> None:
    empty = dict.fromkeys((*OVERRIDES, "args", "kwargs", "after", "cleanup"))
    assert checked(one(**empty)) == [one()]
    assert checked(one(cleanup=False)) == [one()]
    assert checked(one(cleanup=True)) == [one(cleanup=True)]


def test_values_are_kept_in_one_form() -> None:
    said = one(
        args=(1, 2), after="b", failure_strategy="continue", task_timeout=timedelta(minutes=5), retry=Fixed(), key="k",
        concurrency_key="lane", priority=3, max_retries=0, queue="q", options={"headers": {}}, kwargs={"x": None},
    )  # fmt: skip
    [kept, _] = checked(said, {"name": "b", "task": "t", "after": []})
    assert kept == {
        "name": "a", "task": "t", "args": [1, 2], "kwargs": {"x": None}, "after": ["b"], "failure_strategy": "continue",
        "queue": "q", "priority": 3, "max_retries": 0, "retry": {"kind": "fixed", "delay": "1m"}, "task_timeout": "5m",
        "key": "k", "options": {"headers": {}}, "concurrency_key": "lane", "concurrency": 1,
    }  # fmt: skip


def test_groups_stay_groups() -> None:
    first, pair = {"task": "x.one"}, [{"task": "x.two"}, {"task": "x.three"}]
    kept = checked(first, pair)
    assert [step["name"] if isinstance(step, dict) else [s["name"] for s in step] for step in kept] == [
        "one",
        ["two", "three"],
    ]
    assert [[step.name for step in stage] for stage in read_steps(kept)] == [["one"], ["two", "three"]]


def test_a_tuple_is_a_group_too() -> None:
    assert checked(({"task": "x.one"}, {"task": "x.two"})) == [
        [{"name": "one", "task": "x.one"}, {"name": "two", "task": "x.two"}]
    ]


def test_what_a_step_waits_for_is_named_once() -> None:
    [_, kept] = checked(one(), {"name": "b", "task": "t", "after": ["a", "a"]})
    assert kept["after"] == ["a"]


def test_to_wait_for_nothing_is_something_else_than_to_say_nothing() -> None:
    first, second, third = checked(one(), {"name": "b", "task": "t", "after": []}, {"name": "c", "task": "t"})
    assert ("after" in first, second["after"], "after" in third) == (False, [], False)


def test_kept_steps_are_read_as_values() -> None:
    kept = checked(one(args=[1], kwargs={"b": 2}, cleanup=True, after=[], queue="q"))
    [[step]] = read_steps(kept)
    assert step == Step(name="a", task="t", args="[1]", kwargs='{"b": 2}', after=(), cleanup=True, own={"queue": "q"})


@pytest.mark.parametrize(
    ("steps", "field", "problem"),
    [
        ("fetch", "steps", "is not a list"),
        ({"task": "t"}, "steps", "is not a list"),
        (7, "steps", "is not a list"),
        ([], "steps", "there are none"),
        (["fetch"], "steps[0]", "is not a step"),
        ([None], "steps[0]", "is not a step"),
        ([one(), 3], "steps[1]", "is not a step"),
        ([[]], "steps[0]", "the group has no steps"),
        ([[one(), [one()]]], "steps[0][1]", "is not a step"),
        ([[one(), "b"]], "steps[0][1]", "is not a step"),
        ([{"name": "a"}], "steps[0]", "it has no task"),
        ([{"name": "a", "task": None}], "steps[0]", "it has no task"),
        ([[one(), {"name": "b"}]], "steps[0][1]", "it has no task"),
        ([{}], "steps[0]", "it has no task"),
        ([one(), one()], "steps", "two are called 'a'"),
        ([one(), [{"name": "b", "task": "t"}, one(task="u")]], "steps", "two are called 'a'"),
        ([{"task": "x.run"}, {"task": "y.run"}], "steps", "two are called 'run'"),
        ([one(name="on_start")], "steps", "'on_start' is the name of a hook"),
        ([one(name="on_complete")], "steps", "'on_complete' is the name of a hook"),
        ([one(name="")], "steps[0].name", "it is empty"),
        ([one(name=" a")], "steps[0].name", "has blanks"),
        ([one(name=5)], "steps[0].name", "is not text"),
        ([one(name="n" * (MAX_STEP_NAME + 1))], "steps[0].name", "too many"),
        ([one(task=5)], "steps[0].task", "is not text"),
        ([one(task="")], "steps[0].task", "it is empty"),
        ([one(args="1, 2")], "steps[0].args", "is not a list"),
        ([one(args={"a": 1})], "steps[0].args", "is not a list"),
        ([one(args=[object()])], "steps[0].args", "is not JSON"),
        ([one(args=[float("nan")])], "steps[0].args", "is not JSON"),
        ([one(kwargs=[1])], "steps[0].kwargs", "is not a mapping"),
        ([one(kwargs={"a": {1, 2}.__iter__()})], "steps[0].kwargs", "is not JSON"),
        ([one(after=7)], "steps[0].after", "is not a list of names"),
        ([one(after={"b": 1})], "steps[0].after", "is not a list of names"),
        ([one(after=[7])], "steps[0].after", "is not text"),
        ([one(after="a")], "steps", "they wait for each other: a → a"),
        ([one(cleanup="yes")], "steps[0].cleanup", "is not true or false"),
        ([one(cleanup=1)], "steps[0].cleanup", "is not true or false"),
        ([one(failure_strategy="fail-fast")], "steps[0].failure_strategy", "is not one of its values"),
        ([one(failure_strategy=["continue"])], "steps[0].failure_strategy", "is not one of its values"),
        ([one(priority=-1)], "steps[0].priority", "is not a priority"),
        ([one(priority=True)], "steps[0].priority", "is not a priority"),
        ([one(max_retries=-1)], "steps[0].max_retries", "is not a number of retries"),
        ([one(max_retries="3")], "steps[0].max_retries", "is not a number of retries"),
        ([one(retry="often")], "steps[0].retry", "unknown kind"),
        ([one(retry=7)], "steps[0].retry", "is not a retry policy"),
        ([one(task_timeout="soon")], "steps[0].task_timeout", ""),
        ([one(task_timeout=0)], "steps[0].task_timeout", "leaves no time"),
        ([one(queue=5)], "steps[0].queue", "is not text"),
        ([one(key="")], "steps[0].key", "it is empty"),
        ([one(key="k" * 256)], "steps[0].key", "too many"),
        ([one(options=[1])], "steps[0].options", "is not a mapping"),
        ([one(options={"headers": object()})], "steps[0].options", "is not JSON"),
        ([one(concurrency=2)], "steps[0].concurrency", "there is no concurrency_key to limit"),
        ([one(concurrency_key="k", concurrency=0)], "steps[0].concurrency", "is not a limit"),
        ([one(concurrency_key=5)], "steps[0].concurrency_key", "is not text"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_place(steps: Any, field: str, problem: str) -> None:
    with pytest.raises(InvalidValue) as error:
        check_steps(steps, Mode.SEQUENTIAL)
    assert error.value.field == field
    assert problem in error.value.problem
    assert error.value.remedy


@pytest.mark.parametrize(
    ("name", "meant"), [("que", "queue"), ("max_retry", "max_retries"), ("timeout", "task_timeout"), ("zzz", None)]
)
def test_a_setting_that_no_step_knows_is_refused_with_the_nearest_one(name: str, meant: str | None) -> None:
    with pytest.raises(UnknownOption) as error:
        checked(one(), {"name": "b", "task": "t", name: 1})
    assert (error.value.name, error.value.suggestion) == (f"steps[1].{name}", meant)


def test_a_setting_of_the_whole_workflow_is_not_a_steps() -> None:
    with pytest.raises(UnknownOption):
        checked(one(max_parallel=3))


def test_a_name_that_is_no_text_is_refused_as_an_option() -> None:
    with pytest.raises(UnknownOption):
        checked({"task": "t", 7: 1})


def test_groups_make_no_sense_where_all_run_at_the_same_time() -> None:
    with pytest.raises(InvalidValue) as error:
        checked(one(), [{"name": "b", "task": "t"}], mode=Mode.PARALLEL)
    assert (error.value.field, error.value.remedy) == ("steps[1]", "use mode='sequential', or `after` in the steps")


def test_a_step_that_is_waited_for_must_be_there() -> None:
    with pytest.raises(UnknownStep, match="fetch"):
        checked({"name": "fetch", "task": "t"}, one(after=["fetsh"]))


def test_there_may_be_many_steps_but_not_any_number() -> None:
    steps = [[{"name": f"s{n}", "task": "t"} for n in range(MAX_STEPS)]]
    assert check_steps(steps, Mode.SEQUENTIAL) == steps
    with pytest.raises(InvalidValue, match=r"5,001 are too many; stay within 5,000"):
        check_steps([*steps, one()], Mode.SEQUENTIAL)


def test_there_may_be_many_names_to_wait_for_but_not_any_number() -> None:
    first = [f"a{n}" for n in range(400)]
    steps = [{"name": name, "task": "t", "after": []} for name in first]
    later = [{"name": f"b{n}", "task": "t", "after": first} for n in range(MAX_WAITS // 400)]
    assert check_steps(steps + later, Mode.SEQUENTIAL)
    with pytest.raises(InvalidValue, match=r"`after` names 100,001 steps in all"):
        check_steps([*steps, *later, one(after=["a0"])], Mode.SEQUENTIAL)


names = st.sampled_from(["a", "b", "c", "d"])
stated = st.fixed_dictionaries(
    {"name": names, "task": st.sampled_from(["t", "shop.load"])},
    optional={
        "args": st.lists(st.integers(), max_size=2),
        "kwargs": st.dictionaries(names, st.sampled_from([None, 1, "x", ["y"]]), max_size=2),
        "after": st.lists(names, max_size=2) | names,
        "cleanup": st.booleans(),
        "failure_strategy": st.sampled_from(["fail_fast", "continue", "retry_on_failure", None]),
        "retry": st.sampled_from(["never", "fixed", {"kind": "linear", "base": "3s"}, None]),
        "task_timeout": st.sampled_from(["90s", 5, timedelta(hours=1), None]),
        "max_retries": st.integers(0, 5),
        "concurrency_key": st.sampled_from(["k", None]),
    },
)


@given(st.lists(stated | st.lists(stated, min_size=1, max_size=3), min_size=1, max_size=4), st.sampled_from(list(Mode)))
def test_what_was_kept_is_kept_as_it_is(steps: list[Any], mode: Mode) -> None:
    try:
        kept = check_steps(steps, mode)
    except (InvalidValue, UnknownStep):
        return
    assert check_steps(kept, mode) == kept
    assert kept is not None
    assert read_steps(kept) == read_steps(check_steps(kept, mode) or [])
