"""What a worker does with a message when it comes in: Celery's own strategy, except for an ETA far ahead.

Such a message would wait in this worker's memory, and come again with every visibility timeout. It is written to the job
table instead and acknowledged, whoever sent it: `send_task`, another language, or this app before it was switched over.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from celery.app.task import Context
from celery.signals import worker_shutdown
from celery.worker import state
from celery.worker.strategy import default as celery_default

from .. import clock
from ..installation import Installation
from ..producer.capturing import instant_of, job_of, write_call
from ..producer.message import Message, as_message, read_body
from ..publisher import HEADER
from ..store.body import refuse_foreign
from . import control, incoming, unknown
from .acknowledging import Acknowledgements
from .request import Request as OwnRequest
from .time_limits import note_pool

logger = logging.getLogger(__name__)
control.listen()


@worker_shutdown.connect(weak=False)
def _hand_back_the_rest(**_: Any) -> None:
    """Hand back what this worker still holds at its very end: its pool is gone, and told nobody what became of it."""
    for request in list(state.active_requests):
        if isinstance(request, OwnRequest):
            request.hand_back()


def default(task: Any, app: Any, consumer: Any, **kwargs: Any) -> Any:
    """Return what handles a task's messages. A task that cannot work here does not let its worker start."""
    if task.transactional:
        refuse_foreign(Installation.of(app).database, task.session)
    note_pool(app, consumer.pool)
    incoming.look_first(consumer, unknown.is_recorded)
    handle = celery_default(task, app, consumer, **kwargs)
    acknowledgements = _acknowledgements(consumer)

    def on_message(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **more: Any) -> Any:
        said = body if isinstance(body, Mapping) else message.headers or {}  # protocol 1 says all in its body
        if said.get("eta") and _captured(task, app, message, said):
            message.ack_log_error(logger, consumer.connection_errors)
            return None
        if acknowledgements is not None and message.headers and HEADER in message.headers:
            ack = acknowledgements.of(message) or ack
        return handle(message, body, ack, reject, callbacks, **more)

    return on_message


def _acknowledgements(consumer: Any) -> Acknowledgements | None:
    """Return what gathers a worker's acknowledgements; there is one for all its tasks, and none without an event loop."""
    hub = getattr(consumer, "hub", None)
    if hub is None:
        return None
    found: Acknowledgements = consumer.__dict__.setdefault("_celery_tm_acknowledgements", Acknowledgements(hub))
    return found


def _captured(task: Any, app: Any, message: Any, said: Mapping[str, Any]) -> bool:
    """Keep a call that is far ahead; False if it is not, or cannot be kept: then the worker waits for its time."""
    headers: Mapping[str, Any] = {**said, **(message.headers or {})}
    installation = Installation.of(app)
    eta = instant_of(app, headers.get("eta"))
    now = clock.now()
    if eta is None or eta - now <= installation.settings.tm_capture_eta_after or headers.get(HEADER) is not None:
        return False
    try:
        args, kwargs, embed = read_body(message.payload)
        job = job_of(
            task,
            _message(headers, embed, args, kwargs, message),
            id=headers["id"],
            args=args,
            kwargs=kwargs,
            run_at=eta,
            now=now,
        )
        write_call(installation, job, delay=None)
    except Exception as error:  # whatever is wrong with it: plain Celery's way is always open
        told = Installation.of(task.app).hidden(error)
        logger.warning("%s[%s] waits in this worker's memory: %s", task.name, headers.get("id"), told)
        return False
    logger.info("Task %s[%s] waits in the job table until %s", task.name, headers["id"], eta)
    return True


def _message(headers: Mapping[str, Any], embed: Mapping[str, Any], args: Any, kwargs: Any, message: Any) -> Message:
    request = Context({**headers, **embed}, reply_to=message.properties.get("reply_to"))
    return as_message(request, args, kwargs, {**message.delivery_info, "priority": message.properties.get("priority")})
