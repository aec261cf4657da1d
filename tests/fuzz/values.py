"""Values that people pass without thinking: JSON, almost JSON, and what is none at all."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

ANY_TEXT = st.text(st.characters(), max_size=20) | st.text(st.characters(categories=["Cs", "Cc", "Cf"]), max_size=5)


def nested(depth: int) -> list[Any]:
    """Return a list in a list, and so on."""
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


class Plain:
    """An object that nobody can store."""


class Rude:
    """An object that nobody can even show."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


ODD: list[Any] = [
    float("nan"), float("inf"), -0.0, 1e308, 2**31, 2**63, -(2**63) - 1, 10**400, 10**5000, -(10**5000), True, None, "", " ",
    "\x00", "\ud800", "a\x00b", "x" * 300, "x" * 2_000_000, b"\xff\x00",
    datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC),
    datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC), timedelta(days=1), timedelta.max, timedelta.min,
    Decimal("1.10"), Decimal("NaN"), uuid.UUID(int=7), {1, 2}, frozenset(), (1, (2,)), Plain(), Rude(), Plain, print, 1j,
    ..., {1: 2}, {None: 1}, {(1, 2): 3}, {"__type__": "datetime"}, {"__type__": "x", "__value__": "y"}, nested(50),
    nested(10_000),
]  # fmt: skip
# By number: some of them nobody can show, and Hypothesis shows what it samples from.
ANY_ODD = st.integers(0, len(ODD) - 1).map(lambda number: ODD[number])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | ANY_ODD
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT | st.integers(), inner, max_size=3),
    max_leaves=6,
)
