"""The tasks of the processes that die: each notes that it ran, apart from the tables."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from celery import Celery

from celery_tm import Task, cancel, clock
from celery_tm.worker.chunk import LOOK_EVERY
from celery_tm.worker.lease import keeper_of

from . import points
from .app import log_effect
from .crash_world import book

SOON = {"kind": "fixed", "delay": 1}


def crash_app(conf: Mapping[str, Any]) -> Celery:
    """Return an app with these tasks."""
    app = Celery("crashes", set_as_current=False)
    app.conf.update(conf)
    task = partial(app.task, base=Task, bind=True, shared=False, max_retries=4, retry=SOON)

    def ran(self: Any) -> None:
        points.effect()
        log_effect(self.name, self.job.id, self.job.attempt)
        points.effect()

    @task(name="crash.work")
    def work(self: Task, *args: Any) -> Any:
        ran(self)
        return args[0] if args else None

    @task(name="crash.fails", max_retries=1)
    def fails(self: Task, *args: Any) -> None:
        ran(self)
        raise ValueError("no")

    @task(name="crash.fails_once")
    def fails_once(self: Task) -> None:
        ran(self)
        if self.job.attempt == 1:
            raise ValueError("not yet")

    @task(name="crash.fails_for_good", max_retries=0)
    def fails_for_good(self: Task) -> None:
        ran(self)
        raise ValueError("never")

    @task(name="crash.keyed", key="keyed:{0}")
    def keyed(self: Task, n: int) -> int:
        ran(self)
        return n

    @task(name="crash.in_turn", concurrency_key="turn")
    def in_turn(self: Task) -> None:
        ran(self)

    @task(name="crash.asks_again")
    def asks_again(self: Task) -> None:
        ran(self)
        if self.job.attempt == 1:
            raise self.retry(countdown=5)

    @task(name="crash.writes", transactional=True)
    def writes(self: Task, *more: str) -> None:
        ran(self)
        self.job.session.execute(book.insert().values(line=self.job.id))
        for name in more:
            app.tasks[name].delay()

    @task(name="crash.reports")
    def reports(self: Task) -> None:
        ran(self)
        self.job.report_progress("half way")
        self.job.log("so far so good")
        keeper_of(self.job.installation).renew_all()

    @task(name="crash.stops")
    def stops(self: Task) -> None:
        """Be cancelled while it runs, hear of it, and stop."""
        ran(self)
        cancel(id=self.job.id, app=app)
        keeper_of(self.job.installation).renew_all()
        if clock.moved_time() is not None:
            self.job.ask_to_stop()  # leases are not renewed where time was moved
        assert self.job.cancelled

    @task(name="crash.replaced")
    def replaced(self: Task) -> Any:
        ran(self)
        raise self.replace(work.s("instead"))

    @task(name="crash.chunked", chunk=10, ignore_result=True)
    def chunked(self: Task, n: int) -> None:
        ran(self)
        if n == 2 and self.job.attempt == 1:
            time.sleep(LOOK_EVERY)  # so that the next one is looked up before it begins
            raise ValueError("the second of them")

    @app.task(name="plain", shared=False)
    def plain(*args: Any) -> None:
        """Be one of Celery's own, without a gate."""

    return app
