"""What a tick that finds nothing due costs other schedulers for Celery, with as many entries.

Celery's own keeps its entries in memory, sqlalchemy-celery-beat in a database, RedBeat in Redis; each gets entries that are
due in a year and its own documented settings. Making the entries and each scheduler's first ticks, in which it reads them
and makes its heap, are left out. Ours ticks by turns with them on as many definitions.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any

from celery.beat import ScheduleEntry
from celery.beat import Scheduler as CeleryScheduler
from celery.schedules import schedule
from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from sqlalchemy_celery_beat import models
from sqlalchemy_celery_beat.schedulers import DatabaseScheduler

from celery_tm import Scheduler

from . import held, population
from .figures import Figure, Size
from .harness import Say, Watch, interleave
from .services import PREFIX, TASK, own_app, own_broker, own_database, plain_app

YEAR = timedelta(days=365)


def run(*, size: Size, say: Say) -> list[Figure]:
    """Let all tick by turns."""
    count = size.pick(full=10_000, quick=2_000, tiny=50)
    say(f"tick: other schedulers with {count:,} entries")
    logging.getLogger("celery.beat").setLevel(logging.ERROR)
    with ExitStack() as stack:
        broker = stack.enter_context(own_broker())
        beats = {
            "ours": ours(stack, broker, count),
            "celery": celerys(broker, count),
            "sqlalchemy": in_a_database(broker, stack.enter_context(own_database(tables=False)), count),
            "redbeat": in_redis(broker, count),
        }
        variants = [partial(_tick, name, beat) for name, beat in beats.items()]
        watch = interleave(variants, rounds=size.pick(full=100, quick=30, tiny=2), seconds=60, warm_up=3)
    told = {"celery": "Celery's scheduler", "sqlalchemy": "sqlalchemy-celery-beat", "redbeat": "RedBeat"}
    what = f"tick, {count:,} definitions, none due"
    return [watch.figure(what, "ours", against=name, told=f"{title}, as many") for name, title in told.items()]


def _tick(name: str, beat: Any, watch: Watch) -> None:
    tick = beat.work if isinstance(beat, Scheduler) else beat.tick
    with watch.lap(name):
        tick()


def ours(stack: ExitStack, broker: dict[str, Any], count: int) -> Scheduler:
    """Return our scheduler with its definitions."""
    app = stack.enter_context(own_app(broker, stack.enter_context(own_database())))
    now = app.now()
    population.add_many(app, count, name="later", schedule="0 3 1 1 *", planned_until=now, next_run_at=now + YEAR)
    population.settle(app)
    beat = Scheduler(app)
    for _ in range(held.FIRST_TICKS):
        beat.work()
    return beat


def celerys(broker: dict[str, Any], count: int) -> CeleryScheduler:
    """Return Celery's scheduler with its entries."""
    app = plain_app(broker)
    entries = {
        name: ScheduleEntry(name=name, task=TASK, schedule=schedule(YEAR, app=app), last_run_at=app.now(), app=app)
        for name in _names(count)
    }
    return CeleryScheduler(app, schedule=entries, lazy=True)


def in_a_database(broker: dict[str, Any], url: str, count: int) -> DatabaseScheduler:
    """Return sqlalchemy-celery-beat's scheduler with its entries."""
    app = plain_app(broker)
    app.conf.update(beat_dburi=url)
    beat = DatabaseScheduler(app=app, lazy=True)
    with beat.Session() as session:
        yearly = models.IntervalSchedule(every=YEAR.days, period=models.Period.DAYS)
        session.add(yearly)
        session.flush()
        for name in _names(count):
            session.add(models.PeriodicTask(name=name, task=TASK, schedule_model=yearly, last_run_at=app.now()))
        session.commit()
    return beat


def in_redis(broker: dict[str, Any], count: int) -> RedBeatScheduler:
    """Return RedBeat's scheduler with its entries; nobody else beats, so it needs no lock."""
    app = plain_app(broker)
    prefix = broker["broker_transport_options"]["global_keyprefix"]
    app.conf.update(redbeat_redis_url=broker["broker_url"], redbeat_key_prefix=prefix, redbeat_lock_key=None)
    for name in _names(count):
        RedBeatSchedulerEntry(name, TASK, schedule(YEAR, app=app), app=app).save()
    return RedBeatScheduler(app, lazy=True)


def _names(count: int) -> list[str]:
    return [f"{PREFIX}{number}" for number in range(count)]
