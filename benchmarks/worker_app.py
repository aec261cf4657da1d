"""The app that measured workers and beats run: the same bodies as plain Celery and as ours, in every way they can run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery

import celery_tm

from .processes import CONF

OURS: dict[str, Any] = {"base": celery_tm.Task}
TASKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "plain, result kept": {"ignore_result": False},
    "gated": OURS,
    "gated, result kept": OURS | {"ignore_result": False},
    "transactional": OURS | {"transactional": True},
    "chunked": OURS | {"chunk": 100},
}
STAMPS: dict[str, dict[str, Any]] = {"plain stamp": {}, "gated stamp": OURS}


def make_app(conf: Mapping[str, Any]) -> Celery:
    """Return an app with an empty task of each kind, and two that note when they start."""
    app = Celery("bench", set_as_current=False)
    app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True, **conf)
    for name, options in TASKS.items():
        app.task(name=name, shared=False, **options)(empty)
    for name, options in STAMPS.items():
        app.task(name=name, shared=False, **options)(stamp)
    return app


def empty() -> None:
    """Do nothing."""


def stamp(due: float, folder: str) -> None:
    """Note how many seconds after its instant this body starts, in a file of this process."""
    late = time.time() - due
    with (Path(folder) / str(os.getpid())).open("a", encoding="ascii") as notes:
        notes.write(f"{late}\n")


if CONF in os.environ:
    app = make_app(json.loads(os.environ[CONF]))
