"""What a tick of beat costs: the same with a thousand definitions or a million, in bulk when many are due, fair when behind.

This module measures ticks that find nothing due, and beat's memory: both must not depend on how many definitions there are.
`tick_due` measures many due at once, `tick_backlog` one that is far behind among others that are on time, `tick_peers` what
the ticks of other schedulers cost.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial

from celery import Celery

from celery_tm import Scheduler
from celery_tm.installation import Installation
from celery_tm.store import definitions

from . import held, population, tick_backlog, tick_due, tick_peers
from .figures import Figure, Size
from .harness import Say, Watch, interleave
from .services import own_app, own_database

SMALL = 1_000
SPREAD = timedelta(days=1)


def run(*, size: Size, say: Say) -> list[Figure]:
    """Return the figures of all parts."""
    parts = (tick_peers.run, tick_due.run, tick_backlog.run)
    return [*idle(size, say), *(figure for part in parts for figure in part(size=size, say=say))]


def idle(size: Size, say: Say) -> list[Figure]:
    """Measure ticks with many and few definitions, none of them due, and the memory of a beat on each."""
    large = size.pick(full=1_000_000, quick=100_000, tiny=2_000)
    sizes = {"small": SMALL, "large": large}
    with ExitStack() as stack:
        urls = {name: stack.enter_context(own_database()) for name in sizes}
        apps = {name: stack.enter_context(own_app(held.MEMORY_BROKER, url)) for name, url in urls.items()}
        for name, number in sizes.items():
            say(f"tick: adding {number:,} definitions")
            fill(apps[name], number)
        say("tick: ticking with nothing due")
        watch = interleave(
            [partial(_tick, name, Scheduler(app)) for name, app in apps.items()],
            rounds=size.pick(full=2_000, quick=500, tiny=10),
            seconds=60,
            warm_up=held.FIRST_TICKS,
        )
        scans = read_by(apps["large"])
        say("tick: beat's memory, in processes of their own")
        figures = held.figures(urls, sizes, "definitions", rounds=size.pick(full=5, quick=3, tiny=1))
    what = f"tick, {large:,} definitions, none due"
    return [
        watch.figure(what, "large", against="small", told=f"{SMALL:,} definitions", at_least=0.5),
        watch.figure(what, "large", at_most=5.0),
        Figure(what=f"{what}: whole-table scans", value=scans.count("Seq Scan"), unit="", at_most=0),
        *figures,
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
    for _ in range(held.FIRST_TICKS):
        beat.work()
    with population.listening(engine) as said:
        beat.work()
        Installation.of(app).database.run(partial(definitions.lock_due, limit=500))
    return population.scans(engine, said)
