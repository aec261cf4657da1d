"""A base class with a fault, to see that Celery's suites would show one."""

from __future__ import annotations

from typing import Any

import celery_tm


class Task(celery_tm.Task):
    """Loses what bodies return."""

    abstract = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Task:
        task = super().__new__(cls, *args, **kwargs)
        body = task.run
        task.run = lambda *a, **k: body(*a, **k) and None
        return task
