"""Spans of OpenTelemetry where the process uses it, and nothing where it does not.

Nobody is asked to install anything: as long as `opentelemetry.trace` was not imported by whoever sets tracing up, a span is
one lookup. Attributes are ids and names, never arguments or keys.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from .domain.job import Job
from .version import __version__

_NOTHING: AbstractContextManager[None] = nullcontext()


def span(name: str, **attributes: Any) -> AbstractContextManager[Any]:
    """Return a block that is the span `celery_tm.<name>`; attributes that are None are left out."""
    trace = _trace()
    if trace is None:
        return _NOTHING
    return _tracer(trace).start_as_current_span(f"celery_tm.{name}", attributes=_stated(attributes))


def _trace() -> Any:
    """Return the module where it is loaded; not while another thread is importing it, for then only part of it is there."""
    trace = sys.modules.get("opentelemetry.trace")
    return None if getattr(getattr(trace, "__spec__", None), "_initializing", False) else trace


def _tracer(trace: Any) -> Any:
    return trace.get_tracer("celery_tm", __version__)


def _stated(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {f"tm.{key}": value for key, value in attributes.items() if value is not None}


@contextmanager
def aside(name: str, **attributes: Any) -> Iterator[None]:
    """Be a span in whose block others begin traces of their own: a message is no part of the round that sends it."""
    trace = _trace()
    if trace is None:
        yield
        return
    from opentelemetry import context

    started = _tracer(trace).start_span(f"celery_tm.{name}", attributes=_stated(attributes))
    token = context.attach(context.Context())
    try:
        yield
    finally:
        context.detach(token)
        started.end()


def describe(**attributes: Any) -> None:
    """Add attributes to the span that this code runs in, once they are known."""
    trace = _trace()
    if trace is not None:
        trace.get_current_span().set_attributes(
            {f"tm.{key}": value for key, value in attributes.items() if value is not None}
        )


def describe_job(job: Job) -> None:
    """Say in the present span which job it is about."""
    describe(job=job.id, task=job.task, definition=job.definition, step=job.step, attempt=job.attempt)
