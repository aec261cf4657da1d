"""From the instant a job is due until its body starts: a real beat and a real worker at a hundred jobs a second.

Beat and worker (prefork, two processes) are processes of their own, on Redis and PostgreSQL. The body's first act is to look
at the clock; what it notes is how far that is after the job's instant, on the same machine and so on the same clock as
database and caller. Jobs are deferred a second ahead, one every ten milliseconds, which the measured time includes as load;
or they have all been waiting before. Beside it, by turns and on the same worker, Celery's own `apply_async(eta=…)` at the
same rate, which waits in the worker's memory. All delays of all rounds are pooled.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import median
from uuid import uuid4

from celery import Celery

from celery_tm import defer, defer_many
from celery_tm.installation import Installation

from . import processes
from .figures import Figure, Size
from .harness import Say, Watch, interleave, memory, percentile
from .held import MOST
from .services import own_broker, own_database
from .worker_app import make_app

NODE, QUEUE = "latency@here", "latency"
EVERY = timedelta(milliseconds=10)
AHEAD = timedelta(seconds=1)
LONG_BEFORE = timedelta(seconds=4)
MEDIAN_AT_MOST, P99_AT_MOST = 25.0, 150.0  # ms


def run(*, size: Size, say: Say) -> list[Figure]:
    """Measure the delays, and what beat holds afterwards."""
    number = size.pick(full=1_000, quick=500, tiny=50)
    say(f"latency: {number:,} jobs in a round, one every {EVERY / timedelta(milliseconds=1):.0f} ms")
    with ExitStack() as stack:
        broker, url = stack.enter_context(own_broker()), stack.enter_context(own_database())
        conf = {**broker, "tm_database_url": url, "task_default_queue": QUEUE}
        app = make_app(conf)
        stack.callback(app.close)
        stack.callback(Installation.of(app).database.dispose)
        beat = stack.enter_context(
            processes.celery(conf, "beat", "-S", "celery_tm.Scheduler", "-l", "WARNING", "--pidfile=")
        )
        stack.enter_context(processes.worker(app, conf, name=NODE, queue=QUEUE))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ways = {"deferred": defer_live, "waiting": defer_before, "celery": send_with_eta}
        variants = [partial(_round, name, way, app, folder, number) for name, way in ways.items()]
        watch = interleave(variants, rounds=size.pick(full=5, quick=2, tiny=1), seconds=300, warm_up=1)
        held = memory(beat.pid)
    return [
        *_figures(watch, "deferred", "due → body starts, 100 jobs/s, deferred 1 s ahead"),
        *_figures(watch, "waiting", "due → body starts, 100 jobs/s, waiting before"),
        Figure(what="beat's memory after all these jobs", value=held, unit="MB", at_most=MOST),
    ]


@dataclass(frozen=True)
class Round:
    """Where the bodies of one round note their delays."""

    app: Celery
    folder: Path
    number: int

    def arguments(self, due: datetime) -> tuple[float, str]:
        """Return what a body needs to know."""
        return due.timestamp(), str(self.folder)

    def delays(self) -> list[float]:
        """Return what was noted."""
        return [float(line) for notes in self.folder.iterdir() for line in notes.read_text(encoding="ascii").splitlines()]


def _round(name: str, way: Callable[[Round], None], app: Celery, folder: Path, number: int, watch: Watch) -> None:
    noted = Round(app, folder / uuid4().hex, number)
    noted.folder.mkdir()
    way(noted)
    processes.wait_until(lambda: len(noted.delays()) >= number, every=0.2)
    for delay in noted.delays():
        watch.note(name, delay)


def defer_live(noted: Round) -> None:
    """Defer jobs a second ahead, at an even pace."""
    task = noted.app.tasks["gated stamp"]
    _at_an_even_pace(noted.number, lambda due: defer(task.s(*noted.arguments(due)), run_at=due))


def send_with_eta(noted: Round) -> None:
    """Send messages a second ahead, at an even pace."""
    task = noted.app.tasks["plain stamp"]
    with noted.app.producer_or_acquire() as producer:
        _at_an_even_pace(noted.number, lambda due: task.apply_async(noted.arguments(due), eta=due, producer=producer))


def _at_an_even_pace(number: int, make: Callable[[datetime], object]) -> None:
    first = datetime.now(UTC) + EVERY
    for turn in range(number):
        at = first + turn * EVERY
        time.sleep(max((at - datetime.now(UTC)).total_seconds(), 0))
        make(max(at, datetime.now(UTC)) + AHEAD)


def defer_before(noted: Round) -> None:
    """Defer all jobs before the first is due."""
    task = noted.app.tasks["gated stamp"]
    first = datetime.now(UTC) + LONG_BEFORE
    dues = [first + turn * EVERY for turn in range(noted.number)]
    defer_many([(task.s(*noted.arguments(due)), {"run_at": due}) for due in dues])
    if datetime.now(UTC) > first:
        raise RuntimeError(f"deferring {noted.number} jobs took longer than {LONG_BEFORE}")


def _figures(watch: Watch, lap: str, what: str) -> list[Figure]:
    told = "Celery's apply_async(eta=…)"
    ours, theirs = watch.laps[lap], watch.laps["celery"]
    return [
        Figure(
            what=f"{what}, median", value=median(ours) * 1e3, unit="ms", samples=len(ours),
            ratio=median(theirs) / median(ours), against=told, at_most=MEDIAN_AT_MOST,
        ),
        Figure(
            what=f"{what}, 99 %", value=percentile(ours, 99) * 1e3, unit="ms", samples=len(ours),
            ratio=percentile(theirs, 99) / percentile(ours, 99), against=told, at_most=P99_AT_MOST,
        ),
    ]  # fmt: skip
