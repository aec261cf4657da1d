"""Runs one scenario with plain Celery's tasks, the oracle, and once more with ours, and shows what each did."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from celery import Celery
from celery.result import AsyncResult

from .canvas_tasks import OURS, PLAIN, read
from .stand import Stand

T = TypeVar("T")
_beside = ThreadPoolExecutor(1)  # both sides mostly wait, so they wait at the same time
SOON = 15.0  # seconds in which a scenario is over; what takes longer does not happen


class Side:
    """The tasks of one set, by their short names, and what their bodies and signals have written since the start."""

    def __init__(self, stand: Stand, prefix: str) -> None:
        self.stand, self.prefix = stand, prefix
        self._from = os.path.getsize(stand.effects_file)

    def __getattr__(self, name: str) -> Any:
        return self.app.tasks[f"{self.prefix}.{name}"]

    @property
    def app(self) -> Celery:
        return self.stand.app

    def facts(self, kind: str, **equal: Any) -> list[dict[str, Any]]:
        """Return the facts of a kind, in the order they were written, with the task's short name."""
        with self.stand.effects_file.open() as file:
            file.seek(self._from)
            found = read(file.read())
        mine = [f for f in found if f["kind"] == kind and f["name"].startswith(self.prefix + ".")]
        short = [{**f, "name": f["name"].removeprefix(self.prefix + ".")} for f in mine]
        return [f for f in short if all(f.get(name) == value for name, value in equal.items())]

    def ran(self) -> list[str]:
        """Return which bodies ran with what, in order."""
        return [f"{f['name']}({', '.join(map(str, f['args']))})" for f in self.facts("ran")]

    def get(self, result: AsyncResult) -> Any:
        """Wait for a result, and return it."""
        return result.get(timeout=SOON, interval=0.1)

    def error(self, result: AsyncResult) -> str:
        """Wait for a failure, and return what a caller sees of it."""
        error = result.get(timeout=SOON, interval=0.1, propagate=False)
        return f"{result.state} {type(error).__name__}: {error}"

    def wait(self, look: Callable[[], T], what: str) -> T:
        return self.stand.wait(look, seconds=SOON, what=f"{self.prefix}: {what}")

    def wait_for(self, kind: str, *, count: int = 1, **equal: Any) -> list[dict[str, Any]]:
        """Wait until so many facts of a kind are there, and return them."""
        look = lambda: found if len(found := self.facts(kind, **equal)) >= count else None  # noqa: E731
        return self.wait(look, f"{count} × {kind} {equal}") or []

    def quiet(self, seconds: float = 0.4) -> None:
        """Give what should not happen the time to happen; the oracle is believed without."""
        if self.prefix != PLAIN:
            time.sleep(seconds)


def both(stand: Stand, scenario: Callable[[Side], Any], *, together: bool = True) -> Any:
    """Run a scenario with both sets and return what it gave, which must be the same."""
    # Redis is quick, and its results are consumed over one connection.
    if stand.pair == "postgresql+redis" or not together:
        expected = scenario(Side(stand, PLAIN))
        found = scenario(Side(stand, OURS))
    else:
        oracle = _beside.submit(lambda: scenario(Side(stand, PLAIN)))
        found = scenario(Side(stand, OURS))
        expected = oracle.result()
    assert found == expected, f"ours {found!r}, plain Celery {expected!r}\n{stand.tails()}"
    return found
