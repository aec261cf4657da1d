"""From the table to the broker: claiming and publishing due jobs, against a loop of `send_task`, with few and many waiting.

A backlog of due jobs of one task is published as beat does it, by `Dispatcher.dispatch_due` until none is left, and the same
number of messages by `app.send_task` in a loop, over a producer it holds. What is left out: making the backlog, and for
`send_task` whatever decides that a message is to be sent.

The same once more among jobs that wait for later, ten thousand and ten million of them: what waits must cost nothing.
Beat's memory is measured on both, in processes of their own.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

from celery import Celery

import celery_tm
from celery_tm.installation import Installation
from celery_tm.scheduler.dispatcher import Dispatcher

from . import held, population
from .figures import Figure, Size
from .harness import Say, Watch, interleave
from .services import TASK, empty_queue, own_app, own_broker, own_database, plain_app

CHUNKED = "bench in chunks"
EACH: dict[str, Any] = {"unit": "µs each", "scale": 1e6}


def run(*, size: Size, say: Say) -> list[Figure]:
    """Measure publishing alone, then among those that wait."""
    return [*against_send_task(size, say), *among_waiting(size, say)]


def against_send_task(size: Size, say: Say) -> list[Figure]:
    """Publish a backlog, and as many messages by hand."""
    count = size.pick(full=10_000, quick=2_000, tiny=50)
    say(f"publish: a backlog of {count:,}")
    with ExitStack() as stack:
        broker = stack.enter_context(own_broker())
        app, plain = _app(stack, broker), plain_app(broker)
        variants = [
            partial(_publish, app, TASK, count, "ours"),
            partial(_publish, app, CHUNKED, count, "chunked"),
            partial(_send, plain, count),
        ]
        watch = interleave(variants, rounds=size.pick(full=9, quick=5, tiny=1), seconds=240, warm_up=1)
    told = "a loop of send_task"
    return [
        watch.figure(f"backlog of {count:,} → broker", "ours", against="sent", told=told, at_least=5.0, **EACH),
        watch.figure(f"backlog of {count:,} → broker, chunk=100", "chunked", against="sent", told=told, **EACH),
    ]


def among_waiting(size: Size, say: Say) -> list[Figure]:
    """Publish backlogs among few and many that wait, and look at beat's memory with each."""
    count = size.pick(full=5_000, quick=2_000, tiny=20)
    waiting = {
        "few": size.pick(full=10_000, quick=10_000, tiny=100),
        "many": size.pick(full=10_000_000, quick=1_000_000, tiny=1_000),
    }
    with ExitStack() as stack:
        broker = stack.enter_context(own_broker())
        urls = {name: stack.enter_context(own_database()) for name in waiting}
        apps = {name: stack.enter_context(own_app(broker, url)) for name, url in urls.items()}
        for name, number in waiting.items():
            say(f"publish: adding {number:,} jobs that wait")
            population.add_jobs(apps[name], number, apps[name].tasks[TASK].s(), delay=population.FAR_AHEAD)
            population.settle(apps[name], "tm_job")
        say(f"publish: backlogs of {count:,} among them")
        variants = [partial(_publish, app, TASK, count, name) for name, app in apps.items()]
        watch = interleave(variants, rounds=size.pick(full=9, quick=5, tiny=1), seconds=180, warm_up=1)
        say("publish: beat's memory with them")
        figures = held.figures(urls, waiting, "waiting jobs", rounds=size.pick(full=5, quick=3, tiny=1))
    return [
        watch.figure(
            f"claim and publish, {waiting['many']:,} waiting", "many", against="few", told=f"{waiting['few']:,} waiting",
            at_least=0.8, **EACH,
        ),
        *figures,
    ]  # fmt: skip


def _app(stack: ExitStack, broker: dict[str, Any]) -> Celery:
    app = stack.enter_context(own_app(broker, stack.enter_context(own_database())))

    @app.task(name=CHUNKED, shared=False, base=celery_tm.Task, chunk=100)
    def chunked() -> None:
        """Never runs: no worker is started."""

    return app


def _publish(app: Celery, task: str, count: int, name: str, watch: Watch) -> None:
    population.add_jobs(app, count, app.tasks[task].s(), delay=population.LONG_AGO)
    population.analyze(app, "tm_job")
    dispatcher, sent = Dispatcher(Installation.of(app), "bench"), 0
    with watch.lap(name, units=count):
        while done := dispatcher.dispatch_due().sent:
            sent += done
    population.forget_dispatched(app)
    empty_queue(app)
    if sent != count:
        raise RuntimeError(f"of {count} due jobs {sent} were sent")


def _send(app: Celery, count: int, watch: Watch) -> None:
    with app.producer_or_acquire() as producer, watch.lap("sent", units=count):
        for _ in range(count):
            app.send_task(TASK, producer=producer)
    empty_queue(app)
