"""Jobs that came in one message: let in together, run one after the other, recorded together.

Each is traced by Celery as if it had come alone, with its own request, signals, retries and result. Where results are kept,
each success is written before its result; otherwise they are written in one transaction, at the latest after a moment.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from celery.app.trace import build_tracer
from celery.exceptions import Ignore

from .. import answers, clock, events
from ..domain.codec import decode
from ..domain.job import Job
from ..errors import OUT_OF_REACH, LeaseLost
from ..installation import Installation
from ..publisher import ANNOUNCED, HEADER, RENAMED, contract
from ..store import jobs as store
from . import context as contexts
from . import recorder
from .context import JobContext
from .lease import keeper_of

logger = logging.getLogger(__name__)
# How a request calls what a message was made of.
NAMED = {link: name for name, link in RENAMED.items()} | {"group_id": "group"}
WRITE_EVERY = 0.2  # seconds that successes may wait for each other
LOOK_EVERY = 0.1  # seconds after which the database is asked again which jobs were cancelled before they began

_tracers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


class Collector:
    """Gathers the successes of a chunk, and writes them together."""

    def __init__(self, installation: Installation, *, size: int) -> None:
        self.installation = installation
        self.size = size  # how many may wait for each other
        self._done: dict[str, tuple[JobContext, object]] = {}
        self._took: dict[str, float] = {}
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
            lost = self.write(asking=context)
            if context.id in lost:
                raise Ignore
        return result

    def write(self, *, asking: JobContext | None = None) -> set[str]:
        """Write what was gathered; return the ids of those that had lost their lease.

        One that cannot be written has failed; that of the job that is `asking` raises why.
        """
        with self._lock:
            done = list(self._done.values())
            try:
                return self._write(done, asking)
            finally:
                self._done.clear()
                self._took.clear()
                self._since = time.monotonic()
                keeper_of(self.installation).let_go(*(context for context, _ in done if context is not asking))

    def _write(self, done: Sequence[tuple[JobContext, object]], asking: JobContext | None) -> set[str]:
        if not done:
            return set()
        try:
            lost = self._record(done)
        except Exception as error:
            if len(done) == 1:
                return self._refuse(done[0][0], error, asking)
            # One of them cannot be written: each alone, and the one that asks last, for it may raise.
            last = sorted(done, key=lambda one: one[0] is asking)
            return set().union(*(self._write([one], asking) for one in last))
        for context, _ in done:
            if context.id in lost:
                context.lose_lease()
        return lost

    def _record(self, done: Sequence[tuple[JobContext, object]]) -> set[str]:
        try:
            successes = [(context.job, result, context.success_message) for context, result in done]
            return set(recorder.record_all(self.installation, successes, took=self._took))
        except OUT_OF_REACH as error:  # as long as their leases would last: the sweeper decides
            events.emit_seldom(self.installation.app, events.OutageBegan(what="database", error=str(error)))
            return {context.id for context, _ in done}

    def _refuse(self, context: JobContext, error: Exception, asking: JobContext | None) -> set[str]:
        if context is asking:
            context.settled = False
            raise error
        _record_failure(context, error)
        return set()


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
        recorder.record_failure(context.installation, context.job, recorder.failure_of(error), reports=False)
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
