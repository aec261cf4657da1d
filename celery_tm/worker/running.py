"""Runs the user code of an admitted attempt and writes how it ended, before Celery hears of it.

User code is `before_start`, a `__call__` of the task's own, and the body. Whichever raises, the attempt has failed, or asks
for a retry, to be ignored or rejected; what the outermost call returns is its result. An attempt that ends in yet another
way, say because a library replaced `run`, is recorded as Celery reported it, when Celery is done with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial, wraps
from typing import Any, NoReturn

from celery import states
from celery.app.task import Task as CeleryTask
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from celery.signals import task_postrun

from .. import answers, clock, events
from ..domain.execution import Outcome
from ..domain.job import Source
from ..domain.retry import Bury, TryAgain
from ..errors import OUT_OF_REACH, LeaseLost
from ..publisher import HEADER
from ..store import settlement
from ..store.body import BodyTransaction, within
from . import context as contexts
from . import following, outcome_texts, recorder
from .attending import is_worker
from .body_errors import MaxDurationExceeded, Rejected, ReportedFailure
from .context import JobContext
from .delivery import REPLACES, read_replaced
from .detached import request_of, run_detached
from .lease import keeper_of
from .result_checks import refuse_unsendable, unrun
from .soft_limit import soft_limit
from .stopping import hand_back_if_stopping
from .time_limits import default_timeout, is_stuck, naming_limit

logger = logging.getLogger(__name__)


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
        return _of_class(self._task, "run")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        context = _admitted(self._task)
        if context is None:
            return run_detached(self._task, self.__wrapped__, args, kwargs)
        return _run_admitted(self._task, context, self.__wrapped__, args, kwargs)


class Started:
    """A task's `before_start`: the delivery passes the gate first, and what the user's own raises is recorded."""

    def __init__(self, task: Any) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(_of_class(self._task, "before_start"), name)

    def __call__(self, task_id: str, args: Any, kwargs: Any) -> None:
        task = self._task
        if not contexts.is_expected(task_id) and is_delivery(task.request):  # else it was admitted with its chunk
            task.pass_gate()
        hook = _of_class(task, "before_start")
        context = contexts.peek()
        if context is None or context.entered or context.id != task_id:
            hook(task_id, args, kwargs)
        elif context.job.ended is None:  # else its body ran before, and only its callbacks are to be published
            answers.started(task, task.request)
            try:
                try:
                    soft_limit.open()
                    hook(task_id, args, kwargs)
                finally:
                    soft_limit.close()
            except BaseException as error:
                _run_admitted(task, context, partial(_raise, error), (), {})


def _of_class(task: Any, name: str) -> Any:
    """Return what a task's class has under a name, bound to the task: any callable may stand there, not only a function."""
    cls = type(task)
    found = next(base.__dict__[name] for base in cls.__mro__ if name in base.__dict__)
    return found.__get__(task, cls) if hasattr(type(found), "__get__") else found


class Ended:
    """A task's `on_success` or `on_failure`: by now Celery has published the callbacks, also if the hook raises `Reject`."""

    def __init__(self, task: Any, name: str) -> None:
        self._task, self._name = task, name

    def __getattr__(self, name: str) -> Any:
        return getattr(_of_class(self._task, self._name), name)

    def __call__(self, *args: Any) -> None:
        hook = _of_class(self._task, self._name)
        if self._name == "on_success":
            following.success_is_published()
        else:
            following.failure_is_published()
        _call_hook(self._task, self._name, hook, args)


def _call_hook(task: Any, name: str, hook: Callable[..., Any], args: Any) -> None:
    """Call `on_success` or `on_failure`, and log what Celery would take for another end: this one is recorded by now.

    That is a `Reject` of `on_success` in a worker, and any other error of `on_failure`.
    """
    try:
        hook(*args)
    except MemoryError:
        raise
    except Exception as error:
        is_late = is_worker() if name == "on_success" else True
        if not is_late or isinstance(error, Reject) != (name == "on_success") or not is_delivery(task.request):
            raise
        logger.exception("Task %s[%s] %s handler raised", task.name, task.request.id, name)


def _raise(error: BaseException) -> NoReturn:
    raise error


def record_calls(cls: Any) -> None:
    """Let the attempt of a class that has a `__call__` of its own end with that, instead of with its body."""
    owner = next(base for base in cls.__mro__ if "__call__" in base.__dict__)
    original = owner.__dict__["__call__"]
    if owner is CeleryTask or getattr(original, "tm_recorded", False):
        return

    @wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = original.__get__(self, type(self))
        context = _admitted(self)
        return own(*args, **kwargs) if context is None else _run_admitted(self, context, own, args, kwargs)

    call.tm_recorded = True  # type: ignore[attr-defined]
    cls.__call__ = call


def hold(context: JobContext) -> None:
    """Renew the lease of an attempt that was just admitted, until its end is written."""
    assert context.installation is not None
    if clock.moved_time() is None:
        keeper_of(context.installation).hold(context)


def _run_admitted(task: Any, context: JobContext, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run an admitted attempt, and let its lease go at its end."""
    context.enter()
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
        soft_limit.close()
        context.roll_back()
        if context.collector is None or not context.collector.has(context):
            _let_go(context)


def is_delivery(request: Any) -> bool:
    """Say whether a request is a message that a worker was given, as opposed to any other way to call a task."""
    return bool(request.id and request.hostname and not request.called_directly and not request.is_eager)


def _let_go(context: JobContext) -> None:
    if not context.following:  # else that is the end of it
        assert context.installation is not None
        keeper_of(context.installation).let_go(context)
        contexts.leave()


def _admitted(task: Any) -> JobContext | None:
    """Return the context of the delivery that this call is the body of, if it is one."""
    context = contexts.peek()
    if context is not None and not context.entered and context.job.task == task.name:
        return context
    if not is_delivery(request_of(task)) or (context is not None and context.entered):
        return None
    task.pass_gate()  # somebody has replaced before_start on the task itself
    context = contexts.peek()
    if context is not None and context.job.ended is None:
        answers.started(task, task.request)
    return context


def _run(task: Any, context: JobContext, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    installation = context.installation
    assert installation is not None
    if task.transactional:
        renew = keeper_of(installation).renew_within
        context.body = BodyTransaction(installation.database, task.session, job=context.id, before_commit=renew)
    try:
        try:
            soft_limit.open()
            with within(context.body):
                result = body(*args, **kwargs)
        finally:
            soft_limit.close()
        if context.failure_message is not None and not context.settled:
            raise ReportedFailure(context.failure_message)
    except Ignore:
        if not context.settled:
            _succeed(context, None, message="the body asked to be ignored", ended=None)
        raise
    except Retry as signal:
        if not context.settled:  # raised by hand, not by self.retry()
            _fail(task, context, signal.exc or signal, TryAgain(_when(signal.when)))
        if context.revoked:
            raise Ignore from signal
        raise
    except SoftTimeLimitExceeded as error:
        return _fail(task, context, error, None, outcome=Outcome.STALE if is_stuck(task, context) else Outcome.TIMEOUT)
    except Reject as error:
        if isinstance(error.reason, (LeaseLost, *OUT_OF_REACH)):  # how Celery's retry() raises what apply_async raised
            raise error.reason from None
        if error.requeue and task.acks_late and _is_callers_message(task, context):
            if not _forget(context):
                return _stop(task, context)
            raise  # the broker delivers the message again, as in plain Celery
        return _fail(task, context, error, None if error.requeue else Bury("the body rejected it"))
    except Exception as error:
        return _fail(task, context, error, Bury("the body gave up") if context.gives_up else None)
    if context.revoked:
        raise Ignore
    if context.settled:
        return result
    if context.stopped and not context.lease_lost:
        if context.asked_to_stop:
            return _stop(task, context)
        return _fail(task, context, MaxDurationExceeded("it stopped"), None, outcome=Outcome.STALE)
    return _finish(task, context, result)


def _is_callers_message(task: Any, context: JobContext) -> bool:
    """Say whether the caller's own message was delivered: once its row is gone, it may come again.

    A call that waited for a slot, for its key or for its next try has a message of beat, which the gate refuses by then.
    The attempt says nothing: that of a signature which is applied again is not the first.
    """
    replaces = read_replaced(getattr(task.request, REPLACES, None)) > 0
    return context.job.source is Source.DIRECT and getattr(task.request, HEADER, None) is None and not replaces


def _finish(task: Any, context: JobContext, result: Any) -> Any:
    """Write a success; the writes of a transactional body are part of it, and where they fail, the attempt has."""
    not_run = unrun(task, result)
    if not_run is not None:
        return _fail(task, context, not_run, Bury("its body returned what nothing has awaited"))
    try:
        refuse_unsendable(task, result)
    except Exception as error:  # EncodeError, or whatever a backend of somebody's own raises
        return _fail(task, context, error, Bury("its result cannot be serialized"))
    try:
        if context.collector is not None:
            return context.collector.add(context, result)
        ended = following.worth_keeping(task.request, context, result=result)
        _succeed(context, result, message=context.success_message, ended=ended)
    except (LeaseLost, Ignore):
        raise
    except Exception as error:
        if isinstance(error, OUT_OF_REACH) and context.body is None:
            raise  # nothing can be written now
        return _fail(task, context, error, None)
    return result


def _succeed(context: JobContext, result: Any, *, message: str | None, ended: Any) -> None:
    assert context.installation is not None
    context.finishing = True
    recorder.record_success(context.installation, context.job, result, message=message, ended=ended, body=context.body)
    context.settled, context.ended = True, ended


def _forget(context: JobContext) -> bool:
    """Leave no trace of an attempt whose message goes back to the broker. False: it was cancelled while it ran."""
    assert context.installation is not None
    context.roll_back()
    context.finishing = True
    context.settled = context.installation.database.run(lambda tx: settlement.forget(tx, context.job))
    return context.settled


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
    failure = naming_limit(context.job, outcome_texts.failure_of(error, outcome=outcome), default=default_timeout(task))
    ended = following.worth_keeping(task.request, context, error=failure.error)
    decision = recorder.record_failure(context.installation, context.job, failure, then=then, ended=ended)
    context.settled = True
    context.ended = ended if isinstance(decision, Bury) else None
    if isinstance(decision, TryAgain):
        raise Retry(exc=error if isinstance(error, Exception) else None, when=decision.delay.total_seconds()) from error
    if decision is None:
        answers.revoked(task, task.request)
        raise Ignore from error
    if isinstance(error, Reject):
        # Celery's main process would report a Reject itself, beside the worker that publishes the callbacks of the row.
        raise Rejected(error.reason, error.requeue) from error
    raise error


def listen() -> None:
    """Listen to the end of each delivery, from the first one of ours in this process on."""
    if not _is_listening:
        task_postrun.connect(_over, weak=False, dispatch_uid=f"{__name__}.{_over.__qualname__}")
        _is_listening.append(True)


_is_listening: list[bool] = []


def _over(task: Any = None, task_id: str | None = None, retval: Any = None, state: str | None = None, **_: Any) -> None:
    """Celery is done with a delivery: what nothing has recorded by now is recorded as Celery reported it."""
    soft_limit.release(task_id)
    context = contexts.peek()
    if context is None or context.id != task_id or context.settled or context.installation is None:
        return
    try:
        _record_reported(task, context, state, retval)
    except (Ignore, Reject, Retry, Rejected):
        pass  # Celery has heard of it
    except Exception as error:
        if error is not retval:
            logger.warning("the end of job %s was not recorded: %s", context.id, context.installation.hidden(error))
    finally:
        context.roll_back()
        _let_go(context)


def _record_reported(task: Any, context: JobContext, state: str | None, retval: Any) -> None:
    if state == states.SUCCESS:
        _succeed(context, retval, message="it ended without its body", ended=None)
    elif state == states.FAILURE and isinstance(retval, BaseException):
        _fail(task, context, retval, Bury("it failed outside its body, and Celery has reported that"))
    elif isinstance(retval, BaseException):
        _run(task, context, partial(_raise, retval), (), {})
    else:  # cut off
        hand_back_if_stopping([context])


def _when(value: Any) -> timedelta:
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.astimezone()
        return max(aware - clock.now(), timedelta(0))
    return timedelta(seconds=max(float(value or 0), 0))
