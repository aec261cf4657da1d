"""Running what is due in the test's own process, now or as time passes."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

from celery import Celery

from ..clock import parse_duration
from ..installation import Installation
from ..management import looking
from ..management.inline import RunSummary, run_due
from ..store.agenda import look
from .movable import MovableClock

AT_ONCE = 1000  # jobs claimed in one round
STUCK = timedelta(seconds=1)  # how far time moves on where something stays due, e.g. for want of a slot


class RunDue:
    """Runs due jobs through the gate and the recorder, as a worker would, and says how they ended."""

    def __init__(self, app: Celery, clock: MovableClock) -> None:
        self.installation, self.clock = Installation.of(app), clock

    def __call__(self, *, forward: timedelta | float | str = 0, limit: int = 10_000) -> RunSummary:
        """Let time pass at once, then run all that is due, and what becomes due by that; return the sum.

        `limit`: fail when so many jobs have run, for then each probably defers the next without a delay.
        """
        self.clock.forward(forward)
        total = RunSummary()
        while (done := run_due(self.installation, now=None, limit=min(AT_ONCE, limit))) != RunSummary():
            total = self._added(total, done, limit)
        return total

    def through(self, duration: timedelta | float | str, *, limit: int = 10_000) -> RunSummary:
        """Let time pass from one due instant to the next, and run at each what is due then; return the sum.

        So a job that is deferred on the way runs at its own time, as it would have with a beat and a worker.
        """
        end = self.clock.now + parse_duration(duration, field="duration")
        total = self(limit=limit)
        while (step := self._next_step()) is not None and self.clock.now + step <= end:
            total = self._added(total, self(forward=step, limit=limit), limit)
        self.clock.move_to(end)
        return self._added(total, self(limit=limit), limit)

    def _next_step(self) -> timedelta | None:
        """Return how far off the next due instant is; None if there is none in sight."""
        with self.installation.database.transaction(write=False) as tx:
            seconds = look(tx).seconds
        return None if seconds is None else timedelta(seconds=seconds) or STUCK

    def _added(self, total: RunSummary, more: RunSummary, limit: int) -> RunSummary:
        new = asdict(more)
        total = RunSummary(**{name: count + new[name] for name, count in asdict(total).items()})
        if total.claimed > limit:
            waiting = [job.task for job in looking.jobs(self.installation, state=None, after=None, limit=3)]
            raise AssertionError(
                f"{total.claimed} jobs have run, more than limit={limit:,}; next come {', '.join(waiting) or 'none'}. "
                "Does each defer the next without a delay? Else give a higher limit="
            )
        return total
