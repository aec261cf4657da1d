"""Document 001: a small queue with a visibility timeout, backoff and dead letters."""

from __future__ import annotations

import time
from typing import Any

from celery import Celery
from tmtest.app import log_effect

from celery_tm import Task


def make(conf: dict[str, Any]) -> Celery:
    """Return the queue's app."""
    app = Celery("queue", set_as_current=False, task_cls=Task)
    app.conf.update(conf, broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)

    @app.task(bind=True, name="webhook", max_retries=2, retry={"kind": "linear", "base": 0.4}, shared=False)
    def webhook(self: Task, what: str) -> str:
        log_effect(what, self.job.attempt, time.time())
        if what == "refused":
            raise ConnectionError("503 Service Unavailable")
        if what == "slow" and self.job.attempt == 1:
            time.sleep(60)
        return what

    return app
