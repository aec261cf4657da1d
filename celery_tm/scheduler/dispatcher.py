"""Hands due jobs to the broker: claim in one statement, publish in bulk, give back what the broker refused."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from .. import events
from ..domain.execution import Failure, Outcome
from ..domain.job import Job
from ..domain.retry import after_failure
from ..domain.workflow import TASK
from ..errors import OUT_OF_REACH
from ..installation import Installation
from ..publisher import hand_over, publish
from ..store import admission, jobs, lanes, occurrences, settlement
from ..store.database import Transaction
from ..tracing import aside, describe, span
from .expanding import expand


@dataclass(frozen=True, kw_only=True, slots=True)
class Dispatched:
    """What one round did. `error` is set if the broker refused jobs; they are pending again."""

    claimed: int
    sent: int
    error: str | None = None
    expanded: int = 0  # runs that were started; their steps are due
    full: bool = False  # `tm_max_in_flight` leaves no room for more


class Dispatcher:
    """Dispatches the jobs of one installation in the name of `node`."""

    def __init__(self, installation: Installation, node: str) -> None:
        self.installation = installation
        self.node = node
        self._turns_first = False

    def dispatch_due(self, *, limit: int | None = None, since: datetime | None = None, turns: bool = True) -> Dispatched:
        """Claim and publish up to `limit` due jobs.

        Who has looked at the agenda says what need not be looked for: jobs due before `since`, jobs that take turns.
        """
        started = time.perf_counter()
        with span("claim"):
            claimed, live, full = self._claim(limit or self.installation.settings.tm_claim_batch, since, turns)
            describe(count=claimed)
        single = [job for job in live if job.task != TASK]
        done = (
            self._publish(single, claim_seconds=time.perf_counter() - started) if single else Dispatched(claimed=0, sent=0)
        )
        self.expand(live)  # after what has a message already: a run of thousands takes its time
        return replace(done, claimed=claimed, expanded=len(live) - len(single), full=full)

    def _publish(self, claimed: Sequence[Job], *, claim_seconds: float) -> Dispatched:
        started = time.perf_counter()
        with aside("publish", count=len(claimed)):
            published = publish(self.installation, claimed)
        if published.refused:
            self.installation.database.run(lambda tx: jobs.release(tx, published.refused))
        hand_over(self.installation, published.sent)
        for job, wrong in published.unsendable:
            self._fail(job, f"it makes no message: {wrong}")
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
                    self._fail(job, f"it cannot start: {type(wrong).__name__}: {wrong}")
        return [job for job in claimed if job.task != TASK]

    def _fail(self, job: Job, error: str) -> None:
        """Count a job that no broker will ever take as a failed try, so that it shows up among the dead letters."""
        failure, installation = Failure(error=error), self.installation

        def work(tx: Transaction) -> None:
            admitted = admission.admit(tx, job.id, job.attempt, worker=self.node, lease=installation.settings.tm_lease)
            if admitted is not None:
                settlement.fail(tx, admitted, failure, after_failure(admitted, default=installation.default_policy))

        installation.database.run(work)

    def claim(self, limit: int) -> tuple[int, Sequence[Job]]:
        """Take due jobs; return how many were taken, and those that are not too late to run."""
        claimed, live, _ = self._claim(limit, None, True)
        return claimed, live

    def _claim(self, limit: int, since: datetime | None, turns: bool) -> tuple[int, Sequence[Job], bool]:
        most = self.installation.settings.tm_max_in_flight
        turns_first = turns and self._turns_first

        def work(tx: Transaction) -> tuple[int, Sequence[Job], bool]:
            room = limit if most is None else min(limit, lanes.room_left(tx, most))
            if room <= 0:
                return 0, [], True
            claimed = self._take(tx, room, since, turns=turns, turns_first=turns_first)
            late = {job.id for job in claimed if job.claimed_at and job.is_expired(job.claimed_at)}
            for job in claimed:
                if job.id in late:
                    settlement.drop(tx, job, Outcome.EXPIRED, reason=f"it expired at {job.expires_at}")
            live = [job for job in claimed if job.id not in late]
            occurrences.queue(tx, [job.occurrence for job in live if job.occurrence and not job.is_step])
            return len(claimed), live, False

        self._turns_first = not self._turns_first
        return self.installation.database.run(work)

    def _take(self, tx: Transaction, room: int, since: datetime | None, *, turns: bool, turns_first: bool) -> list[Job]:
        """Take jobs that need no slot, and those that take turns: each kind first by turns, and never all of the room."""
        lease = self.installation.settings.tm_dispatch_lease
        plain = partial(jobs.claim_due, tx, node=self.node, lease=lease, since=since)
        if not turns:
            return plain(limit=room)
        in_turn = partial(lanes.claim_due, tx, node=self.node, lease=lease)
        first, second = (in_turn, plain) if turns_first else (plain, in_turn)
        half = max(room // 2, 1)
        claimed = first(limit=half)
        wants_more = len(claimed) == half
        if room > len(claimed):
            claimed += second(limit=room - len(claimed))
        if wants_more and room > len(claimed):
            claimed += first(limit=room - len(claimed))
        return claimed
