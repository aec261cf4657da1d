"""Hands due jobs to the broker: claim in one statement, publish in bulk, give back what the broker refused."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from .. import events
from ..domain.execution import Failure, Outcome
from ..domain.job import Job
from ..domain.retry import Bury, TryAgain, after_failure
from ..installation import Installation
from ..publisher import hand_over, publish
from ..store import admission, jobs, lanes, occurrences, settlement
from ..store.database import Transaction


@dataclass(frozen=True, kw_only=True, slots=True)
class Dispatched:
    """What one round did. `error` is set if the broker refused jobs; they are pending again."""

    claimed: int
    sent: int
    error: str | None = None
    full: bool = False  # `tm_max_in_flight` leaves no room for more


class Dispatcher:
    """Dispatches the jobs of one installation in the name of `node`."""

    def __init__(self, installation: Installation, node: str) -> None:
        self.installation = installation
        self.node = node
        self._lanes_first = False

    def dispatch_due(self, *, limit: int | None = None) -> Dispatched:
        """Claim and publish up to `limit` due jobs."""
        started = time.perf_counter()
        claimed, live, full = self._claim(limit or self.installation.settings.tm_claim_batch)
        published = publish(self.installation, live) if live else None
        if published is None:
            return Dispatched(claimed=claimed, sent=0, full=full)
        if published.refused:
            self.installation.database.run(lambda tx: jobs.release(tx, published.refused))
        hand_over(self.installation, published.sent)
        for job, wrong in published.unsendable:
            self._fail(job, f"it makes no message: {wrong}")
        events.emit(
            self.installation.app,
            events.JobsDispatched(
                count=len(published.sent), refused=len(published.refused), seconds=time.perf_counter() - started
            ),
            verbose=self.installation.settings.tm_verbose,
        )
        error = published.error if published.refused else None
        return Dispatched(claimed=claimed, sent=len(published.sent), error=error, full=full)

    def _fail(self, job: Job, error: str) -> None:
        """Count a job that no broker will ever take as a failed try, so that it shows up among the dead letters."""
        failure, installation = Failure(error=error), self.installation

        def work(tx: Transaction) -> TryAgain | Bury | None:
            admitted = admission.admit(tx, job.id, job.attempt, worker=self.node, lease=installation.settings.tm_lease)
            if admitted is None:
                return None
            return settlement.fail(tx, admitted, failure, after_failure(admitted, default=installation.default_policy))

        then = installation.database.run(work)
        if then is not None:
            events.emit_failure(installation.app, job, failure, then)

    def claim(self, limit: int) -> tuple[int, Sequence[Job]]:
        """Take due jobs; return how many were taken, and those that are not too late to run."""
        claimed, live, _ = self._claim(limit)
        return claimed, live

    def _claim(self, limit: int) -> tuple[int, Sequence[Job], bool]:
        lease, most = self.installation.settings.tm_dispatch_lease, self.installation.settings.tm_max_in_flight

        def work(tx: Transaction) -> tuple[int, Sequence[Job], bool]:
            room = limit if most is None else min(limit, lanes.room_left(tx, most))
            if room <= 0:
                return 0, [], True
            # Each kind first by turns, and never all of the room: neither waits for the other.
            first, second = (lanes, jobs) if self._lanes_first else (jobs, lanes)
            half = max(room // 2, 1)
            claimed = first.claim_due(tx, node=self.node, lease=lease, limit=half)
            wants_more = len(claimed) == half
            if room > len(claimed):
                claimed += second.claim_due(tx, node=self.node, lease=lease, limit=room - len(claimed))
            if wants_more and room > len(claimed):
                claimed += first.claim_due(tx, node=self.node, lease=lease, limit=room - len(claimed))
            late = {job.id for job in claimed if job.claimed_at and job.is_expired(job.claimed_at)}
            for job in claimed:
                if job.id in late:
                    settlement.drop(tx, job, Outcome.EXPIRED, reason=f"it expired at {job.expires_at}")
            live = [job for job in claimed if job.id not in late]
            occurrences.queue(tx, [job.occurrence for job in live if job.occurrence])
            return len(claimed), live, False

        self._lanes_first = not self._lanes_first
        return self.installation.database.run(work)
