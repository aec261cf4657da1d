"""Celery's beat, reading its definitions from the database: any number of nodes, no leader.

`tick()` plans, dispatches and sweeps, then waits for the next due row. It never waits for a body, and neither an outage of
the database nor of the broker ends it: it says so once, keeps trying, and goes on where it stopped.
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from celery.beat import Scheduler as CeleryScheduler

from .. import events
from ..errors import RightMissing, TmError
from ..installation import Installation, node_name
from ..recovery.reaper import reap
from ..recovery.sweeper import sweep
from ..store import nodes
from ..store.agenda import Agenda
from ..tracing import describe, span
from .dispatcher import Dispatcher
from .outage import Outages
from .outlook import Outlook
from .planner import Planner
from .seeding import Seeder
from .wakeup import Waiter, undisturbed, waiter_for
from .zones import ZoneWatch

logger = logging.getLogger(__name__)

TICK_BUDGET = 5.0  # seconds of work after which a tick ends, so that Celery hears from beat
SEEN_EVERY = 10.0
BREATH = 0.05


@dataclass(slots=True)
class _Round:
    """What one tick has done so far."""

    planned: int = 0
    claimed: int = 0
    sent: int = 0
    swept: int = 0


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
        self.outlook = Outlook(self.installation.database)
        self.waiter: Waiter = waiter_for(self.installation.database)
        self.seeder = Seeder(self.installation)
        self.zones = ZoneWatch(self.installation)
        self._seen_at = 0.0
        if self.installation.settings.port_of("beat") is not None:
            from ..metrics.serving import serve_beat

            serve_beat(self.installation)
        self._open = True

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
        started, self._round = time.monotonic(), _Round()
        until = started + TICK_BUDGET
        try:
            self._be_seen()
            self.seeder.seed_once()
            self.zones.check_once()
            ahead = self.outlook.look()
            full = self._do(ahead, until) if ahead.seconds == 0 else False
            self.outages.over("database")
            later = self.outlook.look() if ahead.seconds == 0 else ahead
            self._tell(ahead, started)
        except TmError as error:
            return self.outages.begun("database", str(error), anew=isinstance(error, RightMissing))
        wait = self.poll_interval if later.seconds is None else min(later.seconds, self.poll_interval)
        if wait == 0 and (full or later.same_due(ahead)):
            wait = BREATH  # there is no room for more, or somebody else holds what is due
        return max(wait, self.outages.pause("broker"))

    def _do(self, ahead: Agenda, until: float) -> bool:
        """Do what is due, and say whether there is no room for more."""
        with span("tick", node=self.node):
            full = self._plan_and_dispatch(ahead, until)
            if ahead.is_due(ahead.lease_at):
                with span("sweep"):
                    self._sweep()
            if ahead.is_due(ahead.deadline_at):
                self._reap()
            describe(**asdict(self._round))
        return full

    def _plan_and_dispatch(self, ahead: Agenda, until: float) -> bool:
        """Plan and dispatch by turns, so that a long catch-up holds up nobody; say whether there is no room for more."""
        planning = ahead.is_due(ahead.definition_at)
        dispatching, full = planning or ahead.is_due(ahead.job_at), False
        turns = planning or ahead.is_due(ahead.turn_at)
        while planning or dispatching:
            if planning:
                with span("plan"):
                    planned = self.planner.plan_due()
                planning = planned.more
                self._round.planned += planned.definitions
            dispatching, full = self._dispatch(turns=turns)
            dispatching = dispatching or planning
            if time.monotonic() >= until:
                break
        return full

    def _dispatch(self, *, turns: bool) -> tuple[bool, bool]:
        """Dispatch a batch, with or without jobs that take turns; say whether more is due, and whether there is no room.

        A broker that is away is left alone for a moment.
        """
        if self.outages.pause("broker"):
            return False, False
        done = self.dispatcher.dispatch_due(since=self.outlook.due_since, turns=turns)
        self._round.claimed += done.claimed
        self._round.sent += done.sent
        if done.error:
            self.outages.begun("broker", done.error)
            self.outlook.begin_anew()
        elif done.sent:
            self.outages.over("broker")
        more = done.expanded > 0 or done.claimed >= self.installation.settings.tm_claim_batch
        return not done.error and more, done.full

    def _sweep(self) -> None:
        batch = self.installation.settings.tm_claim_batch
        swept = sweep(self.installation.database, default=self.installation.default_policy, limit=batch)
        if not len(swept):
            return
        self.outlook.begin_anew()
        self._round.swept += len(swept)
        event = events.JobsSwept(redispatched=len(swept.redispatched), orphaned=len(swept.orphaned))
        events.emit(self.app, event, verbose=True)

    def _reap(self) -> None:
        self._round.swept += len(reap(self.installation.database, limit=self.installation.settings.tm_claim_batch))

    def _tell(self, ahead: Agenda, started: float) -> None:
        """Tell of the round, if anybody wants to hear of each."""
        if not events.is_wanted(events.TickDone):
            return
        lag = max((ahead.now - ahead.job_at).total_seconds(), 0.0) if ahead.job_at else 0.0
        done = asdict(self._round)
        events.emit(self.app, events.TickDone(seconds=time.monotonic() - started, lag=lag, **done))

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
