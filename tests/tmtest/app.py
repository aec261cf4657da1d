"""The tasks that tests run. Each writes what it did to a file, so that effects can be counted apart from tables."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

import celery
from celery import Celery
from celery.exceptions import Reject, SoftTimeLimitExceeded
from sqlalchemy import text

from celery_tm import Task, current_job

from . import canvas_tasks, late_tasks, workflow_tasks


def log_effect(*words: object) -> None:
    """Append one line to the effects file, in one write, so that many processes can."""
    path = os.environ.get("TM_TEST_EFFECTS")
    if path:
        with open(path, "a") as file:
            file.write(" ".join(map(str, words)) + "\n")


def count_effects(*words: object) -> int:
    """Count the lines in the effects file that are these words."""
    with open(os.environ["TM_TEST_EFFECTS"]) as file:
        return file.read().splitlines().count(" ".join(map(str, words)))


def make_app(conf: dict[str, Any]) -> Celery:
    """Return an app with the test tasks."""
    app = Celery("tmtest", set_as_current=False, task_cls=conf.get("test_task_cls"))
    open_to_all = {"tm_admins": ["*"]}  # unset, nobody could change anything through Flower on a server
    app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False, **open_to_all | conf)

    task = partial(app.task, base=Task, shared=False)

    @task(bind=True, name="effect")
    def effect(self: Task, n: Any = None) -> Any:
        log_effect("effect", n, self.job.id, self.job.attempt)
        return n

    @task(name="fails", max_retries=2)
    def fails(n: Any = None) -> None:
        log_effect("fails", n, current_job().id, current_job().attempt)
        raise ValueError(f"no {n}")

    @task(bind=True, name="flaky", max_retries=5, retry={"kind": "fixed", "delay": 0.2})
    def flaky(self: Task, n: Any, failures: int) -> Any:
        log_effect("flaky", n, self.job.id, self.job.attempt)
        if self.job.attempt <= failures:
            raise RuntimeError(f"attempt {self.job.attempt}")
        return n

    @task(bind=True, name="sleepy", max_retries=3)
    def sleepy(self: Task, n: Any, seconds: float) -> Any:
        log_effect("start", n, self.job.id, self.job.attempt, os.getpid())
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.job.cancelled:
            time.sleep(0.05)
        log_effect("end", n, self.job.id, self.job.attempt, os.getpid())
        return n

    @task(bind=True, name="witness")
    def witness(self: Task, n: Any, company: int, patience: float) -> None:
        """Wait until so many bodies are here at one time, and note whose job this one takes itself for, before and after."""
        seen, end = {self.job.id, current_job().id, self.request.id}, time.monotonic() + patience
        log_effect("arrived", n)
        while (here := count_effects("arrived", n)) < company and time.monotonic() < end:
            time.sleep(0.25)
        seen |= {self.job.id, current_job().id, self.request.id}
        log_effect("witness", n, here, *sorted(seen))

    @task(bind=True, name="ranged")
    def ranged(self: Task, n: Any) -> None:
        start, end = self.job.window or (None, None)
        log_effect("ranged", n, start and start.isoformat(), end and end.isoformat())

    @task(name="sleepy_once", max_retries=3)
    def sleepy_once(n: Any, seconds: float) -> Any:
        """Sleep in the first attempt only."""
        job = current_job()
        log_effect("start", n, job.id, job.attempt, os.getpid())
        if job.attempt == 1:
            time.sleep(seconds)
        log_effect("end", n, job.id, job.attempt, os.getpid())
        return n

    @task(name="hangs_once", max_retries=3, max_duration="2s")
    def hangs_once(n: Any, seconds: float) -> Any:
        """Go on in the first attempt whatever interrupts it."""
        job = current_job()
        log_effect("start", n, job.id, job.attempt, os.getpid())
        end = time.monotonic() + (seconds if job.attempt == 1 else 0)
        while time.monotonic() < end:
            try:
                time.sleep(0.1)
            except SoftTimeLimitExceeded:
                log_effect("interrupted", n, job.id, job.attempt, os.getpid())
        log_effect("end", n, job.id, job.attempt, os.getpid())
        return n

    @task(bind=True, name="until_stopping")
    def until_stopping(self: Task, n: Any, seconds: float) -> Any:
        """Work until the worker shuts down."""
        log_effect("start", n, self.job.stopping, os.getpid())
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.job.stopping:
            time.sleep(0.05)
        log_effect("end", n, self.job.stopping, os.getpid())
        return n

    @task(name="keyed", key="keyed:{0}", keep_key="1h")
    def keyed(n: Any) -> Any:
        log_effect("keyed", n, current_job().id)
        return {"n": n}

    @task(bind=True, name="reports")
    def reports(self: Task, how: str) -> str:
        self.job.report_progress("half way")
        if how == "failure":
            self.job.report_failure("the shop is closed")
        else:
            self.job.report_success("all sold")
        return how

    @task(bind=True, name="asks_again", max_retries=3)
    def asks_again(self: Task, n: Any, times: int) -> Any:
        log_effect("asks_again", n, self.job.attempt)
        if self.job.attempt <= times:
            raise self.retry(countdown=30, exc=RuntimeError("not yet"))
        return n

    @task(bind=True, name="autoretried", autoretry_for=(KeyError,), retry_backoff=4, retry_jitter=False)
    def autoretried(self: Task, n: Any) -> Any:
        if self.job.attempt == 1:
            raise KeyError(n)
        return n

    @task(bind=True, name="counts", transactional=True, max_retries=100, retry={"kind": "fixed", "delay": 0.1})
    def counts(self: Task, n: Any, seconds: float = 0) -> None:
        """Add one to a counter, in the transaction of the job's completion."""
        log_effect("counts", n, self.job.attempt, os.getpid())
        self.job.session.execute(text("UPDATE tm_test_counter SET total = total + 1"))
        time.sleep(seconds)

    @task(bind=True, name="holds", transactional=True, max_retries=3)
    def holds(self: Task, n: Any, seconds: float) -> None:
        """Hold a connection all the time."""
        log_effect("holds", n, self.job.attempt)
        self.job.session.execute(text("SELECT 1"))
        time.sleep(seconds)

    class RejectsAfterwards(Task):
        def on_success(self, *_: Any) -> None:
            raise Reject("too late", requeue=False)

    @app.task(base=RejectsAfterwards, name="rejects_afterwards", shared=False, acks_late=True)
    def rejects_afterwards(n: Any = None) -> Any:
        log_effect("rejects_afterwards", n)
        return n

    @task(name="late", acks_late=True)
    def late(n: Any, seconds: float) -> None:
        log_effect("late", n)
        time.sleep(seconds)

    @app.task(name="plain_late", shared=False, acks_late=True)
    def plain_late(n: Any, seconds: float) -> None:
        log_effect("plain_late", n)
        time.sleep(seconds)

    @task(bind=True, name="chunked", chunk=100, ignore_result=True)
    def chunked(self: Task, n: Any = None) -> None:
        log_effect("chunked", n, self.job.id, self.job.attempt)

    @app.task(name="plain", shared=False)
    def plain(n: Any = None) -> Any:
        log_effect("plain", n)
        return n

    for base in (celery.Task, Task):
        canvas_tasks.add_tasks(app, base)
    workflow_tasks.add_tasks(app)
    late_tasks.add_tasks(app)
    return app
