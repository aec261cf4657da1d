"""What the worker's main process sees of a task: pool processes that are killed or vanish, revokes, and its own end.

Celery tells only the request about these, not the task. They are recorded at once, instead of waiting for the lease.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

from celery.exceptions import Ignore, TimeLimitExceeded, WorkerLostError
from celery.worker import state
from celery.worker.request import Request as CeleryRequest

from ..domain.execution import Failure, Outcome
from ..domain.job import CALL, read_call
from ..domain.retry import Bury, TryAgain
from ..installation import Installation, worker_name
from ..publisher import HEADER
from . import held, recorder, release
from .body_errors import Rejected
from .delivery import REPLACES, is_attempt, read_chunk, read_replaced
from .shutdown_flag import is_stopping
from .stopping import STOPS
from .time_limits import pool_limits

GONE = (WorkerLostError, TimeLimitExceeded)


class Request(CeleryRequest):
    """A delivery, as the worker's main process handles it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        limits = pool_limits(self.task, self._request_dict.get("timelimit"), jobs=len(self.attempts) or 1)
        if limits is not None:
            self.time_limits: Any = limits
        if self._request_dict.get(HEADER) is not None:
            held.hold(self.app, self)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Record a hard limit; the pool kills the process that exceeded it."""
        if soft or state.should_terminate:
            super().on_timeout(soft, timeout)
        elif self._vanishes(TimeLimitExceeded(timeout)):
            super().on_timeout(soft, timeout)
            self._is_reported()

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """Record a process that vanished; everything else is recorded where the body ran."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)  # the pool may have wrapped it
        if _is_gone(error) and not self._is_announced:
            if not self._vanishes(error):
                return None
            if self._would_requeue:  # Celery would report nothing, and send it again: it is a dead letter by now
                self._is_reported(by_others=True)
                state.task_ready(self)
                return self.acknowledge()
            answer = super().on_failure(exc_info, send_failed_event, return_ok)
            self._is_reported()
            return answer
        if isinstance(error, Ignore) and (shared := read_chunk(self._request_dict.get(HEADER))):
            # Its jobs had their own results and signals; monitors are to see that the message is done with.
            runtime = None if self.time_start is None else time.time() - self.time_start
            self.send_event("task-succeeded", result=f"{len(shared)} jobs", runtime=runtime)
        if isinstance(error, Rejected):  # the pool process has reported it; the broker may have a place for such messages
            self.reject(requeue=False)
        return super().on_failure(exc_info, send_failed_event, return_ok)

    def _vanishes(self, error: BaseException) -> bool:
        """Record that the process is gone; say whether that is the end of the job, for all who wait for it to hear.

        For a hard limit the pool asks twice.
        """
        if not self._is_decided:
            self._is_decided = True
            if is_stopping():  # whoever stops a service may signal all its processes at once
                self.hand_back()
                self._then: TryAgain | Bury | None = TryAgain(recorder.NO_WAIT)
            else:
                self._then = self._record(_failure(error))
            if isinstance(self._then, TryAgain):
                self._will_retry(error if isinstance(error, Exception) else WorkerLostError(repr(error)))
            elif self._then is None:  # another attempt has taken over, or will
                state.task_ready(self)
                self.acknowledge()
        return isinstance(self._then, Bury)

    _is_decided = False

    @property
    def _would_requeue(self) -> bool:
        task = self.task
        return bool((task.acks_late and task.reject_on_worker_lost) or getattr(task, "retry_on_worker_lost", False))

    def _is_reported(self, *, by_others: bool = False) -> None:
        """Let the row of a burial go whose errbacks and result are done, or have another worker do them."""
        for id, attempt in self._present:
            recorder.record_reported(Installation.of(self.app), id, attempt, workers=self._workers, by_others=by_others)

    @property
    def _is_announced(self) -> bool:
        return bool(getattr(self, "_already_cancelled", False) or getattr(self, "_already_revoked", False))

    def cancel(self, pool: Any, *args: Any, **kwargs: Any) -> None:
        """End this attempt, because of a cold shutdown or a lost connection, and hand it back at once.

        A signal handler must not wait for a database in gevent: there the body is cut off and hands itself back. Threads and
        the solo pool cannot end a body: it finishes.
        """
        self._may_wait = not type(pool).__module__.endswith(".gevent")
        with suppress(NotImplementedError):
            super().cancel(pool, *args, **kwargs)

    _may_wait = True

    def _announce_cancelled(self, *args: Any, **kwargs: Any) -> None:
        super()._announce_cancelled(*args, **kwargs)
        if self._may_wait:
            self.hand_back()

    def maybe_expire(self) -> bool:
        """Say whether this message came too late, and remember nothing: another message of this id may be in time.

        Whether a job is too late that says so in its row is for the gate, which goes by the database's clock.
        """
        header = self._request_dict.get(HEADER)
        if isinstance(header, dict) and header.get("expires_at") is not None:
            return False
        was_revoked = self.id in state.revoked
        is_late = bool(super().maybe_expire())
        if is_late and not was_revoked:
            state.revoked.discard(self.id)
        return is_late

    def revoked(self) -> bool:
        """Say whether this delivery is to be discarded; one that only publishes callbacks is not: its job has ended."""
        header = self._request_dict.get(HEADER)
        if isinstance(header, dict) and header.get("ended") is True:
            return False
        return bool(super().revoked())

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        """This delivery is discarded, or was terminated: its job is not to run again."""
        super()._announce_revoked(reason, terminated, signum, expired)
        outcome = Outcome.EXPIRED if expired else Outcome.CANCELLED
        called = str(self._request_dict["task"])
        by_task = bool(expired and Installation.of(self.app).message_defaults(called).get("expires"))
        said = f"{reason} by its worker" if terminated else reason
        for id, attempt in self._present:
            recorder.record_revoked(
                Installation.of(self.app), id, attempt, outcome=outcome, reason=said, workers=self._workers,
                task=called, by_task=by_task,
            )  # fmt: skip

    @property
    def attempts(self) -> list[tuple[str, int]]:
        """Return the attempts that this message carries."""
        header = self._request_dict.get(HEADER)
        shared = read_chunk(header)
        if shared:
            return shared
        said = header.get("attempt") if isinstance(header, dict) else read_replaced(self._request_dict.get(REPLACES)) + 1
        return [(self.id, said)] if is_attempt(said) else []

    @property
    def _present(self) -> list[tuple[str, int]]:
        """Return its attempts as they are numbered by now: a call whose id was used before does not begin with the first."""
        call = read_call(self._request_dict.get(CALL))
        if call is None or self._request_dict.get(HEADER) is not None:
            return self.attempts
        begun = recorder.attempt_of(Installation.of(self.app), self.id, call, workers=self._workers)
        return self.attempts if begun is None else [(self.id, begun)]

    @property
    def _workers(self) -> frozenset[str]:
        """Return the names that the process which ran this may have at the gate."""
        # gevent's bodies run in this process, and Celery takes the number of their greenlet for a process id.
        return frozenset(worker_name(self.hostname, pid) for pid in (self.worker_pid, os.getpid()))

    def _record(self, failure: Failure) -> TryAgain | Bury | None:
        """Write how the attempt ended; of several that shared a process none is blamed, and each goes on alone."""
        attempts = self._present
        if len(attempts) > 1 or read_chunk(self._request_dict.get(HEADER)):
            self.hand_back(failure.error)
            return TryAgain(recorder.NO_WAIT)
        if not attempts:  # its header contradicts itself: it was never let in
            return Bury("its message contradicts itself")
        [(id, attempt)] = attempts
        return recorder.record_vanished(Installation.of(self.app), id, attempt, failure, workers=self._workers)

    def hand_back(self, why: str = STOPS) -> None:
        """Let what this message carries wait again, unless it has ended or is in other hands."""
        release.record_handed_back(Installation.of(self.app), self._present, why, workers=self._workers)

    def _will_retry(self, error: Exception) -> None:
        """Tell Celery that this delivery is over and that another will follow."""
        state.task_ready(self)
        if self.store_errors:
            self.task.backend.mark_as_retry(self.id, error, request=self._context)
        self.send_event("task-retried", exception=repr(error), traceback=None)
        self.acknowledge()


def _is_gone(error: BaseException) -> bool:
    """Say whether nothing was recorded where the body ran: its process died, or it was cut off by no ordinary exception."""
    return isinstance(error, GONE) or not isinstance(error, Exception)


def _failure(error: BaseException) -> Failure:
    if isinstance(error, TimeLimitExceeded):
        limit = error.args[0] if error.args else "?"
        return Failure(error=f"TimeLimitExceeded: {limit} s", outcome=Outcome.TIMEOUT)
    return Failure.orphaned(f"WorkerLostError: {error}")
