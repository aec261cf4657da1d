"""A job whose task no worker has registered fails like any other, so that it shows up instead of circling for ever."""

from __future__ import annotations

from typing import Any

from celery.signals import task_unknown

from .. import events
from ..domain.execution import Failure
from ..errors import LeaseLost, TmError
from ..installation import Installation, node_name
from ..publisher import HEADER
from . import gate, recorder
from .delivery import is_attempt
from .incoming import is_id


@task_unknown.connect
def record_unknown(sender: Any = None, message: Any = None, name: str = "", id: str = "", **_: Any) -> None:
    """Count the delivery of an unregistered task as a failed try of its job."""
    header = (message.headers or {}).get(HEADER)
    if not isinstance(header, dict) or not is_attempt(header.get("attempt")) or not is_id(id):
        return
    installation = Installation.of(sender.app)
    events.emit_seldom(sender.app, events.TaskUnknown(task=name, name=id))
    try:
        job = gate.admit_job(installation, id, header["attempt"], worker=node_name("worker"), task=name).job
        if job is not None and job.ended is None:
            recorder.record_failure(installation, job, Failure(error=f"NotRegistered: this worker has no task {name!r}"))
    except (LeaseLost, TmError):
        pass  # the job's row is dispatched again
