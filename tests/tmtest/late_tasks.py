"""Tasks whose first attempt takes its time, for workers that are killed or stopped in it; the second one is quick.

Each writes when it began, in nanoseconds of the clock that all processes share.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

from celery import Celery
from sqlalchemy import text

from celery_tm import Task, current_job

AGAIN: dict[str, Any] = {"max_retries": 5, "ignore_result": True}


def add_tasks(app: Celery) -> None:
    """Add them to an app."""
    task = partial(app.task, base=Task, shared=False, **AGAIN)

    @task(name="late.plain")
    def plain(n: Any, seconds: float) -> None:
        _take_time(n, seconds)

    @task(name="late.reports")
    def reports(n: Any, seconds: float) -> None:
        """Tell, after its time, how far it has come."""
        if _take_time(n, seconds):
            job = current_job()
            job.report_progress("I am still here")
            job.log("and I have something to say")
            job.flush()

    @task(name="late.fails")
    def fails(n: Any, seconds: float) -> None:
        """Fail in the first attempt."""
        if _take_time(n, seconds):
            raise ValueError("too late")

    @task(name="late.transactional", transactional=True)
    def transactional(n: Any, seconds: float) -> None:
        """Write with the completion, before and after its time."""
        session, values = current_job().session, {"n": str(n), "attempt": current_job().attempt}
        session.execute(text("INSERT INTO late_effect VALUES (:n, :attempt)"), values)
        if _take_time(n, seconds):
            session.execute(text("INSERT INTO late_effect VALUES (:n, :attempt)"), values)

    @task(name="late.chunked", chunk=10)
    def chunked(n: Any, seconds: float) -> None:
        _take_time(n, seconds)


def _take_time(n: Any, seconds: float) -> bool:
    """Write that it began and ended, and sleep in between in the first attempt; say whether it did."""
    from .app import log_effect

    job = current_job()
    log_effect("began", n, job.attempt, time.monotonic_ns(), os.getpid())
    if job.attempt == 1:
        time.sleep(seconds)
    log_effect("ended", n, job.attempt, time.monotonic_ns(), os.getpid())
    return job.attempt == 1
