"""Makes cases such that every valid pair of values of any two dimensions meets in one of them.

Rules are about two dimensions each, so what may meet is a table, made once. A greedy generator: each case begins with the
pairs that are still missing, and takes for each further dimension the value that covers most of them. Chance, with a seed,
decides between equals. `more` adds cases by chance, which meet triples.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations

Case = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]
TRIES = 8  # candidates of which the best becomes the next case


class Generator:
    """Cases of some dimensions under a rule that says what may meet."""

    def __init__(
        self, dimensions: Mapping[str, Sequence[str]], allows: Callable[[Mapping[str, str]], bool], seed: int
    ) -> None:
        self.dimensions, self.allows = dimensions, allows
        self.chance = random.Random(seed)
        items = [(name, value) for name, values in dimensions.items() for value in values]
        # With each value, those of every other dimension that it may meet.
        self._meets = {
            one: {
                name: frozenset(value for value in values if allows(dict([one, (name, value)])))
                for name, values in dimensions.items()
                if name != one[0]
            }
            for one in items
        }

    def pairs(self) -> set[Pair]:
        """Return all pairs that some valid case has."""
        names = list(self.dimensions)
        found = set()
        for one, other in combinations(names, 2):
            for a in self.dimensions[one]:
                for b in self.dimensions[other]:
                    if self.complete({one: a, other: b}) is not None:
                        found.add(((one, a), (other, b)))
        return found

    def complete(self, values: Case, gain: Callable[[Case, str, str], int] | None = None) -> Case | None:
        """Return a valid case with these values, chosen for `gain` where it can be; None if there is none."""
        if not self.allows(values):
            return None
        left = {name: frozenset(each) for name, each in self.dimensions.items() if name not in values}
        for item in values.items():
            left = {name: each & self._meets[item][name] for name, each in left.items()}
        return self._fill(dict(values), left, gain)

    def _fill(
        self, values: Case, left: dict[str, frozenset[str]], gain: Callable[[Case, str, str], int] | None
    ) -> Case | None:
        if not left:
            return values
        name = min(left, key=lambda one: (len(left[one]), self.chance.random()))  # the tightest first
        options = sorted(left[name])
        self.chance.shuffle(options)
        if gain is not None:
            options.sort(key=lambda value: -gain(values, name, value))
        for value in options:
            meets = self._meets[name, value]
            rest = {one: each & meets[one] for one, each in left.items() if one != name}
            if all(rest.values()) and (found := self._fill({**values, name: value}, rest, gain)) is not None:
                return found
        return None

    def covering(self) -> list[Case]:
        """Return cases that have every valid pair."""
        missing = self.pairs()
        cases: list[Case] = []

        def gain(have: Case, name: str, value: str) -> int:
            return _gain(missing, have, name, value)

        while missing:
            best: Case | None = None
            for first in self.chance.sample(sorted(missing), min(TRIES, len(missing))):
                case = self.complete(dict(first), gain)
                if case is not None and (best is None or _covered(missing, case) > _covered(missing, best)):
                    best = case
            assert best is not None  # every pair of `missing` was completed once
            cases.append(self._ordered(best))
            missing.difference_update(pairs_of(best, list(self.dimensions)))
        return cases

    def more(self, count: int) -> Iterator[Case]:
        """Return so many valid cases by chance."""
        made = 0
        while made < count:
            name = self.chance.choice(list(self.dimensions))
            case = self.complete({name: self.chance.choice(list(self.dimensions[name]))})
            if case is not None:
                made += 1
                yield self._ordered(case)

    def _ordered(self, case: Case) -> Case:
        return {name: case[name] for name in self.dimensions}


def pairs_of(case: Mapping[str, str], names: Sequence[str]) -> Iterable[Pair]:
    """Return the pairs that a case has."""
    items = [(name, case[name]) for name in names]
    return combinations(items, 2)  # type: ignore[return-value]


def _gain(missing: set[Pair], have: Case, name: str, value: str) -> int:
    return sum(((one, a), (name, value)) in missing or ((name, value), (one, a)) in missing for one, a in have.items())


def _covered(missing: set[Pair], case: Case) -> int:
    return sum(pair in missing for pair in pairs_of(case, list(case)))
