"""Runs the body of an admitted attempt and writes how it ended, before Celery hears of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from celery.app.task import Context
from celery.backends.base import BaseKeyValueStoreBackend
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from kombu.exceptions import EncodeError

from .. import answers, clock, events
from ..clock import format_duration
from ..domain.execution import Outcome
from ..domain.job import Job, Source
from ..domain.retry import Bury, TryAgain
from ..errors import OUT_OF_REACH, LeaseLost, TmError
from ..installation import Installation
from ..store import jobs
from ..store.body import BodyTransaction, within
from . import chunk, following, recorder
from . import context as contexts
from .context import JobContext
from .lease import LeaseKeeper, keeper_of
from .stopping import hand_back_if_stopping

PLAIN = (type(None), bool, int, float, str)


class ReportedFailure(TmError):
    """The body called `report_failure` and returned."""


class Recorded:
    """A task's body such that its end is written before Celery hears of it; in all else it looks like the body."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self._own = task.__dict__.get("run")  # of this very task, as `autoretry_for` makes it

    @property
    def __wrapped__(self) -> Any:
        """Return the body: that of its class is looked up when it is called, for annotations may still change it."""
        if self._own is not None:
            return self._own
        cls = type(self._task)
        found = next(base.__dict__["run"] for base in cls.__mro__ if "run" in base.__dict__)
        return found.__get__(self._task, cls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        shared = chunk.take()
        if shared is not None:
            return chunk.run(self._task, shared)
        context = _admitted(self._task)
        if context is None:
            return _run_detached(self._task, self.__wrapped__, args, kwargs)
        context.enter()
        return _run_held(self._task, context, self.__wrapped__, args, kwargs)


def _run_held(task: Any, context: JobContext, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run an admitted attempt while its lease is kept."""
    installation = context.installation
    assert installation is not None
    keeper = keeper_of(installation)
    if context.collector is None and clock.moved_time() is None:  # else it is held with the others of its chunk
        keeper.hold(context)
    try:
        if context.job.ended is not None:
            return following.hand_on(task, context)
        return _run(task, context, body, args, kwargs)
    except LeaseLost:
        context.lose_lease()
        raise Ignore from None
    except OUT_OF_REACH as error:
        # The body ran, but its end could not be written while the lease lasted: the sweeper decides.
        events.emit_seldom(task.app, events.OutageBegan(what="database", error=str(error)))
        raise Ignore from None
    except Exception:
        raise
    except BaseException:  # a body that is cut off, in a pool without processes
        hand_back_if_stopping([context])
        raise
    finally:
        context.roll_back()
        if context.collector is None or not context.collector.has(context):
            _let_go(context, keeper)


def is_delivery(request: Any) -> bool:
    """Say whether a request is a message that a worker was given, as opposed to any other way to call a task."""
    return bool(request.id and request.hostname and not request.called_directly and not request.is_eager)


def _let_go(context: JobContext, keeper: LeaseKeeper) -> None:
    if not context.following:  # else that is the end of it
        keeper.let_go(context)
        contexts.leave()


def _admitted(task: Any) -> JobContext | None:
    """Return the context of the delivery that this call is the body of, if it is one."""
    context = contexts.peek()
    if context is not None and not context.entered and context.job.task == task.name:
        return context
    if not is_delivery(_request(task)) or (context is not None and context.entered):
        return None
    task.pass_gate()  # somebody's before_start forgot to call super()
    return contexts.peek()


def _run(task: Any, context: JobContext, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    installation = context.installation
    assert installation is not None
    if task.transactional:
        context.body = BodyTransaction(installation.database, task.session)
    try:
        with within(context.body):
            result = body(*args, **kwargs)
        if context.failure_message is not None and not context.settled:
            raise ReportedFailure(context.failure_message)
    except Ignore:
        if not context.settled:
            _succeed(context, None, message="the body asked to be ignored", ended=None)
        raise
    except Retry as signal:
        if not context.settled:  # raised by hand, not by self.retry()
            _fail(task, context, signal.exc or signal, TryAgain(_when(signal.when)))
        raise
    except SoftTimeLimitExceeded as error:
        return _fail(task, context, error, None, outcome=Outcome.TIMEOUT)
    except Reject as error:
        if error.requeue and task.acks_late and context.job.source is Source.DIRECT and context.attempt == 1:
            _forget(context)  # the broker gives the message out again, as in plain Celery
            raise
        return _fail(task, context, error, None if error.requeue else Bury("the body rejected it"))
    except Exception as error:
        return _fail(task, context, error, Bury("the body gave up") if context.gives_up else None)
    if context.settled:
        return result
    if context.stopped and not context.lease_lost:
        return _stop(task, context)
    return _finish(task, context, result)


def _finish(task: Any, context: JobContext, result: Any) -> Any:
    """Write a success; the writes of a transactional body are part of it, and where they fail, the attempt has."""
    try:
        _refuse_unsendable(task, result)
    except EncodeError as error:
        return _fail(task, context, error, Bury("its result cannot be serialized"))
    if context.collector is not None:
        return context.collector.add(context, result)
    ended = following.worth_keeping(task.request, context, result=result)
    try:
        _succeed(context, result, message=context.success_message, ended=ended)
    except (LeaseLost, Ignore):
        raise
    except Exception as error:
        if context.body is None:
            raise
        return _fail(task, context, error, None)
    return result


def _succeed(context: JobContext, result: Any, *, message: str | None, ended: Any) -> None:
    assert context.installation is not None
    context.finishing = True
    recorder.record_success(
        context.installation, context.job, result, message=message, ended=ended, body=context.body
    )  # fmt: skip
    context.settled, context.ended = True, ended


def _forget(context: JobContext) -> None:
    """Leave no trace of an attempt whose message goes back to the broker."""
    assert context.installation is not None
    context.roll_back()
    context.finishing = context.settled = True
    context.installation.database.run(lambda tx: jobs.remove_running(tx, context.job))


def _stop(task: Any, context: JobContext) -> Any:
    """The body noticed that it was cancelled, and stopped."""
    assert context.installation is not None
    context.roll_back()
    context.finishing = True
    recorder.record_cancelled(context.installation, context.job, message="stopped because it was cancelled")
    context.settled = True
    answers.revoked(task, task.request)
    raise Ignore


def _fail(
    task: Any,
    context: JobContext,
    error: BaseException,
    then: TryAgain | Bury | None,
    *,
    outcome: Outcome = Outcome.FAILED,
) -> Any:
    """Write a failure and tell Celery what it means: a retry, the failure itself, or nothing."""
    if context.settled:  # self.retry(throw=False) has ended this attempt already
        raise Ignore from error
    assert context.installation is not None
    context.roll_back()
    context.finishing = True
    failure = recorder.failure_of(error, outcome=outcome)
    if outcome is Outcome.TIMEOUT and context.job.timeout is not None:
        failure = replace(failure, error=f"TaskTimeout: it did not end within {format_duration(context.job.timeout)}")
    ended = following.worth_keeping(task.request, context, error=failure.error)
    decision = recorder.record_failure(context.installation, context.job, failure, then=then, ended=ended)
    context.settled = True
    context.ended = ended if isinstance(decision, Bury) else None
    if isinstance(decision, TryAgain):
        raise Retry(exc=error if isinstance(error, Exception) else None, when=decision.delay.total_seconds()) from error
    if decision is None:
        answers.revoked(task, task.request)
        raise Ignore from error
    raise error


def _refuse_unsendable(task: Any, result: Any) -> None:
    """Raise EncodeError for a result that its backend cannot keep: plain Celery would call the task failed."""
    if isinstance(result, PLAIN) or task.ignore_result or task.request.ignore_result:
        return
    backend = task.backend
    if isinstance(backend, BaseKeyValueStoreBackend):
        backend.encode(backend.prepare_value(result))


def _when(value: Any) -> timedelta:
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.astimezone()
        return max(aware - clock.now(), timedelta(0))
    return timedelta(seconds=max(float(value or 0), 0))


# Without a worker


def _run_detached(task: Any, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run as plain Celery would, with a context that only listens."""
    if contexts.peek() is not None:  # a plain call inside another job's body
        return body(*args, **kwargs)
    context = detached(task)
    contexts.enter(context)
    try:
        with within(context.body):
            result = body(*args, **kwargs)
        if context.failure_message is not None:
            raise ReportedFailure(context.failure_message)
        if context.body is not None and context.body.is_open:
            context.body.commit_with(lambda _: None)
    finally:
        context.roll_back()
        contexts.leave()
    return result


def _request(task: Any) -> Any:
    """Return the present request; a task that no app has bound has none."""
    return Context() if task.request_stack is None else task.request


def detached(task: Any) -> JobContext:
    """Return a context for a call without a worker."""
    now = clock.now()
    request = _request(task)
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
    if task.transactional:
        context.body = BodyTransaction(Installation.of(task.app).database, task.session)
    return context
