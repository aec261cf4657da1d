"""How steps hang together: what each waits for, in which order they may run, and when all of them have ended."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_tm.domain.workflow import ALL, Mode, Stages, Step, Strategy, count_down, downstream, in_order, weave
from celery_tm.errors import InvalidValue, UnknownStep


def step(name: str, after: list[str] | None = None, *, cleanup: bool = False, **own: Any) -> Step:
    return Step(name=name, task="t", after=None if after is None else tuple(after), cleanup=cleanup, own=own)


def waits(stages: Stages, mode: Mode = Mode.SEQUENTIAL) -> dict[str, set[str]]:
    """Return which steps each step waits for, as the joins have it."""
    woven = weave(stages, mode)
    fed: dict[int | None, set[str]] = {None: set()}
    for name, joins in woven.feeds.items():
        for join in joins:
            fed.setdefault(join, set()).add(name)
    return {name: fed[join] for name, join in woven.waits_for.items()}


def test_steps_run_one_after_the_other() -> None:
    assert waits([[step("a")], [step("b")], [step("c")]]) == {"a": set(), "b": {"a"}, "c": {"b"}}


def test_the_steps_of_a_group_wait_for_the_same_and_are_waited_for_together() -> None:
    stages = [[step("a")], [step("b"), step("c")], [step("d")]]
    assert waits(stages) == {"a": set(), "b": {"a"}, "c": {"a"}, "d": {"b", "c"}}


def test_a_clean_up_in_sequence_has_its_place_like_any_other() -> None:
    assert waits([[step("a")], [step("tidy", cleanup=True)], [step("b")]]) == {"a": set(), "tidy": {"a"}, "b": {"tidy"}}


def test_parallel_steps_wait_for_nothing_and_clean_ups_for_all_others() -> None:
    stages = [[step("tidy", cleanup=True)], [step("a")], [step("b")], [step("mop", cleanup=True)]]
    assert waits(stages, Mode.PARALLEL) == {"tidy": {"a", "b"}, "a": set(), "b": set(), "mop": {"a", "b"}}


def test_parallel_clean_ups_alone_wait_for_nothing() -> None:
    stages = [[step("tidy", cleanup=True)], [step("mop", cleanup=True)]]
    assert waits(stages, Mode.PARALLEL) == {"tidy": set(), "mop": set()}


@pytest.mark.parametrize("mode", list(Mode))
def test_what_a_step_says_it_waits_for_counts_instead_of_its_place(mode: Mode) -> None:
    stages = [[step("a", [])], [step("b", [])], [step("c", ["a", "b"])], [step("d", ["a"], cleanup=True)], [step("e", [])]]
    assert waits(stages, mode) == {"a": set(), "b": set(), "c": {"a", "b"}, "d": {"a"}, "e": set()}


def test_a_step_may_wait_for_one_that_is_stated_later() -> None:
    stages = [[step("a", ["c"])], [step("b", [])], [step("c", ["b"])]]
    assert waits(stages) == {"a": {"c"}, "b": set(), "c": {"b"}}
    assert [one.name for one in in_order(stages, Mode.SEQUENTIAL)] == ["b", "c", "a"]


def test_the_join_of_all_steps_has_each_of_them_once() -> None:
    woven = weave([[step("a")], [step("b"), step("c")]], Mode.SEQUENTIAL)
    assert woven.left[ALL] == 3
    assert all(list(joins).count(ALL) == 1 for joins in woven.feeds.values())
    assert ALL not in woven.waits_for.values()


def test_a_single_step_waits_for_nothing() -> None:
    woven = weave([[step("a")]], Mode.SEQUENTIAL)
    assert (woven.waits_for, woven.feeds, woven.left) == ({"a": None}, {"a": [ALL]}, [1])


def test_steps_that_wait_for_the_same_share_a_join() -> None:
    woven = weave([[step("a", [])], [step("b", ["a"])], [step("c", ["a"])]], Mode.PARALLEL)
    assert woven.waits_for["b"] == woven.waits_for["c"]
    assert list(woven.left) == [3, 1]


def test_a_thousand_steps_before_a_thousand_are_two_joins() -> None:
    first, second = [step(f"a{n}") for n in range(1000)], [step(f"b{n}") for n in range(1000)]
    woven = weave([first, second, [step("end")]], Mode.SEQUENTIAL)
    assert list(woven.left) == [2001, 1000, 1000]
    assert sum(len(joins) for joins in woven.feeds.values()) == 4001


@pytest.mark.parametrize(
    ("stages", "circle"),
    [
        ([[step("a", ["a"])]], "a → a"),
        ([[step("a", ["b"])], [step("b", ["a"])]], "a → b → a"),
        ([[step("z", [])], [step("c", ["b"])], [step("b", ["a"])], [step("a", ["c"])]], "a → c → b → a"),
        ([[step("a", ["c"])], [step("b")], [step("c")]], "a → c → b → a"),  # by its place, b waits for a and c for b
        ([[step("x", ["b"])], [step("b", ["c"])], [step("c", ["b"])], [step("a", ["x"])]], "b → c → b"),
    ],
)
def test_steps_that_wait_for_each_other_are_refused_and_named(stages: Stages, circle: str) -> None:
    with pytest.raises(InvalidValue) as error:
        weave(stages, Mode.SEQUENTIAL)
    assert error.value.problem == f"they wait for each other: {circle}"
    assert "after" in error.value.remedy


def test_the_order_is_refused_like_the_joins() -> None:
    with pytest.raises(InvalidValue, match="wait for each other"):
        in_order([[step("a", ["a"])]], Mode.SEQUENTIAL)


@pytest.mark.parametrize(("said", "meant"), [("fetsh", "fetch"), ("Fetch", "fetch"), ("zebra", None)])
def test_a_step_that_is_not_there_is_refused_with_the_nearest_one(said: str, meant: str | None) -> None:
    with pytest.raises(UnknownStep) as error:
        weave([[step("fetch")], [step("load", [said])]], Mode.SEQUENTIAL)
    assert (error.value.name, error.value.suggestion) == (said, meant)


@pytest.mark.parametrize(
    ("one", "regardless"),
    [
        (step("a"), False),
        (step("a", cleanup=True), True),
        (step("a", failure_strategy=Strategy.CONTINUE), True),
        (step("a", failure_strategy="continue"), True),
        (step("a", failure_strategy="fail_fast"), False),
        (step("a", cleanup=True, failure_strategy="fail_fast"), True),
    ],
)
def test_clean_ups_and_steps_that_say_continue_themselves_run_regardless(one: Step, regardless: bool) -> None:
    assert one.runs_regardless is regardless


def test_counting_down_says_what_came_to_zero_and_only_once() -> None:
    assert count_down([3, 2], [[0, 1]]) == ([2, 1], [])
    assert count_down([2, 1], [[0, 1]]) == ([1, 0], [1])
    assert count_down([1, 0], [[0]]) == ([0, 0], [0])
    assert count_down([3, 2], [[0, 1], [0], [0, 1]]) == ([0, 0], [0, 1])
    assert count_down([3, 0], []) == ([3, 0], [])


def test_counting_down_leaves_what_it_was_given() -> None:
    left = [2, 1]
    count_down(left, [[0, 1]])
    assert left == [2, 1]


def test_downstream_is_all_that_waits_for_a_step_however_far_about() -> None:
    stages = [[step("a")], [step("b"), step("c")], [step("d")], [step("e", ["b"])], [step("f", [])]]
    woven = weave(stages, Mode.SEQUENTIAL)
    known = {name: (woven.waits_for[name], woven.feeds[name]) for name in woven.feeds}
    assert downstream(known, "a") == {"a", "b", "c", "d", "e"}
    assert downstream(known, "c") == {"c", "d"}
    assert downstream(known, "b") == {"b", "d", "e"}
    assert downstream(known, "f") == {"f"}


@st.composite
def any_stages(draw: Any, *, circles: bool = False) -> tuple[Stages, Mode]:
    """Return steps of any shape, some of which say what they wait for; with `circles`, perhaps for each other."""
    names = [f"s{n}" for n in range(draw(st.integers(1, 9)))]
    tidy = {name for name in names if draw(st.booleans())}
    mode = draw(st.sampled_from(list(Mode)))
    steps = []
    for place, name in enumerate(names):
        earlier = [one for one in names[:place] if mode is Mode.SEQUENTIAL or name in tidy or one not in tidy]
        others = names if circles else earlier
        chosen = st.lists(st.sampled_from(others), unique=True, max_size=3) if others else st.just([])
        steps.append(step(name, draw(st.one_of(st.none(), chosen)), cleanup=name in tidy))
    stages = []
    while steps:
        size = draw(st.integers(1, 4)) if mode is Mode.SEQUENTIAL else 1
        stages.append(steps[:size])
        steps = steps[size:]
    return stages, mode


def needed_by(stages: Stages, mode: Mode) -> dict[str, set[str]]:
    """Say again, in the simplest words, what each step waits for."""
    needed: dict[str, set[str]] = {}
    everything = [one for stage in stages for one in stage]
    for place, stage in enumerate(stages):
        for one in stage:
            if one.after is not None:
                needed[one.name] = set(one.after)
            elif mode is Mode.PARALLEL:
                needed[one.name] = {other.name for other in everything if one.cleanup and not other.cleanup}
            else:
                needed[one.name] = {other.name for other in stages[place - 1]} if place else set()
    return needed


def has_circle(needed: dict[str, set[str]]) -> bool:
    left = dict(needed)
    while free := [name for name in left if not left[name] & left.keys()]:
        for name in free:
            del left[name]
    return bool(left)


@given(any_stages(circles=True))
def test_exactly_those_steps_are_refused_that_wait_in_a_circle(given_stages: tuple[Stages, Mode]) -> None:
    stages, mode = given_stages
    if has_circle(needed_by(stages, mode)):
        with pytest.raises(InvalidValue, match="wait for each other"):
            weave(stages, mode)
    else:
        assert waits(stages, mode) == needed_by(stages, mode)


@given(any_stages(), st.data())
def test_every_step_starts_once_and_after_all_it_waits_for_in_whatever_order_they_end(
    given_stages: tuple[Stages, Mode], data: Any
) -> None:
    stages, mode = given_stages
    needed = needed_by(stages, mode)
    woven = weave(stages, mode)
    left = list(woven.left)
    running = [name for name, join in woven.waits_for.items() if join is None]
    started, ended, overs = list(running), set[str](), 0
    while running:
        some = data.draw(st.lists(st.sampled_from(running), unique=True, min_size=1))  # that end in one transaction
        running = [name for name in running if name not in some]
        ended |= set(some)
        left, reached = count_down(left, [woven.feeds[name] for name in some])
        fresh = [name for name, join in woven.waits_for.items() if join is not None and join in reached]
        assert all(needed[name] <= ended for name in fresh), "it started before what it waits for"
        started, running = started + fresh, running + fresh
        overs += ALL in reached
        assert (ALL in reached) == (len(ended) == len(needed)), "it was over before its end"
    assert sorted(started) == sorted(needed), "not every step started exactly once"
    assert (overs, set(left)) == (1, {0})


@given(any_stages())
def test_no_step_comes_before_one_that_it_waits_for(given_stages: tuple[Stages, Mode]) -> None:
    stages, mode = given_stages
    needed = needed_by(stages, mode)
    order = [one.name for one in in_order(stages, mode)]
    assert sorted(order) == sorted(needed)
    assert all(order.index(other) < order.index(name) for name in needed for other in needed[name])


@given(any_stages(), st.data())
def test_downstream_is_what_cannot_run_without_a_step(given_stages: tuple[Stages, Mode], data: Any) -> None:
    stages, mode = given_stages
    needed = needed_by(stages, mode)
    first = data.draw(st.sampled_from(sorted(needed)))
    woven = weave(stages, mode)
    done: set[str] = set()
    while ready := {name for name in needed if name != first and name not in done and needed[name] <= done}:
        done |= ready
    known = {name: (woven.waits_for[name], woven.feeds[name]) for name in woven.feeds}
    assert downstream(known, first) == needed.keys() - done
