"""A worker as a node: it is seen while it runs, signs off when it stops, and counts and serves its metrics if asked to.

All of it happens in the worker's main process, on Celery's own signals. A database that is away is no error: the worker is
seen again when it is back.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

from celery.signals import celeryd_after_setup, worker_process_init, worker_ready, worker_shutdown

from .. import events
from ..domain.job import MAX_WORKER, fitted
from ..errors import RightMissing
from ..installation import Installation
from ..store import nodes

logger = logging.getLogger(__name__)

SEEN_EVERY = 10.0
KIND = "worker"
_attendances: WeakKeyDictionary[Any, Attendance] = WeakKeyDictionary()  # by app


class Attendance:
    """Notes every few seconds that a worker is alive, in a thread of its own, and that it has stopped in the end."""

    def __init__(self, installation: Installation, name: str) -> None:
        self.installation, self.name = installation, name
        self._started = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._attend, name="celery_tm-attendance", daemon=True)

    def begin(self) -> None:
        """Be seen from now on."""
        self._thread.start()

    def _attend(self) -> None:
        while True:
            age = timedelta(seconds=time.monotonic() - self._started)
            self._write(lambda tx, age=age: nodes.see(tx, self.name, KIND, started_ago=age))
            if self._over.wait(SEEN_EVERY):
                return

    def end(self) -> None:
        """Sign off."""
        self._over.set()
        self._thread.join(SEEN_EVERY / 2)  # else it might be seen once more afterwards
        self._write(lambda tx: nodes.forget(tx, self.name, KIND))

    def _write(self, work: Any) -> None:
        try:
            self.installation.database.run(work)
        except RightMissing as error:  # nobody would ever know, for this does not pass by itself
            events.emit_seldom(self.installation.app, events.OutageBegan(what="database", error=str(error)))
        except Exception as error:  # being seen is for people; the work does not depend on it
            logger.debug("%s is not seen: %s", self.name, error)


def is_ours(app: Any) -> bool:
    """Say whether an app has tasks of ours."""
    return any(getattr(task, "tm_gated", False) for task in app.tasks.values())


@celeryd_after_setup.connect(weak=False, dispatch_uid="celery_tm.worker.attending")
def _set_up(instance: Any = None, **_: Any) -> None:
    """Count from the beginning: pool processes are forked after this."""
    if instance is not None and is_ours(instance.app):
        installation = Installation.of(instance.app)
        if installation.settings.port_of(KIND) is not None:
            from ..metrics.serving import count_worker

            count_worker(installation, has_processes=_has_processes(instance.pool_cls))


def _has_processes(pool: Any) -> bool:
    from celery.concurrency.prefork import TaskPool

    return isinstance(pool, type) and issubclass(pool, TaskPool)


@worker_process_init.connect(weak=False, dispatch_uid="celery_tm.worker.attending")
def _pool_process_is_set_up(**_: Any) -> None:
    """Let a pool process that was not forked count too."""
    from celery import current_app

    app = current_app._get_current_object()
    if is_ours(app):
        installation = Installation.of(app)
        if installation.settings.port_of(KIND) is not None:
            from ..metrics.serving import count_in_pool

            count_in_pool(installation)


@worker_ready.connect(weak=False, dispatch_uid="celery_tm.worker.attending")
def _ready(sender: Any = None, **_: Any) -> None:
    if sender is None or not is_ours(sender.app):
        return
    installation = Installation.of(sender.app)
    if installation.settings.port_of(KIND) is not None:
        from ..metrics.serving import serve_worker

        serve_worker(installation)
    attendance = _attendances[sender.app] = Attendance(installation, fitted(sender.hostname, MAX_WORKER))
    attendance.begin()


@worker_shutdown.connect(weak=False, dispatch_uid="celery_tm.worker.attending")
def _stopped(sender: Any = None, **_: Any) -> None:
    attendance = _attendances.pop(sender.app, None) if sender is not None else None
    if attendance is not None:
        attendance.end()
