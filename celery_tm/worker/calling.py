"""Calls of a durable task: straight to the broker, or into the job table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from celery.utils import uuid
from kombu.exceptions import OperationalError

from .. import answers
from ..domain.execution import Failure
from ..domain.retry import TryAgain
from ..errors import TmError
from ..installation import Installation
from ..producer.capturing import capture, check_rules, instant_of, wait_of
from ..producer.message import keep
from ..store import body
from . import context as contexts
from . import outcome_texts, recorder
from .call_ids import is_signature, of_process, with_call
from .context import JobContext
from .delivery import REPLACES

logger = logging.getLogger(__name__)
WHEN = ("eta", "countdown")


def call(
    task: Any,
    send: Callable[..., Any],
    *,
    args: Any,
    kwargs: Any,
    id: str | None,
    producer: Any,
    options: Mapping[str, Any],
) -> Any:
    """Make a call with `send`, Celery's own `apply_async`, unless it belongs in the job table."""
    installation = Installation.of(task.app)
    if task.app.current_worker_task is None:  # a worker publishes callbacks: of those the gate makes dead letters
        check_rules(task, args, kwargs)
    wait = wait_of(task.app, options.get("eta"), options.get("countdown"))
    options = {**installation.described(task.name, args, kwargs), **options}
    is_chosen = id is not None
    id = id or uuid()

    def send_to(keeper: Any) -> Any:
        timeless = {name: value for name, value in options.items() if name not in WHEN}
        return send(task_id=id, producer=keeper, **timeless)

    context = contexts.peek()
    if context is not None and context.asks_again and id == context.id:
        return _try_again(task, context, send_to, wait)
    if is_chosen and is_signature(options):
        options = with_call(task.app, id, options)
    if wait > installation.settings.tm_capture_eta_after or body.ambient(installation.database) is not None:
        result = capture(task, send_to, id=id, args=args, kwargs=kwargs, wait=wait, names_id=is_chosen)
        if result is not None:
            return result
    try:
        return send(task_id=id, producer=producer, **options)
    except OperationalError as error:
        of_process.forget()
        if not installation.settings.tm_keep_unsent or REPLACES in (options.get("headers") or {}):
            raise  # the row of the attempt that it replaces keeps it
        return _without_broker(task, send_to, error, id=id, args=args, kwargs=kwargs, wait=wait)


def _without_broker(task: Any, send_to: Callable[[Any], Any], error: Exception, **call: Any) -> Any:
    """Keep a call that the broker did not take; if it took it after all, the gate knows both by their id."""
    said = Installation.of(task.app).hidden(error)
    try:
        result = capture(task, send_to, unsent=f"{type(error).__name__}: {said}", **call)
    except TmError as away:
        raise error from away
    if result is None:
        raise error
    logger.warning("%s[%s] waits in the job table, for the broker does not answer: %s", task.name, call["id"], said)
    return result


def _try_again(task: Any, context: JobContext, send_to: Callable[[Any], Any], wait: timedelta) -> Any:
    """Give the present job its next try, with what `self.retry()` made of its message."""
    result, message = keep(task.app, send_to)
    then = TryAgain(
        max(wait, timedelta(0)),
        args=message.args,
        kwargs=message.kwargs,
        queue=message.queue,
        priority=message.priority,
        expires_at=instant_of(task.app, message.expires),
        options=message.options,
    )
    why = context.asks_again
    failure = (
        outcome_texts.failure_of(why) if isinstance(why, BaseException) else Failure(error="the body asked for a retry")
    )
    assert context.installation is not None
    context.roll_back()
    context.finishing = True
    decision = recorder.record_failure(context.installation, context.job, failure, then=then)
    context.settled = True
    if decision is None:  # cancelled while it ran
        context.revoked = True
        answers.revoked(task, task.request)
    return result
