"""Document 004: jobs in queues of several environments, some of which hang."""

from __future__ import annotations

import time
from typing import Any

from celery import Celery
from tmtest.app import log_effect

from celery_tm import Task


def make(conf: dict[str, Any]) -> Celery:
    """Return the orchestrator's app."""
    app = Celery("orchestrator", set_as_current=False, task_cls=Task)
    app.conf.update(conf, broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)

    @app.task(bind=True, name="package", shared=False)
    def package(self: Task, name: str) -> None:
        self.job.log(f"running {name}")
        if name == "broken":
            self.job.log("no code file", level="error")
        log_effect("package", name, self.request.hostname)

    @app.task(bind=True, name="hangs", max_duration="2s", retry={"kind": "fixed", "delay": 0.1}, shared=False)
    def hangs(self: Task) -> None:
        log_effect("hangs", self.job.attempt)
        if self.job.attempt == 1:
            time.sleep(20)

    return app
