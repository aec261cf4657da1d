"""Document 002: a nightly ETL in steps."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from tmtest.app import log_effect

from celery_tm import Task


def make(conf: dict[str, Any]) -> Celery:
    """Return the app of the ETL. While the file `hold` exists, loads do not end."""
    app = Celery("etl", set_as_current=False, task_cls=Task)
    app.conf.update(conf, broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)
    hold = Path(os.environ["TM_TEST_EFFECTS"]).with_name("hold")

    @app.task(bind=True, name="etl.extract", shared=False)
    def extract(self: Task, source: str) -> int:
        log_effect("extract", source, self.job.scheduled_at.timestamp())
        return 100

    @app.task(bind=True, name="etl.transform", shared=False)
    def transform(self: Task, rule: str = "v1") -> int:
        log_effect("transform", rule, self.job.scheduled_at.timestamp())
        return sum(filter(None, self.job.results.values()))

    @app.task(bind=True, name="etl.load", max_retries=3, retry={"kind": "fixed", "delay": 0.2}, shared=False)
    def load(self: Task) -> int:
        log_effect("load", self.job.attempt, self.job.scheduled_at.timestamp())
        while hold.exists():
            time.sleep(0.05)
        return self.job.results["transform"]

    @app.task(bind=True, name="etl.tidy", shared=False)
    def tidy(self: Task) -> None:
        log_effect("tidy", self.job.scheduled_at.timestamp())

    return app
