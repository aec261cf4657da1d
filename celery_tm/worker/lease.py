"""Keeps the leases of running attempts alive: one thread per process, one statement for all of them.

If a renewal finds that an attempt is no longer ours, the body is told through `job.cancelled` and the renewals stop; the
finishing statement would find no row anyway. The body of an attempt that has run for longer than it may is told in the same
way and, where the pool can do that, interrupted; its lease is not renewed beyond that time.

A renewal waits neither for a row that another transaction has locked nor for a connection that bodies hold, nor for a body's
thread, and what could not be renewed is tried again every second.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Mapping

from ..installation import Installation
from ..store import jobs
from ..store.database import Transaction
from .context import JobContext
from .soft_limit import kill_later, soft_limit
from .stopping import hand_back_if_stopping, is_terminated, terminate_aside

logger = logging.getLogger(__name__)
IDLE = 60.0  # seconds without a body after which the thread ends
RETRY_EVERY = 1.0  # seconds between two tries while a lease cannot be renewed: beat's grace after an outage is for these


class LeaseKeeper:
    """Renews the leases of one installation's attempts in this process."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self._lease = installation.settings.tm_lease.total_seconds()
        self._running: dict[tuple[str, int], JobContext] = {}
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._warned = False

    def hold(self, *contexts: JobContext) -> None:
        """Renew the leases of these attempts from now on."""
        now = time.monotonic()
        with self._lock:
            for context in contexts:
                longest = context.job.longest
                context.stuck_from = math.inf if longest is None else now + longest.total_seconds()
                context.leased_until = min(now + self._lease, context.stuck_from)
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
                context.over = True
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
        pause, regular = threading.Event(), self.installation.settings.renew_every
        wait = regular
        while self._wanted.wait(IDLE) or not self._retired():
            pause.wait(min(wait, self._until_stuck()))
            self._stop_stuck()
            with self._lock:
                if not self._running:  # short bodies come and go without a renewal
                    self._wanted.clear()
                    wait = regular
                    continue
            wait = regular if self.renew_all() else min(RETRY_EVERY, regular)

    def _until_stuck(self) -> float:
        """Return the seconds until the first of the attempts has run for too long."""
        with self._lock:
            soonest = min((one.stuck_from for one in self._running.values() if not one.exceeded), default=math.inf)
        return max(soonest - time.monotonic(), 0.0)

    def _stop_stuck(self) -> None:
        """Ask the bodies of attempts that have run for too long to stop, and interrupt them where the pool can do that.

        With the lock: a body that is interrupted has not ended, and this process has not begun the next one.
        """
        now = time.monotonic()
        with self._lock:
            for context in self._running.values():
                if context.stuck_from <= now and not context.exceeded:
                    context.exceeded = True
                    if context.entered and not context.settled and soft_limit.interrupt():
                        kill_later(context)

    def _retired(self) -> bool:
        """End this thread if nothing has run for a while; the next body starts another."""
        with self._lock:
            if self._wanted.is_set() or self._running:
                return False
            self._thread = None
            return True

    def renew_all(self) -> bool:
        """Renew every lease once, and say whether all were reached: not while the database is away, or a row is locked."""
        with self._lock:
            running = dict(self._running)
        if any(context.body is not None and context.body.bars_others for context in running.values()):
            return False  # nobody can write before that body ends, so nobody can take a lease away either
        # Bodies may hold every connection of the pool: this thread does not wait for one of theirs.
        with self.installation.database.ahead_of_others():
            return self._renew(running)

    def renew_within(self, tx: Transaction) -> None:
        """Renew every lease in the transaction of a body that has barred all others: once it commits, beat may sweep."""
        with self._lock:
            running = [context.job for context in self._running.values()]
        jobs.renew(tx, running, lease=self.installation.settings.tm_lease)

    def _renew(self, running: Mapping[tuple[str, int], JobContext]) -> bool:
        lease, asked = self.installation.settings.tm_lease, time.monotonic()
        try:
            renewed = self.installation.database.run(
                lambda tx: jobs.renew(tx, [context.job for context in running.values()], lease=lease)
            )
        except Exception as error:  # this thread must outlive whatever a database can raise
            self._warn("cannot renew %d leases: %s", len(running), error)
            return False
        self._warned = False
        for name, context in running.items():
            if name in renewed.held:
                context.leased_until = min(asked + self._lease, context.stuck_from)
                if renewed.held[name]:
                    self._ask_to_stop(context)
                context.flush()
            elif name not in renewed.locked:
                self._lost(context)
        for collector in {context.collector for context in running.values() if context.collector is not None}:
            collector.write_free()  # a body takes its time: what ended before it need not wait
        return not renewed.locked

    def _warn(self, message: str, *values: object) -> None:
        """Log a warning once per outage: the same is tried every second."""
        logger.log(logging.DEBUG if self._warned else logging.WARNING, message, *values)
        self._warned = True

    def _ask_to_stop(self, context: JobContext) -> None:
        """Tell a body that it is to stop; one of a run that says `terminate` is not asked twice."""
        if context.asked_to_stop:
            return
        context.ask_to_stop()
        if context.job.is_step and is_terminated(self.installation, context.job):
            terminate_aside(self.installation, context.job)

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
