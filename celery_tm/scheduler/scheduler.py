"""Celery's beat, reading its definitions from the database: any number of nodes, no leader.

`tick()` plans, dispatches and sweeps, then waits for the next due row. It never waits for a body, and neither an outage of
the database nor of the broker ends it: it says so once, keeps trying, and goes on where it stopped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from celery.beat import Scheduler as CeleryScheduler

from .. import events
from ..errors import TmError
from ..installation import Installation, node_name
from ..recovery.sweeper import sweep
from ..store import agenda, nodes
from .dispatcher import Dispatcher
from .outage import Outages
from .planner import BATCH, Planner
from .wakeup import Waiter, undisturbed, waiter_for

logger = logging.getLogger(__name__)

TICK_BUDGET = 5.0  # seconds of work after which a tick ends, so that Celery hears from beat
SEEN_EVERY = 10.0
BREATH = 0.05


class Scheduler(CeleryScheduler):
    """`celery -A app beat -S celery_tm.Scheduler`."""

    def __init__(self, app: Any, *args: Any, **kwargs: Any) -> None:
        self._open = self._ticking = False
        self.started = time.monotonic()
        super().__init__(app, *args, **kwargs)

    def setup_schedule(self) -> None:
        """Get ready. The database is first asked in `tick()`, where it may be away."""
        self.installation = Installation.of(self.app)
        self.node = node_name("beat")
        self.planner = Planner(self.installation)
        self.dispatcher = Dispatcher(self.installation, self.node)
        self.outages = Outages(self.app)
        self.waiter: Waiter = waiter_for(self.installation.database)
        self._seen_at = 0.0
        self._open = True
        if self.app.conf.beat_schedule:
            logger.warning(
                "beat_schedule has %d entries that this scheduler does not read: add them with tm.definitions.add(…) "
                "or `celery -A app tm definitions load FILE`",
                len(self.app.conf.beat_schedule),
            )

    def tick(self, *_: Any, **__: Any) -> float:
        """Do one round, wait for the next, and return 0: the waiting is done here, where beat can be woken."""
        self._ticking = True
        try:
            wait = min(self._work_safely(), self.max_interval)
            if wait > 0:
                self.waiter.wait(wait)
        finally:
            self._ticking = False
        return 0.0

    def _work_safely(self) -> float:
        try:
            with undisturbed():
                return self.work()
        except Exception:  # an exception that leaves tick() would end beat
            logger.exception("a tick failed; beat goes on")
            return self.poll_interval

    def work(self) -> float:
        """Plan, dispatch and sweep what is due, and return how many seconds may pass until there is more."""
        until = time.monotonic() + TICK_BUDGET
        try:
            self._be_seen()
            ahead = self._look()
            if ahead.is_due(ahead.definition_at):
                self._drain(lambda: self.planner.plan_due() >= BATCH, until)
            if ahead.is_due(ahead.job_at) or ahead.is_due(ahead.definition_at):
                self._dispatch(until)
            if ahead.is_due(ahead.lease_at):
                self._sweep()
            self.outages.over("database")
            later = self._look() if ahead.seconds == 0 else ahead
        except TmError as error:
            return self.outages.begun("database", str(error))
        wait = self.poll_interval if later.seconds is None else min(later.seconds, self.poll_interval)
        if wait == 0 and later.same_due(ahead):
            wait = BREATH  # somebody else holds what is due
        return max(wait, self.outages.pause("broker"))

    def _look(self) -> agenda.Agenda:
        with self.installation.database.transaction(write=False) as tx:
            return agenda.look(tx)

    def _drain(self, round: Callable[[], bool], until: float) -> None:
        """Repeat a bounded round while it finds a full batch and there is time."""
        while round() and time.monotonic() < until:
            pass

    def _dispatch(self, until: float) -> None:
        """Dispatch what is due; a broker that is away is left alone for a moment."""
        batch = self.installation.settings.tm_claim_batch
        while not self.outages.pause("broker"):
            done = self.dispatcher.dispatch_due()
            if done.error:
                self.outages.begun("broker", done.error)
            elif done.sent:
                self.outages.over("broker")
            if done.claimed < batch or time.monotonic() >= until:
                break

    def _sweep(self) -> None:
        batch = self.installation.settings.tm_claim_batch
        swept = sweep(self.installation.database, default=self.installation.default_policy, limit=batch)
        if not len(swept):
            return
        event = events.JobsSwept(redispatched=len(swept.redispatched), orphaned=len(swept.orphaned))
        events.emit(self.app, event, verbose=True)
        for job, failure, then in swept.orphaned:
            if then is not None:
                events.emit_failure(self.app, job, failure, then)

    def _be_seen(self) -> None:
        if time.monotonic() - self._seen_at < SEEN_EVERY:
            return
        age = timedelta(seconds=time.monotonic() - self.started)
        self.installation.database.run(lambda tx: nodes.see(tx, self.node, "beat", started_ago=age))
        self._seen_at = time.monotonic()

    @property
    def poll_interval(self) -> float:
        """Return how long beat waits at most before it looks again."""
        return self.installation.settings.tm_poll_interval.total_seconds()

    # What Celery asks of a scheduler besides ticking

    @property
    def schedule(self) -> dict[str, Any]:
        """Return nothing: the definitions are in the database, not in memory."""
        return {}

    def sync(self) -> None:
        """Do nothing: there is no state to save."""

    def close(self) -> None:
        """Stop. Called from the signal handler, in the middle of whatever tick() does, and once more afterwards."""
        if self._open and not self._ticking:
            self._open = False
            self.waiter.close()
            try:
                self.installation.database.run(lambda tx: nodes.forget(tx, self.node, "beat"))
            except Exception as error:  # stopping must not fail
                logger.debug("not signed off: %s", error)
        super().close()

    @property
    def info(self) -> str:
        """Return a line for beat's banner, without passwords."""
        return f"    . database -> {Installation.of(self.app).database.safe_url}"
