"""Keeps the dispatch leases of messages that this worker has taken and not started: behind a rate limit, or a busy pool.

Such a message is not lost, so it is not dispatched a second time. The worker's main process renews its lease, in a thread of
its own: a database that is away stops nothing. A message behind a rate limit keeps its lease until it starts. One that waits
for a busy pool keeps it for `claims.PATIENCE` dispatch leases: then it is dispatched again, because another worker may be
idle while this one runs hour-long bodies. Messages that still wait in the broker behind a held one are the sweeper's
business (`store.overdue.behind_held`).
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from ..domain.loads import MAX_CHUNK
from ..installation import Installation
from ..store import claims

logger = logging.getLogger(__name__)
_held: WeakKeyDictionary[Any, HeldMessages] = WeakKeyDictionary()  # by app


class HeldMessages:
    """The messages that one worker has taken and not started."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.every = installation.settings.tm_dispatch_lease.total_seconds() / 3
        self._requests: WeakSet[Any] = WeakSet()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep, name="celery_tm-held", daemon=True)
        self._thread.start()

    def add(self, request: Any) -> None:
        """Take in a request; it is forgotten when the worker lets go of it."""
        with self._lock:
            self._requests.add(request)

    def waiting(self, *, in_pool: bool) -> list[tuple[str, int]]:
        """Return the attempts whose messages are here and have not started: queued in the pool, or rate limited."""
        with self._lock:
            requests = list(self._requests)
        idle = [one for one in requests if one.time_start is None and not one.acknowledged]
        # Celery notes the pool's answer on a request when it gives it to the pool.
        return [attempt for one in idle if (one._apply_result is not None) is in_pool for attempt in one.attempts]

    def _keep(self) -> None:
        lease = self.installation.settings.tm_dispatch_lease
        while True:
            time.sleep(self.every)
            for in_pool, patience in ((True, lease * claims.PATIENCE), (False, None)):
                waiting = self.waiting(in_pool=in_pool)
                for start in range(0, len(waiting), MAX_CHUNK):
                    self._renew(waiting[start : start + MAX_CHUNK], lease, patience)

    def _renew(self, attempts: list[tuple[str, int]], lease: timedelta, patience: timedelta | None) -> None:
        keep = partial(claims.keep_dispatched, attempts=attempts, lease=lease, patience=patience)
        try:
            self.installation.database.run(keep)
        except Exception as error:  # then they are dispatched again, and the gate refuses what comes twice
            said = self.installation.hidden(error)
            logger.debug("the leases of %d held messages are not renewed: %s", len(attempts), said)


def hold(app: Any, request: Any) -> None:
    """Note that a worker has taken a message of ours."""
    found = _held.get(app)
    if found is None:
        found = _held[app] = HeldMessages(Installation.of(app))
    found.add(request)
