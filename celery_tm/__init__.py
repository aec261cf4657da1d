"""celery_tm: durable recurring and deferred jobs for Celery, kept in the SQL database you already run.

Everything public is here, and loaded on first use: `import celery_tm` alone costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .domain.schedule import Schedule
    from .errors import TmError
    from .management import TimeManagement, easy_app
    from .producer import JobHandle, cancel, defer, defer_many, workflow
    from .scheduler import Scheduler
    from .worker.context import JobContext, current_job
    from .worker.task import Task

_PLACES = {
    "JobContext": ".worker.context",
    "JobHandle": ".producer",
    "Schedule": ".domain.schedule",
    "Scheduler": ".scheduler",
    "Task": ".worker.task",
    "TimeManagement": ".management",
    "TmError": ".errors",
    "cancel": ".producer",
    "current_job": ".worker.context",
    "defer": ".producer",
    "defer_many": ".producer",
    "easy_app": ".management",
    "workflow": ".producer",
}

__all__ = [
    "JobContext",
    "JobHandle",
    "Schedule",
    "Scheduler",
    "Task",
    "TimeManagement",
    "TmError",
    "__version__",
    "cancel",
    "current_job",
    "defer",
    "defer_many",
    "easy_app",
    "workflow",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'celery_tm' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PLACES[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
