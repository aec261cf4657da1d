"""Spans of OpenTelemetry where the process uses it, and nothing where it does not.

Nobody is asked to install anything: as long as `opentelemetry.trace` was not imported by whoever sets tracing up, a span is
one lookup. Attributes are ids and names, never arguments or keys.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from .version import __version__

_NOTHING: AbstractContextManager[None] = nullcontext()


def span(name: str, **attributes: Any) -> AbstractContextManager[Any]:
    """Return a block that is the span `celery_tm.<name>`; attributes that are None are left out."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return _NOTHING
    stated = {f"tm.{key}": value for key, value in attributes.items() if value is not None}
    return trace.get_tracer("celery_tm", __version__).start_as_current_span(f"celery_tm.{name}", attributes=stated)


def is_on() -> bool:
    """Say whether this process uses OpenTelemetry."""
    return "opentelemetry.trace" in sys.modules
