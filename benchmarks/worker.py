"""A worker empties a backlog of empty jobs: gated, transactional and in chunks, against plain Celery and the peers' workers.

One Celery worker (prefork, two processes, Redis, PostgreSQL), and a worker process of PgQueuer and of Procrastinate. Each
stands still (SIGSTOP) while others have their turn and while its backlog is made: plain Celery's and direct calls
(`.delay()`) by messages, our jobs by a beat's dispatcher, the peers' by their batch call. So what is timed is the worker
alone, from the moment it goes on until the last job is done: for plain Celery when the worker has counted it, for ours when
its record is committed, for the peers when their table says so.

Nobody is asked while messages wait: the length of the broker's list is looked at ten times a second on all Celery's sides,
and only for what was fetched last, worker or table are asked, as often. What is left out: the time to publish, which `with
dispatch` adds for chunks. How many jobs a backlog has follows from the warm-up, so that rounds take as long for all.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis
from celery import Celery
from sqlalchemy import func, select

from celery_tm.installation import Installation
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import tables

from . import population, processes
from .figures import Figure, Size
from .harness import Say, Watch, interleave
from .peers import AT_ONCE, PgQueuer, Procrastinate
from .services import own_broker, own_database
from .worker_app import TASKS, make_app

NODE, QUEUE = "bench@here", "bench"
LOOK_EVERY = 0.1
PREFETCH = 64
FIRST_BACKLOG = 200
LARGEST_BACKLOG = 50_000

Process = subprocess.Popen[bytes]


def run(*, size: Size, say: Say) -> list[Figure]:
    """Measure how long the workers take for one job of each kind."""
    seconds = size.pick(full=3.5, quick=1.0, tiny=0.1)
    say(f"worker: backlogs of empty jobs, about {seconds} s each, by turns")
    with ExitStack() as stack:
        sides = [*_celery_sides(stack), *_peer_sides(stack)]
        for side in sides:
            side.stand_still()
        variants = [partial(_drain, side, seconds) for side in sides]
        rounds = size.pick(full=5, quick=3, tiny=1)
        watch = interleave(variants, rounds=rounds, seconds=600, warm_up=size.pick(full=2, quick=2, tiny=0))
    return _figures(watch)


def _drain(side: Side, seconds: float, watch: Watch) -> None:
    side.fill()
    started = time.perf_counter()
    side.go_on()
    side.wait()
    each = (time.perf_counter() - started) / side.number
    side.stand_still()
    watch.note(side.name, each)
    if not watch.running:
        side.number = min(max(int(seconds / each), FIRST_BACKLOG), LARGEST_BACKLOG)


class Side:
    """A kind of job and the workers that run it, which stand still but for their turn. `number` jobs are a backlog."""

    def __init__(self, name: str, *workers: Process) -> None:
        self.name, self.workers = name, workers
        self.number = FIRST_BACKLOG

    def fill(self) -> None:
        """Have a backlog."""
        raise NotImplementedError

    def is_done(self) -> bool:
        """Say whether all of it has run."""
        raise NotImplementedError

    def wait(self) -> None:
        """Return when all of it has run."""
        processes.wait_until(self.is_done, *self.workers, every=LOOK_EVERY)

    def go_on(self) -> None:
        """Let the workers work."""
        for worker in self.workers:
            worker.send_signal(signal.SIGCONT)

    def stand_still(self) -> None:
        """Let the workers do nothing."""
        for worker in self.workers:
            worker.send_signal(signal.SIGSTOP)


@dataclass(frozen=True)
class Stand:
    """The Celery worker, and how to see what waits for it."""

    app: Celery
    worker: Process
    broker: redis.Redis
    prefix: str

    def waiting(self) -> int:
        """Return how many messages wait in the queue."""
        return int(self.broker.llen(f"{self.prefix}{QUEUE}"))  # type: ignore[arg-type]


class OnCelery(Side):
    """A task that the one Celery worker runs."""

    def __init__(self, name: str, task: str, stand: Stand) -> None:
        super().__init__(name, stand.worker)
        self.task, self.stand, self.app = task, stand, stand.app

    def wait(self) -> None:
        processes.wait_until(lambda: not self.stand.waiting(), *self.workers, every=LOOK_EVERY)
        super().wait()

    def send(self) -> None:
        """Send messages as Celery does."""
        with self.app.producer_or_acquire() as producer:
            for _ in range(self.number):
                self.app.tasks[self.task].apply_async(producer=producer)


class Plain(OnCelery):
    """Messages of plain Celery."""

    sent = 0

    def fill(self) -> None:
        self.send()
        self.sent += self.number

    def is_done(self) -> bool:
        stats = self.app.control.inspect(destination=[NODE], timeout=5).stats() or {}
        return sum(one["total"].get(self.task, 0) for one in stats.values()) >= self.sent


class Recorded(OnCelery):
    """Tasks of ours, which leave a record each."""

    def is_done(self) -> bool:
        with Installation.of(self.app).database.transaction(write=False) as tx:
            return tx.execute(select(func.count()).select_from(tables.execution)).scalar_one() >= self.number


class Direct(Recorded):
    """Tasks of ours, called as plain ones are."""

    def fill(self) -> None:
        population.empty(self.app)
        self.send()


class Jobs(Recorded):
    """Jobs that a beat has dispatched."""

    def fill(self) -> None:
        self.owe()
        self.dispatch()

    def owe(self) -> None:
        """Have due jobs in the table, and no records."""
        population.empty(self.app)
        population.add_jobs(self.app, self.number, self.app.tasks[self.task].s(), delay=population.LONG_AGO)
        population.analyze(self.app, "tm_job")

    def dispatch(self) -> None:
        """Publish all that is due, as beat does."""
        dispatcher = Dispatcher(Installation.of(self.app), "bench")
        while dispatcher.dispatch_due().claimed:
            pass


class JobsWithDispatch(Jobs):
    """Jobs that are dispatched while the worker works."""

    def fill(self) -> None:
        self.owe()

    def go_on(self) -> None:
        super().go_on()
        self.dispatch()


class Peer(Side):
    """Jobs of a peer."""

    def __init__(self, name: str, queue: PgQueuer | Procrastinate, *workers: Process) -> None:
        super().__init__(name, *workers)
        self.queue = queue

    def fill(self) -> None:
        self.queue.forget()
        self.queue.defer_many(self.number, delay=AT_ONCE)

    def is_done(self) -> bool:
        return self.queue.is_done()


def _celery_sides(stack: ExitStack) -> list[Side]:
    broker, url = stack.enter_context(own_broker()), stack.enter_context(own_database())
    conf = {**broker, "tm_database_url": url, "task_default_queue": QUEUE, "worker_prefetch_multiplier": PREFETCH}
    app = make_app(conf)  # without the result backend, to which a producer would listen
    stack.callback(app.close)
    stack.callback(Installation.of(app).database.dispose)
    worker = stack.enter_context(processes.worker(app, conf | _kept_results(broker), name=NODE, queue=QUEUE))
    lists = stack.enter_context(closing(redis.Redis.from_url(broker["broker_url"])))
    stand = Stand(app, worker, lists, broker["broker_transport_options"]["global_keyprefix"])
    return [
        *((Plain if name.startswith("plain") else Jobs)(name, name, stand) for name in TASKS),
        Direct("called directly", "gated", stand),
        JobsWithDispatch("chunked, with dispatch", "chunked", stand),
    ]


def _kept_results(broker: Mapping[str, Any]) -> dict[str, Any]:
    options = broker["broker_transport_options"]
    return {"result_backend": broker["broker_url"], "result_backend_transport_options": options}


def _peer_sides(stack: ExitStack) -> Sequence[Side]:
    sides = []
    for name, peer, count in (("pgqueuer", PgQueuer, 1), ("pgqueuer", PgQueuer, 2), ("procrastinate", Procrastinate, 1)):
        url = stack.enter_context(own_database(tables=False))
        queue = stack.enter_context(closing(peer(url)))
        command = ("-m", "benchmarks.peer_worker", name, url)
        workers = [stack.enter_context(processes.python(*command)) for _ in range(count)]
        queue.defer_many(1, delay=AT_ONCE)
        processes.wait_until(queue.is_done, *workers, every=LOOK_EVERY)
        sides.append(Peer(f"{name} {count}", queue, *workers))
    return sides


def _figures(watch: Watch) -> list[Figure]:
    plain, kept = "plain Celery", "plain Celery, result kept"

    def figure(what: str, lap: str, against: str, told: str, at_least: float | None = None) -> Figure:
        each: dict[str, Any] = {"unit": "µs each", "scale": 1e6}
        return watch.figure(f"worker, {what}", lap, against=against, told=told, at_least=at_least, **each)

    return [
        figure("empty gated task", "gated", "plain", plain, 0.8),
        figure("empty gated task, result kept", "gated, result kept", "plain, result kept", kept),
        figure("empty gated task, called with .delay()", "called directly", "plain", plain),
        figure("empty gated task", "gated", "procrastinate 1", "Procrastinate's worker"),
        figure("transactional=True", "transactional", "plain", plain, 0.7),
        figure("chunk=100", "chunked", "plain", plain, 5.0),
        figure("chunk=100", "chunked", "pgqueuer 1", "PgQueuer's worker", 1.0),
        figure("chunk=100", "chunked", "pgqueuer 2", "two of PgQueuer's workers"),
        figure("chunk=100, with dispatch", "chunked, with dispatch", "plain", plain),
        figure("chunk=100, with dispatch", "chunked, with dispatch", "pgqueuer 1", "PgQueuer's worker"),
    ]
