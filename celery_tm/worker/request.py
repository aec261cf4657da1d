"""What the worker's main process sees of a task: pool processes that are killed or vanish.

Celery tells only the request about these, not the task. They are recorded at once, instead of waiting for the lease.
"""

from __future__ import annotations

import os
from typing import Any

from celery.exceptions import TimeLimitExceeded, WorkerLostError
from celery.worker import state
from celery.worker.request import Request as CeleryRequest

from ..domain.execution import Failure, Outcome
from ..domain.retry import Bury, TryAgain
from ..installation import Installation
from ..publisher import HEADER
from . import recorder


class Request(CeleryRequest):
    """A delivery, as the worker's main process handles it."""

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Record a hard limit; the pool kills the process that exceeded it."""
        if soft or state.should_terminate:
            super().on_timeout(soft, timeout)
            return
        error = TimeLimitExceeded(timeout)
        then = self._record(Failure(error=f"TimeLimitExceeded: {timeout} s", outcome=Outcome.TIMEOUT))
        if isinstance(then, TryAgain):
            self._will_retry(error)
        else:
            super().on_timeout(soft, timeout)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """Record a process that vanished; everything else is recorded where the body ran."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)  # the pool may have wrapped it
        if isinstance(error, WorkerLostError):
            then = self._record(Failure.orphaned(f"WorkerLostError: {error}"))
            if isinstance(then, TryAgain):
                self._will_retry(error)
                return None
        return super().on_failure(exc_info, send_failed_event, return_ok)

    def _record(self, failure: Failure) -> TryAgain | Bury | None:
        header = self._request_dict.get(HEADER)
        attempt = header.get("attempt", 1) if isinstance(header, dict) else 1
        # gevent's bodies run in this process, and Celery takes the number of their greenlet for a process id.
        workers = {f"{self.hostname}:{pid}" for pid in (self.worker_pid, os.getpid())}
        return recorder.record_vanished(Installation.of(self.app), self.id, attempt, failure, workers=workers)

    def _will_retry(self, error: Exception) -> None:
        """Tell Celery that this delivery is over and that another will follow."""
        state.task_ready(self)
        self.task.backend.mark_as_retry(self.id, error, request=self._context)
        self.send_event("task-retried", exception=repr(error), traceback=None)
        self.acknowledge()
