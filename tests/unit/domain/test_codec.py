"""Arguments and results as JSON text: what survives, and what is refused with the place where it sits."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.codec import MAX_BYTES, decode, encode
from celery_tm.errors import InvalidValue

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
special = (
    st.datetimes(timezones=st.none() | st.just(UTC))
    | st.dates()
    | st.uuids()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.binary()
)
# A mapping that looks like kombu's own mark for a type is another test.
keys = st.text().filter(lambda key: key not in ("__type__", "__value__"))
values = st.recursive(
    plain | special, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)


@settings(max_examples=200, deadline=None)
@given(value=values)
def test_json_values_dates_uuids_decimals_and_bytes_survive(value: Any) -> None:
    assert decode(encode(value, field="args")) == value


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 1, 1, 12, tzinfo=UTC),
        datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=timezone(timedelta(hours=2))),
        date(2026, 1, 1),
        UUID("02a4c60e-24f2-5f29-b29f-7bfa9c826ca6"),
        Decimal("12.30"),
        b"\x00\xff",
    ],
)
def test_a_value_comes_back_with_its_type(value: Any) -> None:
    decoded = decode(encode([value], field="args"))[0]

    assert type(decoded) is type(value)
    assert str(decoded) == str(value)


def test_a_tuple_comes_back_as_a_list_as_in_a_celery_message() -> None:
    assert decode(encode((1, (2, 3)), field="args")) == [1, [2, 3]]


def test_what_was_not_kept_is_none() -> None:
    assert decode(None) is None


@pytest.mark.parametrize(
    ("field", "value", "place"),
    [
        ("kwargs", {"a": [1, 2, object()]}, "kwargs['a'][2] = <object>"),
        ("args", [1, {"b": {"c": {1, 2}}}], "args[1]['b']['c'] = <set>"),
        ("args", [(1, (2, print))], "args[0][1][1] = <builtin_function_or_method>"),
        ("args", object(), "args = <object>"),
        ("kwargs", {"a": {(1, 2): 3}}, "kwargs['a'] = <dict>"),
        ("args", [1.5, float("nan")], "args[1] = nan"),
        ("kwargs", {"a": [float("inf")]}, "kwargs['a'][0] = inf"),
        ("result", {"a": -float("inf")}, "result['a'] = -inf"),
        ("args", [1j], "args[0] = <complex>"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_place(field: str, value: Any, place: str) -> None:
    with pytest.raises(InvalidValue) as refusal:
        encode(value, field=field)

    assert refusal.value.field == field
    assert place in refusal.value.problem
    assert "pass plain values, or an id" in str(refusal.value)


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)

    with pytest.raises(InvalidValue, match=r"args.* is not JSON"):
        encode(endless, field="args")


def test_a_value_nested_too_deeply_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(InvalidValue, match="args"):
        encode(deep, field="args")


class Sore(dict[str, int]):
    """A mapping until somebody looks into it."""

    def items(self) -> Any:
        raise RuntimeError("do not look")


class Unspeakable:
    """What says itself how it is JSON, and cannot even say why not."""

    def __json__(self) -> Any:
        raise type("Silent", (Exception,), {"__str__": lambda _: 1 / 0})


@pytest.mark.parametrize(
    "value", [Sore(a=1), [Sore(a=1)], Unspeakable(), {"a": [Unspeakable()]}], ids=lambda v: type(v).__name__
)
def test_an_object_that_breaks_whoever_looks_at_it_is_refused(value: Any) -> None:
    with pytest.raises(InvalidValue, match=r"^result.* is not JSON"):
        encode(value, field="result")


def test_a_number_too_long_to_write_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"args\[1\]"):
        encode([1, 10**5000], field="args")


def test_what_is_too_large_is_refused_with_its_size() -> None:
    assert encode("x" * (MAX_BYTES - 2), field="args")

    with pytest.raises(InvalidValue, match="args: 1,000,001 characters are too many"):
        encode("x" * (MAX_BYTES - 1), field="args")


@pytest.mark.parametrize(
    "value",
    [
        {"__type__": "no such type", "__value__": 1},
        {"__type__": "uuid", "__value__": "not a uuid"},
        {"__type__": "datetime", "__value__": "yesterday"},
    ],
)
def test_what_could_not_be_read_back_is_refused_before_it_is_written(value: Any) -> None:
    with pytest.raises(InvalidValue, match="args"):
        encode([value], field="args")


def test_text_is_written_so_that_every_database_stores_it() -> None:
    text = encode(["\x00", "\ud800", "🐢"], field="args")

    assert text.isascii()
    assert "\x00" not in text
    assert decode(text) == ["\x00", "\ud800", "🐢"]
