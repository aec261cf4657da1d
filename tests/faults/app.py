"""The app of a run: `celery -A faults.app worker`. Bodies write that they began and how they ended, apart from tables."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from celery import Celery
from sqlalchemy import text

from celery_tm import Task, TimeManagement, current_job
from faults import record, sabotage

CONF, FOLDER = "TM_CHAOS_CONF", "TM_CHAOS_FOLDER"
LONGEST = 0.15  # seconds that a body takes, so that faults meet some in the middle
AGAIN: dict[str, Any] = {"max_retries": 50, "retry": {"kind": "fixed", "delay": 0.3}}


@contextmanager
def noted(label: str | None = None) -> Iterator[Any]:
    """Write that a body began, first of all, and how it ended, last of all."""
    context = current_job()
    job = context.job
    facts = {
        "job": job.id,
        "attempt": job.attempt,
        "execution": context.execution_id,
        "task": job.task,
        "label": label if label is not None else job.step or job.definition,
        "key": job.dedupe_key,
        "pid": os.getpid(),
        "worker": job.claimed_by,
    }
    if job.scheduled_at is not None:
        facts["scheduled_at"] = job.scheduled_at.isoformat()
    folder = os.environ[FOLDER]
    record.write(folder, record.EFFECTS, {"what": "began"} | facts)
    try:
        yield context
    except Exception:
        record.write(folder, record.EFFECTS, {"what": "failed"} | facts)
        raise
    record.write(folder, record.EFFECTS, {"what": "ended"} | facts)


def take_time() -> None:
    """Take a moment."""
    time.sleep(random.uniform(0, LONGEST))


def make_app(conf: dict[str, Any]) -> Celery:
    """Return the app with its tasks."""
    app = Celery("faults", set_as_current=False)
    app.conf.update(
        broker_connection_retry_on_startup=True, task_ignore_result=True, worker_hijack_root_logger=False, **conf
    )
    task = partial(app.task, base=Task, shared=False)

    @task(name="plain", **AGAIN)
    def plain(label: str) -> None:
        with noted(label):
            pass

    @task(name="keyed", keep_key="12h", **AGAIN)
    def keyed(label: str) -> None:
        with noted(label):
            take_time()

    @task(name="ordered", **AGAIN)
    def ordered(label: str) -> None:
        """Carry out what was deferred in a caller's transaction."""
        with noted(label):
            take_time()

    @task(name="transactional", transactional=True, **AGAIN)
    def transactional(label: str) -> None:
        with noted(label) as job:
            values = {"label": label, "job": job.id, "attempt": job.attempt}
            job.session.execute(text("INSERT INTO chaos_effect VALUES (:label, :job, :attempt)"), values)
            take_time()

    @task(name="chunked", chunk=50, **AGAIN)
    def chunked(label: str) -> None:
        with noted(label):
            pass

    @task(name="flaky", **AGAIN)
    def flaky(label: str, failures: int) -> None:
        with noted(label) as job:
            if job.attempt <= failures:
                raise RuntimeError(f"attempt {job.attempt}")

    @task(name="doomed", max_retries=1, retry={"kind": "fixed", "delay": 0.3})
    def doomed(label: str) -> None:
        with noted(label):
            raise ValueError("it never works")

    @task(name="slow", **AGAIN)
    def slow(label: str, seconds: float) -> None:
        with noted(label):
            time.sleep(seconds)

    @task(name="direct", **AGAIN)
    def direct(label: str) -> None:
        with noted(label):
            take_time()

    @task(name="step", **AGAIN)
    def step() -> str | None:
        with noted() as job:
            take_time()
            return str(job.step)

    @task(name="recurring", **AGAIN)
    def recurring(label: str) -> None:
        with noted(label):
            take_time()

    from storm import chaos  # which writes what its bodies do as ours do

    chaos.add_tasks(app)
    return app


def app_of_environment() -> Celery:
    """Return the app as the runner's environment describes it, broken as it says."""
    app = make_app(json.loads(os.environ[CONF]))
    TimeManagement(app)
    sabotage.break_as_told(os.environ)
    return app


def __getattr__(name: str) -> Any:
    if name == "app":
        value = globals()["app"] = app_of_environment()
        return value
    raise AttributeError(name)
