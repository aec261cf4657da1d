"""Creating jobs: `defer` one by one and `defer_many` in bulk, durable, against Celery, Procrastinate, PgQueuer and raw SQL.

One process calls each in turn, with one number as argument, for a job that is due in an hour: ours `defer(task.s(n))` and
`defer_many`, each with its own commit; Celery `apply_async((n,), countdown=3600)` to Redis over a producer it holds (what a
worker then keeps in memory, and what Redis loses with its memory, is not measured); Procrastinate and PgQueuer with their
call for one and for many. Signatures and payloads are made inside the lap on every side; the raw INSERT gets ready-made
values, and a second line adds making them. Tables and queues are emptied between laps, outside of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery import Celery

from celery_tm import defer, defer_many

from . import population
from .figures import Figure, Size
from .harness import Say, Watch, interleave
from .peers import HOUR, PgQueuer, Procrastinate
from .raw import RawInsert
from .services import TASK, empty_queue, own_app, own_broker, own_database, plain_app

EACH: dict[str, Any] = {"unit": "µs each", "scale": 1e6}


def run(*, size: Size, say: Say) -> list[Figure]:
    """Measure both ways of creating jobs."""
    with ExitStack() as stack:
        sides = _sides(stack)
        ones = size.pick(full=500, quick=200, tiny=5)
        say(f"defer: one by one, {ones:,} in a lap")
        single = interleave(_one_by_one(sides, ones), rounds=size.pick(full=15, quick=5, tiny=1), seconds=120, warm_up=1)
        many = size.pick(full=10_000, quick=10_000, tiny=50)
        say(f"defer: {many:,} at once")
        bulk = interleave(_at_once(sides, many), rounds=size.pick(full=11, quick=4, tiny=1), seconds=180, warm_up=1)
    return [*_single_figures(single), *_bulk_figures(bulk, many)]


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Everybody who creates jobs here."""

    ours: Celery
    plain: Celery
    procrastinate: Procrastinate
    pgqueuer: PgQueuer
    raw: RawInsert


def _sides(stack: ExitStack) -> Sides:
    broker, url = stack.enter_context(own_broker()), stack.enter_context(own_database())
    ours = stack.enter_context(own_app(broker, url))
    theirs = stack.enter_context(own_database(tables=False))
    defer(ours.tasks[TASK].s(0), delay=HOUR)  # the row that the raw INSERT looks at
    return Sides(
        ours=ours,
        plain=plain_app(broker),
        procrastinate=stack.enter_context(closing(Procrastinate(theirs))),
        pgqueuer=stack.enter_context(closing(PgQueuer(theirs))),
        raw=stack.enter_context(closing(RawInsert(url))),
    )


def _one_by_one(sides: Sides, count: int) -> list[Callable[[Watch], None]]:
    ours, plain, procrastinate = sides.ours.tasks[TASK], sides.plain.tasks[TASK], sides.procrastinate

    def by_us(watch: Watch) -> None:
        with watch.lap("ours", units=count):
            for number in range(count):
                defer(ours.s(number), delay=HOUR)
        population.empty(sides.ours)

    def by_celery(watch: Watch) -> None:
        with sides.plain.producer_or_acquire() as producer, watch.lap("celery", units=count):
            for number in range(count):
                plain.apply_async((number,), countdown=HOUR.total_seconds(), producer=producer)
        empty_queue(sides.plain)

    def by_procrastinate(watch: Watch) -> None:
        with watch.lap("procrastinate", units=count):
            for number in range(count):
                procrastinate.defer(number)
        procrastinate.forget()

    def by_pgqueuer(watch: Watch) -> None:
        with watch.lap("pgqueuer", units=count):
            sides.pgqueuer.defer_all(count)
        sides.pgqueuer.forget()

    return [by_us, by_celery, by_procrastinate, by_pgqueuer]


def _at_once(sides: Sides, count: int) -> list[Callable[[Watch], None]]:
    task = sides.ours.tasks[TASK]

    def by_us(watch: Watch) -> None:
        with watch.lap("ours", units=count):
            defer_many([task.s(number) for number in range(count)], delay=HOUR)
        population.empty(sides.ours)

    def by_raw(watch: Watch) -> None:
        with watch.lap("made", units=count):
            values = sides.raw.make(count)
        with watch.lap("raw", units=count):
            sides.raw.insert(values)
        watch.note_sum("raw and made", "made", "raw")
        sides.raw.forget()

    def by_peer(peer: Procrastinate | PgQueuer, name: str, watch: Watch) -> None:
        with watch.lap(name, units=count):
            peer.defer_many(count)
        peer.forget()

    peers = {"pgqueuer": sides.pgqueuer, "procrastinate": sides.procrastinate}
    return [by_us, by_raw, *(partial(by_peer, peer, name) for name, peer in peers.items())]


def _single_figures(watch: Watch) -> list[Figure]:
    what = "defer one job"
    return [
        watch.figure(what, "ours", against="celery", told="Celery's apply_async(countdown=…)", at_least=1.0, **EACH),
        watch.figure(what, "ours", against="procrastinate", told="Procrastinate's defer", at_least=1.5, **EACH),
        watch.figure(what, "ours", against="pgqueuer", told="PgQueuer's enqueue", **EACH),
    ]


def _bulk_figures(watch: Watch, count: int) -> list[Figure]:
    what = f"defer_many of {count:,}"
    return [
        watch.figure(what, "ours", against="raw", told="raw INSERT … unnest, values ready-made", at_least=0.6, **EACH),
        watch.figure(what, "ours", against="raw and made", told="raw INSERT … unnest, with making them", **EACH),
        watch.figure(what, "ours", against="pgqueuer", told="PgQueuer's batch enqueue", at_least=1.2, **EACH),
        watch.figure(what, "ours", against="procrastinate", told="Procrastinate's batch_defer", at_least=3.0, **EACH),
    ]
