"""Jobs that came in one message: let in together, run one after the other, recorded together.

Each is traced by Celery as if it had come alone, with its own request, signals, retries and result. Where results are kept,
each success is written before its result; otherwise they are written in one transaction, at the latest after a moment. One
whose row another transaction has locked is written when the row is free, at the latest at the end of the chunk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from celery.app.trace import build_tracer
from celery.exceptions import Ignore

from .. import answers, clock, events
from ..domain.codec import decode
from ..domain.job import Job
from ..errors import OUT_OF_REACH, DatabaseBusy, LeaseLost
from ..installation import Installation
from ..publisher import ANNOUNCED, HEADER, RENAMED, contract
from ..store import jobs as store
from . import context as contexts
from . import outcome_texts, recorder
from .context import JobContext
from .lease import keeper_of

logger = logging.getLogger(__name__)
# How a request calls what a message was made of.
NAMED = {link: name for name, link in RENAMED.items()} | {"group_id": "group"}
WRITE_EVERY = 0.2  # seconds that successes may wait for each other
LOOK_EVERY = 0.1  # seconds after which the database is asked again which jobs were cancelled before they began

_tracers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


Done = tuple[JobContext, object]  # a body that returned, and what


class Collector:
    """Gathers the successes of a chunk, and writes them together."""

    def __init__(self, installation: Installation, *, size: int) -> None:
        self.installation = installation
        self.size = size  # how many may wait for each other
        self._done: dict[str, Done] = {}
        self._took: dict[str, float] = {}
        self._locked: set[str] = set()  # of those done: other transactions have their rows, so they are not tried each time
        self._since = time.monotonic()
        self._lock = threading.Lock()  # the thread that renews leases writes too, while a body takes its time

    def has(self, context: JobContext) -> bool:
        """Say whether a success waits to be written."""
        return context.id in self._done

    def add(self, context: JobContext, result: Any) -> Any:
        """Take a success; raise if it cannot be written."""
        context.flush()
        context.settled = context.finishing = True
        with self._lock:
            self._done[context.id] = (context, result)
            self._took[context.id] = context.seconds or 0.0
        if len(self._done) >= self.size or time.monotonic() - self._since >= WRITE_EVERY:
            lost = self._write_gathered(asking=context, waits=self.size == 1)
            if context.id in lost:
                raise Ignore
        return result

    def write(self) -> None:
        """Write all that was gathered, and wait for rows that are locked. One that cannot be written has failed."""
        self._write_gathered(asking=None, waits=False)
        self._write_gathered(asking=None, waits=True)

    def write_free(self) -> None:
        """Write what can be written at once, for the thread that renews leases; the bodies' thread does the rest."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            done = list(self._done.values())
            self._write_beside_locked(done)
            self._let_go(done, None)
        finally:
            self._lock.release()

    def _write_gathered(self, *, asking: JobContext | None, waits: bool) -> set[str]:
        """Write what was gathered; return the ids of those that had lost their lease.

        Unless it `waits`, those stay whose rows other transactions have locked. What keeps the job that is `asking` from
        being written is raised.
        """
        with self._lock:
            if waits:
                self._locked.clear()
            done = [one for id, one in self._done.items() if id not in self._locked]
            try:
                return self._write(done, asking, waits=waits)
            finally:
                self._since = time.monotonic()
                self._let_go(done, asking)

    def _write(self, done: Sequence[Done], asking: JobContext | None, *, waits: bool) -> set[str]:
        if not done:
            return set()
        alone = len(done) == 1
        try:
            lost = self._record(done, waits=waits and alone)
        except DatabaseBusy:
            return self._write_each(done, asking, waits=True) if waits else self._write_beside_locked(done)
        except Exception as error:  # one of them cannot be written
            return self._refuse(done[0][0], error, asking) if alone else self._write_each(done, asking, waits=waits)
        self._lose(done, lost)
        return lost

    def _write_each(self, done: Sequence[Done], asking: JobContext | None, *, waits: bool) -> set[str]:
        """Write each alone, and the one that asks last, for it may raise."""
        last = sorted(done, key=lambda one: one[0] is asking)
        return set().union(*(self._write([one], asking, waits=waits) for one in last))

    def _record(self, done: Sequence[Done], *, waits: bool) -> set[str]:
        try:
            return set(recorder.record_all(self.installation, _successes(done), took=self._took, waits=waits))
        except OUT_OF_REACH as error:  # as long as their leases would last: the sweeper decides
            if isinstance(error, DatabaseBusy) and not waits:
                raise
            events.emit_seldom(self.installation.app, events.OutageBegan(what="database", error=str(error)))
            return {context.id for context, _ in done}

    def _write_beside_locked(self, done: Sequence[Done]) -> set[str]:
        """Write those whose rows no other transaction has, and remember the others; return which had lost their lease."""
        ids = {context.id for context, _ in done}
        try:
            lost, locked = recorder.record_free(self.installation, _successes(done), took=self._took) if done else ((), ())
        except (
            Exception
        ):  # none is written; the end of the chunk waits for what is locked, and finds the one that is refused
            lost, locked = (), ids
        self._locked = (self._locked - ids) | set(locked)
        self._lose(done, lost)
        return set(lost)

    @staticmethod
    def _lose(done: Sequence[Done], lost: Collection[str]) -> None:
        for context, _ in done:
            if context.id in lost:
                context.lose_lease()

    def _let_go(self, done: Sequence[Done], asking: JobContext | None) -> None:
        """Forget those that are written, and their leases; the job that is `asking` ends its own."""
        written = [context for context, _ in done if context.id not in self._locked]
        for context in written:
            self._done.pop(context.id, None)
            self._took.pop(context.id, None)
        keeper_of(self.installation).let_go(*(context for context in written if context is not asking))

    def _refuse(self, context: JobContext, error: Exception, asking: JobContext | None) -> set[str]:
        if context is asking:
            context.settled = False
            raise error
        _record_failure(context, error)
        return set()


def _successes(done: Sequence[Done]) -> list[recorder.Success]:
    return [(context.job, result, context.success_message) for context, result in done]


def run(task: Any, jobs: Sequence[Job]) -> None:
    """Run jobs that came together, each on its own; what one does is nothing to the others."""
    installation = Installation.of(task.app)
    keeps_results = not task.ignore_result and task.backend.as_uri() != "disabled://"
    collector = Collector(installation, size=1 if keeps_results else len(jobs))
    keeper = keeper_of(installation)
    contexts_of = [JobContext(job, installation) for job in jobs]
    for context in contexts_of:
        context.collector = collector
    if clock.moved_time() is None:
        keeper.hold(*contexts_of)
    of_all = task.request_stack.pop()  # so that each has the only request there is, as if its message had come alone
    looked = time.monotonic()
    try:
        for number, context in enumerate(contexts_of):
            if keeper.has_lost(context):  # the one before took too long, or this process was stopped: others have it now
                continue
            if number and (clock.moved_time() is not None or time.monotonic() - looked >= LOOK_EVERY):
                _look_for_cancelled(installation, contexts_of[number:])
                looked = time.monotonic()
            if context.asked_to_stop:
                _drop(installation, context)
            else:
                _trace(task, context, of_all.hostname)
    finally:
        task.request_stack.push(of_all)
        contexts.leave()
        try:
            collector.write()
        finally:
            keeper.let_go(*contexts_of)


def _look_for_cancelled(installation: Installation, waiting: Sequence[JobContext]) -> None:
    """Learn which of those that have not begun were cancelled: the lease is renewed too seldom to tell in time."""
    try:
        with installation.database.transaction(write=False) as tx:
            cancelled = store.cancelled_among(tx, [(context.id, context.attempt) for context in waiting])
    except OUT_OF_REACH:  # they are admitted: what was not heard in time did not happen in time
        return
    for context in waiting:
        if context.id in cancelled:
            context.ask_to_stop()


def _drop(installation: Installation, context: JobContext) -> None:
    """Record that a job was cancelled before its body began."""
    context.finishing = context.settled = True
    try:
        recorder.record_cancelled(installation, context.job, message="cancelled before its body began")
    except (*OUT_OF_REACH, LeaseLost):  # its lease ends, and what finds it then sees that it was cancelled
        return
    answers.job_revoked(installation, context.job)


def _trace(task: Any, context: JobContext, hostname: str) -> None:
    """Let Celery trace one job; one that it cannot trace has failed, and the others go on."""
    contexts.expect(context)
    try:
        trace = _tracers.get(task)
        if trace is None:
            trace = _tracers[task] = build_tracer(task.name, task, app=task.app, hostname=hostname)
        job = context.job
        args, kwargs = decode(job.args), decode(job.kwargs)
        trace(job.id, args, kwargs, request_of(job, hostname, args, kwargs))
    except MemoryError:
        raise
    except Exception as error:
        if not context.settled:
            _record_failure(context, error)


def _record_failure(context: JobContext, error: Exception) -> None:
    assert context.installation is not None
    logger.warning("job %s of a chunk failed outside its body: %s", context.id, context.installation.hidden(error))
    context.finishing = context.settled = True
    try:
        recorder.record_failure(context.installation, context.job, outcome_texts.failure_of(error), reports=False)
    except Exception as broken:  # its lease ends, and the sweeper decides
        logger.warning("the end of job %s was not recorded: %s", context.id, context.installation.hidden(broken))


def request_of(job: Job, hostname: str, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the request that a worker would have made of the job's own message."""
    options = {NAMED.get(name, name): value for name, value in job.options.items()}
    headers = {name: value for name, value in (options.get("headers") or {}).items() if name != ANNOUNCED}
    ours = contract(job, job.queue)
    return {**headers, **options} | {
        "id": job.id,
        "task": job.task,
        "args": args,
        "kwargs": kwargs,
        "retries": job.retries,
        "root_id": options.get("root_id") or job.id,
        "hostname": hostname,
        "is_eager": False,
        "delivery_info": {"exchange": "", "routing_key": job.queue or "", "priority": job.priority},
        "headers": {**headers, HEADER: ours},
        HEADER: ours,
    }
