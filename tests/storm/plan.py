"""The cases of a storm: numbered, grouped by stage, with how often each is called, in a file that all processes read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from storm.covering import Generator
from storm.dimensions import DIMENSIONS, DIRECT, allows, broker_of, database_of, trouble_of

FILE = "cases.json"
# What a task is: cases that agree in these share one.
TRAITS = ("base", "key", "limit", "transactional", "acks", "retry", "chunk", "time", "hook")
CROWD = 18  # bodies at one time in a pool of threads: more than a connection pool has by default
FRAME = 2600  # jobs whose ids together are longer than a frame of RabbitMQ


@dataclass(frozen=True)
class Case:
    """One combination: a value of each dimension, and a name that its jobs carry."""

    name: str
    values: Mapping[str, str]

    def __getattr__(self, name: str) -> str:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def database(self) -> str:
        return database_of(self.values)

    @property
    def broker(self) -> str:
        return broker_of(self.values)

    @property
    def trouble(self) -> str:
        return trouble_of(self.values)

    @property
    def is_direct(self) -> bool:
        return self.call in DIRECT

    @property
    def task(self) -> str:
        """Return the name of the task that says what this case's task says, and has its kind of body."""
        kind = "async" if self.body == "async" else "overruns" if self.body == "overruns" else "body"
        words = [self.values[name].replace(" ", "_") for name in TRAITS]
        return ".".join(["storm", kind, *words])

    @property
    def copies(self) -> int:
        """Return how often it is called."""
        if self.body == "long":
            return CROWD if self.pool in ("threads", "gevent") else 2
        if self.call == "chunk":
            return FRAME if self.is_wide else 12
        if self.body in ("replaces", "swallows"):
            return 6
        return 2 if self.call in ("definition", "replay") else 3

    @property
    def is_wide(self) -> bool:
        """Say whether its chunk is too long for one frame of RabbitMQ."""
        return self.call == "chunk" and self.broker == "rabbitmq" and self.body == "returns" and self.trouble == "quiet"

    def label(self, copy: int) -> str:
        """Return the name of one of its calls."""
        return f"{self.name}-{copy}"

    def __str__(self) -> str:
        told = [f"{name}={value}" for name, value in self.values.items() if value not in ("none", "no", "early", "text")]
        return f"{self.name}: {', '.join(told)}"


def make(seed: int, *, more: int = 0, stages: Iterable[str] | None = None) -> list[Case]:
    """Return the covering array and some cases by chance; with `stages`, of these only."""
    dimensions = dict(DIMENSIONS) | ({"stage": tuple(stages)} if stages is not None else {})
    generator = Generator(dimensions, allows, seed)
    found = [*generator.covering(), *generator.more(more)]
    return [Case(f"c{number}", values) for number, values in enumerate(found, start=1)]


def by_stage(cases: Sequence[Case]) -> dict[str, list[Case]]:
    """Return the cases of each stage."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.stage, []).append(case)
    return found


def write(folder: Path, cases: Sequence[Case]) -> None:
    """Keep the cases where the processes of a stage find them."""
    (folder / FILE).write_text(json.dumps([{"name": case.name, "values": dict(case.values)} for case in cases], indent=1))


def read(folder: Path) -> list[Case]:
    """Return the cases of a stage."""
    return [Case(each["name"], each["values"]) for each in json.loads((folder / FILE).read_text())]
