"""Checks of what a body returned, before its success is written: it has run, and its result can be sent."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import isasyncgen, isawaitable, isgenerator, isgeneratorfunction, unwrap
from typing import Any

from celery.backends.base import DisabledBackend
from kombu.serialization import dumps

from ..errors import InvalidValue

PLAIN = (type(None), bool, int, float, str)


RUN_IT = "let the body call asyncio.run() with it, or list()"


def unrun(task: Any, result: Any) -> InvalidValue | None:
    """Return why a result is no success: a body that returns a coroutine, or is a generator, has not run yet."""
    if isinstance(result, PLAIN):
        return None
    has_run = not isgenerator(result) or not isgeneratorfunction(unwrap(task.run))
    if has_run and not isawaitable(result) and not isasyncgen(result):
        return None
    getattr(result, "close", bool)()  # or Python warns of it, some time later
    return InvalidValue(
        "result", f"the body returned a {type(result).__name__}, which nothing awaits or goes through", RUN_IT
    )


def refuse_unsendable(task: Any, result: Any) -> None:
    """Raise for a result that its backend cannot keep, or its callbacks cannot get: Celery would call the task failed."""
    if isinstance(result, PLAIN):
        return
    request, backend = task.request, task.backend
    said = vars(request).get("ignore_result")
    if not (task.ignore_result if said is None else said) and not isinstance(backend, DisabledBackend):
        backend.encode(backend.prepare_value(result))
    follows = [*(request.callbacks or ()), *(request.chain or ())[-1:]]
    if follows:
        _refuse_unsendable_to(task.app, follows, result)


def _refuse_unsendable_to(app: Any, follows: Sequence[Any], result: Any) -> None:
    """Raise for a result that cannot be an argument of what follows, in any of the ways in which that may be sent."""
    ways = {app.conf.task_serializer}
    for sig in follows:
        own = getattr(app.tasks.get(sig.get("task")), "serializer", None)
        ways |= {(sig.get("options") or {}).get("serializer"), own}
    errors = []
    for way in ways - {None}:
        try:
            dumps(result, serializer=way)
        except Exception as error:
            errors.append(error)
        else:
            return
    raise errors[0]
