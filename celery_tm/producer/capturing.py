"""Calls that go through the job table instead of straight to the broker.

An ETA far ahead would wait in a worker's memory; a call in the middle of a transactional body must not be heard before the
body commits; and a broker that is away need not be the caller's problem. Their row is written instead, and the id that the
caller gets is its id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from celery.utils.time import maybe_iso8601, maybe_make_aware

from .. import clock
from ..domain.codec import encode
from ..domain.dedupe import fits, rule_key, signature_of
from ..domain.job import WAITS_FOR_KEY, Job, Slot, Source
from ..domain.keeping import keep_columns
from ..domain.queues import unpublished_error
from ..domain.retry import read_policy, write_policy
from ..errors import InvalidValue
from ..installation import Installation
from .inserting import write_requests
from .message import Message, keep
from .request import Request

logger = logging.getLogger(__name__)


def wait_of(app: Any, eta: Any, countdown: Any) -> timedelta:
    """Return how far ahead a call is to run, as Celery understands its options; what it would refuse is none."""
    if countdown:
        return timedelta(seconds=countdown) if isinstance(countdown, (int, float)) else timedelta(0)
    instant = instant_of(app, eta)
    return timedelta(0) if instant is None else instant - clock.now()


def instant_of(app: Any, value: Any) -> datetime | None:
    """Return a datetime or text as Celery reads it: one without a zone is in the app's."""
    try:
        instant = maybe_iso8601(value)
        return None if instant is None else maybe_make_aware(instant, app.timezone)
    except (TypeError, ValueError, OverflowError):
        return None


def capture(
    task: Any,
    send: Callable[[Any], Any],
    *,
    id: str,
    args: Any,
    kwargs: Any,
    wait: timedelta,
    names_id: bool = True,
    unsent: str | None = None,
) -> Any:
    """Write a call's row and return the result that the caller asked for; None where it cannot be kept as JSON.

    `names_id`: somebody may know the id already. `unsent` is why the broker did not take the call.
    """
    installation = Installation.of(task.app)
    now = clock.now()
    try:
        result, message = keep(task.app, send)
        job = job_of(task, message, id=id, args=args, kwargs=kwargs, run_at=now + wait, now=now)
        job = job if unsent is None else replace(job, last_error=unpublished_error(unsent))
    except InvalidValue as error:
        logger.warning("%s[%s] goes to the broker as plain Celery sends it: %s", task.name, id, error)
        return None
    kept = write_call(installation, job, delay=max(wait, timedelta(0)), names_id=names_id)
    return result if kept == id else task.AsyncResult(kept)


def write_call(installation: Installation, job: Job, *, delay: timedelta | None, names_id: bool = True) -> str:
    """Write a call's row, and return the id of the job that carries it out: another one's where its key is taken.

    A call that others wait for keeps its id, and waits until that key ends.
    """
    [handle] = write_requests(installation, [Request.of(job, delay=delay, names_id=names_id)], None)
    if handle.id == job.id or not job.is_awaited or job.dedupe_key is None:
        return handle.id
    waiting = replace(job, dedupe_key=None, options={**job.options, WAITS_FOR_KEY: job.dedupe_key})
    write_requests(installation, [Request.of(waiting, delay=delay, names_id=True)], None)
    return job.id


def job_of(task: Any, message: Message, *, id: str, args: Any, kwargs: Any, run_at: datetime, now: datetime) -> Job:
    """Return the row of a Celery call."""
    lane = by_rule(task, "concurrency_key", args, kwargs)
    policy = task.retry_policy
    return Job(
        id=id,
        task=task.name,
        args=message.args,
        kwargs=message.kwargs,
        run_at=run_at,
        created_at=now,
        original_delay=max(run_at - now, timedelta(0)),
        max_retries=task.max_retries,
        retry=None if policy is None else write_policy(read_policy(policy)),
        dedupe_key=by_rule(task, "key", args, kwargs),
        **keep_columns(task.keep_key, Installation.of(task.app).settings),
        queue=message.queue,
        priority=message.priority,
        expires_at=instant_of(task.app, message.expires),
        concurrency_key=lane,
        concurrency=(task.concurrency or 1) if lane else None,
        slot=Slot.OPEN if lane else None,
        source=Source.DEFERRED,
        options=message.options,
    )


def by_rule(task: Any, rule: str, args: Any, kwargs: Any) -> str | None:
    """Return what a task's rule makes of a call's arguments; None for those that its body will complain about.

    Raise InvalidValue where the rule makes no key of arguments that the body takes.
    """
    if getattr(task, rule) is None or not fits(signature_of(task), args, kwargs):
        return None
    return rule_key(task, rule, args or (), kwargs or {})


def check_rules(task: Any, args: Any, kwargs: Any) -> None:
    """Raise InvalidValue for a call that the gate could not admit: its rules make no key of it, or it cannot wait."""
    by_rule(task, "key", args, kwargs)
    if by_rule(task, "concurrency_key", args, kwargs) is None:
        return
    try:
        encode(list(args or ()), field="args")
        encode(dict(kwargs or {}), field="kwargs")
    except InvalidValue as error:
        problem = f"{error.problem}, so the call cannot wait for a free slot of its concurrency_key"
        raise InvalidValue(error.field, problem, error.remedy) from None
