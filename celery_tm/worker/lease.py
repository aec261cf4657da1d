"""Keeps the leases of running attempts alive: one thread per process, one statement for all of them.

If a renewal finds that an attempt is no longer ours, the body is told through `job.cancelled` and the renewals stop; the
finishing statement would find no row anyway.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref

from ..installation import Installation
from ..store import jobs
from .context import JobContext
from .stopping import hand_back_if_stopping, is_terminated, terminate

logger = logging.getLogger(__name__)
IDLE = 60.0  # seconds without a body after which the thread ends


class LeaseKeeper:
    """Renews the leases of one installation's attempts in this process."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self._running: dict[tuple[str, int], JobContext] = {}
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, *contexts: JobContext) -> None:
        """Renew the leases of these attempts from now on."""
        until = time.monotonic() + self.installation.settings.tm_lease.total_seconds()
        with self._lock:
            for context in contexts:
                context.leased_until = until
                self._running[context.id, context.attempt] = context
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._keep, name="celery_tm-leases", daemon=True)
                self._thread.start()
            if not self._wanted.is_set():
                self._wanted.set()

    def let_go(self, *contexts: JobContext) -> None:
        """Stop renewing: these attempts have ended."""
        with self._lock:
            for context in contexts:
                self._forget(context)

    def _forget(self, context: JobContext) -> bool:
        """Hold this one no more; False if it was not held. The caller has the lock.

        Its name alone would not do: what hands on an end and a job that was revived may have the same attempt.
        """
        name = context.id, context.attempt
        if self._running.get(name) is not context:
            return False
        del self._running[name]
        return True

    def has_lost(self, context: JobContext) -> bool:
        """Say whether an attempt that had to wait for others is no longer ours, as far as can be told."""
        if time.monotonic() >= context.leased_until:
            self.renew_all()
        return context.lease_lost or time.monotonic() >= context.leased_until

    def _keep(self) -> None:
        pause = threading.Event()
        while self._wanted.wait(IDLE) or not self._retired():
            pause.wait(self.installation.settings.renew_every)
            with self._lock:
                if not self._running:  # short bodies come and go without a renewal
                    self._wanted.clear()
                    continue
            self.renew_all()

    def _retired(self) -> bool:
        """End this thread if nothing has run for a while; the next body starts another."""
        with self._lock:
            if self._wanted.is_set() or self._running:
                return False
            self._thread = None
            return True

    def renew_all(self) -> None:
        """Renew every lease once. A database that is away is tried again next time; the lease may end meanwhile."""
        with self._lock:
            running = dict(self._running)
        if any(context.body is not None and context.body.bars_others for context in running.values()):
            return  # nobody can write before that body ends, so nobody can take a lease away either
        lease, asked = self.installation.settings.tm_lease, time.monotonic()
        try:
            held = self.installation.database.run(
                lambda tx: jobs.renew(tx, [context.job for context in running.values()], lease=lease)
            )
        except Exception as error:  # this thread must outlive whatever a database can raise
            logger.warning("cannot renew %d leases: %s", len(running), error)
            return
        for collector in {context.collector for context in running.values() if context.collector is not None}:
            collector.write()  # a body takes its time: what ended before it need not wait
        for name, context in running.items():
            if name not in held:
                self._lost(context)
                continue
            context.leased_until = asked + lease.total_seconds()
            if held[name]:
                self._ask_to_stop(context)
            context.flush()

    def _ask_to_stop(self, context: JobContext) -> None:
        """Tell a body that it is to stop; one of a run that says `terminate` is not asked twice."""
        if context.asked_to_stop:
            return
        context.ask_to_stop()
        if context.job.is_step and is_terminated(self.installation, context.job):
            terminate(self.installation, context.job)

    def _lost(self, context: JobContext) -> None:
        with self._lock:
            still_running = self._forget(context)
        if still_running and not context.finishing:  # else its row is gone for a good reason
            context.lose_lease()


_keepers: weakref.WeakKeyDictionary[Installation, tuple[int, LeaseKeeper]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def keeper_of(installation: Installation) -> LeaseKeeper:
    """Return this process' keeper; a forked child gets its own."""
    found = _keepers.get(installation)
    if found is not None and found[0] == os.getpid():
        return found[1]
    with _lock:
        pid, keeper = _keepers.get(installation, (0, None))
        if keeper is None or pid != os.getpid():
            keeper = LeaseKeeper(installation)
            _keepers[installation] = (os.getpid(), keeper)
        return keeper


@atexit.register
def _leave_nothing_behind() -> None:
    """Hand back what a worker without pool processes was at when it was told to stop: nobody goes on with it here."""
    for pid, keeper in list(_keepers.values()):
        if pid == os.getpid():
            hand_back_if_stopping(list(keeper._running.values()))


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # the parent may have held it when it forked


os.register_at_fork(after_in_child=_after_fork)
