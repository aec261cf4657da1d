"""Another app with its jobs and definitions in the same database: neither may touch what is the other's."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from faults.app import CONF, noted

from celery_tm import Task, TimeManagement, defer, embedded
from storm import bodies
from storm.app import PERIODIC

OTHER, JOBS = "other", 20


def other_conf(conf: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the other app: the same servers, and queues of its own."""
    queue = f"{conf['task_default_queue']}-other"
    entry = {"task": "other.periodic", "schedule": 2.0, "options": {"queue": queue}}
    return conf | {"task_default_queue": queue, "beat_schedule": {PERIODIC: entry}}


def make_other(conf: dict[str, Any]) -> Celery:
    """Return the other app; one of its entries has the name that one of the first app's has."""
    app = Celery("other", set_as_current=False)
    app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False, **conf)
    TimeManagement(app)

    @app.task(base=Task, name="other.work", shared=False)
    def work(label: str) -> None:
        with noted(label):
            bodies.note("other", OTHER, label)

    @app.task(base=Task, name="other.periodic", shared=False)
    def periodic() -> None:
        with noted("other periodic"):
            bodies.note("other periodic", OTHER, "")

    return app


def ask_other(conf: dict[str, Any], folder: Path) -> None:
    """Defer some jobs of the other app."""
    app = make_other(other_conf(conf))
    work = app.tasks["other.work"]
    for n in range(JOBS):  # one by one, so that now one beat and now the other is first to see it
        defer(work.s(f"{OTHER}-{n}"), delay=0.5, app=app)
        time.sleep(0.25)
    TimeManagement(app).installation.database.dispose()
    app.close()


def __getattr__(name: str) -> Any:
    if name == "app":
        embedded.register()
        value = globals()["app"] = make_other(json.loads(os.environ[CONF]))
        return value
    raise AttributeError(name)
