"""Histories without a fault of ours, made by a small simulator of the protocol: what a checker must let pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from faults.history import (
    SECOND,
    Answer,
    Ask,
    DeadLetter,
    Definition,
    Effect,
    Execution,
    Fault,
    History,
    Key,
    Mark,
    Occurrence,
    Order,
    ProcessLine,
    Run,
    Step,
)
from faults.instants import instants

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BOOTED = 5_000 * SECOND  # the monotonic time at noon
LEASE = 3.0
MS = 0.001
# How an attempt may go. The first line ends a job, the second is followed by another attempt.
LAST = ("succeeds", "is buried", "is cancelled while it waits", "expires", "is cancelled while it runs")
GOES_ON = (
    "fails", "is killed", "is stopped and comes late", "begins late", "dies before its body", "loses its pool process",
    "is handed back",
)  # fmt: skip
FOREIGN = "celery's own"  # a plain Celery task
WAITING = {"is cancelled while it waits": "cancelled", "expires": "expired"}


@dataclass
class World:
    """What has been written so far, and what time it is."""

    now: float = 0.0  # seconds since noon
    faults: list[Fault] = field(default_factory=list)
    late: list[Effect] = field(default_factory=list)
    processes: list[ProcessLine] = field(default_factory=list)
    tables: dict[str, list[Any]] = field(default_factory=dict)
    numbers: int = 0

    def add(self, name: str, value: Any) -> Any:
        """Write a line or a row."""
        self.tables.setdefault(name, []).append(value)
        return value

    def pass_(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    @property
    def at(self) -> int:
        """Return the time as files have it."""
        return BOOTED + int(self.now * SECOND)

    @property
    def moment(self) -> datetime:
        """Return the time as the database has it."""
        return NOON + timedelta(seconds=self.now)

    def number(self) -> int:
        """Return a number that was not used yet."""
        self.numbers += 1
        return self.numbers

    def fault(self, kind: str, target: str = "", pids: Sequence[int] = (), *, lasts: float | None = None) -> None:
        """Make a fault, and heal it after a while if it lasts."""
        number = self.number()
        self.faults.append(Fault(self.at, "fault", number, kind, target, tuple(pids)))
        if lasts is not None:
            healed = self.at + int(lasts * SECOND)
            self.faults.append(Fault(healed, "healed", number, kind, target, tuple(pids)))

    def history(self) -> History:
        """Return all of it, as it is read after the run."""
        tables = dict(self.tables)
        tables["effects"] = sorted([*tables.get("effects", ()), *self.late], key=lambda one: one.at)
        stated = [
            {"name": one.name, "schedule": self._schedules[one.id], "added_at": one.created_at.isoformat(),
             "stopped_at": one.planned_until.isoformat()}
            for one in tables.get("definitions", ())
        ]  # fmt: skip
        run = {"seed": 7, "lease": LEASE, "definitions": stated, "clock": {"at": BOOTED, "now": NOON.isoformat()}}
        run["plain_tasks"] = [FOREIGN]
        return History(run=run, faults=self.faults, processes=self.processes, **tables)

    _schedules: dict[str, str] = field(default_factory=dict)

    # What is asked

    def ask(self, kind: str, *, key: str | None = None, job: str | None = None, delay: float = 0.0) -> str:
        """Ask for a job and be answered; `job` is one that is there already. Return its id."""
        name = f"a{self.number()}"
        id = job or f"job-{name}"
        self.add("asks", Ask(self.at, name, kind, key, None, delay, f"label-{id}", True))
        self.pass_(2 * MS)
        due = self.moment + timedelta(seconds=delay)
        if kind == "in caller's transaction" and job is None:
            self.add("orders", Order(name, id))
        self.add("answers", Answer(self.at, "answered", name, id, job is None, due))
        self.pass_(delay)
        return id

    def unanswered(self, kind: str, what: str, *, whole: bool = False) -> None:
        """Ask, and roll back or never hear; `whole`: it was committed all the same."""
        name = f"a{self.number()}"
        self.add("asks", Ask(self.at, name, kind, None, None, 0.0, f"label-job-{name}", what == "unknown"))
        self.pass_(5 * MS)
        self.add("answers", Answer(self.at, what, name))
        if whole:
            if kind == "in caller's transaction":
                self.add("orders", Order(name, f"job-{name}"))
            self.work(f"job-{name}", "plain", ["succeeds"])

    # What happens to a job

    def work(self, id: str, task: str, fates: Sequence[str], *, key: str | None = None, **about: Any) -> None:
        """Run the attempts of a job, each as its fate says."""
        for attempt, fate in enumerate(fates, start=1):
            Attempt(self, id, task, attempt, key, about).go(fate)
            self.pass_(0.3)

    # What is planned

    def definition(self, name: str, schedule: str, fates: Sequence[Sequence[str]], *, states: Sequence[str]) -> None:
        """Plan a definition from noon until now: its instants run as `fates` say by turns, or have one of `states`."""
        end = self.now
        self._schedules[name] = schedule
        self.add("definitions", Definition(name, name, NOON, self.moment))
        for number, moment in enumerate(instants(schedule, NOON, self.moment)):
            id = f"{name}-{number}"
            turn = number % (len(fates) + len(states))
            if turn >= len(fates):
                state = states[turn - len(fates)]
                self.add("occurrences", Occurrence(id, name, moment, state, f"it is {state}"))
                continue
            self.now = (moment - NOON).total_seconds() + 20 * MS
            about = {"occurrence": id, "definition": name, "source": "scheduled", "scheduled_at": moment, "label": name}
            self.work(f"job-{id}", "recurring", fates[turn], **about)
            over = "failed" if fates[turn][-1] == "is buried" else "completed"
            self.add("occurrences", Occurrence(id, name, moment, over, None, None, moment, self.moment))
        self.now = end

    def run_workflow(self, definition: str, steps: Sequence[str], *, fails: bool = False) -> None:
        """Trigger a run by hand and let its steps run, one after the other."""
        if definition not in self._schedules:
            self._schedules[definition] = "0 0 1 1 *"
            self.add("definitions", Definition(definition, definition, NOON, NOON + timedelta(days=1)))
        id = f"run-{self.number()}"
        ask = self.add("asks", Ask(self.at, f"a{id}", "workflow", label=definition))
        moment = self.moment
        self.add("answers", Answer(self.at, "answered", ask.ask, f"job-{id}"))
        self.add("runs", Run(id, f"job-{id}"))
        self.pass_(0.1)
        about = {"occurrence": id, "definition": definition, "source": "manual", "scheduled_at": moment}
        for place, name in enumerate(steps):
            is_last = place == len(steps) - 1
            fate = "is buried" if fails and is_last else "succeeds"
            self.work(f"job-{id}-{name}", "step", [fate], **about, label=name)
            outcome = "failed" if fails and is_last else "succeeded"
            self.add("steps", Step(id, name, outcome, f"job-{id}-{name}", 1, outcome))
        outcome = "failed" if fails else "succeeded"
        row = Execution(
            f"x-{id}", f"job-{id}", "celery_tm.workflow", "manual", 1, outcome, self.moment, moment, "beat", id, definition
        )
        self.add("executions", row)
        state = "failed" if fails else "completed"
        self.add("occurrences", Occurrence(id, definition, moment, state, None, None, moment, self.moment))


class Attempt:
    """One attempt of a job, from the gate to its end."""

    def __init__(self, world: World, id: str, task: str, number: int, key: str | None, about: dict[str, Any]) -> None:
        self.world, self.id, self.task, self.number, self.key, self.about = world, id, task, number, key, about
        self.pid = 1000 + world.number()
        self.worker = f"worker1@chaos:{self.pid}"
        self.started: datetime | None = world.moment

    def go(self, fate: str) -> None:
        """Let it go as its fate says."""
        if fate in WAITING:
            self.started = None
            self.end(WAITING[fate])
            return
        if fate == "is published":
            self.started = None
            self.end("succeeded")
            return
        self.world.pass_(2 * MS)
        if fate not in ("dies before its body", "begins late"):
            self.says("began")
        self.world.pass_(0.05)
        getattr(self, f"_{fate.replace(' ', '_')}")()

    def says(self, what: str, *, later: float = 0.0) -> None:
        """Let the body write a line."""
        at = self.world.at + int(later * SECOND)
        label, moment = self.about.get("label", f"label-{self.id}"), self.about.get("scheduled_at")
        line = Effect(
            at,
            what,
            self.id,
            self.number,
            f"x-{self.id}-{self.number}",
            self.task,
            label,
            self.key,
            self.pid,
            self.worker,
            moment,
        )
        if later:
            self.world.late.append(line)
        else:
            self.world.add("effects", line)

    def end(self, outcome: str, error: str | None = None) -> None:
        """Record how it ended."""
        about, id = self.about, f"x-{self.id}-{self.number}"
        worker = self.worker if self.started else None
        row = Execution(
            id, self.id, self.task, about.get("source", "deferred"), self.number, outcome, self.world.moment, self.started,
            worker, about.get("occurrence"), about.get("definition"), None, error,
        )  # fmt: skip
        self.world.add("executions", row)

    def _succeeds(self) -> None:
        world = self.world
        self.says("ended")
        world.pass_(3 * MS)
        self.end("succeeded")
        if self.task == "transactional":
            world.add("marks", Mark(f"label-{self.id}", self.id, self.number))
        if self.key is not None:
            until = world.moment + timedelta(hours=12)
            world.add("keys", Key(self.task, self.key, self.id, f"x-{self.id}-{self.number}", world.moment, until))

    def _fails(self) -> None:
        if self.task == "transactional" and self.number % 2:
            self.says("ended")  # its commit did not come about
        else:
            self.says("failed")
        self.world.pass_(3 * MS)
        self.end("failed", "ValueError: it did not work")

    def _is_buried(self) -> None:
        self._fails()
        letter = DeadLetter(
            self.id, self.task, self.number, self.world.moment, "no tries are left", self.key, self.about.get("occurrence")
        )
        self.world.add("dead_letters", letter)

    def _is_killed(self) -> None:
        self.world.fault("sigkill worker", "worker1", [self.pid - 1, self.pid])
        self.world.pass_(LEASE + 0.3)
        self.end("orphaned", "its worker gave no sign")

    _dies_before_its_body = _is_killed

    def _is_stopped_and_comes_late(self) -> None:
        self.world.fault("sigstop worker", "worker1", [self.pid], lasts=LEASE + 2)
        self._comes_late()

    def _comes_late(self) -> None:
        self.says("ended", later=LEASE + 2.5)
        self.world.pass_(LEASE + 0.3)
        self.end("orphaned", "its worker gave no sign")

    def _begins_late(self) -> None:
        self.world.fault("sigstop worker", "worker1", [self.pid], lasts=LEASE + 2)
        self.says("began", later=LEASE + 2.2)
        self._comes_late()

    def _loses_its_pool_process(self) -> None:
        self.world.fault("sigkill pool child", "worker1", [self.pid])
        self.world.pass_(20 * MS)
        self.end("orphaned", "WorkerLostError")

    def _is_handed_back(self) -> None:
        self.world.fault("sigterm worker", "worker1", [self.pid])
        self.world.pass_(20 * MS)
        self.end("interrupted", "its worker was shut down")

    def _is_cancelled_while_it_runs(self) -> None:
        self.world.add("answers", Answer(self.world.at, "cancelled", "c", self.id, answer=1))
        self.says("ended")
        self.world.pass_(3 * MS)
        self.end("cancelled")


def whole_world() -> World:
    """Return a world in which everything that is allowed happened once."""
    world = World()
    world.fault("database stopped", "postgres", lasts=1.0)
    world.work(world.ask("plain"), "plain", ["succeeds"])
    world.work(world.ask("plain", delay=0.5), "plain", ["is killed", "is stopped and comes late", "succeeds"])
    world.work(world.ask("flaky"), "flaky", ["fails", "dies before its body", "loses its pool process", "succeeds"])
    world.work(world.ask("doomed"), "doomed", ["fails", "is buried"])
    world.work(world.ask("plain"), "plain", ["is cancelled while it waits"])
    world.work(world.ask("plain"), "plain", ["expires"])
    world.work(world.ask("plain"), FOREIGN, ["is published"])
    world.work(world.ask("slow"), "slow", ["is handed back", "is cancelled while it runs"])
    keyed = world.ask("keyed", key="k1")
    world.work(keyed, "keyed", ["begins late", "succeeds"], key="k1")
    world.ask("keyed", key="k1", job=keyed)
    world.work(world.ask("transactional"), "transactional", ["fails", "is killed", "succeeds"])
    world.work(world.ask("transactional"), "transactional", ["succeeds"])
    world.work(world.ask("transactional"), "transactional", ["fails", "is buried"])
    world.work(world.ask("in caller's transaction"), "ordered", ["succeeds"])
    world.unanswered("in caller's transaction", "rolled back")
    world.unanswered("in caller's transaction", "unknown", whole=True)
    world.unanswered("in caller's transaction", "unknown")
    world.ask("direct")  # lost with the broker's data
    world.fault("redis killed with its data", "redis")
    world.run_workflow("in-order", ["fetch", "left", "right"])
    world.run_workflow("in-order", ["fetch"], fails=True)
    world.definition(
        "every-two", "*/2 * * * * *", [["succeeds"], ["is killed", "succeeds"], ["is buried"]],
        states=["skipped", "missed", "coalesced"],
    )  # fmt: skip
    return world
