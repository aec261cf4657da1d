"""What a benchmark reports: medians, how many times as fast as something else, and whether that is what was wanted.

The unit is the same everywhere: a ratio of rates, "times as fast". Above 1 the first one is faster (or smaller, where memory
is measured). A figure may carry what is wanted of it: at least so many times as fast, or at most so much time or memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar

T = TypeVar("T")


class Size(StrEnum):
    """How large a run is: what is published, what is tried in minutes, and what only shows that it works."""

    FULL = "full"
    QUICK = "quick"
    TINY = "tiny"

    def pick(self, *, full: T, quick: T, tiny: T) -> T:
        """Return the value for this size."""
        return {Size.FULL: full, Size.QUICK: quick, Size.TINY: tiny}[self]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One line of the result: a median, how many times as fast as another one it is, and what was wanted."""

    what: str
    value: float
    unit: str
    samples: int = 1
    p99: float | None = None
    ratio: float | None = None
    low: float | None = None  # between low and high lies the middle half of the rounds' own ratios
    high: float | None = None
    cpu_ratio: float | None = None
    against: str | None = None
    at_least: float | None = None  # of the ratio
    at_most: float | None = None  # of the value

    def __post_init__(self) -> None:
        if self.at_least is not None and (self.at_most is not None or self.ratio is None):
            raise ValueError(f"{self.what}: one thing is wanted of a figure, and a ratio only where there is one")

    @property
    def margin(self) -> float | None:
        """Return how many times over the target is reached; below 1 it is missed. None where nothing is wanted."""
        if self.at_least is not None and self.ratio is not None:
            return self.ratio / self.at_least
        if self.at_most is not None:
            return self.at_most / self.value if self.value else float("inf")
        return None

    @property
    def reached(self) -> bool | None:
        """Say whether the target is reached; None where nothing is wanted."""
        return None if self.margin is None else self.margin >= 1

    @property
    def wanted(self) -> str:
        """Return the target in words."""
        if self.at_least is not None:
            return f"≥ {short(self.at_least)} ×"
        return "" if self.at_most is None else f"≤ {short(self.at_most)} {self.unit}".rstrip()


def as_data(figure: Figure) -> dict[str, Any]:
    """Return a figure for JSON, with what follows from it."""
    return {**asdict(figure), "wanted": figure.wanted, "reached": figure.reached}


def from_data(data: Mapping[str, Any]) -> Figure:
    """Return the figure that was written."""
    return Figure(**{field.name: data[field.name] for field in fields(Figure)})


def missed(results: Mapping[str, Sequence[Figure]]) -> list[Figure]:
    """Return the figures that are not what was wanted."""
    return [figure for figures in results.values() for figure in figures if figure.reached is False]


def short(number: float | None) -> str:
    """Return a number with three digits that count."""
    if number is None:
        return ""
    return f"{number:,.0f}" if abs(number) >= 100 or number == int(number) else f"{number:.3g}"
