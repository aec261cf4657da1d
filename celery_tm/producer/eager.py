"""Jobs where `task_always_eager` is set: run at once, in this process, with no database, as Celery runs its calls then."""

from __future__ import annotations

from dataclasses import replace

from ..domain.codec import decode
from ..errors import UnknownTask
from ..installation import Installation
from .handle import JobHandle
from .inserting import handle_of
from .request import Request


def run_eagerly(installation: Installation, request: Request) -> JobHandle:
    """Run a job's task now, whatever its time, and return a handle that knows how it ended."""
    job, app = request.job, installation.app
    if job.task not in app.tasks:
        raise UnknownTask(job.task, None)
    options = {name: value for name, value in job.options.items() if name in ("link", "link_error", "headers")}
    result = app.tasks[job.task].apply(decode(job.args), decode(job.kwargs), task_id=job.id, **options)
    return replace(handle_of(installation, job, created=True), eager=result)
