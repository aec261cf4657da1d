"""Marks jobs in Celery's result backend: REVOKED where they will not run, STARTED where `track_started` asks for it.

The backend is the caller's comfort, not the record: if it is away, that is logged and forgotten.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from celery import Celery, states
from celery.app.task import Context

from .domain.job import Job
from .installation import Installation

logger = logging.getLogger(__name__)


def revoked(task: Any, request: Any, *, reason: str = "revoked") -> bool:
    """Tell that a call is revoked, and its chord, where it has one, that it will not come; say whether that worked."""
    return _mark(task.app, task, request, reason=reason, stores=not task.ignore_result)


def started(task: Any, request: Any) -> None:
    """Store STARTED for an admitted delivery whose task has `track_started`."""
    if not task.tm_track_started or task.ignore_result:
        return
    meta = {"pid": os.getpid(), "hostname": request.hostname}
    try:
        task.backend.store_result(request.id, meta, states.STARTED, request=request)
    except Exception as error:  # whatever a backend raises
        told = Installation.of(task.app).hidden(error)
        logger.warning("%s[%s] has started, but its result does not say so: %s", task.name, request.id, told)


def job_revoked(installation: Installation, job: Job, *, reason: str = "revoked") -> bool:
    """The same for a job that has no delivery; where its task is not registered, by the app's result backend."""
    app = installation.app
    renamed = {"link": "callbacks", "link_error": "errbacks", "group_id": "group"}
    said = {renamed.get(name, name): value for name, value in job.options.items()}
    request = Context(said, id=job.id, task=job.task, called_directly=False)
    task = app.tasks.get(job.task)
    if task is not None:
        return revoked(task, request, reason=reason)
    stores = not said.get("ignore_result", app.conf.task_ignore_result)
    return _mark(app, app, request, reason=reason, stores=stores)


def backend_of(installation: Installation, job: Job) -> Any:
    """Return the result backend of a job's task, else that of the app."""
    return getattr(installation.app.tasks.get(job.task), "backend", None) or installation.app.backend


def _mark(app: Celery, owner: Any, request: Any, *, reason: str, stores: bool) -> bool:
    try:
        owner.backend.mark_as_revoked(request.id, reason, request=request, store_result=stores)
    except Exception as error:  # whatever a backend raises
        told = Installation.of(app).hidden(error)
        logger.warning("%s[%s] was revoked, but its result does not say so: %s", request.task, request.id, told)
        return False
    return True
