"""The base class that makes a Celery task durable: gate, body, record.

A delivery passes the gate before any hook of the user is called. `before_start`, `__call__` and `run` are wrapped when the
task is made (`worker.running`), so that however they end is written before Celery stores a result: what Celery reports as
done is done. `apply_async` and `retry` keep what would have waited
in a worker's memory in a row (`worker.calling`). Called directly, with `apply()` or `task_always_eager`, a task runs as
plain Celery would run it, and needs no database.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from inspect import isasyncgenfunction, iscoroutinefunction
from types import FunctionType
from typing import Any, ClassVar

import celery
from celery.app.autoretry import add_autoretry_behaviour
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import task_postrun

from ..clock import readable_expiry
from ..domain.job import MAX_TASK, checked_concurrency, checked_text, checked_timeout
from ..domain.loads import MAX_CHUNK
from ..domain.retry import read_policy
from ..domain.time_limits import HARD_LIMIT_GRACE
from ..errors import InvalidValue, shown
from ..installation import Installation, worker_name
from ..publisher import HEADER
from ..settings import read_keep_key
from . import attending, builtin, calling, chunk, delivery, following, running
from . import context as contexts
from .body_errors import rejecting
from .context import JobContext
from .control import make_revokes_durable
from .detached import detached
from .soft_limit import soft_limit

UNLIMITED = 2**31
AWAIT_IT_YOURSELF = "make it a plain def that calls asyncio.run() with the coroutine, or use another base class"
BUILT_INTO_CELERY = "celery."  # chord_unlock, map and the like: Celery's own machinery keeps its own ways


class Task(celery.Task):
    """A task whose deliveries pass an idempotency gate and whose attempts are recorded."""

    abstract = True
    Request = "celery_tm.worker.request:Request"
    Strategy = "celery_tm.worker.strategy:default"
    tm_gated = True
    tm_track_started = False  # what `track_started` says; STARTED is stored once the delivery has passed the gate

    #: What makes two calls the same work: text like "order:{0}", or a callable that gets the arguments.
    key: ClassVar[str | Callable[..., str] | None] = None
    #: How long its key is kept after a success, or {"succeeded": …, "failed": …, "cancelled": …}; unset: `tm_keep_keys`.
    keep_key: ClassVar[timedelta | float | str | Mapping[str, Any] | None] = None
    #: What limits how many calls may be in flight: text like "tenant:{0}", or a callable; `concurrency` is the limit.
    concurrency_key: ClassVar[str | Callable[..., str] | None] = None
    concurrency: ClassVar[int | None] = None
    #: How long an attempt may run before it counts as stuck: outcome *stale*, and the retry policy decides; unset:
    #: `tm_stuck_after`.
    max_duration: ClassVar[timedelta | float | str | None] = None
    #: How long one attempt may take: a soft time limit, and ten seconds later a hard one.
    timeout: ClassVar[timedelta | float | str | None] = None
    #: The backoff, from the option `retry=`; unset: `tm_retry`.
    retry_policy: ClassVar[Any] = None
    #: Whether what the body writes through `job.session` commits together with its completion.
    transactional: ClassVar[bool] = False
    #: The SQLAlchemy sessionmaker of `job.session`; unset: a plain Session.
    session: ClassVar[Callable[..., Any] | None] = None
    #: How many due jobs may share a message.
    chunk: ClassVar[int | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        policy = cls.__dict__.get("retry")
        if policy is not None and not callable(policy):  # the option; `self.retry()` stays the method
            del cls.retry
            cls.retry_policy = policy
        for name in ("key", "concurrency_key", "session"):
            if isinstance(cls.__dict__.get(name), FunctionType):  # a rule, not a method
                setattr(cls, name, staticmethod(cls.__dict__[name]))
        if str(cls.__dict__.get("name") or "").startswith(BUILT_INTO_CELERY):
            cls.tm_gated = False
            cls.Request, cls.Strategy = celery.Task.Request, celery.Task.Strategy
        cls._check_options()
        if cls.tm_gated:
            running.record_calls(cls)

    @classmethod
    def _check_options(cls) -> None:
        if cls.tm_gated and cls.Strategy != Task.Strategy:  # celery-batches and the like call bodies past the gate
            problem = f"{shown(cls.Strategy)} would run it without a gate and a record"
            raise InvalidValue("Strategy", problem, "make it a plain task: base=celery.Task, or its library's own class")
        if cls.retry_policy is not None:
            read_policy(cls.retry_policy)
        if cls.tm_gated and any(is_async(cls.run) for is_async in (iscoroutinefunction, isasyncgenfunction)):
            name = cls.__dict__.get("name") or cls.__name__
            raise InvalidValue(str(name), "its body is async def, and a Celery worker awaits nothing", AWAIT_IT_YOURSELF)
        checked_concurrency("…" if cls.concurrency_key is not None else None, cls.concurrency)
        if cls.keep_key is not None:
            read_keep_key(cls.keep_key)
        if cls.timeout is not None:  # so that direct calls have it too
            limit = checked_timeout(cls.timeout)
            cls.soft_time_limit = cls.soft_time_limit or limit.total_seconds()
            cls.time_limit = cls.time_limit or (limit + HARD_LIMIT_GRACE).total_seconds()
        if cls.max_duration is not None:
            checked_timeout(cls.max_duration, field="max_duration")
        cls.expires = readable_expiry(cls.expires)
        if not isinstance(cls.transactional, bool):
            raise InvalidValue("transactional", f"{shown(cls.transactional)} is not True or False", "give a bool")
        if cls.session is not None and not cls.transactional:
            raise InvalidValue("session", "nothing commits it", "give transactional=True too")
        size = cls.chunk
        if size is not None and (type(size) is not int or not 1 <= size <= MAX_CHUNK):
            raise InvalidValue("chunk", f"{shown(size)} is not a number of jobs", f"give 1 to {MAX_CHUNK:,}")
        if (size or 1) > 1 and cls.transactional:
            raise InvalidValue("chunk", "a transactional body commits alone", "drop chunk= or transactional=")

    def __new__(cls, *_: Any, **__: Any) -> Task:
        task: Task = super().__new__(cls)
        if cls.tm_gated:
            # Celery would wrap autoretry around the record of failure; it belongs inside, next to the body.
            add_autoretry_behaviour(task)
            task.run = running.Recorded(task)
            task.before_start = running.Started(task)  # type: ignore[method-assign]
            task.on_success = running.Ended(task, "on_success")
            task.on_failure = running.Ended(task, "on_failure")
        return task

    @property
    def __trace__(self) -> Any:
        """Return what runs a delivery of this task in a worker; Celery sets it when the worker starts."""
        return self.__dict__.get("__trace__")

    @__trace__.setter
    def __trace__(self, tracer: Any) -> None:
        if tracer is not None and self.tm_gated and attending.is_worker():
            tracer = rejecting(tracer)
        self.__dict__["__trace__"] = tracer

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Give the app the task that comes with this package, and revokes that last."""
        super().on_bound(app)
        if cls.tm_gated:
            checked_text(cls.name, field="task", limit=MAX_TASK)
            if cls.track_started:  # Celery stores it before the gate: a copy of a message would overwrite the result
                cls.tm_track_started, cls.track_started = True, False
        builtin.register(app, Task)
        make_revokes_durable(app)

    @property
    def job(self) -> JobContext:
        """Return the job this call carries out; called without a worker, a detached one that only listens."""
        found = contexts.peek()
        if found is None:
            found = detached(self)
            found.roll_back()  # no body runs: nothing would commit a session
        return found

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Do something before the body; the gate was passed, and an error here counts as one of the body."""
        super().before_start(task_id, args, kwargs)

    def pass_gate(self) -> None:
        """Admit the present delivery, or raise Ignore. What carries a chunk runs its jobs here, and is ignored itself."""
        contexts.leave()
        soft_limit.hold(self.request.id)
        running.listen()
        installation = Installation.of(self.app)
        worker = worker_name(self.request.hostname, os.getpid())
        if delivery.read_chunk(getattr(self.request, HEADER, None)):
            chunk.run(self, delivery.admit_all(self, installation, worker=worker))
            raise Ignore
        context = JobContext(delivery.admit(self, installation, worker=worker), installation)
        following.name_links(self.request, context.job)
        contexts.enter(context)
        running.hold(context)

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> Any:
        """Call the task; what is to run far ahead, or with a transaction, waits in the job table."""
        if "expires" in options:
            options["expires"] = readable_expiry(options["expires"])
        send = partial(super().apply_async, args, kwargs, link=link, link_error=link_error, shadow=shadow)
        if not self.tm_gated or self.app.conf.task_always_eager:
            return send(task_id=task_id, producer=producer, **options)
        return calling.call(self, send, args=args, kwargs=kwargs, id=task_id, producer=producer, options=options)

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Retry:
        """Retry this job: its row goes back to pending, so that nothing waits in a worker's memory."""
        context = contexts.peek()
        if context is None or context.installation is None or self.request.called_directly or self.request.is_eager:
            return super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        own = context.job.max_retries
        limit = max_retries if max_retries is not None else UNLIMITED if own is None else own
        context.asks_again = exc or True
        try:
            return super().retry(args, kwargs, exc, throw, eta, countdown, limit, **options)
        except (Retry, Reject):
            raise
        except BaseException:
            context.gives_up = True
            raise
        finally:
            context.asks_again = False
            self.__dict__.pop("override_max_retries", None)  # the limit was this job's, not the task's

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """See to it that the frames of an attempt which is tried again are let go when Celery is done with them."""
        super().on_retry(exc, task_id, args, kwargs, einfo)
        task_postrun.connect(_let_go_of_frames, weak=False, dispatch_uid=_let_go_of_frames.__qualname__)

    def on_replace(self, sig: Any) -> Any:
        """Put another call in the place of this one."""
        context = contexts.peek()
        if context is None or context.installation is None or self.request.called_directly or self.request.is_eager:
            return super().on_replace(sig)
        return following.replace(context, sig)


def _let_go_of_frames(sender: Any = None, retval: Any = None, **_: Any) -> None:
    """Let go of the frames of an attempt that is tried again; Celery's own would keep them until they are collected."""
    if isinstance(retval, Retry) and isinstance(sender, Task):
        for error in (retval, retval.exc):  # what is told of them is told by now
            if isinstance(error, BaseException):
                error.__traceback__ = None
