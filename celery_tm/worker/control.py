"""Revokes that last: Celery's live in the memory of the workers that hear them, ours in the job table.

`app.control.revoke`, and so `AsyncResult.revoke`, cancels the job's row before it tells the workers, and tells them that it
has. A worker that hears a revoke of somebody else writes it, for callers whose app knows nothing of the table: in a thread,
so that the worker goes on while the database is away.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Any

from celery import Celery
from celery.app.control import Control as CeleryControl
from celery.signals import worker_shutdown
from kombu.utils.functional import maybe_list

from ..errors import OUT_OF_REACH
from ..installation import Installation
from ..producer.cancelling import revoke_all

logger = logging.getLogger(__name__)
WRITTEN = "tm_written"  # among a revoke's arguments: its caller has cancelled the rows already
TERM_SIGNAME = "SIGTERM"
CAPACITY = 10_000  # revokes that wait to be written; the oldest go first
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds


class Control(CeleryControl):
    """Celery's remote control, with revokes that are written down."""

    def revoke(
        self, task_id: Any, destination: Any = None, terminate: bool = False, signal: Any = TERM_SIGNAME, **kwargs: Any
    ) -> Any:
        """Cancel the jobs of these ids, and tell the workers."""
        try:
            revoke_all(Installation.of(self.app), _ids(task_id))
        except Exception as error:  # the workers are to hear of it whatever happens here; they write it then
            logger.warning("a revoke is left to the workers that hear it: %s", error)
            return super().revoke(task_id, destination, terminate, signal, **kwargs)
        arguments = {"task_id": task_id, "terminate": terminate, "signal": signal, WRITTEN: True}
        return self.broadcast("revoke", destination=destination, arguments=arguments, **kwargs)


def make_revokes_durable(app: Any) -> None:
    """Give an app this control, unless it has one of its own."""
    if app.control_cls == Celery.control_cls:
        app.control_cls = "celery_tm.worker.control:Control"
        made = app.__dict__.get("control")
        if type(made) is CeleryControl:
            made.__class__ = Control


def listen() -> None:
    """Let this worker write down the revokes that it hears."""
    from celery.worker.control import Panel

    plain = Panel.data["revoke"]
    if getattr(plain, "tm_durable", False):
        return

    def revoke(state: Any, task_id: Any, terminate: bool = False, signal: Any = None, **kwargs: Any) -> Any:
        is_written = kwargs.pop(WRITTEN, False)
        answer = plain(state, task_id, terminate=terminate, signal=signal, **kwargs)
        if not is_written:
            writer.add(state.app, _ids(task_id))
        return answer

    revoke.tm_durable = True  # type: ignore[attr-defined]
    revoke.__doc__ = plain.__doc__
    Panel.data["revoke"] = revoke


def _ids(task_id: Any) -> list[str]:
    return [str(id) for id in maybe_list(task_id) or ()]


class Writer:
    """Writes the revokes that a worker has heard of, one after the other, in a thread that ends when there are none."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Any, list[str]]] = deque(maxlen=CAPACITY)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, app: Any, ids: list[str]) -> None:
        """Have revokes written soon."""
        with self._lock:
            self._waiting.append((app, ids))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._write_all, name="celery_tm-revokes", daemon=True)
                self._thread.start()

    def flush(self, seconds: float) -> None:
        """Wait until all are written, so long at most."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def _write_all(self) -> None:
        pause = FIRST_PAUSE
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                app, ids = self._waiting[0]
            try:
                revoke_all(Installation.of(app), ids)
                pause = FIRST_PAUSE
            except OUT_OF_REACH as error:
                logger.warning("%d revokes are not written yet: %s", len(ids), error)
                time.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            except Exception as error:
                logger.warning(
                    "%d revokes are known to the workers that hear them, but are not written: %s", len(ids), error
                )
            with self._lock:
                if self._waiting and self._waiting[0][1] is ids:
                    self._waiting.popleft()


writer = Writer()


@worker_shutdown.connect
def _on_shutdown(**_: Any) -> None:
    writer.flush(5.0)
