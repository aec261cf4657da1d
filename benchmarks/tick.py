"""What a tick of beat costs: the same with a thousand definitions or a million, in bulk when many are due, fair when behind.

This module measures ticks that find nothing due, and beat's memory: both must not depend on how many definitions there are.
`tick_due` measures many due at once, `tick_backlog` one that is far behind among others that are on time.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from celery import Celery

from celery_tm import Scheduler
from celery_tm.installation import Installation
from celery_tm.store import definitions

from . import population, tick_backlog, tick_due
from .harness import Figure, Say, Watch, in_child, interleave, memory
from .services import own_app, own_database

SMALL = 1_000
MEMORY_BROKER = {"broker_url": "memory://"}
WARM_UP = 20  # ticks: beat's first ones seed, compile statements and check the tz database
MEASURED_IN_CHILD = 200
SPREAD = timedelta(days=1)


def run(*, quick: bool, say: Say) -> list[Figure]:
    """Return the figures of all three parts."""
    return [*idle(quick, say), *tick_due.run(quick=quick, say=say), *tick_backlog.run(quick=quick, say=say)]


def idle(quick: bool, say: Say) -> list[Figure]:
    """Measure ticks with many and few definitions, none of them due, and the memory of a beat on each."""
    large = 100_000 if quick else 1_000_000
    sizes = {"small": SMALL, "large": large}
    with ExitStack() as stack:
        urls = {name: stack.enter_context(own_database()) for name in sizes}
        apps = {name: stack.enter_context(own_app(MEMORY_BROKER, url)) for name, url in urls.items()}
        for name, size in sizes.items():
            say(f"tick: adding {size:,} definitions")
            fill(apps[name], size)
        say("tick: ticking with nothing due")
        watch = interleave(
            [partial(_tick, name, Scheduler(app)) for name, app in apps.items()],
            rounds=500 if quick else 2_000,
            seconds=20 if quick else 60,
            warm_up=WARM_UP,
        )
        scans = read_by(apps["large"])
        say("tick: beat's memory, in processes of their own")
        held = interleave([partial(_held, name, url) for name, url in urls.items()], rounds=1 if quick else 5, seconds=60)
    return [
        watch.figure(f"tick, {SMALL:,} definitions, none due", "small"),
        watch.figure(f"tick, {large:,} definitions, none due", "large", against="small", told=f"{SMALL:,} definitions"),
        Figure(
            what=f"whole-table scans of {large:,} in a tick and in locking due ones", value=scans.count("Seq Scan"), unit=""
        ),
        *_memory_figures(held, large),
    ]


def fill(app: Celery, count: int) -> None:
    """Add daily definitions in UTC, their next instants spread over the coming day."""
    now = datetime.now(UTC)
    first = now + timedelta(hours=1)
    population.add_many(
        app, count, name="idle", schedule="0 3 * * *", planned_until=now, next_run_at=first, apart=SPREAD / count
    )
    population.settle(app)


def _tick(name: str, beat: Scheduler, watch: Watch) -> None:
    with watch.lap(name):
        beat.work()


def read_by(app: Celery) -> list[str]:
    """Return how PostgreSQL reads the definitions in a tick, and when it locks those that are due."""
    engine, beat = population.engine_of(app), Scheduler(app)
    for _ in range(WARM_UP):
        beat.work()
    with population.listening(engine) as said:
        beat.work()
        Installation.of(app).database.run(partial(definitions.lock_due, limit=500))
    return population.scans(engine, said)


def _held(name: str, url: str, watch: Watch) -> None:
    before, after = in_child(held_by_beat, url)
    watch.note(name, after)
    watch.note(f"{name} growth", after - before)


def held_by_beat(url: str) -> tuple[float, float]:
    """Return the MB a beat holds after its first ticks, and after many more."""
    with own_app(MEMORY_BROKER, url) as app:
        beat = Scheduler(app)
        for _ in range(WARM_UP):
            beat.work()
        before = memory()
        for _ in range(MEASURED_IN_CHILD):
            beat.work()
        return before, memory()


def _memory_figures(held: Watch, large: int) -> list[Figure]:
    mb: dict[str, Any] = {"unit": "MB", "scale": 1}
    return [
        held.figure(f"beat's memory, {SMALL:,} definitions", "small", **mb),
        held.figure(f"beat's memory, {large:,} definitions", "large", against="small", told=f"{SMALL:,} definitions", **mb),
        held.figure(f"  its growth over {MEASURED_IN_CHILD} ticks, {large:,} definitions", "large growth", **mb),
    ]
