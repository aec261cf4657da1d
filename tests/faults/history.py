"""The record of a run as plain values: what was asked, what bodies did, which faults were made, what the tables say.

Read from a run's files and its database, or built in memory by a test. It decides nothing, and has nothing from the package
that is checked: tables are read by their names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, column, create_engine, inspect, select, table

T = TypeVar("T")
SECOND = 1_000_000_000  # of the times in files, which are monotonic nanoseconds
LINE_BEGINS = '{"at"'


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that the load is about to make."""

    at: int
    ask: str
    kind: str
    key: str | None = None
    entity: str | None = None
    delay: float = 0.0
    label: str = ""
    commits: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a request: answered, rolled back, unknown, or a cancellation."""

    at: int
    what: str
    ask: str
    job: str | None = None
    created: bool | None = None
    run_at: datetime | None = None
    error: str | None = None
    answer: int | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """What a body wrote: that it began, ended or failed."""

    at: int
    what: str
    job: str
    attempt: int
    execution: str = ""
    task: str = ""
    label: str | None = None
    key: str | None = None
    pid: int = 0
    worker: str | None = None
    scheduled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that was made, or healed."""

    at: int
    what: str
    fault: int
    kind: str
    target: str = ""
    pids: tuple[int, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """A worker or beat that started or ended."""

    at: int
    what: str
    name: str
    pid: int
    kind: str


@dataclass(frozen=True, slots=True)
class JobRow:
    """A row of `tm_job`: work that is still owed."""

    id: str
    task: str
    state: str
    attempt: int
    run_at: datetime
    created_at: datetime
    dedupe_key: str | None = None
    lease_until: datetime | None = None
    claimed_by: str | None = None
    occurrence: str | None = None
    step: str | None = None
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class Execution:
    """A row of `tm_execution`."""

    id: str
    job: str
    task: str
    source: str
    attempt: int
    outcome: str
    completed_at: datetime
    started_at: datetime | None = None
    worker: str | None = None
    occurrence: str | None = None
    definition: str | None = None
    message: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row of `tm_dead_letter`."""

    id: str
    task: str
    attempt: int
    buried_at: datetime
    reason: str = ""
    dedupe_key: str | None = None
    occurrence: str | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """A row of `tm_key`."""

    task: str
    key: str
    job: str
    execution: str
    done_at: datetime
    kept_until: datetime


@dataclass(frozen=True, slots=True)
class Definition:
    """A row of `tm_definition`."""

    id: str
    name: str
    created_at: datetime
    planned_until: datetime


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A row of `tm_occurrence`; its definition is an id."""

    id: str
    definition: str
    scheduled_at: datetime
    state: str
    reason: str | None = None
    replay_of: str | None = None
    decided_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A row of `tm_step`."""

    workflow: str
    name: str
    state: str
    job: str
    attempts: int = 0
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A row of `tm_workflow`: an occurrence, and the job that stands for it."""

    id: str
    job: str


@dataclass(frozen=True, slots=True)
class LogLine:
    """A row of `tm_log`."""

    execution: str
    at: datetime
    level: str
    message: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A row of `chaos_effect`, which a transactional body wrote with its completion."""

    label: str
    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Order:
    """A row of `chaos_order`, which a caller wrote in the transaction that deferred the job."""

    ask: str
    job: str


# What is read, from which file or table.
FILES: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "effects": ("effects.jsonl", (Effect,)),
    "faults": ("faults.jsonl", (Fault,)),
    "processes": ("processes.jsonl", (ProcessLine,)),
}
TABLES: Mapping[str, tuple[str, type]] = {
    "jobs": ("tm_job", JobRow),
    "executions": ("tm_execution", Execution),
    "dead_letters": ("tm_dead_letter", DeadLetter),
    "keys": ("tm_key", Key),
    "definitions": ("tm_definition", Definition),
    "occurrences": ("tm_occurrence", Occurrence),
    "steps": ("tm_step", Step),
    "runs": ("tm_workflow", Run),
    "logs": ("tm_log", LogLine),
    "marks": ("chaos_effect", Mark),
    "orders": ("chaos_order", Order),
}


@dataclass(frozen=True)
class History:
    """All that is known of a run after it has settled."""

    run: Mapping[str, Any] = field(default_factory=dict)
    asks: Sequence[Ask] = ()
    answers: Sequence[Answer] = ()
    effects: Sequence[Effect] = ()
    faults: Sequence[Fault] = ()
    processes: Sequence[ProcessLine] = ()
    jobs: Sequence[JobRow] = ()
    executions: Sequence[Execution] = ()
    dead_letters: Sequence[DeadLetter] = ()
    keys: Sequence[Key] = ()
    definitions: Sequence[Definition] = ()
    occurrences: Sequence[Occurrence] = ()
    steps: Sequence[Step] = ()
    runs: Sequence[Run] = ()
    logs: Sequence[LogLine] = ()
    marks: Sequence[Mark] = ()
    orders: Sequence[Order] = ()
    torn: int = 0  # lines that a kill cut in the middle

    @classmethod
    def read(cls, folder: str | Path, database: str | Engine) -> History:
        """Read a run's folder and its database."""
        folder = Path(folder)
        engine = create_engine(database) if isinstance(database, str) else database
        found: dict[str, list[Any]] = {name: [] for name in ("asks", "answers", *FILES, *TABLES)}
        torn = _read_asked(folder, found)
        for name, (file, (kind,)) in FILES.items():
            for line in _lines(folder / file):
                torn += line is None
                if line is not None:
                    found[name].append(_value(kind, line))
        with engine.connect() as connection:
            for name, (there, kind) in TABLES.items():
                found[name] = list(_rows(connection, there, kind))
        if isinstance(database, str):
            engine.dispose()
        about = folder / "run.json"
        run = json.loads(about.read_text()) if about.exists() else {}
        return cls(run=run, torn=torn, **found)

    def ahead(self) -> float:
        """Return by how many seconds the time of day is ahead of the monotonic time of the files.

        The run says so itself (`clock`: both times of one moment); else it is taken from attempts, whose gate was passed
        before their bodies began: whichever was quickest is nearest to the truth.
        """
        stated = self.run.get("clock")
        if stated:
            moment = instant(stated["now"])
            assert moment is not None
            return moment.timestamp() - stated["at"] / SECOND
        began = {(one.job, one.attempt): one.at for one in self.effects if one.what == "began"}
        apart = [
            one.started_at.timestamp() - began[one.job, one.attempt] / SECOND
            for one in self.executions[:20_000]
            if one.started_at is not None and (one.job, one.attempt) in began
        ]
        return max(apart, default=0.0)


def _read_asked(folder: Path, found: Mapping[str, list[Any]]) -> int:
    """Read what was asked and answered, which share a file; return how many lines were torn."""
    torn = 0
    for line in _lines(folder / "asked.jsonl"):
        if line is None:
            torn += 1
        elif line.get("what") == "asks":
            found["asks"].append(_value(Ask, line))
        else:
            found["answers"].append(_value(Answer, line))
    return torn


def _lines(file: Path) -> Iterator[dict[str, Any] | None]:
    """Return the lines of a file; None for the part of one that a kill cut off, after which another line may follow."""
    if not file.exists():
        return
    with file.open() as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield json.loads(line)
                continue
            except ValueError:
                yield None
            whole = line[line.rfind(LINE_BEGINS) :]
            if whole != line and line.endswith("\n"):
                try:
                    yield json.loads(whole)
                except ValueError as error:
                    raise ValueError(f"{file}, line {number}: {error}; no kill explains this") from error


_NAMES: dict[type, list[str]] = {}


def _value(kind: type[T], stated: Mapping[str, Any]) -> T:
    """Return a line or row as a value; what a kind does not know is left out."""
    names = _NAMES.get(kind)
    if names is None:
        names = _NAMES[kind] = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    given = {name: stated[name] for name in names if name in stated}
    for name in ("run_at", "scheduled_at"):
        if name in given:
            given[name] = instant(given[name])
    if "pids" in given:
        given["pids"] = tuple(given["pids"] or ())
    return kind(**given)


def _rows(connection: Connection, name: str, kind: type[T]) -> Iterator[T]:
    if not inspect(connection).has_table(name):
        return
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    times = [place for place, one in enumerate(names) if one == "at" or one.endswith(("_at", "_until"))]
    query = select(*(column(one) for one in names)).select_from(table(name))
    for row in connection.execution_options(yield_per=5000).execute(query):
        values = list(row)
        for place in times:
            values[place] = instant(values[place])
        yield kind(*values)


def instant(value: Any) -> datetime | None:
    """Return a time as a database or a file has it as an aware one."""
    if value is None:
        return None
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    aware: datetime = value
    return aware.astimezone(UTC) if aware.tzinfo else aware.replace(tzinfo=UTC)
