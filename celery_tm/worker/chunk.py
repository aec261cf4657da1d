"""Jobs that came in one message: let in together, run one after the other, recorded together.

Each is traced by Celery as if it had come alone, with its own request, signals, retries and result. Where results are kept,
each success is written before its result; otherwise they are written in one transaction, at the latest after a moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

from celery.app.trace import build_tracer
from celery.exceptions import Ignore

from .. import clock, events
from ..domain.codec import decode
from ..domain.job import Job
from ..errors import OUT_OF_REACH
from ..installation import Installation
from ..publisher import ANNOUNCED, HEADER, RENAMED, contract
from . import context as contexts
from . import recorder
from .context import JobContext
from .lease import keeper_of

# How a request calls what a message was made of.
NAMED = {link: name for name, link in RENAMED.items()} | {"group_id": "group"}
WRITE_EVERY = 0.2  # seconds that successes may wait for each other

_waiting: ContextVar[Sequence[Job] | None] = ContextVar("celery_tm_chunk", default=None)
_tracers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def enter(jobs: Sequence[Job]) -> None:
    """Note that these were let in and are to run."""
    _waiting.set(jobs)


def take() -> Sequence[Job] | None:
    """Return the jobs that were let in and have not begun."""
    jobs = _waiting.get()
    if jobs is not None:
        _waiting.set(None)
    return jobs


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
        """Take a success."""
        context.flush()
        context.settled = context.finishing = True
        with self._lock:
            self._done[context.id] = (context, result)
            self._took[context.id] = context.seconds or 0.0
        if len(self._done) >= self.size or time.monotonic() - self._since >= WRITE_EVERY:
            lost = self.write()
            if context.id in lost:
                raise Ignore
        return result

    def write(self) -> set[str]:
        """Write what was gathered; return the ids of those that had lost their lease."""
        with self._lock:
            lost = self._write(list(self._done.values()))
            self._done.clear()
            self._took.clear()
            self._since = time.monotonic()
        return lost

    def _write(self, done: Sequence[tuple[JobContext, object]]) -> set[str]:
        if not done:
            return set()
        try:
            successes = [(context.job, result, context.success_message) for context, result in done]
            lost = set(recorder.record_all(self.installation, successes, took=self._took))
        except OUT_OF_REACH as error:  # as long as their leases would last: the sweeper decides
            events.emit_seldom(self.installation.app, events.OutageBegan(what="database", error=str(error)))
            lost = {context.id for context, _ in done}
        keeper = keeper_of(self.installation)
        keeper.let_go(*(context for context, _ in done))
        for context, _ in done:
            if context.id in lost:
                context.lose_lease()
        return lost


def run(task: Any, jobs: Sequence[Job]) -> int:
    """Run jobs that came together, each on its own; what one does is nothing to the others. Return how many there were."""
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
    try:
        for context in contexts_of:
            if keeper.has_lost(context):  # the one before took too long, or this process was stopped: others have it now
                continue
            contexts.expect(context)
            _trace(task, context, of_all.hostname)
    finally:
        task.request_stack.push(of_all)
        contexts.leave()
        collector.write()
        keeper.let_go(*contexts_of)
    return len(jobs)


def _trace(task: Any, context: JobContext, hostname: str) -> None:
    trace = _tracers.get(task)
    if trace is None:
        trace = _tracers[task] = build_tracer(task.name, task, app=task.app, hostname=hostname)
    job = context.job
    args, kwargs = decode(job.args), decode(job.kwargs)
    trace(job.id, args, kwargs, request_of(job, hostname, args, kwargs))


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
