"""Feature interactions in the load of a chaos run: cases of the covering array, each time under a name of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from faults.app import FOLDER

from storm import app as apps
from storm import plan
from storm.calls import Caller
from storm.dimensions import ENDS_EARLY
from storm.plan import Case

STAGE, SEED, AGAIN = "postgresql redis quiet", 17, "~"
PLAIN = ("storm.plain_child",)  # done once they are published
NEEDS = {  # what a chaos run has not: a result backend, bodies that look at the test's own rows, time
    "base": ("durable",),
    "call": ("defer", "defer_many", "delay", "far_eta", "chain", "group", "link", "step", "cancel"),
    "argument": ("text",),
    "fault": ("none",),
    "body": (
        "returns", "raises", "flaky", "retries", "replaces", "ignores", "cancels itself", "defers", "reports", "commits",
        "rolls back", "savepoints",
    ),
}  # fmt: skip


@lru_cache
def cases() -> Sequence[Case]:
    """Return the cases of a run, which are made once and kept in its folder."""
    folder = Path(os.environ.get(FOLDER, "."))
    return plan.read(folder) if (folder / plan.FILE).exists() else make_cases()


def make_cases() -> Sequence[Case]:
    """Return the cases that may meet any fault at any time."""
    found = plan.make(SEED, stages=(STAGE,))
    wanted = [one for one in found if all(one.values[name] in values for name, values in NEEDS.items())]
    return [one for one in wanted if one.hook not in ENDS_EARLY and one.transaction not in ("held open", "two-phase")]


def add_tasks(app: Any) -> None:
    """Add the tasks of the cases to the app of a chaos run."""
    apps.add_tasks(app, cases())


class Combined:
    """Calls cases by chance; each time the case has another name, so that keys and labels are its own."""

    numbers = count(1)

    def __init__(self, app: Any, tm: Any, engine: Any, folder: str, name: str, chance: Random) -> None:
        self._caller = _OneQueue(app, tm, engine, Path(folder), "")
        self._name, self._chance = name, chance

    def __call__(self) -> None:
        case = self._chance.choice(cases())
        self._caller.call(replace(case, name=f"{case.name}{AGAIN}{self._name}.{next(self.numbers)}"))


class _OneQueue(Caller):
    """A caller whose workers, of all pools, share a queue."""

    def queue(self, case: Case) -> str:
        return str(self.app.conf.task_default_queue)
