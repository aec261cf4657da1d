"""A job whose task no worker has registered fails like any other, so that it shows up instead of circling for ever.

Celery would report each such delivery as the failure of the task. While the job has tries left, a worker of the next release
may know its task, so only the last one is reported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from celery.app.task import Context
from celery.exceptions import NotRegistered
from celery.signals import task_unknown

from .. import events
from ..domain.execution import Failure
from ..domain.retry import Bury
from ..errors import TmError
from ..installation import Installation, node_name
from ..producer.message import read_body
from ..publisher import HEADER
from . import gate, recorder
from .delivery import is_attempt

logger = logging.getLogger(__name__)


def is_recorded(consumer: Any, message: Any) -> bool:
    """Record the delivery of a job whose task is not registered here as a failed try; False: it is none."""
    headers = message.headers if isinstance(message.headers, Mapping) else {}
    header, name, id = headers.get(HEADER), str(headers.get("task")), str(headers.get("id"))
    if not isinstance(header, dict) or not is_attempt(header.get("attempt")) or name in consumer.app.tasks:
        return False
    logger.error("Task %s[%s] is not registered here; its job is tried again by its policy", name, id)
    then = _record(consumer.app, id, header["attempt"], name)
    message.reject_log_error(logger, consumer.connection_errors)
    task_unknown.send(sender=consumer, message=message, exc=NotRegistered(name), name=name, id=id)
    if isinstance(then, Bury):
        _report(consumer.app, message, NotRegistered(name))
    return True


def _record(app: Any, id: str, attempt: int, name: str) -> Any:
    installation = Installation.of(app)
    events.emit_seldom(app, events.TaskUnknown(task=name, name=id))
    try:
        job = gate.admit_job(installation, id, attempt, worker=node_name("worker"), task=name).job
        if job is None or job.ended is not None:
            return None
        failure = Failure(error=f"NotRegistered: this worker has no task {name!r}")
        return recorder.record_failure(installation, job, failure, reports=False, waits=False)
    except TmError:
        return None  # its dispatch, or its lease, ends: it is dispatched again
    except Exception as error:  # a row that cannot be read must not end the worker; beat sets it aside
        logger.warning("the delivery of job %s is not recorded: %s", id, installation.hidden(error))
        return None


def _report(app: Any, message: Any, error: Exception) -> None:
    """Mark the result as failed and publish the errbacks, as Celery does where it knows the task."""
    try:
        _, _, embed = read_body(message.payload)
        request = Context({**message.headers, **(embed or {})}, reply_to=message.properties.get("reply_to"))
        app.backend.mark_as_failure(message.headers["id"], error, request=request)
    except Exception as failure:  # whatever a backend or a message raises
        told = Installation.of(app).hidden(failure)
        logger.warning("job %s is a dead letter, but its result does not say so: %s", message.headers.get("id"), told)
