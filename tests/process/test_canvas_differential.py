"""Every canvas does with our tasks what it does with plain Celery's: the same bodies, callbacks and errbacks, with the same
arguments, and the same results. All are applied at once, so that hundreds take as long as a few.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from celery.result import AsyncResult, GroupResult
from tmtest.canvas_shapes import Canvas, by_chance, enumerated
from tmtest.canvas_tasks import OURS, PLAIN
from tmtest.stand import Stand
from tmtest.twice import Side

pytestmark = [
    pytest.mark.xdist_group("canvas differential"),
    pytest.mark.filterwarnings("ignore:task_allow_error_cb_on_chord_header"),
]

ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
STILL = 3.0  # seconds without anything new, after which it is over
LONGEST = 120.0
DIFFERENT: dict[str, str] = {}  # canvases that differ on purpose, each with the reason


class Seen:
    """What one side did with every canvas."""

    def __init__(self, stand: Stand, prefix: str, canvases: Sequence[Canvas]) -> None:
        self.side = Side(stand, prefix)
        self.canvases = {canvas.name: canvas for canvas in canvases}
        self.signatures = {canvas.name: canvas.signature(self.side) for canvas in canvases}
        self.results: dict[str, Any] = {}
        self._places: dict[str, tuple[str, str]] = {}  # of the ids of results: canvas and place in it

    def apply(self, *, twice: bool = False) -> None:
        """Apply all canvases, or those again that are applied twice."""
        for name, canvas in self.canvases.items():
            if canvas.twice or not twice:
                result = self.results[name] = self.signatures[name].apply_async()
                for place, one in enumerate(_all_of(result)):
                    self._places.setdefault(one.id, (name, f"result {place}"))

    def facts(self) -> dict[str, Any]:
        """Return for each canvas which bodies ran with what, which errbacks were called about what, and its results."""
        found: dict[str, dict[str, list[Any]]] = {name: {"ran": [], "errbacks": []} for name in self.canvases}
        places = dict(self._places)
        for fact in self.side.facts("ran"):
            name = _canvas_of(fact["args"])
            found[name]["ran"].append(f"{fact['name']}{fact['args']}")
            places[fact["id"]] = (name, f"{fact['name']} {fact['args'][-1]}")
        for fact in self.side.facts("errback"):
            name, place = places.get(fact["failed"], ("", "unknown"))
            error = ID.sub("ID", fact.get("error", ""))
            found.setdefault(name, {"ran": [], "errbacks": []})["errbacks"].append((fact["name"], place, error))
        shown = {name: {kind: sorted(facts) for kind, facts in one.items()} for name, one in found.items()}
        return {name: one | {"results": self._results(name)} for name, one in shown.items()}

    def _results(self, name: str) -> list[str]:
        if name not in self.results:
            return []
        return [f"{one.state} {ID.sub('ID', repr(one.result))}" for one in _all_of(self.results[name]) if _has_state(one)]


def _has_state(result: Any) -> bool:
    return not isinstance(result, GroupResult)


def _all_of(result: Any) -> list[Any]:
    """Return a result, what it is made of, and what came before it."""
    found: list[Any] = []
    node: AsyncResult | GroupResult | None = result
    while node is not None:
        found.append(node)
        if isinstance(node, GroupResult):
            for one in node.results:
                found += [inner for inner in _all_of(one) if inner.id not in {known.id for known in found}]
        node = node.parent
    return found


def _canvas_of(args: Any) -> str:
    """Return which canvas a body belongs to, by the labels among its arguments."""
    found = re.search(r"\b(\w+)\.\w+\b", str(args))
    assert found is not None, args
    return found[1]


def compare(stand: Stand, canvases: Sequence[Canvas]) -> None:
    """Apply canvases on both sides, and wait until both have done the same, and nothing more happens."""
    sides = [Seen(stand, prefix, canvases) for prefix in (PLAIN, OURS)]
    for twice in (False, True):
        for side in sides:
            side.apply(twice=twice)
        plain, ours = settled(stand, sides)
    wrong = {name for name in plain.keys() | ours.keys() if plain.get(name) != ours.get(name)} - DIFFERENT.keys()
    wrong -= {name for name in wrong if _plain_has_lost_a_body(sides[0].canvases.get(name), plain.get(name), ours.get(name))}
    told = [
        f"{sides[0].canvases.get(name, name)}\n  plain {plain.get(name)}\n  ours  {ours.get(name)}" for name in sorted(wrong)
    ]
    assert not wrong, f"{len(wrong)} of {len(canvases)} differ:\n" + "\n".join(told) + stand.tails()
    assert sum(len(one["ran"]) for one in plain.values()) >= len(canvases)


def _plain_has_lost_a_body(canvas: Canvas | None, plain: Any, ours: Any) -> bool:
    """Say whether plain Celery did not join a frozen chord again, as happens on a busy machine, and our tasks did."""
    if canvas is None or not canvas.twice or plain is None or ours is None:
        return False
    theirs, own = Counter(plain["ran"]), Counter(ours["ran"])
    return theirs < own and set(own.values()) == {2}  # each once for each time it was applied, and no more


def settled(stand: Stand, sides: Sequence[Seen]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Wait until nothing new happens. Sides that differ get longer: perhaps one of them is only slower."""
    deadline = time.monotonic() + LONGEST
    size, since = -1, time.monotonic()
    while True:
        time.sleep(0.2)
        now = stand.effects_file.stat().st_size
        if now != size:
            size, since = now, time.monotonic()
        still = time.monotonic() - since
        if still < STILL and time.monotonic() < deadline:
            continue
        plain, ours = (side.facts() for side in sides)
        if plain == ours or still > 6 * STILL or time.monotonic() > deadline:
            return plain, ours


def test_every_canvas_does_what_it_does_in_plain_celery(canvas: Stand) -> None:
    every = list(enumerated())
    compare(canvas, every[::8])


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(1, 8))
def test_every_combination_does_what_it_does_in_plain_celery(canvas: Stand, part: int) -> None:
    every = list(enumerated())
    compare(canvas, every[part::8])


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(5))
def test_nested_canvases_do_what_they_do_in_plain_celery(canvas: Stand, seed: int) -> None:
    compare(canvas, list(by_chance(seed, 60)))
