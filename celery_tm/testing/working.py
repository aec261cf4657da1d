"""A real worker and a real beat in threads of the test's process.

Messages, the gate, leases and the ledger are those of production; only the processes are missing, so nothing can be
killed here. They live at the test's time: where `tm_clock` moves it, they see what is due then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from celery.bootsteps import TERMINATE
from celery.contrib.testing.worker import start_worker
from celery.signals import setup_logging
from celery.worker import state

from ..domain.job import Status
from ..installation import Installation
from ..scheduler import Scheduler
from ..store import history

BREATH = 0.02
ENDED = {Status.SUCCEEDED, Status.FAILED, Status.CANCELED}
LAST_CALL = 20.0  # seconds for what still runs when a test ends


class EmbeddedWorker:
    """A worker and a beat that run until the test ends."""

    def __init__(self, app: Celery, controller: Any) -> None:
        self.app, self.controller = app, controller
        self.installation = Installation.of(app)

    def wait_for(self, job: Any, *, timeout: float = 30.0) -> Status:
        """Wait until a job (a handle or an id) has succeeded, failed or been cancelled, and return which; else fail.

        A job that is tried again later has not ended: move the clock for its next attempt.
        """
        id = str(getattr(job, "id", job))
        until = time.monotonic() + timeout
        while True:
            story = self._story(id)
            if story is not None and story.state in ENDED:
                return Status(story.state)
            if time.monotonic() >= until:
                raise AssertionError(_overdue(id, story, timeout))
            time.sleep(BREATH)

    def _story(self, id: str) -> Any:
        with self.installation.database.transaction(write=False) as tx:
            return history.story(tx, id)


def _overdue(id: str, story: Any, timeout: float) -> str:
    if story is None:
        return f"no job {id} is known; was the transaction that deferred it committed?"
    error = f", last error: {story.last_error}" if getattr(story, "last_error", None) else ""
    return f"{story.task} ({id}) is {story.state} after {timeout:g} s, attempt {story.attempt_count}{error}"


@contextmanager
def embedded(app: Celery) -> Iterator[EmbeddedWorker]:
    """Run a worker and a beat of an app until the block ends; what runs then is waited for."""
    with _unlogged(), start_worker(app, pool="threads", concurrency=2, perform_ping_check=False) as controller:
        with _beat(app):
            yield EmbeddedWorker(app, controller)
        _stop(controller)


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep Celery from setting up logging anew: pytest has, and shows what is logged."""

    def leave(**_: Any) -> None:
        pass

    setup_logging.connect(leave)
    try:
        yield
    finally:
        setup_logging.disconnect(leave)


def _stop(controller: Any) -> None:
    """Let the worker end as SIGTERM would."""
    state.should_stop = 0
    try:
        until = time.monotonic() + LAST_CALL
        while controller.blueprint.state != TERMINATE and time.monotonic() < until:
            time.sleep(BREATH)
    finally:
        state.should_stop = None


@contextmanager
def _beat(app: Celery) -> Iterator[None]:
    """Tick in a thread."""
    scheduler, stopping = Scheduler(app, max_interval=BREATH), threading.Event()

    def tick() -> None:
        while not stopping.is_set():
            scheduler.tick()
            stopping.wait(BREATH)

    thread = threading.Thread(target=tick, name="tm_worker beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(30)
        scheduler.close()
