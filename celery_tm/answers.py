"""What whoever waits for a result is told about a job that will not run: Celery's result backend says REVOKED.

The backend is the caller's comfort, not the record: if it is away, that is logged and forgotten.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.app.task import Context

from .domain.job import Job
from .installation import Installation

logger = logging.getLogger(__name__)


def revoked(task: Any, request: Any, *, reason: str = "revoked") -> bool:
    """Tell that a call is revoked, and its chord, where it has one, that it will not come; say whether that worked."""
    try:
        task.backend.mark_as_revoked(request.id, reason, request=request, store_result=not task.ignore_result)
    except Exception as error:  # whatever a backend raises
        told = Installation.of(task.app).hidden(error)
        logger.warning("%s[%s] was revoked, but its result does not say so: %s", task.name, request.id, told)
        return False
    return True


def job_revoked(installation: Installation, job: Job, *, reason: str = "revoked") -> bool:
    """The same for a job that has no delivery."""
    task = installation.app.tasks.get(job.task)
    if task is None:
        return True
    renamed = {"link": "callbacks", "link_error": "errbacks", "group_id": "group"}
    said = {renamed.get(name, name): value for name, value in job.options.items()}
    return revoked(task, Context(said, id=job.id, task=job.task, called_directly=False), reason=reason)
