"""What attempts that failed without an exception of their body, and a `Reject` of a body or a hook, become."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import states
from celery.app.trace import TraceInfo, trace_ok_t
from celery.exceptions import Reject

from ..errors import TmError, said


class ReportedFailure(TmError):
    """The body called `report_failure` and returned."""


class MaxDurationExceeded(TmError):
    """The body noticed that its attempt ran for too long, and returned."""


class Rejected(TmError):
    """The body rejected its message, and no retry is left: the job is a dead letter.

    Celery handles a `Reject` in the main process, which would report it a second time. This one is handled as any failure
    is, and result backends store it under the name of Celery's class, so that `result.get()` raises `Reject`.
    """

    def __init__(self, reason: object = None, requeue: bool = False) -> None:
        super().__init__(reason, requeue)
        self.reason, self.requeue = reason, requeue

    def __str__(self) -> str:
        return "rejected" if self.reason is None else said(self.reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rejected, self.args


def _rejected(*args: Any) -> Rejected:
    return Rejected(*args)


Rejected.__module__, Rejected.__qualname__ = Reject.__module__, Reject.__qualname__


def rejecting(tracer: Callable[..., Any]) -> Callable[..., Any]:
    """Return a tracer that reports a `Reject` of a hook as that of a body.

    Celery's lets it through. Pools of threads and greenlets then call nobody back: the message is neither acknowledged nor
    rejected, and after as many as the prefetch limit the worker consumes no more.
    """

    @wraps(tracer)
    def trace(*args: Any, **kwargs: Any) -> Any:
        try:
            return tracer(*args, **kwargs)
        except Reject as error:
            return trace_ok_t(ExceptionInfo(internal=True), TraceInfo(states.REJECTED, error), 0.0, None)

    return trace
