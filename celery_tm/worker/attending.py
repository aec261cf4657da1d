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
from ..errors import RightMissing, TmError
from ..installation import Installation
from ..store import nodes

logger = logging.getLogger(__name__)

SEEN_EVERY = 10.0
LOCK_TIMEOUT = 5.0  # seconds that a worker waits for a row which another transaction has locked; a body waits as it likes
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


_worker: list[bool] = []  # not empty in a worker and, since they are forked from it, in its pool processes


def is_worker() -> bool:
    """Say whether this process is a worker, or one of its pool processes."""
    return bool(_worker)


def is_ours(app: Any) -> bool:
    """Say whether an app has tasks of ours."""
    return any(getattr(task, "tm_gated", False) for task in app.tasks.values())


@celeryd_after_setup.connect(weak=False, dispatch_uid="celery_tm.worker.attending")
def _set_up(instance: Any = None, **_: Any) -> None:
    """Wait for nobody's locks, and count from the beginning: pool processes are forked after this."""
    _worker[:] = [True]
    if instance is not None and is_ours(instance.app):
        installation = Installation.of(instance.app)
        try:
            database = installation.database  # reads the settings
        except TmError as error:  # Celery only logs what a signal handler raises, and the worker would start
            raise SystemExit(f"Error: {error}") from error
        database.serve(lock_timeout=LOCK_TIMEOUT, bodies=_bodies_in_one_process(instance))
        if installation.settings.port_of(KIND) is not None:
            from ..metrics.serving import count_worker

            count_worker(installation, has_processes=_has_processes(instance.pool_cls))


def _bodies_in_one_process(worker: Any) -> int:
    """Return how many bodies may run at once in this process; 0 where each has a process of its own."""
    if _has_processes(worker.pool_cls):
        return 0
    most = worker.autoscale if isinstance(worker.autoscale, (list, tuple)) else ()
    return max(int(worker.concurrency or 1), *(int(count) for count in most), 1)


def _has_processes(pool: Any) -> bool:
    from celery.concurrency.prefork import TaskPool

    return isinstance(pool, type) and issubclass(pool, TaskPool)


@worker_process_init.connect(weak=False, dispatch_uid="celery_tm.worker.attending")
def _pool_process_is_set_up(**_: Any) -> None:
    """Let a pool process that was not forked count too."""
    _worker[:] = [True]
    from celery import current_app

    app = current_app._get_current_object()
    if is_ours(app):
        installation = Installation.of(app)
        if installation.database.manner.lock_timeout is None:
            installation.database.serve(lock_timeout=LOCK_TIMEOUT)
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
