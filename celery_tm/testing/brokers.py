"""A broker and a result backend in memory, so that a test reaches no server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kombu.transport import memory, virtual

URL = "memory://"
POLL, PATIENCE = 0.01, 0.1  # seconds between looks, and until a worker asks whether to end; by default 1 and 2
# These win over any configuration, whatever namespace an app gives its settings.
PLACES = {
    "CELERY_BROKER_URL": URL,
    "CELERY_BROKER_READ_URL": URL,
    "CELERY_BROKER_WRITE_URL": URL,
    "CELERY_RESULT_BACKEND": "cache+memory://",
}


@contextmanager
def in_memory(app: Any) -> Iterator[str]:
    """Let an app send and keep results within this process, and afterwards where it did before."""
    with pytest.MonkeyPatch.context() as patch:
        for name, url in PLACES.items():
            patch.setenv(name, url)
        patch.setattr(memory.Transport, "polling_interval", POLL)
        patch.setattr(memory.Transport, "drain_events", _drain_soon)
        memory.Channel.queues.clear()  # there is one broker in memory for all, with what earlier tests left
        before = _take_connections(app)
        try:
            yield URL
        finally:
            _take_connections(app)
            app._pool, app.amqp._producer_pool, app._backend_cache = before


def _drain_soon(transport: Any, connection: Any, timeout: float | None = None) -> Any:
    return virtual.Transport.drain_events(transport, connection, timeout=min(timeout, PATIENCE) if timeout else timeout)


def _take_connections(app: Any) -> tuple[Any, Any, Any]:
    """Return what an app has open, and let it connect anew to where its configuration leads by now."""
    before = app._pool, app.amqp._producer_pool, app._backend_cache
    app._pool = app.amqp._producer_pool = app._backend_cache = None
    vars(app._local).pop("backend", None)
    return before
