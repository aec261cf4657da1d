"""A worker empties a backlog of empty jobs: plain Celery messages, gated jobs, and jobs in chunks, by turns.

One worker (prefork, two processes, Redis, PostgreSQL), one queue per kind. Each round fills a queue while nobody reads it:
plain Celery with its own messages, ours by a beat's dispatcher, so that what is timed is the worker alone. Then the worker
is told to read it, and the clock stops when the last job is done: for plain Celery when the worker has counted it, for ours
when its record is committed. What is left out: the time to publish, which `chunked, with dispatch` shows beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery
from sqlalchemy import func, select, text

from celery_tm import TimeManagement, defer_many
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import tables

from .harness import Figure, Say, Watch, interleave
from .services import own_broker, own_database
from .worker_app import TASKS, make_app

ROOT = Path(__file__).parent.parent
PATIENCE = 120.0
LOOK_EVERY = 0.02
NODE = "bench@here"


def run(*, size: Size, say: Say) -> list[Figure]:
    """Measure how long a worker takes for one job of each kind."""
    number = 1_000 if quick else 4_000
    say(f"worker: backlogs of {number:,} empty jobs, prefork with two processes")
    with ExitStack() as stack:
        broker, url = stack.enter_context(own_broker()), stack.enter_context(own_database())
        if broker["broker_url"] == "memory://":
            raise SystemExit("this benchmark needs Redis: a broker in memory has no other processes")
        app = make_app({**broker, "tm_database_url": url, "worker_prefetch_multiplier": 64})
        crew = stack.enter_context(_worker(app, {**broker, "tm_database_url": url, "worker_prefetch_multiplier": 64}))
        variants = [partial(_drain, crew, kind, number) for kind in TASKS]
        variants.append(partial(_drain_with_dispatch, crew, number))
        watch = interleave(variants, rounds=3 if quick else 7, seconds=60 if quick else 300, warm_up=1)
    told = "plain Celery"
    return [
        watch.figure("worker, empty task, plain Celery", "plain", unit="ms"),
        watch.figure("worker, empty task, gated", "gated", against="plain", told=told),
        watch.figure("worker, empty task, transactional", "transactional", against="plain", told=told),
        watch.figure("worker, empty task, chunk=100", "chunked", against="plain", told=told),
        watch.figure("worker, empty task, chunk=100, with dispatch", "dispatched", against="plain", told=told),
    ]


class Crew:
    """One worker, and the queues it reads when it is told to."""

    def __init__(self, app: Celery) -> None:
        self.app, self.tm = app, TimeManagement(app)
        self._sent = 0

    def fill(self, kind: str, number: int) -> None:
        """Put a backlog into the queue of a kind, while nobody reads it."""
        task = self.app.tasks[kind]
        if kind == "plain":
            with self.app.producer_or_acquire() as producer:
                for _ in range(number):
                    task.apply_async(queue=kind, producer=producer)
            self._sent += number
            return
        self.owe(kind, number)
        self.dispatch()

    def owe(self, kind: str, number: int) -> None:
        """Put a backlog into the table."""
        with self.tm.installation.database.transaction() as tx:
            tx.execute(tables.execution.delete())
        signature = self.app.tasks[kind].s().set(queue=kind)
        for start in range(0, number, 1000):
            defer_many([(signature, {"delay": 0.001}) for _ in range(min(1000, number - start))])
        time.sleep(0.01)

    def dispatch(self) -> None:
        """Publish all that is due, as beat does."""
        dispatcher = Dispatcher(self.tm.installation, "bench")
        while dispatcher.dispatch_due().claimed:
            pass

    def read(self, kind: str) -> None:
        """Let the worker read a queue."""
        self.app.control.add_consumer(kind, reply=True, timeout=10, destination=[NODE])

    def stop_reading(self, kind: str) -> None:
        """Let the worker leave a queue alone."""
        self.app.control.cancel_consumer(kind, reply=True, timeout=10, destination=[NODE])

    def is_done(self, kind: str, number: int) -> bool:
        """Say whether the whole backlog has run."""
        if kind == "plain":
            stats = self.app.control.inspect(destination=[NODE], timeout=5).stats() or {}
            return sum(one["total"].get("plain", 0) for one in stats.values()) >= self._sent
        with self.tm.installation.database.transaction(write=False) as tx:
            done = tx.execute(select(func.count()).select_from(tables.execution)).scalar_one()
        return int(done) >= number


def _drain(crew: Crew, kind: str, number: int, watch: Watch) -> None:
    crew.fill(kind, number)
    with watch.lap(kind, units=number):
        crew.read(kind)
        _wait(partial(crew.is_done, kind, number))
    crew.stop_reading(kind)


def _drain_with_dispatch(crew: Crew, number: int, watch: Watch) -> None:
    crew.owe("chunked", number)
    crew.read("chunked")
    with watch.lap("dispatched", units=number):
        crew.dispatch()
        _wait(partial(crew.is_done, "chunked", number))
    crew.stop_reading("chunked")


def _wait(look: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not look():
        if time.monotonic() > until:
            raise TimeoutError(f"the backlog was not empty after {PATIENCE} s")
        time.sleep(LOOK_EVERY)


@contextmanager
def _worker(app: Celery, conf: dict[str, Any]) -> Iterator[Crew]:
    """Start a worker that reads nothing yet, and end it however the block ends."""
    env = os.environ | {"TM_BENCH_CONF": json.dumps(conf), "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "celery", "-A", "benchmarks.worker_app", "worker", "-l", "WARNING", "-c", "2",
            "-Q", "nothing", "-n", NODE, "--without-gossip", "--without-mingle", "--without-heartbeat"]  # fmt: skip
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(argv, env=env, cwd=ROOT, stdout=log, stderr=log)
        crew = Crew(app)
        try:
            _wait(lambda: bool(app.control.inspect(destination=[NODE], timeout=1).ping()))
            with crew.tm.installation.database.transaction() as tx:
                tx.execute(text("SELECT 1"))
            yield crew
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            crew.tm.installation.database.dispose()
            app.close()
