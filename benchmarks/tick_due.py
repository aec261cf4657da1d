"""Many definitions due at the same second: planned and dispatched in bulk, each at the same cost however many there are.

Compared with a tenth of them, with publishing alone (the floor: what Celery's own `apply_async` costs), and with Celery's
scheduler. That one sends one entry per tick and looks at all its entries in each, so with many it is measured over the first
of them only; its cost per entry hardly changes from there on. Beat lives at three o'clock, when they are all due, and has
read their schedules the day before, as far as it remembers so many. An instant that is planned later than `GRACE` after its
time counts as missed: how many that are is shown, since a policy of "skip" would drop them.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from celery import Celery
from celery.beat import ScheduleEntry
from celery.beat import Scheduler as CeleryScheduler
from celery.schedules import crontab
from sqlalchemy import text

from celery_tm import TimeManagement, clock
from celery_tm.installation import Installation
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.scheduler.planner import Planner

from . import population
from .figures import Figure, Size
from .harness import Say, Watch, interleave
from .population import Said
from .services import TASK, empty_queue, own_app, own_broker, own_database, plain_app

PUBLISHED = 1_000
WARM_UP = 100
DAY = timedelta(days=1)


def run(*, size: Size, say: Say) -> list[Figure]:
    """Measure planning and dispatching of many and few due definitions, and Celery's own scheduler beside it."""
    many = size.pick(full=10_000, quick=5_000, tiny=100)
    few = many // 10
    say(f"tick: {many:,} definitions due at the same second")
    said: dict[str, Said] = {}
    with ExitStack() as stack:
        broker = stack.enter_context(own_broker())
        app = stack.enter_context(own_app(broker, stack.enter_context(own_database())))
        peer = plain_app(broker)
        drain(app, WARM_UP, {}, Watch())
        variants = [
            partial(drain, app, few, said),
            partial(drain, app, many, said),
            partial(publish_alone, peer),
            partial(drain_by_celery, peer, few, size.pick(full=100, quick=100, tiny=5)),
            partial(drain_by_celery, peer, many, size.pick(full=100, quick=20, tiny=5)),
        ]
        watch = interleave(variants, rounds=size.pick(full=5, quick=2, tiny=1), seconds=180)
    return [
        *_costs(watch, many, few),
        *_counts(said, many),
        watch.figure(f"{many:,} due: share taken for missed", f"late {many}", unit="", scale=1),
    ]


def drain(app: Celery, count: int, said: dict[str, Said], watch: Watch) -> None:
    """Plan and dispatch `count` definitions that are due at the same second."""
    due = datetime.now(UTC).replace(hour=3, minute=0, second=0, microsecond=0) + DAY
    make_due(app, count, due)
    try:
        clock.move_by(due - datetime.now(UTC))
        _drain(app, count, said, watch)
    finally:
        clock.move_by(timedelta(0))
        empty_queue(app)


def _drain(app: Celery, count: int, said: dict[str, Said], watch: Watch) -> None:
    installation = Installation.of(app)
    planner, dispatcher = Planner(installation), Dispatcher(installation, "bench")
    plan, dispatch, engine = f"plan {count}", f"dispatch {count}", population.engine_of(app)
    with population.listening(engine) as said[plan], watch.lap(plan, units=count):
        planned = _rounds(lambda: planner.plan_due().definitions)
    with population.listening(engine) as said[dispatch], watch.lap(dispatch, units=count):
        sent = _rounds(lambda: dispatcher.dispatch_due().sent)
    watch.note_sum(f"both {count}", plan, dispatch)
    watch.note(f"late {count}", _count_late(app) / count)
    if not planned == sent == count:
        raise RuntimeError(f"of {count} definitions {planned} were planned and {sent} jobs sent")


def make_due(app: Celery, count: int, due: datetime) -> None:
    """Have `count` daily definitions that are due at three, their schedules read before, and nothing else."""
    population.empty(app)
    population.add_many(app, count, name="due", schedule="0 3 * * *", planned_until=due - DAY, next_run_at=due)
    population.settle(app)
    for definition in TimeManagement(app).definitions.list():
        definition.rule.next_after(due)


def _count_late(app: Celery) -> int:
    with population.engine_of(app).connect() as connection:
        return connection.execute(text("SELECT count(*) FROM tm_occurrence WHERE is_recovery")).scalar_one()


def _rounds(work: Any) -> int:
    """Repeat `work` until it finds nothing to do, and return how much it did."""
    total = 0
    while done := work():
        total += done
    return total


def publish_alone(app: Celery, watch: Watch) -> None:
    """Send messages without any scheduler."""
    task = app.tasks[TASK]
    with app.producer_or_acquire() as producer, watch.lap("publish", units=PUBLISHED):
        for _ in range(PUBLISHED):
            task.apply_async((), {}, producer=producer)
    empty_queue(app)


def drain_by_celery(app: Celery, count: int, ticks: int, watch: Watch) -> None:
    """Let Celery's scheduler send the first `ticks` of `count` due entries; setting up is not measured."""
    logging.getLogger("celery.beat").setLevel(logging.ERROR)
    beat = CeleryScheduler(app, schedule=_due_entries(app, count), lazy=True)
    beat.tick()  # makes the heap and connects
    with watch.lap(f"celery {count}", units=ticks):
        sent = sum(beat.tick() == 0 for _ in range(ticks))
    beat.producer.connection.release()
    empty_queue(app)
    if sent != ticks:
        raise RuntimeError(f"Celery's scheduler sent {sent} of {ticks} due entries")


def _due_entries(app: Celery, count: int) -> dict[str, ScheduleEntry]:
    now = app.now()
    due = crontab(minute=str(now.minute), hour=str(now.hour), app=app)
    names = [f"due-{n}" for n in range(count)]
    return {name: ScheduleEntry(name=name, task=TASK, schedule=due, last_run_at=now - 2 * DAY, app=app) for name in names}


def _costs(watch: Watch, many: int, few: int) -> list[Figure]:
    each: dict[str, Any] = {"unit": "µs each", "scale": 1e6}
    fewer, alone, celery = f"{few:,} due", "apply_async alone", "Celery's scheduler, as many due"
    both, lot = f"both {many}", f"{many:,} definitions due at once"
    return [
        watch.figure(lot, both, against=f"celery {many}", told=celery, at_least=20.0, **each),
        watch.figure(f"{few:,} definitions due at once", f"both {few}", against=f"celery {few}", told=celery, **each),
        watch.figure(lot, both, against="publish", told=alone, **each),
        watch.figure(f"  plan, {many:,} due", f"plan {many}", against=f"plan {few}", told=fewer, **each),
        watch.figure(f"  dispatch, {many:,} due", f"dispatch {many}", against=f"dispatch {few}", told=fewer, **each),
        watch.figure(f"  dispatch, {many:,} due", f"dispatch {many}", against="publish", told=alone, **each),
    ]


def _counts(said: dict[str, Said], many: int) -> list[Figure]:
    figures = []
    for step in ("plan", "dispatch"):
        found = said[f"{step} {many}"]
        for what, number in (
            ("statements", found.statements),
            ("driver calls", found.calls),
            ("transactions", found.transactions),
        ):
            figures.append(Figure(what=f"{step}, {many:,} due: {what}", value=number / many, unit="per definition"))
    return figures
