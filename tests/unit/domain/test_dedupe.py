"""The key that a task's own rule makes of a call."""

from __future__ import annotations

from typing import Any

import pytest

from celery_tm.domain.dedupe import key_by_rule
from celery_tm.errors import InvalidValue


def test_a_task_without_a_rule_makes_no_key() -> None:
    assert key_by_rule(None, [1], {"a": 2}) is None


@pytest.mark.parametrize(
    ("rule", "args", "kwargs", "key"),
    [
        ("order:{0}", [42], {}, "order:42"),
        ("order:{order_id}", [], {"order_id": 42}, "order:42"),
        ("{0}/{1}:{kind}", ["a", "b"], {"kind": "x"}, "a/b:x"),
        ("always the same", [1, 2], {"a": 3}, "always the same"),
        ("{0[tenant]}", [{"tenant": 7}], {}, "7"),
        (lambda order_id, **_: f"order:{order_id}", [42], {"note": "x"}, "order:42"),
        (lambda *_: None, [1], {}, None),
    ],
)
def test_a_rule_is_text_with_places_for_arguments_or_a_callable(rule: Any, args: Any, kwargs: Any, key: Any) -> None:
    assert key_by_rule(rule, args, kwargs) == key


@pytest.mark.parametrize(
    ("rule", "args", "kwargs"),
    [
        ("order:{1}", [42], {}),
        ("order:{order_id}", [42], {}),
        ("order:{", [42], {}),
        ("order:{0.id}", [42], {}),
        ("order:{0:d}", ["x"], {}),
        (lambda order_id: order_id, [], {}),
        (lambda order: order["id"], [{}], {}),
        (lambda order: int(order), ["x"], {}),
    ],
)
def test_a_rule_that_does_not_fit_the_arguments_is_refused_as_the_task_s_fault(rule: Any, args: Any, kwargs: Any) -> None:
    with pytest.raises(InvalidValue, match=r"^key: the task's key= makes none of these arguments \(.+\); fix its key="):
        key_by_rule(rule, args, kwargs)
