"""Which arguments are hidden: by name at any depth, by position, by task; and what cannot be told is hidden too."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_tm.domain.redaction import HIDDEN, Redaction

NAMES = ("order", "card", "*more")


def shown(rules: list[str], task: str = "shop.pay", args: Any = (), kwargs: Any = None, names: Any = NAMES) -> Any:
    return Redaction(rules).apply(task, list(args), kwargs or {}, names)


def test_without_rules_everything_is_shown() -> None:
    assert shown([], args=[1, "4111"], kwargs={"password": "x"}) == ([1, "4111"], {"password": "x"})


@pytest.mark.parametrize(
    ("rule", "hidden"),
    [
        ("card", True), ("CARD", True), ("c?rd", True), ("*", True), ("shop.pay:card", True), ("Shop.*:card", True),
        ("1", True), ("shop.pay:1", True), ("order", False), ("0", False), ("blog.*:card", False), ("blog.*:1", False),
        ("car", False), ("shop:card", False), ("11", False),
    ],
)  # fmt: skip
def test_a_rule_means_a_name_or_a_position_of_a_task(rule: str, hidden: bool) -> None:
    [order, card], _ = shown([rule], args=[7, "4111"])
    assert (card == HIDDEN) is hidden
    assert (order == HIDDEN) is (rule in ("*", "order", "0"))
    _, kwargs = shown([rule], kwargs={"card": "4111"})
    assert (kwargs["card"] == HIDDEN) is hidden  # the same argument, given by its name


def test_names_are_hidden_at_any_depth() -> None:
    deep = {"user": {"name": "ann", "Password": "x", "old": [{"password_hash": "y"}]}}
    args, kwargs = shown(["*password*"], args=[deep], kwargs=deep)
    hidden = {"user": {"name": "ann", "Password": HIDDEN, "old": [{"password_hash": HIDDEN}]}}
    assert (args, kwargs) == ([hidden], hidden)


def test_the_rest_of_the_positions_goes_by_one_name() -> None:
    assert shown(["more"], args=[1, 2, 3, 4])[0] == [1, 2, HIDDEN, HIDDEN]
    assert shown(["*password*"], args=[1, 2, 3, 4])[0] == [1, 2, 3, 4]


def test_a_position_whose_name_nobody_knows_is_hidden_where_a_rule_might_mean_it() -> None:
    assert shown(["card"], args=[1, 2], names=None)[0] == [HIDDEN, HIDDEN]
    assert shown(["blog.*:card"], args=[1, 2], names=None)[0] == [1, 2]
    assert shown(["card"], args=[1, 2], names=("order",))[0] == [1, HIDDEN]
    assert shown(["shop.pay:1"], args=[1, 2], names=None)[0] == [1, HIDDEN]


@pytest.mark.parametrize("broken", ["{", "nonsense", "[" * 100_000, '"text"', "7"])
def test_what_is_no_json_is_hidden_whole_where_a_rule_might_mean_it(broken: str) -> None:
    assert HIDDEN in Redaction(["card"]).apply("shop.pay", broken, broken, NAMES)[0]
    assert "nonsense" not in str(Redaction(["card"]).apply("shop.pay", broken, broken, NAMES))
    assert Redaction(["blog.*:card"]).apply("shop.pay", broken, broken, NAMES) == (broken, broken)


def test_text_stays_text_and_nothing_stays_nothing() -> None:
    args, kwargs = Redaction(["card"]).apply("shop.pay", '[1, "4111"]', None, NAMES)
    assert (json.loads(args), kwargs) == ([1, HIDDEN], None)


def test_of_a_task_that_is_not_known_every_rule_may_be_meant() -> None:
    assert Redaction(["shop.*:card"]).apply(None, None, {"card": 1, "order": 2}) == (None, {"card": HIDDEN, "order": 2})


def test_calls_are_found_wherever_they_are() -> None:
    link = {"task": "shop.pay", "args": [7, "4111"], "kwargs": {"cvc": 1}, "argsrepr": "(7, '4111')", "options": {}}
    options = {"chain": [{"task": "blog.post", "args": [], "kwargs": {"card": "shown"}}], "link": [link], "cvc": "a key"}
    rules = Redaction(["shop.*:card", "shop.*:cvc"], lambda task: NAMES)
    found = rules.apply_to_calls(options)
    assert found["link"] == [link | {"args": [7, HIDDEN], "kwargs": {"cvc": HIDDEN}, "argsrepr": HIDDEN}]
    assert (found["chain"], found["cvc"]) == (options["chain"], "a key")
    nested, _ = rules.apply("blog.post", [link], {}, ("callback",))
    assert nested == found["link"]


values = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["secret", "a", "task", "args"]), inner),
    max_leaves=12,
)


@given(args=st.lists(values, max_size=3), kwargs=st.dictionaries(st.sampled_from(["secret", "b"]), values))
def test_nothing_under_a_hidden_name_is_ever_shown(args: list[Any], kwargs: dict[str, Any]) -> None:
    shown_args, shown_kwargs = Redaction(["secret"]).apply("t", args, kwargs, ("a", "b", "c"))

    def look(value: Any) -> None:
        if isinstance(value, dict):
            assert value.get("secret", HIDDEN) == HIDDEN
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            look(item)

    look(shown_args)
    look(shown_kwargs)
