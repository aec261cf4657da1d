"""A call without a worker: a task that is called as a function, or run eagerly."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from celery.app.task import Context

from .. import clock
from ..domain.job import Job, Source
from ..installation import Installation
from ..store.body import BodyTransaction, within
from . import context as contexts
from .body_errors import ReportedFailure
from .context import JobContext


def request_of(task: Any) -> Any:
    """Return the present request; a task that no app has bound has none."""
    return Context() if task.request_stack is None else task.request


def detached(task: Any, *, inside: JobContext | None = None) -> JobContext:
    """Return a context for a call without a worker; `inside` is the job whose body makes it."""
    now = clock.now()
    request = request_of(task)
    job = Job(
        id=request.id or "",
        task=task.name,
        args=None,
        kwargs=None,
        run_at=now,
        created_at=now,
        claimed_at=now,
        original_delay=timedelta(0),
        attempt=(request.retries or 0) + 1,
        source=Source.DIRECT,
    )
    context = JobContext(job, None, outer=inside)
    context.entered = True
    if inside is not None and inside.body is not None:
        context.body, context.owns_body = inside.body, False
    elif task.transactional:
        context.body = BodyTransaction(Installation.of(task.app).database, task.session)
    return context


def run_detached(task: Any, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run as plain Celery would, with a context that only listens.

    Inside the body of a transactional job the call is part of that transaction: one of its own would wait for the rows that
    the job has locked.
    """
    outer = contexts.peek()
    is_inside = outer is not None and not outer.settled
    if outer is not None and is_inside and _is_body_of(task, outer):
        return body(*args, **kwargs)
    context = detached(task, inside=outer if is_inside else None)
    contexts.enter(context)
    try:
        with within(context.body):
            result = body(*args, **kwargs)
        if context.failure_message is not None:
            raise ReportedFailure(context.failure_message)
        if context.owns_body and context.body is not None and context.body.is_open:
            context.body.commit_with(lambda _: None)
    finally:
        if context.owns_body:
            context.roll_back()
        contexts.enter(outer)  # Celery calls some errbacks in the process of the failed job, whose callbacks are pending
    return result


def _is_body_of(task: Any, outer: JobContext) -> bool:
    """Say whether this call is the outer job itself: a `__call__` of its task that calls the body, or the body itself."""
    request = request_of(task)
    return outer.job.task == task.name and (not request.is_eager or request.id == outer.id)
