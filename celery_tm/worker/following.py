"""What follows an attempt's end: links, the rest of a chain, a chord's count, errbacks, a replacement.

Celery hands these on itself, after the body, and this only makes sure that it happens: the end is written first, the row
stays, and goes when Celery is done. If the worker dies in between, another one gets the job, does not run the body, and lets
Celery hand on what follows again. Each call that follows has the same id both times, so its gate lets it in once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid5

from celery.canvas import signature
from celery.exceptions import Ignore
from celery.signals import task_failure, task_postrun, task_success

from ..domain.codec import encode
from ..domain.ids import NAMESPACE
from ..domain.job import Job
from ..errors import InvalidValue, TmError
from ..store import following
from . import context as contexts
from . import recorder
from .context import JobContext
from .delivery import REPLACES
from .lease import keeper_of

logger = logging.getLogger(__name__)
LONGEST_WAIT = timedelta(minutes=10)  # between two tries to hand on what follows; doubles from two seconds


class RecordedFailure(TmError):
    """An attempt that failed earlier; it was not run again, only told."""


def worth_keeping(request: Any, context: JobContext, **ended: Any) -> Mapping[str, Any] | None:
    """Return how an attempt ended as its row keeps it while something follows; None where nothing does."""
    follows = request.chain or request.chord or (request.errbacks if "error" in ended else request.callbacks)
    if not follows:
        return None
    listen()
    return _as_json({**ended, "attempt": context.attempt})


def _as_json(ended: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return an end that a row can keep; one that is not JSON is handed on as plain Celery does, once."""
    try:
        encode(ended, field="ended")
    except InvalidValue:
        return None
    return ended


def hand_on(task: Any, context: JobContext) -> Any:
    """Return, or raise, what the body did when it ran, so that Celery hands on what follows."""
    listen()
    ended = context.ended = context.job.ended or {}
    context.settled = True
    if "replaced" in ended:
        _send(context, signature(ended["replaced"], app=task.app))
    if "error" in ended:
        raise RecordedFailure(ended["error"])
    return ended.get("result")


def replace(context: JobContext, sig: Any) -> Any:
    """Write that this attempt is replaced, then send what is put in its place. Always raises Ignore."""
    assert context.installation is not None
    listen()
    last = _with_id(sig, context.id) or sig
    last["options"]["headers"] = {**(last["options"].get("headers") or {}), REPLACES: context.attempt}
    context.finishing = True
    ended, told = _as_json({"replaced": dict(sig)}), f"replaced by {sig.get('task')}"
    recorder.record_replaced(context.installation, context.job, ended, message=told, body=context.body)
    context.settled, context.ended = True, ended
    _send(context, sig)


def _send(context: JobContext, sig: Any) -> None:
    """Send what was put in a job's place. Always raises Ignore: if it could not be sent, another worker tries again."""
    try:
        sig.delay()
        context.followed = True
    except Exception as error:
        if context.ended is None:
            raise
        assert context.installation is not None
        logger.warning("what replaces job %s is not sent: %s", context.id, context.installation.hidden(error))
    raise Ignore("replaced by another call")


def _with_id(sig: Mapping[str, Any], id: str) -> Any:
    """Return the part of a signature that has this id, looked for from the end."""
    for part in reversed(_parts(sig)):
        found = _with_id(part, id)
        if found is not None:
            return found
    return sig if (sig.get("options") or {}).get("task_id") == id else None


def name_links(request: Any, job: Job) -> None:
    """Give the calls that follow an attempt ids that are the same each time it is handed on: none is let in twice."""
    attempt = (job.ended or {}).get("attempt", job.attempt)  # handing on has attempts of its own
    for kind in ("callbacks", "errbacks"):
        for number, sig in enumerate(getattr(request, kind) or ()):
            if isinstance(sig, dict):
                _name(sig, uuid5(NAMESPACE, f"{kind}/{job.id}/{attempt}/{number}"))


def _name(sig: dict[str, Any], id: UUID) -> None:
    options = sig.get("options")
    if not isinstance(options, dict):
        options = sig["options"] = dict(options or {})
    options.setdefault("task_id", str(id))
    for number, part in enumerate(_parts(sig)):
        _name(part, uuid5(id, str(number)))


def _parts(sig: Mapping[str, Any]) -> list[Any]:
    """Return the signatures that a chain, a group or a chord is made of."""
    inner = sig.get("kwargs")
    if not str(sig.get("task") or "").startswith("celery.") or not isinstance(inner, Mapping):
        return []
    found: list[Any] = []
    for name in ("tasks", "header", "body"):
        part = inner.get(name)
        listed = part if isinstance(part, Sequence) and not isinstance(part, (str, bytes)) else [part]
        found += [one for one in listed if isinstance(one, dict)]
    return found


def listen() -> None:
    """Listen to what Celery does after a body; that costs every task of the process, so not before it is of use."""
    for signal, receiver in (
        (task_success, _success_is_handed_on),
        (task_failure, _failure_is_handed_on),
        (task_postrun, _over),
    ):
        signal.connect(receiver, weak=False, dispatch_uid=receiver.__qualname__)


def _success_is_handed_on(**_: Any) -> None:
    """Celery has published what follows a success, and stored the result."""
    context = contexts.peek()
    if context is not None and context.ended is not None and "result" in context.ended:
        context.followed = True


def _failure_is_handed_on(**_: Any) -> None:
    """Celery has told of a failure; of a success only, that what follows it could not be published."""
    context = contexts.peek()
    if context is not None and context.ended is not None and "error" in context.ended:
        context.followed = True


def _over(task_id: str | None = None, **_: Any) -> None:
    """Let the row go, or have what follows handed on once more if that failed."""
    context = contexts.peek()
    if context is None or not context.following or context.id != task_id:
        return
    installation, job = context.installation, context.job
    assert installation is not None
    keeper_of(installation).let_go(context)
    contexts.leave()
    try:
        if context.followed:
            installation.database.run(lambda tx: following.forget(tx, job))
            return
        tried = int((context.ended or {}).get("tried", 0)) + 1
        delay = min(timedelta(seconds=2 ** min(tried, 20)), LONGEST_WAIT)
        ended = {**(context.ended or {}), "tried": tried}
        logger.warning("what follows job %s could not be handed on; it is tried again in %s", job.id, delay)
        installation.database.run(lambda tx: following.carry_on(tx, job, delay=delay, ended=ended))
    except TmError as error:  # its lease ends, and another worker hands it on again
        logger.warning("what follows job %s is handed on, but that is not written: %s", job.id, error)
