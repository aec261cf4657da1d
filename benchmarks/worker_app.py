"""The app that measured workers run: the same empty body as plain Celery, gated, transactional and in chunks."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery

import celery_tm

TASKS = ("plain", "gated", "chunked", "transactional")


def make_app(conf: dict[str, Any]) -> Celery:
    """Return an app with an empty task of each kind."""
    app = Celery("bench", set_as_current=False)
    app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True, **conf)
    app.task(name="plain", shared=False)(empty)
    app.task(name="gated", shared=False, base=celery_tm.Task)(empty)
    app.task(name="chunked", shared=False, base=celery_tm.Task, chunk=100)(empty)
    app.task(name="transactional", shared=False, base=celery_tm.Task, transactional=True)(empty)
    return app


def empty() -> None:
    """Do nothing."""


if "TM_BENCH_CONF" in os.environ:
    app = make_app(json.loads(os.environ["TM_BENCH_CONF"]))
