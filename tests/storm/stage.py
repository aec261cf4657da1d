"""One stage: its servers and processes, all its cases at one time, its trouble, then peace until nothing is pending."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from faults import record
from faults.app import FOLDER
from faults.fleet import Fleet
from faults.run import keep_tables
from sqlalchemy import func, select, update

from celery_tm import Scheduler, TimeManagement, TmError
from celery_tm.store import tables
from storm import plan
from storm.app import make_app
from storm.bodies import CALLBACKS, LONG
from storm.calls import Caller, call_all
from storm.ground import LEASE, Ground
from storm.other import ask_other, other_conf
from storm.plan import Case

PULSE = "storm-pulse"
SLOTS = {"prefork": 3, "threads": 24, "gevent": 24, "solo": 1}
OUTAGE, READ_ONLY, LOCKED = LEASE * 1.6, 4.0, LEASE * 1.7  # seconds
HEALS = 90.0  # seconds after which a queue that was refused is tried again
ACTIVE = ("pending", "queued", "running")
RECURRING = ("storm.pulse", "storm.periodic", "other.periodic")  # there is always a next one


@dataclass
class Evidence:
    """What a stage leaves for the judge."""

    stage: str
    folder: Path
    cases: Sequence[Case]
    calls: list[dict[str, Any]] = field(default_factory=list)
    callbacks: list[dict[str, Any]] = field(default_factory=list)
    results: dict[str, tuple[str, Any]] = field(default_factory=dict)
    pending: list[str] = field(default_factory=list)
    held_up: list[str] = field(default_factory=list)  # what waited although only a refused queue was in its way
    stuck_callers: list[str] = field(default_factory=list)
    idle_transactions: int = 0
    seconds: float = 0.0


class Stage:
    """Carries out the cases of one stage."""

    def __init__(self, name: str, cases: Sequence[Case], folder: Path, *, settles: float = 90.0) -> None:
        self.name, self.cases, self.folder, self.settles = name, list(cases), folder, settles
        self._closing = ExitStack()
        self._faults = 0

    def go(self) -> Evidence:
        """Do it all, and leave no process behind."""
        begun = time.monotonic()
        with self._closing:
            self._open()
            evidence = Evidence(self.name, self.folder, self.cases)
            evidence.stuck_callers = self._run()
            self._settle(evidence)
            self._collect(evidence)
            evidence.seconds = time.monotonic() - begun
            return evidence

    # Opening

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        plan.write(self.folder, self.cases)
        self.ground = Ground(self.name, self.folder, self._closing)
        self.app = make_app(self.ground.conf, self.cases)
        self.tm = TimeManagement(self.app)
        self._closing.callback(self._close_app)
        self.tm.upgrade()
        self.ground.make_tables(self.cases)
        self.long = LEASE * (4.0 if self.ground.trouble == "outage" else 1.5)
        self._environment()
        if self.ground.trouble == "behind":
            fall_behind(self.app, self.ground.engine)
        self._add_pulse()
        if any(case.fault == "queue refused" for case in self.cases):
            self.ground.refuse_queue()
        self.caller = Caller(self.app, self.tm, self.ground.engine, self.folder, self.ground.refused_queue)
        self.fleet = Fleet(self.folder, {LONG: str(self.long)})
        self._closing.callback(self.fleet.close)
        if self.ground.trouble != "inline":
            self._man()

    def _environment(self) -> None:
        """What a body needs that runs in this process, as it does inline."""
        for name, value in ((FOLDER, str(self.folder)), (LONG, str(self.long))):
            before = os.environ.get(name)
            os.environ[name] = value
            self._closing.callback(_restore, name, before)

    def _add_pulse(self) -> None:
        self.definitions: list[dict[str, Any]] = []
        if self.ground.trouble == "inline":
            return
        queue = f"{self.ground.queue}-prefork"
        stated = {"name": PULSE, "schedule": "* * * * * *", "overlap": "allow", "recovery": "all"}
        added = self.tm.definitions.add(**stated, task="storm.pulse", queue=queue)
        told = {"id": added.id, "added_at": added.created_at.isoformat(), "stopped_at": None}
        self.definitions.append(stated | told)
        self._write_facts()

    def _close_app(self) -> None:
        self.tm.installation.database.dispose()
        with suppress(Exception):
            self.app.backend.result_consumer.stop()
        self.app.close()

    def _man(self) -> None:
        pools = {case.pool for case in self.cases} | {"prefork"}
        for pool in sorted(pools & set(SLOTS)):
            # One of them also has the queue of those who name none, where what is sent to the wrong app arrives.
            queues = f"{self.ground.queue}-{pool}" + (f",{self.ground.queue}" if pool == "prefork" else "")
            self._add_worker(f"worker-{pool}", pool, queues)
        self._add_beat("beat-1", "storm.app", self.ground.conf)
        if self.ground.trouble == "two-apps":
            conf = other_conf(self.ground.conf)
            self._add_worker("worker-other", "prefork", conf["task_default_queue"], app="storm.other", conf=conf)
            self._add_beat("beat-other", "storm.other", conf)
        self.fleet.start()
        workers = self.fleet.of("worker")
        wait_for(lambda: all("ready." in _text(worker.log) for worker in workers), 90, "the workers")

    def _add_worker(self, name: str, pool: str, queue: str, *, app: str = "storm.app", conf: Any = None) -> None:
        options = ["-P", pool, "-c", str(SLOTS[pool]), "-Q", queue, "-n", f"{name}@chaos", "-l", "INFO"]
        arguments = ["-m", "celery", "-A", app, "worker", *options, "--without-gossip", "--without-mingle"]
        self.fleet.add(name, "worker", arguments, conf or self.ground.conf)

    def _add_beat(self, name: str, app: str, conf: Any) -> None:
        options = ["-S", "celery_tm.Scheduler", "-l", "INFO", "--pidfile", str(self.folder / f"{name}.pid")]
        self.fleet.add(name, "beat", ["-m", "celery", "-A", app, "beat", *options], conf)

    # Running

    def _run(self) -> list[str]:
        """Call all cases, with the trouble of the stage and of its cases meanwhile."""
        trouble = self.ground.trouble
        late = [case for n, case in enumerate(self.cases) if case.is_direct and n % 2] if trouble in TROUBLES else []
        others = [threading.Thread(target=self._lock_a_row, args=(c,)) for c in self.cases if c.fault == "row locked"]
        if trouble in TROUBLES:
            others.append(threading.Thread(target=TROUBLES[trouble], args=(self, late)))
        if trouble == "two-apps":
            others.append(threading.Thread(target=ask_other, args=(self.ground.conf, self.folder)))
        for thread in others:
            thread.start()
        stuck = call_all(self.caller, [case for case in self.cases if case not in late], seconds=self.settles)
        for thread in others:
            thread.join(self.settles + 60)
        return stuck

    def _began(self, *cases: Case) -> set[str]:
        wanted = {case.name for case in cases}
        return {
            line["label"] for line in _lines(self.folder / CALLBACKS) if line["what"] == "saw" and line["subject"] in wanted
        }

    def _lock_a_row(self, case: Case) -> None:
        """Lock the row of the first call, as a stranger does, while it and its neighbours run."""
        label = case.label(0)
        if not wait_quietly(lambda: label in self._began(case), 60):
            return
        effects = [line for line in _lines(self.folder / record.EFFECTS) if line.get("label") == label]
        if effects:
            with self._fault("transaction of a stranger", effects[0]["job"]):
                undo = self.ground.lock_row("tm_job", f"id = '{effects[0]['job']}'")
                time.sleep(LOCKED)
                undo()

    def _fault(self, kind: str, target: str, pids: Sequence[int] = ()) -> Any:
        self._faults += 1
        return noted_fault(self.folder, {"fault": self._faults, "kind": kind, "target": target, "pids": list(pids)})

    def _wait_for_long(self) -> None:
        cases = [case for case in self.cases if case.body == "long" and case.transaction in ("none", "committed")]
        wanted = sum(case.copies if case.key == "none" else 1 for case in cases if not case.is_direct)
        wait_quietly(lambda: len(self._began(*cases)) >= wanted, 20)
        time.sleep(1)

    def kill(self, _: Sequence[Case]) -> None:
        """Kill every worker once, in the middle of its work."""
        for worker in self.fleet.of("worker"):
            time.sleep(3)
            with self._fault("sigkill worker", worker.name, [worker.pid, *worker.children()]):
                worker.signal_all(signal.SIGKILL)

    def outage(self, late: Sequence[Case]) -> None:
        """Have the database away for longer than a lease, while long bodies run."""
        self._hurt("database crashed", OUTAGE, self.ground.crash, late)

    def read_only(self, late: Sequence[Case]) -> None:
        """Have the database refuse writes for a moment."""
        self._hurt("database read-only", READ_ONLY, self.ground.go_read_only, late)

    def _hurt(self, kind: str, seconds: float, do: Callable[[], Callable[[], None]], late: Sequence[Case]) -> None:
        self._wait_for_long()
        with self._fault(kind, self.ground.database):
            undo = do()
            threads = [threading.Thread(target=self.caller.call, args=(case,), daemon=True) for case in late]
            for thread in threads:
                thread.start()
            time.sleep(seconds)
            undo()
        for thread in threads:
            thread.join(60)

    # Settling

    def _settle(self, evidence: Evidence) -> None:
        begun = time.monotonic()
        if self.ground.trouble == "inline":
            self._run_inline(begun)
            evidence.pending = self._pending()
            return
        refused = [case for case in self.cases if case.fault == "queue refused"]
        time.sleep(4)  # definitions that were added last have their seconds
        wait_quietly(lambda: not self._pending(apart=self.ground.refused_queue), self.settles)
        if refused:
            evidence.held_up = self._pending(apart=self.ground.refused_queue)
            self.ground.heal_queue()
            self._add_worker("worker-healed", "prefork", self.ground.refused_queue)
            self.fleet.members[-1].start()
        self._stop_definitions()
        wait_quietly(lambda: not self._pending(), max(self.settles - (time.monotonic() - begun), HEALS if refused else 30))
        evidence.pending = self._pending()
        self._wait_for_quiet()
        evidence.idle_transactions = min(self._idle_twice())

    def _stop_definitions(self) -> None:
        for definition in self.tm.definitions.list():
            wait_quietly(partial(self._is_stopped, definition.name), 20)  # beat may be at it just now
        for stated in self.definitions:
            stated["stopped_at"] = datetime.now(UTC).isoformat()

    def _is_stopped(self, name: str) -> bool:
        try:
            self.tm.disable(name)
        except TmError:
            return False
        return True

    def _run_inline(self, begun: float) -> None:
        while self._pending() and time.monotonic() < begun + 25:
            self.tm.run_due_jobs()
            time.sleep(0.5)

    def _idle_twice(self) -> Iterator[int]:
        for _ in range(3):
            time.sleep(0.5)
            yield self.ground.idle_transactions()

    def _pending(self, apart: str | None = None) -> list[str]:
        """Return what is still to be done, apart from what waits for a queue."""
        job, occurrence = tables.job, tables.occurrence
        query = select(job.c.id, job.c.task, job.c.state, job.c.attempt, job.c.args, job.c.last_error).limit(200)
        if apart is not None:
            query = query.where(func.coalesce(job.c.queue, "") != apart)
        with suppress(Exception), self.ground.engine.connect() as connection:
            found = [row for row in connection.execute(query) if row.task not in RECURRING]
            rows = [f"{r.task} {r.args and r.args[:60]}: {r.state}, attempt {r.attempt}, {r.last_error}" for r in found]
            if apart is None:
                active = select(occurrence.c.id, occurrence.c.state).where(occurrence.c.state.in_(ACTIVE)).limit(50)
                rows += [f"occurrence {r.id} is {r.state}" for r in connection.execute(active)] if not rows else []
            return rows
        return ["the database does not answer"]

    def _wait_for_quiet(self) -> None:
        """Wait until nobody has written anything for a while: what was published last has come."""
        files = [self.folder / name for name in (CALLBACKS, record.EFFECTS)]
        sizes, deadline = (-1,), time.monotonic() + 30
        while time.monotonic() < deadline:
            now = tuple(file.stat().st_size for file in files if file.exists())
            if now == sizes:
                return
            sizes = now  # type: ignore[assignment]
            time.sleep(2.5)

    # Collecting

    def _collect(self, evidence: Evidence) -> None:
        evidence.calls = _lines(self.folder / "calls.jsonl")
        evidence.callbacks = _lines(self.folder / CALLBACKS)
        known = {case.name: case for case in self.cases}
        for call in evidence.calls:
            if call.get("id") and known[call["case"]].copies < 100:
                result = self.app.AsyncResult(call["id"])
                meta = result._get_task_meta()
                value = meta.get("result")
                evidence.results[call["id"]] = (meta["status"], value if isinstance(value, str) else repr(value))
        (self.folder / "results.json").write_text(json.dumps(evidence.results, indent=1))
        self.fleet.close()
        self._write_facts()
        keep_tables(self.ground.engine, self.folder / "tables.db")

    def _write_facts(self) -> None:
        facts = {"lease": LEASE, "settings": {}, "definitions": self.definitions}
        facts["clock"] = {"at": time.monotonic_ns(), "now": datetime.now(UTC).isoformat()}
        (self.folder / "run.json").write_text(json.dumps(facts, default=str))


TROUBLES: dict[str, Any] = {"kill": Stage.kill, "outage": Stage.outage, "read-only": Stage.read_only}


def fall_behind(app: Any, engine: Any) -> None:
    """Seed the entries of the schedule, and have them planned last a day ago."""
    scheduler, name = Scheduler(app), tables.definition.c.name
    count = select(func.count()).where(name.like("behind-%"))

    def is_seeded() -> bool:
        scheduler.work()
        with engine.connect() as connection:
            return int(connection.execute(count).scalar_one()) == len(app.conf.beat_schedule)

    wait_for(is_seeded, 60, "the entries of the schedule")
    scheduler.close()
    ago = datetime.now(UTC) - timedelta(days=1)
    with engine.begin() as connection:
        late = (
            update(tables.definition).where(name.like("behind-%")).values(planned_until=ago, next_run_at=ago, created_at=ago)
        )
        connection.execute(late)


@contextmanager
def noted_fault(folder: Path, line: dict[str, Any]) -> Iterator[None]:
    """Write that a fault began, and that it is healed, for the judge."""
    record.write(folder, record.FAULTS, {"what": "fault"} | line)
    try:
        yield
    finally:
        record.write(folder, record.FAULTS, {"what": "healed"} | line)


def wait_quietly(look: Callable[[], bool], seconds: float) -> bool:
    """Look again and again; say whether it came about in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if look():
            return True
        time.sleep(0.3)
    return False


def wait_for(look: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for something without which there is no stage."""
    if not wait_quietly(look, seconds):
        raise AssertionError(f"{what} did not come in {seconds} s")


def _lines(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a record; half a line, of a process that was killed, is left out."""
    found = []
    if file.exists():
        for line in file.read_text().splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
    return found


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
