"""The generator: every valid pair meets, no rule is broken, and a seed always makes the same cases."""

from __future__ import annotations

from itertools import combinations

import pytest

from storm import plan
from storm.covering import Generator, pairs_of
from storm.dimensions import CONSTRAINTS, DIMENSIONS, allows
from storm.model import MANY, expected
from storm.plan import Case

SMALL = {"a": ("1", "2", "3"), "b": ("x", "y"), "c": ("p", "q")}
USUAL = {
    "stage": "postgresql redis quiet", "pool": "prefork", "call": "defer", "base": "durable", "key": "none", "limit": "none",
    "transactional": "no", "acks": "early", "retry": "fixed", "chunk": "no", "time": "none", "hook": "none",
    "body": "returns", "argument": "text", "transaction": "none", "fault": "none",
}  # fmt: skip


def case(**values: str) -> Case:
    made = Case("c1", USUAL | values)
    assert allows(made.values), values
    return made


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return plan.make(1)


def test_every_rule_is_about_two_dimensions() -> None:
    assert all(len(rule.about) == 2 and set(rule.about) <= set(DIMENSIONS) for rule in CONSTRAINTS)


def test_every_valid_pair_meets_in_a_case(cases: list[Case]) -> None:
    names = list(DIMENSIONS)
    met = {pair for each in cases for pair in pairs_of(each.values, names)}
    assert Generator(DIMENSIONS, allows, 2).pairs() - met == set()


def test_every_value_of_every_dimension_is_used(cases: list[Case]) -> None:
    used = {(name, each.values[name]) for each in cases for name in DIMENSIONS}
    assert used == {(name, value) for name, values in DIMENSIONS.items() for value in values}


def test_no_case_breaks_a_rule(cases: list[Case]) -> None:
    assert all(allows(each.values) for each in cases)


def test_a_covering_array_is_much_smaller_than_all_combinations() -> None:
    pairs = Generator(SMALL, lambda _: True, 1)
    found = pairs.covering()
    assert len(found) < 12
    wanted = {((a, x), (b, y)) for a, b in combinations(SMALL, 2) for x in SMALL[a] for y in SMALL[b]}
    assert wanted == {pair for each in found for pair in pairs_of(each, list(SMALL))}


def test_what_cannot_be_completed_is_no_pair() -> None:
    def rule(values: dict[str, str]) -> bool:  # with a=1 nothing is left for c
        return not (values.get("a") == "1" and values.get("c") is not None)

    assert {a for (_, a), _ in Generator(SMALL, rule, 1).pairs() if a in SMALL["a"]} == {"2", "3"}


def test_a_seed_makes_the_same_cases_again() -> None:
    some = ("sqlite files quiet", "mysql redis kill")
    assert plan.make(5, more=10, stages=some) == plan.make(5, more=10, stages=some)
    assert plan.make(5, stages=some) != plan.make(6, stages=some)


@pytest.mark.parametrize(
    ("values", "runs", "states"),
    [
        ({}, (3, 3), {"SUCCESS"}),
        ({"body": "raises"}, (9, 9), {"FAILURE"}),
        ({"body": "raises", "retry": "never"}, (3, 3), {"FAILURE"}),
        ({"body": "ignores"}, (3, 3), {"PENDING", "STARTED"}),
        ({"body": "replaces"}, (12, 12), {"SUCCESS"}),
        ({"transaction": "rolled back"}, (0, 0), {"PENDING"}),
        ({"call": "cancel", "transaction": "committed"}, (0, 0), {"REVOKED"}),
        ({"call": "cancel", "transaction": "rolled back"}, (3, 3), {"SUCCESS"}),
        ({"hook": "before_start raises"}, (0, 0), {"FAILURE"}),
        ({"key": "by name", "call": "delay"}, (1, 1), None),
        ({"body": "long", "pool": "threads"}, (plan.CROWD, plan.CROWD), {"SUCCESS"}),
        ({"stage": "postgresql rabbitmq kill"}, (3, MANY), None),
        ({"stage": "postgresql rabbitmq kill", "call": "delay"}, (0, MANY), None),
        ({"stage": "postgresql redis outage", "body": "long"}, (2, 2), {"SUCCESS"}),
    ],
)
def test_the_model_says_what_must_come_of_a_case(
    values: dict[str, str], runs: tuple[int, int], states: set[str] | None
) -> None:
    wanted = expected(case(**values))
    assert (wanted.runs, wanted.states) == (runs, states)


def test_callbacks_are_expected_for_every_call_even_of_one_key() -> None:
    assert expected(case(call="chain", key="by position")).callbacks == (3, 3)
    assert expected(case(call="chord")).callbacks == (1, 1)
    failed = expected(case(call="link", body="raises"))
    assert (failed.callbacks, failed.errbacks) == ((0, 0), (3, 3))


def test_what_a_transactional_body_rolls_back_is_not_expected_to_run() -> None:
    assert expected(case(body="rolls back", transactional="yes")).children == (0, 0)
    assert expected(case(body="commits", transactional="yes")).children == (3, 3)
