"""Hands due jobs to the broker: claim in one statement, publish in bulk, give back what the broker refused."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from itertools import count

from .. import events
from ..domain.execution import Failure
from ..domain.job import Job
from ..domain.retry import Bury, after_failure
from ..domain.workflow import TASK
from ..errors import OUT_OF_REACH
from ..installation import Installation
from ..publisher import JOBS, BlockedRoutes, hand_over, publish, put_back
from ..store import admission, claims, following, lanes, occurrences, settlement
from ..store.batches import run_each, run_parts
from ..store.database import Transaction
from ..tracing import aside, describe, span
from .expanding import expand

logger = logging.getLogger(__name__)
RELIEVE_EVERY = 10.0  # seconds
RELIEVE_FOR = 0.2  # seconds of one pass over keys that could not be looked at together
APART = 0.5  # seconds of one claim for jobs that cannot be read
KEYS = 200  # of one pass
PUBLISH_FOR = 0.25  # seconds that a batch may take, so that definitions are planned in time where publishing is slow
SMALLEST = 25  # jobs of a batch, however slow


@dataclass(frozen=True, kw_only=True, slots=True)
class Dispatched:
    """What one round did. `error` is set if the broker refused jobs; they are pending again."""

    claimed: int
    sent: int
    error: str | None = None
    expanded: int = 0  # runs that were started; their steps are due
    full: bool = False  # `tm_max_in_flight` leaves no room for more
    more: bool = False  # as many were claimed as there was place for in the batch


class Dispatcher:
    """Dispatches the jobs of one installation in the name of `node`."""

    def __init__(self, installation: Installation, node: str) -> None:
        self.installation = installation
        self.node = node
        self._turns_first = False
        self._routes = BlockedRoutes()
        self._seconds_each = 0.0  # that a message took in the last batch
        self._relieved_to: str | None = None
        self._relieve_at: float | None = None

    def dispatch_due(self, *, limit: int | None = None, since: datetime | None = None, turns: bool = True) -> Dispatched:
        """Claim and publish up to `limit` due jobs; without one, as many as are published within a moment.

        Who has looked at the agenda says what need not be looked for: jobs due before `since`, jobs that take turns.
        """
        started, limit = time.perf_counter(), limit or self._batch
        with span("claim"):
            claimed, live, full = self._claim(limit, since, turns)
            describe(count=claimed)
        single = sorted((job for job in live if job.task != TASK), key=self._urgency)  # stable: the oldest first
        done = (
            self._publish(single, claim_seconds=time.perf_counter() - started) if single else Dispatched(claimed=0, sent=0)
        )
        self.expand(live)  # after what has a message already: a run of thousands takes its time
        return replace(done, claimed=claimed, expanded=len(live) - len(single), full=full, more=claimed >= limit)

    @property
    def _batch(self) -> int:
        """Return how many jobs to claim: fewer where Celery sends each message by itself, or the broker is slow."""
        most = self.installation.settings.tm_claim_batch
        if self._seconds_each * most <= PUBLISH_FOR:
            return most
        return min(max(int(PUBLISH_FOR / self._seconds_each), SMALLEST), most)

    def _publish(self, claimed: Sequence[Job], *, claim_seconds: float) -> Dispatched:
        started = time.perf_counter()
        with aside("publish", count=len(claimed)):
            published = publish(self.installation, claimed, routes=self._routes)
        if published.error is None and len(claimed) >= SMALLEST:  # a few say little: most of that is the way there
            self._seconds_each = (time.perf_counter() - started) / len(claimed)
        put_back(self.installation, published, self._routes)
        hand_over(self.installation, published.sent)
        for job, wrong in published.unsendable:
            self.fail(job, f"it makes no message: {wrong}")
        events.emit(
            self.installation.app,
            events.JobsDispatched(
                count=len(published.sent),
                refused=len(published.refused),
                seconds=time.perf_counter() - started,
                claim_seconds=claim_seconds,
            ),
            verbose=self.installation.settings.tm_verbose,
        )
        error = published.error if published.refused else None
        return Dispatched(claimed=len(claimed), sent=len(published.sent), error=error)

    def expand(self, claimed: Sequence[Job]) -> Sequence[Job]:
        """Start the runs among claimed jobs, and return the others: those have a message."""
        for job in claimed:
            if job.task == TASK:
                try:
                    expand(self.installation, job)
                except OUT_OF_REACH:
                    raise  # its lease ends, and it is claimed again
                except Exception as wrong:  # with this workflow; the others start
                    self.fail(job, f"it cannot start: {type(wrong).__name__}: {wrong}")
        return [job for job in claimed if job.task != TASK]

    def fail(self, job: Job, error: str) -> bool:
        """Count a job that no broker will ever take as a failed try, so that it shows up among the dead letters.

        False: not done, for it runs or has ended meanwhile, or its row cannot be handled.
        """
        failure, installation = Failure(error=error), self.installation

        def work(tx: Transaction, job: Job) -> bool:
            admitted = admission.admit(tx, job.id, job.attempt, worker=self.node, lease=installation.settings.tm_lease)
            if admitted is None:
                return False
            then = after_failure(admitted, default=installation.default_policy)
            if admitted.ended is not None:  # it has ended, and nothing of it can be sent
                following.call_off(tx, job.id)
                logger.warning("the callbacks of job %s are given up: %s", job.id, error)
            elif isinstance(then, Bury) and job.task != TASK and installation.reports_end(admitted):
                # Only the callbacks travel: what made the message impossible to send may be its arguments or its options.
                settlement.abandon(tx, admitted, failure, then, carries=admitted.without_call())
            else:
                settlement.fail(tx, admitted, failure, then, reports=False)
            return True

        return any(run_each(installation.database, [job], work, failed=self._set_aside))

    def _set_aside(self, job: Job, error: Exception) -> None:
        self.installation.skip_row(JOBS, job.id, error, name=job.task)

    def claim(self, limit: int, *, turns: bool = True) -> tuple[int, Sequence[Job]]:
        """Take due jobs; return how many were taken, and those that are not too late to run."""
        claimed, live, _ = self._claim(limit, None, turns)
        return claimed, live

    def relieve(self, *, at_once: bool = False) -> None:
        """Look now and then for jobs that wait for a slot though one is free, some keys each time."""
        self._relieve_at = self._relieve_at or time.monotonic() + RELIEVE_EVERY
        if at_once or time.monotonic() >= self._relieve_at:
            self._relieved_to = self._relieve_after(self._relieved_to or "")
            self._relieve_at = time.monotonic() + (0.0 if self._relieved_to else RELIEVE_EVERY)

    def _relieve_after(self, start: str) -> str | None:
        """Look at the next keys, each apart where one makes it fail; return the last that was tried, None at the end."""
        database, tried = self.installation.database, [start]
        with database.transaction(write=False) as tx:
            keys = lanes.waited_for(tx, after=start, limit=KEYS)

        def work(tx: Transaction, some: Sequence[str]) -> None:
            lanes.relieve(tx, some, skip=self.installation.skipped(JOBS))
            tried.append(some[-1])

        def failed(key: str, error: Exception) -> None:
            tried.append(key)
            logger.warning("jobs that wait for a slot of %r are passed over: %s", key, self.installation.hidden(error))

        run_parts(database, keys, work, failed=failed, seconds=RELIEVE_FOR)
        return tried[-1] if keys and (len(keys) == KEYS or tried[-1] != keys[-1]) else None

    def _urgency(self, job: Job) -> int:
        """Return a number by which due jobs go first, as the broker has it: 0 is first in Redis, last elsewhere."""
        if job.priority is None:
            return 0
        return job.priority if self._low_first else -job.priority

    @cached_property
    def _low_first(self) -> bool:
        with self.installation.app.connection_for_write() as connection:
            return bool(connection.transport.driver_type == "redis")

    def take_over(self, limit: int) -> Sequence[Job]:
        """Take what callers have deferred without a delay and no worker has begun; the gate lets each run once.

        Not plain tasks: they have no gate, and for them published is done.
        """
        database, lease = self.installation.database, self.installation.settings.tm_dispatch_lease
        with database.transaction(write=False) as tx:
            found = claims.sent_by_producers(tx, limit=limit, skip=self.installation.skipped(JOBS))
        ids = [id for id, task in found if not self.installation.is_plain(task)]
        taken = run_each(
            database,
            ids,
            lambda tx, id: claims.take_over(tx, [id], node=self.node, lease=lease),
            failed=partial(self.installation.skip_row, JOBS),
        )
        return [job for some in taken for job in some]

    def _claim(self, limit: int, since: datetime | None, turns: bool) -> tuple[int, Sequence[Job], bool]:
        """Take due jobs, those that have expired are dropped; say also whether there is no room for more."""
        taking = partial(self._take_room, limit=limit, since=since, turns=turns, turns_first=turns and self._turns_first)
        self._turns_first = not self._turns_first
        claimed = self._claim_readable(taking, limit)
        if claimed is None:
            return 0, [], True
        late = [job for job in claimed if job.claimed_at and job.is_expired(job.claimed_at)]
        run_each(self.installation.database, late, self._expire, failed=self._set_aside)
        gone = {job.id for job in late}
        return len(claimed), [job for job in claimed if job.id not in gone], False

    def _expire(self, tx: Transaction, job: Job) -> bool:
        return settlement.expire(tx, job, leaves_row=self.installation.reports_end(job))

    def _claim_readable(self, taking: Callable[[Transaction], Sequence[Job] | None], limit: int) -> Sequence[Job] | None:
        """Claim, and where due jobs cannot be read set those aside and try again; the next round goes on with it."""
        until = time.monotonic() + APART
        for tries in count(1):
            try:
                return self.installation.database.run(taking)
            except OUT_OF_REACH:
                raise
            except Exception:
                if not self._set_unreadable_aside(limit):
                    raise
            if tries > 1 and time.monotonic() >= until:
                break
        return []

    def _take_room(
        self, tx: Transaction, *, limit: int, since: datetime | None, turns: bool, turns_first: bool
    ) -> Sequence[Job] | None:
        """Take as many jobs as there is room for; None: there is none."""
        most = self.installation.settings.tm_max_in_flight
        room = limit if most is None else min(limit, lanes.room_left(tx, most))
        if room <= 0:
            return None
        claimed = self._take(tx, room, since, turns=turns, turns_first=turns_first)
        occurrences.queue(tx, [job.occurrence for job in claimed if job.occurrence and not job.is_step])
        return claimed

    def _set_unreadable_aside(self, limit: int) -> bool:
        """Set due jobs aside that cannot be read; False if there is none: something else went wrong."""
        with self.installation.database.transaction(write=False) as tx:
            found = claims.unreadable(tx, limit=limit, skip=self.installation.skipped(JOBS))
        for id, error in found:
            self.installation.skip_row(JOBS, id, error)
        return bool(found)

    def _take(self, tx: Transaction, room: int, since: datetime | None, *, turns: bool, turns_first: bool) -> list[Job]:
        """Take jobs that need no slot, and those that take turns: each kind first by turns, and never all of the room."""
        lease, skip = self.installation.settings.tm_dispatch_lease, self.installation.skipped(JOBS)
        plain = partial(claims.claim_due, tx, node=self.node, lease=lease, since=since, skip=skip)
        if not turns:
            return plain(limit=room)
        in_turn = partial(lanes.claim_due, tx, node=self.node, lease=lease, skip=skip, urgency=self._urgency)
        first, second = (in_turn, plain) if turns_first else (plain, in_turn)
        half = max(room // 2, 1)
        claimed = first(limit=half)
        wants_more = len(claimed) == half
        if room > len(claimed):
            claimed += second(limit=room - len(claimed))
        if wants_more and room > len(claimed):
            claimed += first(limit=room - len(claimed))
        return claimed
