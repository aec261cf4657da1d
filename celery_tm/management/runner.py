"""`tm run`: beat and worker in one process. Due jobs run here, in threads, with no broker in between.

It is a beat whose dispatcher has a thread pool instead of a broker: it claims as many jobs as there are free threads. Gate,
leases, retries and dead letters are those of a worker, so any number of runners, beats and workers may share a database.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from ..domain.job import Job
from ..errors import OUT_OF_REACH
from ..installation import Installation
from ..scheduler import Scheduler
from ..scheduler.adoption import adopt_all, register
from ..scheduler.planner import OUTAGES
from ..scheduler.seeding import Seeder
from ..worker.attending import LOCK_TIMEOUT
from ..worker.shutdown_flag import tell_bodies
from .inline import RunSummary, run_due, run_job

logger = logging.getLogger(__name__)
LONGEST_WAIT = 1.0  # seconds: a signal that comes meanwhile is heard afterwards
WAIT_FOR_A_THREAD = 0.2  # seconds, before the round goes on without one
MOST_AT_ONCE = 10_000  # jobs of `--once`


class Runner(Scheduler):
    """Plans, claims and runs until it is stopped."""

    def __init__(self, app: Any, *, concurrency: int = 1) -> None:
        self.concurrency, self.outcomes = concurrency, Counter[str]()
        self._stopping = threading.Event()
        self._bodies: set[Future[None]] = set()
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="tm-run")
        super().__init__(app)

    def setup_schedule(self) -> None:
        """Get ready; bodies wait for locks as long as those of a worker do."""
        super().setup_schedule()
        self.installation.database.serve(lock_timeout=LOCK_TIMEOUT, bodies=self.concurrency)

    def run(self) -> None:
        """Run what is due, and what becomes due, until `stop()`; then let the bodies that have begun end."""
        try:
            while not self._stopping.is_set():
                self.tick()
        finally:
            self._pool.shutdown(wait=True)
            self.close()

    def stop(self) -> None:
        """Claim nothing more, and tell the bodies that run (`job.stopping`). Safe in a signal handler."""
        self._stopping.set()
        tell_bodies()

    @property
    def is_stopping(self) -> bool:
        """Say whether it was asked to stop."""
        return self._stopping.is_set()

    @property
    def running(self) -> int:
        """Return how many bodies run."""
        return sum(not body.done() for body in self._bodies)

    def tick(self, *_: Any, **__: Any) -> float:
        """Do one round, then wait: for the next due row, or for the end of a body, which may make other work due."""
        pause = min(self._work_safely(), self.max_interval, LONGEST_WAIT)
        if bodies := self._unfinished():
            wait(bodies, timeout=pause, return_when=FIRST_COMPLETED)
        elif pause > 0 and not self._stopping.is_set():
            self.waiter.wait(pause)
        return 0.0

    def work(self) -> float:
        """Do what a beat does, and run what callers have deferred without a delay."""
        pause = super().work()
        try:
            more = self._safely("jobs without a delay", self._run_sent)
        except OUTAGES:  # the next round says so
            return pause
        return 0.0 if more else pause

    def _dispatch(self, *, turns: bool) -> tuple[bool, bool]:
        """Claim and run as many due jobs as threads are free; say whether more may be due, and whether all are busy."""
        free = self._free_threads()
        if not free:
            return False, True
        claimed, live = self.dispatcher.claim(free, turns=turns)
        self._submit(live)
        self._round.claimed += claimed
        return claimed == free, False

    def _run_sent(self) -> bool:
        free = self._free_threads()
        sent = self.dispatcher.take_over(free) if free else ()
        self._submit(sent)
        return bool(sent)

    def _free_threads(self) -> int:
        """Return how many bodies may begin, after a moment if none may yet."""
        if len(bodies := self._unfinished()) >= self.concurrency:
            wait(bodies, timeout=WAIT_FOR_A_THREAD, return_when=FIRST_COMPLETED)
        return 0 if self._stopping.is_set() else self.concurrency - len(self._unfinished())

    def _unfinished(self) -> set[Future[None]]:
        self._bodies = {body for body in self._bodies if not body.done()}
        return self._bodies

    def _submit(self, claimed: Any) -> None:
        for job in self.dispatcher.expand(claimed):
            self._bodies.add(self._pool.submit(self._run_one, job))

    def _run_one(self, job: Job) -> None:
        """Run one job; one that cannot run has failed, and what the database does not hear of runs when its lease ends."""
        try:
            self.outcomes[run_job(self.installation, job, self.node)] += 1
        except OUT_OF_REACH as error:
            logger.warning("job %s was not run or not recorded: %s", job.id, error)
        except Exception as wrong:
            reason = f"it cannot run: {type(wrong).__name__}: {self.installation.hidden(wrong)}"
            try:
                self.dispatcher.fail(job, reason)
            except OUT_OF_REACH:
                logger.warning("job %s: %s", job.id, reason)


def run_once(app: Any, *, limit: int = MOST_AT_ONCE) -> RunSummary:
    """Seed what the code states, plan, run what is due now, and return what was done."""
    installation = Installation.of(app)
    installation.database.serve_own_app()
    installation.database.run(partial(register, installation))
    adopt_all(installation)  # what was written before the first run is changed by seeding, not added beside it
    Seeder(installation).seed_once()
    return run_due(installation, now=None, limit=limit)
