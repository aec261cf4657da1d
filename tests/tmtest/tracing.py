"""Tracing as users have it: the real instrumentations of OpenTelemetry and Sentry, where they are installed.

Started in every process of a stand by the environment variable TM_TEST_TRACING, and by `active` in the test's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

VARIABLE = "TM_TEST_TRACING"


def current() -> str | None:
    """Return the id of the trace that this code runs in, if tracing is on here."""
    kind = os.environ.get(VARIABLE)
    if kind == "opentelemetry":
        from opentelemetry import trace

        context = trace.get_current_span().get_span_context()
        return trace.format_trace_id(context.trace_id) if context.is_valid else None
    if kind == "sentry":
        import sentry_sdk

        span = sentry_sdk.get_current_span()
        return span.trace_id if span else None
    return None


def start(kind: str | None) -> None:
    """Instrument this process; None does nothing."""
    if kind == "opentelemetry":
        from opentelemetry import trace
        from opentelemetry.instrumentation.celery import CeleryInstrumentor
        from opentelemetry.sdk.trace import TracerProvider

        trace.set_tracer_provider(TracerProvider())
        CeleryInstrumentor().instrument()
    elif kind == "sentry":
        import sentry_sdk
        from sentry_sdk.integrations.celery import CeleryIntegration
        from sentry_sdk.transport import Transport

        class Nowhere(Transport):
            """Sends nothing to anybody."""

            def capture_envelope(self, envelope: Any) -> None:
                pass

        sentry_sdk.init(
            dsn="https://key@127.0.0.1:9/1",
            traces_sample_rate=1.0,
            default_integrations=False,
            integrations=[CeleryIntegration()],
            transport=Nowhere,
        )


@contextmanager
def active(kind: str) -> Iterator[str]:
    """Run in a trace, as a web request would, and yield its id."""
    if kind == "opentelemetry":
        from opentelemetry import trace

        with trace.get_tracer("test").start_as_current_span("request"):
            yield current() or ""
    else:
        import sentry_sdk

        with sentry_sdk.start_transaction(op="http.server", name="request"):
            yield current() or ""


def stop(kind: str) -> None:
    """Leave this process as it was."""
    modules: dict[str, Any] = sys.modules
    if kind == "opentelemetry" and "opentelemetry.instrumentation.celery" in modules:
        modules["opentelemetry.instrumentation.celery"].CeleryInstrumentor().uninstrument()
    elif kind == "sentry" and "sentry_sdk" in modules:
        modules["sentry_sdk"].init()  # without a DSN it does nothing
