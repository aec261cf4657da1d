"""Celery's beat, reading its definitions from the database: any number of nodes, no leader.

`tick()` plans, dispatches and sweeps, then waits for the next due row. It never waits for a body, and neither an outage of
the database nor of the broker ends it: it says so once, keeps trying, and goes on where it stopped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from celery.beat import Scheduler as CeleryScheduler

from .. import events
from ..errors import DatabaseBusy, RightMissing
from ..installation import Installation, node_name
from ..recovery.reaper import reap
from ..recovery.sweeper import sweep
from ..store import apps, nodes
from ..store.agenda import Agenda
from ..store.database import Transaction
from ..tracing import describe, span
from . import adoption
from .dispatcher import Dispatcher
from .outage import Contact, Outages
from .outlook import Outlook
from .planner import OUTAGES, Planner
from .seeding import Seeder
from .wakeup import Waiter, Watchdog, undisturbed, waiter_for
from .zones import ZoneWatch

logger = logging.getLogger(__name__)
T = TypeVar("T")

TICK_BUDGET = 0.5  # seconds of work after which a tick ends, so that beat hears signals
SEEN_EVERY = 10.0
ADOPT_EVERY = 2.0  # a process that started before the first beat writes rows that name no app
BREATH = 0.05
LOCK_TIMEOUT = 0.05  # seconds that beat waits for a row which another transaction has locked
BARRED_FOR = 1.0  # seconds that beat waits for a writer of SQLite after which workers may have waited too
STUCK_AFTER = 15.0  # seconds after which a round is reported: TICK_BUDGET and time for the last statement
BUSY_FOR = 1.0  # seconds for which a part of the round that met such a row is left out at least
BUSY_SHARE = 3  # and so many times as long as it took
PLANNING = "planning"  # the part that leaves out the rows which it waited for, and not the others
LONGEST_ABSENCE = 10.0  # seconds without a look at the database after which beat does not know what it has missed


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
        self.settings = self.installation.settings
        self.installation.database.serve(lock_timeout=LOCK_TIMEOUT)
        self.installation.database.serve_own_app()
        self.node = node_name("beat")
        self.planner = Planner(self.installation)
        self.dispatcher = Dispatcher(self.installation, self.node)
        self.outages = Outages(self.app)
        self.contact = Contact(lease=self.settings.tm_lease.total_seconds(), gap=self.poll_interval + LONGEST_ABSENCE)
        self.watchdog = Watchdog(after=STUCK_AFTER)
        self._busy_until: dict[str, float] = {}
        self.outlook = Outlook(self.installation)
        self.waiter: Waiter = waiter_for(self.installation.database)
        self.seeder = Seeder(self.installation)
        self.zones = ZoneWatch(self.installation)
        self._seen_at = self._adopt_at = 0.0
        self._strays: frozenset[str] = frozenset()  # apps that nobody plans and claims for
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
            with undisturbed(), self.watchdog.watching():
                return self.work()
        except Exception:  # an exception that leaves tick() would end beat
            logger.exception("a tick failed; beat goes on")
            return self.poll_interval

    def work(self) -> float:
        """Plan, dispatch and sweep what is due, and return how many seconds may pass until there is more."""
        started, self._round = time.monotonic(), _Round()
        until = started + TICK_BUDGET
        try:
            self._unless_busy("its own row", self._be_seen)
            self._safely("taking over rows that name no app", self._adopt)
            self._safely("seeding beat_schedule", self.seeder.seed_some)
            self._safely("looking up time zones", self.zones.check_once)
            self._safely("looking after jobs that wait for a slot", self.dispatcher.relieve)
            ahead = self._look()
            full = self._do(ahead, until) if ahead.seconds == 0 else False
            self.outages.over("database")
            later = self._look() if ahead.seconds == 0 else ahead
            self._tell(ahead, started)
        except DatabaseBusy as error:
            logger.warning("a round was not finished: %s", error)
            return BUSY_FOR
        except OUTAGES as error:
            self.contact.broke()
            return self.outages.begun("database", str(error), anew=isinstance(error, RightMissing))
        wait = self.poll_interval if later.seconds is None else min(later.seconds, self.poll_interval)
        if wait == 0 and (full or later.same_due(ahead)):
            wait = BREATH  # there is no room for more, or somebody else holds what is due
        return max(wait, self.outages.pause("broker"))

    def _look(self) -> Agenda:
        """Return what is next; leases of running attempts are no matter while workers are given time to renew them."""
        ahead = self.outlook.look()
        self.contact.made()
        return ahead.sparing_running() if self.contact.spares_running else ahead

    def _unless_busy(self, part: str, action: Callable[[], T]) -> T | None:
        """Do a part of the round; one that waited for a lock of another transaction is left out for a while.

        For three times as long as it took: on MySQL each wait takes a second, and the other parts are not to wait as well.
        """
        began, met = time.monotonic(), self.installation.database.times_busy
        if began < self._busy_until.get(part, 0.0):
            return None
        done, pause = None, 0.0
        try:
            done = action()
        except DatabaseBusy as error:
            logger.warning("beat passes over %s for a moment: %s", part, error)
            pause = BUSY_FOR
        if pause or (self.installation.database.times_busy > met and part != PLANNING):
            now = time.monotonic()
            self._busy_until[part] = now + max(pause, BUSY_SHARE * (now - began))
            self._spare_after_waiting()
        return done

    def _safely(self, part: str, action: Callable[[], T]) -> T | None:
        """Do a part of a round; only an outage of the database ends the round, and a part that fails is left out a while."""
        try:
            return self._unless_busy(part, action)
        except OUTAGES:
            raise
        except Exception:
            logger.exception("%s failed; beat goes on", part)
            self._busy_until[part] = time.monotonic() + max(self.poll_interval, BUSY_FOR)
        return None

    def _do(self, ahead: Agenda, until: float) -> bool:
        """Do what is due, and say whether there is no room for more."""
        with span("tick", node=self.node):
            full = self._plan_and_dispatch(ahead, until)
            if ahead.is_due(ahead.lease_at):
                with span("sweep"):
                    self._safely("sweeping", self._sweep)
            if ahead.is_due(ahead.deadline_at):
                self._safely("reaping", self._reap)
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
                    planned = self._safely(PLANNING, self.planner.plan_due)
                planning = planned is not None and planned.more
                self._round.planned += planned.definitions if planned is not None else 0
            done = self._safely("keys", partial(self._dispatch, turns=True)) if turns else None
            if done is None:  # jobs that need no slot wait for nobody's concurrency key
                done = self._safely("dispatch", partial(self._dispatch, turns=False)) or (False, False)
            dispatching, full = done
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
        return not done.error and (done.expanded > 0 or done.more), done.full

    def _sweep(self) -> None:
        batch, default = self.settings.tm_claim_batch, self.installation.default_policy
        running = self._may_sweep_running()
        database, aside = self.installation.database, self.installation
        swept = sweep(
            database, default=default, limit=batch, running=running, aside=aside,
            dispatch_lease=self.settings.tm_dispatch_lease,
        )  # fmt: skip
        if not len(swept):
            return
        self.outlook.begin_anew()
        self._round.swept += len(swept)
        lost = len(swept.orphaned) - swept.stale
        event = events.JobsSwept(redispatched=len(swept.redispatched), orphaned=lost, stale=swept.stale)
        events.emit(self.app, event, verbose=True)

    def _may_sweep_running(self) -> bool:
        """Say whether an ended lease means that its worker is gone: not if the server itself has just been started."""
        up_for = self.installation.database.up_for()
        if up_for is not None and up_for < self.settings.tm_lease.total_seconds():
            self.contact.spare_for(self.settings.tm_lease.total_seconds() - up_for)
        if not self.installation.database.dialect.is_server:
            began = time.monotonic()
            self.installation.database.run(Transaction.read_now)  # it waits for the one that writes
            if time.monotonic() - began > BARRED_FOR:
                self._spare_after_waiting()
        return not self.contact.spares_running

    def _spare_after_waiting(self) -> None:
        """Give workers the time of a lease where one transaction has barred all others: they could not renew any."""
        if not self.installation.database.dialect.is_server:
            self.contact.spare_for(self.settings.tm_lease.total_seconds())

    def _reap(self) -> None:
        batch, aside = self.settings.tm_claim_batch, self.installation
        self._round.swept += len(reap(self.installation.database, limit=batch, aside=aside))

    def _tell(self, ahead: Agenda, started: float) -> None:
        """Tell of the round, if anybody wants to hear of each."""
        if not events.is_wanted(events.TickDone):
            return
        lag = max((ahead.now - ahead.job_at).total_seconds(), 0.0) if ahead.job_at else 0.0
        done = asdict(self._round)
        events.emit(self.app, events.TickDone(seconds=time.monotonic() - started, lag=lag, **done))

    def _be_seen(self) -> None:
        """Note every few seconds that this beat is alive, and warn of rows that have no beat."""
        if time.monotonic() - self._seen_at < SEEN_EVERY:
            return
        if not self._seen_at:
            self._safely("looking for other nodes", self._mistrust_silence)
        self._seen_at = time.monotonic()
        self._safely("noting that this beat is alive", self._sign_on)
        self._safely("looking for rows without a beat", self._warn_of_strays)

    def _sign_on(self) -> None:
        age = timedelta(seconds=time.monotonic() - self.started)
        self.installation.database.run(lambda tx: nodes.see(tx, self.node, "beat", started_ago=age))

    def _adopt(self) -> None:
        """Take over rows that name no app, while there is time."""
        started = time.monotonic()
        if started < self._adopt_at:
            return
        while self.installation.database.run(partial(adoption.adopt, self.installation)):
            if time.monotonic() >= started + TICK_BUDGET:
                return  # the others in the next round
        self._adopt_at = started + ADOPT_EVERY

    def _warn_of_strays(self) -> None:
        """Register this app, and warn of jobs and definitions whose app has no beat."""
        database = self.installation.database
        database.run(partial(adoption.register, self.installation))
        self._adopt()  # rows that name no app are no strays while this app may take them
        strays = database.run(apps.strays)
        if strays - self._strays:
            logger.warning(
                "jobs or definitions of the apps %s wait, and no beat of theirs is running; start it, set tm_app where they "
                "are written, or move them with `celery tm take-over NAME`",
                ", ".join(map(repr, sorted(strays))),
            )
        self._strays = strays

    def _mistrust_silence(self) -> None:
        """Spare running attempts where no node has been seen for a while: this beat may begin right after an outage."""
        with self.installation.database.transaction(write=False) as tx:
            silence = nodes.silence(tx)
        if silence is not None and silence > 2 * SEEN_EVERY:
            self.contact.spare_for(self.settings.tm_lease.total_seconds())

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
