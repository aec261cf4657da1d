"""The load of a run: asks for work of every kind, at a steady pace, and writes what it asked and what was answered.

Each try is an ask of its own: an error leaves open whether it was committed, and says so. `python -m faults.load` is one
process with several threads; SIGTERM lets it finish what it is at.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session
from storm.chaos import Combined

from celery_tm import TimeManagement, cancel, defer, defer_many
from celery_tm.store import tables
from faults import record
from faults.app import FOLDER, app_of_environment

RATE, SEED, LIMIT, LEASE = "TM_CHAOS_RATE", "TM_CHAOS_LOAD_SEED", "TM_CHAOS_LIMIT", "TM_CHAOS_LEASE"
PATIENCE = 0.3  # seconds after an error before the next ask


@dataclass(frozen=True)
class Ask:
    """One thing that is asked for."""

    kind: str
    key: str | None = None
    delay: float = 0.0
    entity: str | None = None
    arguments: tuple[Any, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()


class Driver:
    """One thread of the load."""

    numbers = count(1)

    def __init__(self, app: Any, name: str, seed: str) -> None:
        self.app, self.name, self.chance = app, name, random.Random(seed)
        self.folder = os.environ[FOLDER]
        self.engine = TimeManagement(app).installation.database.engine
        self.tm = TimeManagement(app)
        self.recent: deque[str] = deque(maxlen=30)
        self.combined = Combined(app, self.tm, self.engine, self.folder, name, self.chance)

    def steps(self) -> Sequence[tuple[float, int, Callable[[], None]]]:
        """Return what it does: with which weight, how many jobs that makes, and how."""
        return (
            (9, 40, partial(self.many, "chunked", 40)),
            (16, 15, partial(self.many, "plain", 15)),
            (10, 1, lambda: self.one(Ask("plain", delay=self.chance.choice([0, 0, 0.5, 2])))),
            (14, 1, self.keyed),
            (12, 1, lambda: self.one(Ask("transactional", delay=self.chance.choice([0, 0.3])))),
            (6, 1, lambda: self.one(Ask("flaky", arguments=(self.chance.randint(1, 3),)))),
            (3, 1, lambda: self.one(Ask("doomed"))),
            (3, 1, lambda: self.one(Ask("slow", arguments=(float(os.environ[LEASE]) * 1.3,)))),
            (8, 1, self.direct),
            (10, 1, self.in_transaction),
            (3, 5, self.workflow),
            (6, 4, self.combined),
        )

    def step(self) -> int:
        """Ask for something, and return for how many jobs."""
        steps = self.steps()
        _, jobs, do = self.chance.choices(steps, weights=[weight for weight, _, _ in steps])[0]
        do()
        return jobs

    def one(self, ask: Ask) -> Any:
        """Ask for one job."""
        return self._written([ask], lambda labels: [self._defer(ask, labels[0])])

    def many(self, kind: str, size: int) -> None:
        """Ask for many jobs in one statement."""
        asks = [Ask(kind)] * size
        self._written(asks, lambda labels: defer_many([self.app.tasks[kind].s(label) for label in labels], app=self.app))

    def keyed(self) -> None:
        """Ask with a key that others may use too, some of the time in place of what waits; sometimes take it back."""
        if not self.recent or self.chance.random() < 0.4:
            self.recent.append(f"{self.name}-{next(self.numbers)}")
        key, delay = self.chance.choice(self.recent), self.chance.choice([0.0, 0.5, 1.5])
        replaces = self.chance.random() < 0.2
        options = (("on_duplicate", "replace"),) if replaces else ()
        handle = self.one(Ask("keyed", key=key, delay=delay, options=options))
        if handle is not None and delay and self.chance.random() < 0.25:
            self._cancel(handle)

    def direct(self) -> None:
        """Call a task as in plain Celery."""
        self._written([Ask("direct")], lambda labels: [self.app.tasks["direct"].delay(labels[0])])

    def workflow(self) -> None:
        """Let a definition with steps run now."""
        name = self.chance.choice(["in-order", "at-once"])
        self._written([Ask("workflow", entity=name)], lambda _: [self.tm.trigger(name)])

    def in_transaction(self) -> None:
        """Write an order and defer its job in one transaction; some roll back."""
        ask, commits = Ask("in caller's transaction", delay=self.chance.choice([0, 0.5])), self.chance.random() < 0.8

        def work(labels: Sequence[str]) -> list[Any]:
            with Session(self.engine) as session:
                handle = defer(self.app.tasks["ordered"].s(labels[0]), delay=ask.delay, session=session, app=self.app)
                values = {"ask": labels[0], "job": handle.id}
                session.execute(text("INSERT INTO chaos_order VALUES (:ask, :job)"), values)
                if commits:
                    session.commit()
                else:
                    session.rollback()
            return [handle]

        self._written([ask], work, commits=commits)

    def _defer(self, ask: Ask, label: str) -> Any:
        signature = self.app.tasks[ask.kind].s(label, *ask.arguments)
        return defer(signature, delay=ask.delay, key=ask.key, entity_id=ask.entity, app=self.app, **dict(ask.options))

    def _written(self, asks: Sequence[Ask], work: Callable[[Sequence[str]], Sequence[Any]], *, commits: bool = True) -> Any:
        """Write what is asked, ask, and write what was answered; return the last answer, or None after an error."""
        labels = [f"{self.name}.{next(self.numbers)}" for _ in asks]
        self._write(*(_asks(ask, label, commits) for ask, label in zip(asks, labels, strict=True)))
        try:
            answers = work(labels)
        except Exception as error:
            self._write(*({"what": "unknown", "ask": label, "error": _said(error)} for label in labels))
            time.sleep(PATIENCE)
            return None
        pairs = zip(labels, answers, strict=True)
        self._write(*(_answered(label, a) if commits else _rolled_back(label, a) for label, a in pairs))
        return answers[-1]

    def _cancel(self, handle: Any) -> None:
        told = {"ask": f"{self.name}.{next(self.numbers)}", "job": handle.id}
        self._write({"what": "cancels"} | told)
        try:
            answer = cancel(id=handle.id, app=self.app)
        except Exception as error:
            self._write({"what": "cancel unknown", "error": _said(error)} | told)
            return
        self._write({"what": "cancelled", "answer": int(answer)} | told)

    def _write(self, *lines: dict[str, Any]) -> None:
        record.write(self.folder, record.ASKED, *lines)


def _asks(ask: Ask, label: str, commits: bool) -> dict[str, Any]:
    told = {"kind": ask.kind, "key": ask.key, "entity": ask.entity, "delay": ask.delay, "label": label, "commits": commits}
    return {"what": "asks", "ask": label} | told


def _answered(label: str, answer: Any) -> dict[str, Any]:
    run_at = getattr(answer, "run_at", None) or getattr(answer, "scheduled_at", None)
    told = {"job": answer.id, "created": getattr(answer, "created", True), "run_at": run_at and run_at.isoformat()}
    return {"what": "answered", "ask": label} | told


def _rolled_back(label: str, answer: Any) -> dict[str, Any]:
    return {"what": "rolled back", "ask": label, "job": answer.id}


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"


class Pace:
    """How fast it goes: so many jobs a second over all threads, and none while more than the limit are owed."""

    def __init__(self, engine: Any, rate: float, limit: int) -> None:
        self._engine, self._rate, self._limit = engine, rate, limit
        self._lock, self._next = threading.Lock(), time.monotonic()
        self.is_full = False

    def wait(self, jobs: int) -> None:
        """Wait until it is time for so many more jobs; what was missed is not made up for at once."""
        with self._lock:
            begins = max(self._next, time.monotonic() - 1)
            self._next = begins + jobs / self._rate
        time.sleep(max(begins - time.monotonic(), 0))

    def watch(self, over: threading.Event) -> None:
        """Look again and again how much is owed."""
        from sqlalchemy import func, select

        while not over.wait(0.5):
            with suppress(Exception), self._engine.connect() as connection:
                owed = connection.execute(select(func.count()).select_from(tables.job)).scalar_one()
                self.is_full = owed > self._limit


def main() -> None:
    """Be one process of the load."""
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    app = app_of_environment()
    name = f"{sys.argv[1]}-{os.getpid()}"
    pace = Pace(TimeManagement(app).installation.database.engine, float(os.environ[RATE]), int(os.environ[LIMIT]))
    threading.Thread(target=pace.watch, args=(over,), daemon=True).start()

    def go(driver: Driver) -> None:
        jobs = 1
        while not over.is_set():
            pace.wait(jobs)
            jobs = 1
            if pace.is_full:
                over.wait(0.2)
            else:
                jobs = driver.step()

    drivers = [Driver(app, f"{name}-{n}", f"{os.environ[SEED]}-{sys.argv[1]}-{n}") for n in range(int(sys.argv[2]))]
    threads = [threading.Thread(target=go, args=(driver,), daemon=True) for driver in drivers]
    for thread in threads:
        thread.start()
    over.wait()
    for thread in threads:
        thread.join(20)


if __name__ == "__main__":
    main()
