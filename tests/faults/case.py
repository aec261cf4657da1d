"""A history put in order: all that is known of each job in one place, and faults as spans of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from faults.allowances import ALLOWED
from faults.history import (
    SECOND,
    Answer,
    Ask,
    DeadLetter,
    Effect,
    Execution,
    Fault,
    History,
    JobRow,
    Key,
    LogLine,
    Mark,
    Occurrence,
    Order,
    Step,
)

RUN = "celery_tm.workflow"  # what the job of a run is called
ENDS = ("succeeded", "cancelled", "expired", "deduplicated")
# Words in the name of a fault that say what it hits. Clocks, brokers and beats take no attempt away.
PROCESSES = ("worker", "pool", "child")
DATABASES = ("postgres", "mariadb", "mysql", "database", "session", "connection", "proxy", "transaction", "disk", "sqlite")
NETWORK = "network"
NOTHING = ("clock", "beat", "redis", "rabbit", "broker", "flush")
DEADLY = ("sigkill", "kill", "sigterm", "sigquit")


@dataclass(slots=True)
class Dossier:
    """All that is known of one job."""

    id: str
    asked: list[tuple[Ask | None, Answer]] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    rows: list[JobRow] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def task(self) -> str:
        named: Iterable[Execution | DeadLetter | JobRow | Effect] = (
            *self.executions, *self.letters, *self.rows, *self.effects,
        )  # fmt: skip
        return next((one.task for one in named if one.task), "")

    @property
    def key(self) -> str | None:
        stated = [one.key for one in self.effects if one.key]
        stated += [one.dedupe_key for one in (*self.letters, *self.rows) if one.dedupe_key]
        stated += [one.key for one in self.keys]
        stated += [ask.key for ask, answer in self.asked if ask is not None and ask.key and answer.created]
        return stated[0] if stated else None

    @property
    def occurrence(self) -> str | None:
        named = (*self.executions, *self.letters, *self.rows)
        return next((one.occurrence for one in named if one.occurrence), None)

    @property
    def is_run(self) -> bool:
        """Say whether it stands for a run of a workflow."""
        return self.task == RUN

    @property
    def has_left_traces(self) -> bool:
        return bool(self.effects or self.executions or self.letters or self.rows)

    def lines(self, what: str, attempt: int | None = None) -> list[Effect]:
        """Return what its bodies wrote."""
        return [one for one in self.effects if one.what == what and attempt in (None, one.attempt)]

    def ends(self) -> list[str]:
        """Return all that the tables call an end of this job; there should be one."""
        ended = [f"attempt {one.attempt} {one.outcome}" for one in self.executions if one.outcome in ENDS]
        if self.is_run and not ended:
            ended = [f"the run {one.outcome}" for one in self.executions[-1:]]
        return ended + [f"a dead letter of attempt {one.attempt}" for one in self.letters]


@dataclass(frozen=True, slots=True)
class Span:
    """A fault from its beginning to its healing, in the files' time."""

    since: int
    until: int
    fault: Fault

    def hits(self, worker: str | None, *, deadly: bool) -> bool:
        """Say whether it may take an attempt away from this worker; with `deadly`, by ending its process."""
        kind = self.fault.kind.lower()
        if any(word in kind for word in PROCESSES):
            return self._names(worker) and (not deadly or any(word in kind for word in DEADLY))
        if deadly or any(word in kind for word in NOTHING):
            return False
        if NETWORK in kind:  # between one process and one server
            process, _, server = self.fault.target.partition(" to ")
            return _host(worker) == process and any(word in server.lower() for word in DATABASES)
        return any(word in kind for word in DATABASES)

    def _names(self, worker: str | None) -> bool:
        pid = (worker or "").rpartition(":")[2]
        if self.fault.pids:
            return pid.isdigit() and int(pid) in self.fault.pids
        return _host(worker) == self.fault.target.split("@")[0]


def _host(worker: str | None) -> str:
    """Return what a worker is called, without the machine it runs on and its process."""
    return (worker or "").rpartition(":")[0].split("@")[0]


class Case:
    """A history with everything found by the job it is about."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.jobs: dict[str, Dossier] = {}
        self.asks: dict[str, Ask] = {one.ask: one for one in history.asks}
        self.occurrences: dict[str, Occurrence] = {one.id: one for one in history.occurrences}
        self.of_occurrence: dict[str, set[str]] = {}
        self.unresolved: dict[str, Answer] = {}  # asks that were rolled back or whose end is unknown
        self._file()

    def _file(self) -> None:
        """Put everything into the dossier of its job."""
        history = self.history
        # A load that is killed while it asks writes no answer: nobody knows what became of that, either.
        answered = {one.ask for one in history.answers}
        self.unresolved = {one.ask: Answer(one.at, "unknown", one.ask) for one in history.asks if one.ask not in answered}
        for answer in history.answers:
            if answer.what in ("rolled back", "unknown"):
                self.unresolved[answer.ask] = answer
            elif answer.job is not None:
                self._of(answer.job).asked.append((self.asks.get(answer.ask), answer))
        for effect in history.effects:
            self._of(effect.job).effects.append(effect)
        for execution in history.executions:
            self._of(execution.job).executions.append(execution)
        for letter in history.dead_letters:
            self._of(letter.id).letters.append(letter)
        for row in history.jobs:
            self._of(row.id).rows.append(row)
        for key in history.keys:
            self._of(key.job).keys.append(key)
        for mark in history.marks:
            self._of(mark.job).marks.append(mark)
        for order in history.orders:
            self._of(order.job).orders.append(order)
        for step in history.steps:
            if step.job in self.jobs:  # a step whose turn never came has no job
                self.jobs[step.job].steps.append(step)
        for dossier in self.jobs.values():
            if len(dossier.executions) > 1:
                dossier.executions.sort(key=lambda one: one.attempt)
            if dossier.occurrence is not None:
                self.of_occurrence.setdefault(dossier.occurrence, set()).add(dossier.id)

    def _of(self, id: str) -> Dossier:
        found = self.jobs.get(id)
        if found is None:
            found = self.jobs[id] = Dossier(id)
        return found

    @cached_property
    def ahead(self) -> float:
        """Return how much the database's time is ahead of the files'."""
        return self.history.ahead()

    def in_files_time(self, moment: datetime) -> int:
        """Return a time of the tables as the files tell it."""
        return int((moment.timestamp() - self.ahead) * SECOND)

    @cached_property
    def lease(self) -> timedelta:
        """Return how long a claim lasts."""
        settings = self.history.run.get("settings") or {}
        return timedelta(seconds=float(self.history.run.get("lease") or settings.get("tm_lease") or 30))

    def is_plain(self, task: str) -> bool:
        """Say whether a task is plain Celery: its jobs are done once they are published."""
        return task in (self.history.run.get("plain_tasks") or ())

    @cached_property
    def by_label(self) -> dict[str, set[str]]:
        """Return the jobs whose bodies wrote a label."""
        found: dict[str, set[str]] = {}
        for one in self.history.effects:
            if one.label is not None:
                found.setdefault(one.label, set()).add(one.job)
        return found

    @cached_property
    def orders(self) -> dict[str, list[Order]]:
        """Return what callers wrote in the transactions of their asks."""
        found: dict[str, list[Order]] = {}
        for one in self.history.orders:
            found.setdefault(one.ask, []).append(one)
        return found

    @cached_property
    def kept(self) -> dict[tuple[str, str], set[str]]:
        """Return for which jobs keys are kept, by task and key."""
        found: dict[tuple[str, str], set[str]] = {}
        for one in self.history.keys:
            found.setdefault((one.task, one.key), set()).add(one.job)
        return found

    @cached_property
    def last_written(self) -> datetime:
        """Return when the last end was recorded, by the database's clock."""
        return max(one.completed_at for one in self.history.executions)

    @cached_property
    def asked_for(self) -> set[str]:
        """Return the names of what was answered: jobs, or occurrences that were triggered."""
        return {one.job for one in self.history.answers if one.job is not None}

    @cached_property
    def names(self) -> dict[str, str]:
        """Return what definitions are called, by id."""
        return {one.id: one.name for one in self.history.definitions}

    @cached_property
    def steps(self) -> dict[str, list[Step]]:
        """Return the steps of runs."""
        found: dict[str, list[Step]] = {}
        for one in self.history.steps:
            found.setdefault(one.workflow, []).append(one)
        return found

    @cached_property
    def logs(self) -> dict[str, list[LogLine]]:
        """Return the lines of executions."""
        found: dict[str, list[LogLine]] = {}
        for one in self.history.logs:
            found.setdefault(one.execution, []).append(one)
        return found

    @cached_property
    def unsure_keys(self) -> set[str]:
        """Return the keys that were asked for by somebody who was not told what became of it."""
        return {ask.key for name in self.unresolved if (ask := self.asks.get(name)) is not None and ask.key is not None}

    @cached_property
    def spans(self) -> list[Span]:
        """Return all faults; a process that ended by itself is one, too."""
        healed = {one.fault: one.at for one in self.history.faults if one.what == "healed"}
        spans = [Span(one.at, healed.get(one.fault, one.at), one) for one in self.history.faults if one.what == "fault"]
        gone = [line for line in self.history.processes if (line.what, line.kind) == ("ended", "worker")]
        spans += [Span(one.at, one.at, Fault(one.at, "fault", -1, "sigkill worker", one.name)) for one in gone]
        return sorted(spans, key=lambda span: span.since)

    def explaining(self, attempt: Execution, *, deadly: bool = False, slack: float = 2.0) -> Iterator[Span]:
        """Return the faults that may have taken an attempt away from its worker."""
        begun = self.in_files_time(attempt.started_at or attempt.completed_at) - int(slack * SECOND)
        over = self.in_files_time(attempt.completed_at) + SECOND // 2
        for span in self.spans:
            if span.since <= over and span.until >= begun and span.hits(attempt.worker, deadly=deadly):
                yield span


@dataclass(frozen=True, slots=True)
class Finding:
    """A promise that was not kept: what happened, and to what."""

    promise: int
    what: str
    at: int
    job: str | None = None
    key: str | None = None
    occurrence: str | None = None


class Findings:
    """What was found so far, and which allowances were made."""

    def __init__(self) -> None:
        self.found: list[Finding] = []
        self.allowed: Counter[str] = Counter()

    def allow(self, rule: str) -> None:
        """Note that something that looks wrong is allowed, and why."""
        assert rule in ALLOWED, f"{rule!r} is no allowance; state it with its reason"
        self.allowed[rule] += 1

    def broken(
        self,
        promise: int,
        what: str,
        *,
        at: int,
        job: str | None = None,
        key: str | None = None,
        occurrence: str | None = None,
    ) -> None:
        """Note that a promise was not kept."""
        self.found.append(Finding(promise, what, at, job, key, occurrence))
