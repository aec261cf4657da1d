"""What a running body knows about its job, and how it reports back: `self.job`, `celery_tm.current_job()`."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from ..domain.audit_line import SYSTEM, checked_line
from ..domain.execution import LOG_LEVELS, MAX_ERROR, MAX_MESSAGE, cut
from ..domain.job import Job, Source
from ..errors import InvalidValue, TmError, nearest, said, shown
from ..installation import Installation
from ..store import audit
from ..store.body import BodyTransaction
from ..telling import tell_lost
from .reports import Reports
from .results import results_of
from .run_facts import RunFacts, facts_of
from .shutdown_flag import is_shutting_down

logger = logging.getLogger(__name__)

_current: ContextVar[JobContext | None] = ContextVar("celery_tm_job", default=None)


class JobContext:
    """One admitted attempt, seen from inside the body."""

    def __init__(self, job: Job, installation: Installation | None, *, outer: JobContext | None = None) -> None:
        self.job = job
        self.outer = outer  # the job whose body makes this call, as a function or by apply()
        self.installation = installation  # None: detached, called without a worker; reports stay in memory
        self.entered = False  # the body has been called
        self.finishing = False  # its end is being written
        self.settled = False  # its end is written
        self.revoked = False  # it was cancelled before self.retry() could write another try; its result is REVOKED
        self.gives_up = False  # the body has used up the tries it allows itself
        self.success_message: str | None = None
        self.failure_message: str | None = None
        self.progress: str | None = None
        self.stopped = False  # the body has seen that it should stop
        self.body: BodyTransaction | None = None  # of a transactional task: the transaction of its own writes
        self.owns_body = True  # else that is the outer job's, which commits it or rolls it back
        self.asks_again: BaseException | bool = False  # the body is calling self.retry(), because of this
        self.expected = False  # let in together with others, and about to be traced
        self.collector: Any = None  # gathers the successes of jobs that came in one message
        self.ended: Mapping[str, Any] | None = None  # its end as its row keeps it, until what follows is handed on
        self.followed = False  # what follows is handed on
        self.calls: Any = None  # how often the body has called which id
        self.leased_until = math.inf  # by this process' own measure of time, never later than the database's
        self.stuck_from = math.inf  # when the attempt has run for too long, by the same measure
        self.exceeded = False  # it has
        self.over = False  # this process is done with it
        self._stop = False
        self._facts: RunFacts | None = None
        self._lost = False
        self._reports = Reports(job)
        self._began: float | None = None
        self._thread = 0  # in which the body runs

    @property
    def id(self) -> str:
        """Return the job's id, which is the Celery task id."""
        return self.job.id

    @property
    def attempt(self) -> int:
        """Return which try this is, from 1."""
        return self.job.attempt

    @property
    def execution_id(self) -> str:
        """Return the id under which this attempt is recorded."""
        return self.job.execution_id

    @property
    def entity_id(self) -> str | None:
        """Return what the job is about, as given to `defer`."""
        return self.job.entity_id

    @property
    def scope(self) -> Mapping[str, Any]:
        """Return the ids given to `defer` as scope."""
        return self.job.scope or {}

    @property
    def key(self) -> str | None:
        """Return the job's dedupe key."""
        return self.job.dedupe_key

    @property
    def scheduled_at(self) -> datetime:
        """Return the instant of the job's occurrence, or else when this attempt was due."""
        return self.job.scheduled_at or self.job.run_at

    @property
    def occurrence_id(self) -> str | None:
        """Return the occurrence that this job carries out, or the run that it is a step of; None: neither."""
        return self.job.occurrence

    @property
    def is_recovery(self) -> bool:
        """Say whether this run makes up for a scheduled time at which no beat was planning."""
        return self.job.source is Source.RECOVERY

    @property
    def version(self) -> int | None:
        """Return the version of the definition that this run was planned with; None: it has no definition."""
        return self._run.version

    @property
    def last_run_at(self) -> datetime | None:
        """Return when the last successful run of the definition before this one began; None: there is none.

        Runs are ordered by their scheduled times. Looked up at the first use.
        """
        return self._run.last_run_at

    @property
    def _run(self) -> RunFacts:
        if self._facts is None:
            self._facts = facts_of(self.job, self.installation)
        return self._facts

    @property
    def stopping(self) -> bool:
        """Say whether the worker has begun to shut down: a long body should come to an end soon, or save how far it is."""
        return is_shutting_down()

    @property
    def window(self) -> tuple[datetime, datetime] | None:
        """Return the range [from, until) this run stands for, where its definition has recovery=compressed."""
        job = self.job
        return (job.covers_from, job.covers_until) if job.covers_from and job.covers_until else None

    @property
    def started_at(self) -> datetime | None:
        """Return when the gate let this attempt in, by the database's clock."""
        return self.job.claimed_at

    @property
    def following(self) -> bool:
        """Say whether the end is written and the row waits until what follows is handed on."""
        return self.ended is not None

    @property
    def step(self) -> str | None:
        """Return which step of its run this job is."""
        return self.job.step

    @property
    def results(self) -> Mapping[str, Any]:
        """Return what the steps of this run that have succeeded returned, by name, as it is now."""
        return results_of(self.job, self.installation)

    @property
    def session(self) -> Any:
        """Return the SQLAlchemy session whose writes commit with the job's completion; needs `transactional=True`."""
        if self.body is None:
            raise TmError(f"{self.job.task} has no job.session; give its task transactional=True")
        return self.body.session

    def roll_back(self) -> None:
        """Undo the body's writes: this attempt has not succeeded."""
        if self.body is not None:
            self.body.roll_back()

    @property
    def cancelled(self) -> bool:
        """Say whether the body should stop: it was cancelled, has run for too long, or its lease is lost.

        A body that has been told so and then returns counts as cancelled or stale, not as done.
        """
        self.stopped = self.asked_to_stop or self.exceeded or self._lost
        return self.stopped

    @property
    def lease_lost(self) -> bool:
        """Say whether another attempt has taken over; nothing of this one will be recorded."""
        return self._lost

    def report_success(self, message: str | None = None) -> None:
        """Keep a message with the record of success."""
        if message is not None:
            self.success_message = cut(said(message), MAX_MESSAGE) or self.success_message

    def report_failure(self, error: str | BaseException) -> None:
        """Count this attempt as failed when the body returns, as if it had raised."""
        self.failure_message = cut(said(error), MAX_ERROR) or type(error).__name__

    def report_progress(self, message: str) -> None:
        """Show how far the work has come. Written at most a few times a second; a database that is away is no failure."""
        self.progress = self._reports.progress(message, self._write)

    def log(self, message: str, *, level: str = "info") -> None:
        """Keep a line with this execution, marked "debug", "info", "warning" or "error".

        Lines that come faster than the database should hear of them are written together; there is an end to their number.
        """
        if level not in LOG_LEVELS:
            near = nearest(level, LOG_LEVELS)
            hint = f"; did you mean {near!r}?" if near else ""
            raise InvalidValue("level", f"{shown(level)} is not a level", f"use one of {', '.join(LOG_LEVELS)}{hint}")
        self._reports.line(level, message, self._write)

    def audit(
        self,
        action: str,
        *,
        object: str,
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
        reason: str | None = None,
        actor: str = SYSTEM,
    ) -> None:
        """Write a line of the audit, e.g. `audit("subscription.frozen", object="subscription:42")`.

        In a transactional body it commits, or is rolled back, with the body's own writes; else it is written at once, and
        what keeps it from being written is raised. Called without a worker it is only checked.
        """
        line = checked_line(action, object, before=before, after=after, reason=reason, actor=actor)
        if self.body is not None:
            audit.note(self.body.database.joined(self.session.connection()), **line, tells=False)
        elif self.installation is not None:
            self.installation.database.run(lambda tx: audit.note(tx, **line, tells=False))
        elif self.outer is not None:
            self.outer.audit(**line)

    def flush(self) -> None:
        """Write the lines and the latest progress that are not written yet."""
        if self._is_barred and threading.get_ident() != self._thread:
            return  # a body's connection is for its own thread
        self._reports.flush(self._write)

    @property
    def _is_barred(self) -> bool:
        """Say whether only the body's own transaction can write to the job's row now."""
        return self.body is not None and self.body.is_open and (self.body.bars_others or self.body.holds_row)

    def _write(self, work: Any) -> None:
        if self.installation is None:
            return
        try:
            if self.body is not None and self._is_barred:
                self.body.write_aside(work)  # nobody else could write now, not even we
            else:
                self.installation.database.run(work)
        except Exception as error:  # telling is best effort; finishing is not
            logger.warning("a report of job %s was not written: %s", self.id, error)

    @property
    def asked_to_stop(self) -> bool:
        """Say whether somebody cancelled the job, as far as is known here."""
        if self.outer is not None and self.outer.asked_to_stop:
            return True
        return self._stop or (self.body is not None and self.body.is_cancelled)

    def ask_to_stop(self) -> None:
        """Note that somebody cancelled the job."""
        self._stop = True

    def lose_lease(self) -> None:
        """Note that the lease is gone, and tell of it once."""
        if not self._lost and self.installation is not None:
            tell_lost(self.installation.app, self.job)
        self._lost = True

    @property
    def seconds(self) -> float | None:
        """Return how long the body has taken so far; None before it is called."""
        return None if self._began is None else time.monotonic() - self._began

    def enter(self) -> None:
        """Note that the body is called now."""
        self.entered = True
        self._began, self._thread = time.monotonic(), threading.get_ident()


def seconds_of(job: Job) -> float | None:
    """Return how long the body of a job that runs here has taken."""
    context = _current.get()
    return context.seconds if context is not None and context.id == job.id else None


def flush(job: Job) -> None:
    """Write what the body of a job that runs here has said, before its end is written: afterwards it has no say."""
    context = _current.get()
    if context is not None and context.id == job.id:
        context.flush()


def current_job() -> JobContext:
    """Return the context of the job that this code runs in."""
    context = _current.get()
    if context is None:
        raise TmError("no job runs here; current_job() works inside a task that a worker, or run_due_jobs(), runs")
    return context


def peek() -> JobContext | None:
    """Return the context of the job that this code runs in, if any."""
    return _current.get()


def enter(context: JobContext | None) -> None:
    """Make `context` the current one."""
    _current.set(context)


def expect(context: JobContext) -> None:
    """Make `context` the current one, for a delivery that was let in already."""
    context.expected = True
    _current.set(context)


def is_expected(id: str | None) -> bool:
    """Say whether the delivery of `id` was let in already."""
    context = _current.get()
    return context is not None and context.expected and not context.entered and context.id == id


def leave() -> None:
    """Forget the current context."""
    _current.set(None)
