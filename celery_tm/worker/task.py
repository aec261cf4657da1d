"""The base class that makes a Celery task durable: gate, body, record.

`before_start` asks the gate; `run`, wrapped when the task is made, calls the body and writes how it ended before Celery
stores a result. So what Celery reports as done is done. Called directly, with `apply()` or `task_always_eager`, a task
runs as plain Celery would run it, and needs no database.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, ClassVar

import celery
from celery.app.autoretry import add_autoretry_behaviour
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry, SoftTimeLimitExceeded

from .. import clock, events
from ..clock import parse_duration
from ..domain.codec import encode
from ..domain.execution import Failure, Outcome
from ..domain.job import Job, Source, checked_concurrency, checked_timeout
from ..domain.retry import Bury, TryAgain, read_policy
from ..errors import DatabaseUnavailable, LeaseLost, TmError
from ..installation import Installation
from ..publisher import HARD_LIMIT_GRACE
from . import builtin, delivery, recorder, unknown  # noqa: F401  (unknown listens for tasks nobody has)
from . import context as contexts
from .context import JobContext
from .lease import keeper_of

logger = logging.getLogger(__name__)
NOT_YET = ("transactional", "chunk")  # options of a task that are no typo, but do nothing yet


class ReportedFailure(TmError):
    """The body called `report_failure` and returned."""


class Task(celery.Task):
    """A task whose deliveries pass an idempotency gate and whose attempts are recorded."""

    abstract = True
    Request = "celery_tm.worker.request:Request"
    tm_gated = True

    #: What makes two calls the same work: text like "order:{0}", or a callable that gets the arguments.
    key: ClassVar[str | Callable[..., str] | None] = None
    #: How long the key of a success refuses a second run; unset: `tm_keep_keys`.
    keep_key: ClassVar[timedelta | float | str | None] = None
    #: What limits how many calls may be in flight: text like "tenant:{0}", or a callable; `concurrency` is the limit.
    concurrency_key: ClassVar[str | Callable[..., str] | None] = None
    concurrency: ClassVar[int | None] = None
    #: How long one attempt may take.
    timeout: ClassVar[timedelta | float | str | None] = None
    #: The backoff, from the option `retry=`; unset: proportional to the original delay.
    retry_policy: ClassVar[Any] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in NOT_YET:
            if cls.__dict__.get(name):
                logger.warning("%s= of %s is reserved: it changes nothing in this release", name, cls.__name__)
        policy = cls.__dict__.get("retry")
        if policy is not None and not callable(policy):  # the option; `self.retry()` stays the method
            del cls.retry
            cls.retry_policy = policy
        if cls.retry_policy is not None:
            read_policy(cls.retry_policy)
        checked_concurrency("…" if cls.concurrency_key is not None else None, cls.concurrency)
        if cls.keep_key is not None:
            parse_duration(cls.keep_key, field="keep_key")
        if cls.timeout is not None:  # so that direct calls have it too
            limit = checked_timeout(cls.timeout)
            cls.soft_time_limit = cls.soft_time_limit or limit.total_seconds()
            cls.time_limit = cls.time_limit or (limit + HARD_LIMIT_GRACE).total_seconds()

    def __new__(cls, *_: Any, **__: Any) -> Task:
        task: Task = super().__new__(cls)
        # Celery would wrap autoretry around the record of failure; it belongs inside, next to the body.
        add_autoretry_behaviour(task)
        task.run = _recorded(task, task.run)
        return task

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Give the app the task that comes with this package."""
        super().on_bound(app)
        builtin.register(app, Task)

    @property
    def job(self) -> JobContext:
        """Return the job this call carries out; called without a worker, a detached one that only listens."""
        return contexts.peek() or _detached(self)

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Pass the gate, or raise Ignore."""
        if not (self.request.called_directly or self.request.is_eager):
            self._pass_gate()
        super().before_start(task_id, args, kwargs)

    def _pass_gate(self) -> JobContext:
        contexts.leave()
        installation = Installation.of(self.app)
        worker = f"{self.request.hostname or 'local'}:{os.getpid()}"
        context = JobContext(delivery.admit(self, installation, worker=worker), installation)
        contexts.enter(context)
        return context

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
        limit = context.job.max_retries if max_retries is None else max_retries
        if limit is not None and context.job.retries >= limit:
            context.gives_up = True
            raise exc or MaxRetriesExceededError(f"Can't retry {self.name}[{context.id}] args:{args} kwargs:{kwargs}")
        delay = _delay(eta, self.default_retry_delay if countdown is None else countdown)
        then = TryAgain(
            delay,
            args=None if args is None else encode(list(args), field="args"),
            kwargs=None if kwargs is None else encode(dict(kwargs), field="kwargs"),
        )
        failure = recorder.failure_of(exc) if exc else Failure(error="the body asked for a retry")
        context.finishing = True
        recorder.record_failure(context.installation, context.job, failure, then=then)
        context.settled = True
        signal = Retry(exc=exc, when=delay.total_seconds())
        if throw:
            raise signal
        return signal


def _delay(eta: datetime | None, countdown: float) -> timedelta:
    if eta is not None:
        aware = eta if eta.tzinfo else eta.astimezone()
        return max(aware - clock.now(), timedelta(0))
    return timedelta(seconds=max(countdown, 0))


def _recorded(task: Task, body: Callable[..., Any]) -> Callable[..., Any]:
    """Return the body such that its end is written before Celery hears of it."""

    @wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        context = _admitted(task)
        if context is None:
            return _run_detached(task, body, args, kwargs)
        context.entered = True
        keeper = keeper_of(context.installation) if context.installation else None
        if keeper and clock.moved_time() is None:
            keeper.hold(context)
        try:
            return _run(context, body, args, kwargs)
        except LeaseLost:
            context.lose_lease()
            _tell_lost(context)
            raise Ignore from None
        except DatabaseUnavailable as error:
            # The body ran, but its end could not be written while the lease lasted: the sweeper decides.
            events.emit(task.app, events.OutageBegan(what="database", error=str(error)))
            raise Ignore from None
        finally:
            if keeper:
                keeper.let_go(context)
            contexts.leave()

    return run


def _admitted(task: Task) -> JobContext | None:
    """Return the context of the delivery that this call is the body of, if it is one."""
    context = contexts.peek()
    if context is not None and not context.entered and context.job.task == task.name:
        return context
    request = task.request
    if request.called_directly or request.is_eager or not request.id or (context is not None and context.entered):
        return None
    return task._pass_gate()  # somebody's before_start forgot to call super()


def _run(context: JobContext, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    installation, job = context.installation, context.job
    assert installation is not None
    try:
        result = body(*args, **kwargs)
        if context.failure_message is not None and not context.settled:
            raise ReportedFailure(context.failure_message)
    except Ignore:
        if not context.settled:
            _end(
                context,
                lambda: recorder.record_success(installation, job, None, message="the body asked to be ignored"),
            )
        raise
    except Retry as signal:
        if not context.settled:  # raised by hand, not by self.retry()
            _fail(context, signal.exc or signal, TryAgain(_when(signal.when)))
        raise
    except SoftTimeLimitExceeded as error:
        return _fail(context, error, None, outcome=Outcome.TIMEOUT)
    except Reject as error:
        return _fail(context, error, None if error.requeue else Bury("the body rejected it"))
    except Exception as error:
        return _fail(context, error, Bury("the body gave up") if context.gives_up else None)
    if context.settled:
        return result
    if context.stopped and not context.lease_lost:
        _end(context, lambda: recorder.record_cancelled(installation, job, message="stopped because it was cancelled"))
        raise Ignore
    _end(context, lambda: recorder.record_success(installation, job, result, message=context.success_message))
    return result


def _end(context: JobContext, write: Callable[[], object]) -> Any:
    context.finishing = True
    written = write()
    context.settled = True
    return written


def _fail(
    context: JobContext, error: BaseException, then: TryAgain | Bury | None, *, outcome: Outcome = Outcome.FAILED
) -> Any:
    """Write a failure and tell Celery what it means: a retry, the failure itself, or nothing."""
    if context.settled:  # self.retry(throw=False) has ended this attempt already
        raise Ignore from error
    installation = context.installation
    assert installation is not None
    failure = recorder.failure_of(error, outcome=outcome)
    decision = _end(context, lambda: recorder.record_failure(installation, context.job, failure, then=then))
    if isinstance(decision, TryAgain):
        raise Retry(exc=error if isinstance(error, Exception) else None, when=decision.delay.total_seconds()) from error
    if decision is None:
        raise Ignore from error
    raise error


def _when(value: Any) -> timedelta:
    if isinstance(value, datetime):
        return _delay(value, 0)
    return timedelta(seconds=max(float(value or 0), 0))


def _tell_lost(context: JobContext) -> None:
    assert context.installation is not None
    job = context.job
    events.emit(context.installation.app, events.LeaseWasLost(job=job.id, task=job.task, attempt=job.attempt))


# Without a worker


def _run_detached(task: Task, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run as plain Celery would, with a context that only listens."""
    if contexts.peek() is not None:  # a plain call inside another job's body
        return body(*args, **kwargs)
    context = _detached(task)
    contexts.enter(context)
    try:
        result = body(*args, **kwargs)
    finally:
        contexts.leave()
    if context.failure_message is not None:
        raise ReportedFailure(context.failure_message)
    return result


def _detached(task: Task) -> JobContext:
    now = clock.now()
    request = task.request
    job = Job(
        id=request.id or "",
        task=task.name,
        args=None,
        kwargs=None,
        run_at=now,
        created_at=now,
        claimed_at=now,
        original_delay=timedelta(0),
        attempt=(request.retries or 0) + 1,
        source=Source.DIRECT,
    )
    context = JobContext(job, None)
    context.entered = True
    return context
