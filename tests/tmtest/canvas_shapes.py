"""Canvases as data: every way to nest chains, groups and chords, with one task that fails, and callbacks in every place.

`enumerated` makes all combinations of the shapes that people write; `by_chance` nests them deeper.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from celery import chain, chord, group

# A leaf is a letter; a tuple begins with what it is. Of a chord the last part is the body.
Shape = Any
SHAPES: Sequence[Shape] = (
    "a",
    ("chain", "a", "b"),
    ("chain", "a", ("group", "b", "c")),
    ("chain", ("group", "a", "b"), "c"),
    ("chain", ("group", "a", "b"), ("group", "c", "d")),
    ("chain", "a", ("chord", "b", "c", "d"), "e"),
    ("chain", "a", ("chain", "b", ("group", "c", "d")), "e"),
    ("group", "a", ("chain", "b", "c")),
    ("group", "a", ("group", "b", "c")),
    ("group", "a", ("chord", "b", "c", "d")),
    ("chord", "a", "b", "c"),
    ("chord", "a", ("chain", "b", "c")),
    ("chord", "a", ("group", "b", "c")),
    ("chord", "a", ("chord", "b", "c")),
    ("chord", ("chain", "a", "b"), "c", "d"),
    ("chord", ("group", "a", "b"), "c", "d"),
    ("chord", ("chord", "a", "b", "c"), "d", "e"),
    ("chord", ("chain", "a", ("chord", "b", "c")), "d"),
)
ERRBACKS = ("old", "new")
PLACES = ("all", "leaf", "body")  # what callbacks are linked to: the whole, the task that fails, the body of a chord


@dataclass(frozen=True)
class Canvas:
    """One canvas, which of its tasks fails, and what is linked where."""

    name: str
    shape: Shape
    fails: str | None = None
    errback: str | None = None
    place: str = "all"
    links: bool = False
    twice: bool = False  # it is frozen, and applied again when all of it is over

    def __str__(self) -> str:
        said = [f"{self.fails} fails"] if self.fails else []
        said += [f"{self.errback} errback of {self.place}"] if self.errback else []
        said += ["links"] if self.links else []
        said += ["applied twice"] if self.twice else []
        return f"{self.name}: {written(self.shape)}, {', '.join(said) or 'nothing fails'}"

    def signature(self, side: Any) -> Any:
        """Return it made of the tasks of one side."""
        made = self._build(self.shape, side)
        if self.place == "all":
            self._link(made, side)
        if self.twice:
            made.freeze()
        return made

    def _build(self, shape: Shape, side: Any) -> Any:
        if isinstance(shape, str):
            task = side.fail if shape == self.fails else side.same
            made = task.s(f"{self.name}.{shape}")
            if self.place == "leaf" and shape == (self.fails or leaves(self.shape)[0]):
                self._link(made, side)
            return made
        kind, *parts = shape
        built = [self._build(part, side) for part in parts]
        if kind != "chord":
            return (chain if kind == "chain" else group)(*built)
        if self.place == "body":
            self._link(built[-1], side)
        return chord(built[:-1], built[-1])

    def _link(self, made: Any, side: Any) -> None:
        if self.errback is not None:
            made.link_error(getattr(side, f"{self.errback}_errback").s())
        if self.links and not isinstance(made, group):  # a group refuses links of its own
            made.link(side.same.s(f"{self.name}.link"))


def leaves(shape: Shape) -> str:
    """Return the letters of a shape, in order."""
    return shape if isinstance(shape, str) else "".join(leaves(part) for part in shape[1:])


def written(shape: Shape) -> str:
    """Return a shape as text."""
    return shape if isinstance(shape, str) else f"{shape[0]}({', '.join(map(written, shape[1:]))})"


def enumerated() -> Iterator[Canvas]:
    """Yield every shape with each of its tasks failing or none, and errbacks of each style in each place."""
    number = 0
    for twice in (False, True):
        for shape in SHAPES:
            for fails in (None, *leaves(shape)):
                for place in PLACES:
                    if place == "body" and "chord" not in written(shape):
                        continue
                    for errback in ERRBACKS if fails else (None,):
                        yield Canvas(f"s{number}", shape, fails, errback, place, links=fails is None, twice=twice)
                        number += 1


def by_chance(seed: int, count: int) -> Iterator[Canvas]:
    """Yield canvases that are nested at random."""
    dice = random.Random(seed)
    for number in range(count):
        letters = iter("abcdefghijklmnopqrstuvwxyz")
        shape = _nested(dice, letters, depth=3)
        fails = dice.choice([None, *leaves(shape)])
        place = dice.choice(PLACES)
        errback = dice.choice(ERRBACKS) if fails else None
        yield Canvas(f"r{seed}x{number}", shape, fails, errback, place, links=fails is None, twice=dice.random() < 0.3)


def _nested(dice: random.Random, letters: Iterator[str], depth: int) -> Shape:
    if depth == 0 or dice.random() < 0.3:
        return next(letters)
    kind = dice.choice(("chain", "group", "chord"))
    return (kind, *(_nested(dice, letters, depth - 1) for _ in range(2)))
