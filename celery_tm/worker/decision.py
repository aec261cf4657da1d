"""What the gate is asked and what it answers, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum, auto
from typing import Any

from ..domain.codec import encode
from ..domain.job import CALL, MAX_ID, Job, Slot, Source
from ..domain.retry import read_policy, write_policy
from ..errors import InvalidValue
from ..store.keys import DoneKey

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Verdict(Enum):
    """What to do with this delivery."""

    RUN = auto()  # the lease is ours, run the body
    SKIP = auto()  # settled already, or somebody else's; acknowledge and forget
    LATER = auto()  # another call with its id is in process; it goes back to the broker


class Refusal(StrEnum):
    """Why a delivery is refused, in one word."""

    SETTLED = "settled"  # its job is done, or an attempt of the direct call is recorded
    OTHER_ATTEMPT = "other_attempt"  # the job is at a later attempt
    OTHER_APP = "other_app"  # the job belongs to another app that shares the database
    OTHER_TASK = "other_task"  # the job is another task's: somebody else's message with its id
    RUNNING = "running"  # it, or another job with its key, is in process
    KEY = "key"  # its key has succeeded
    EXPIRED = "expired"
    NOT_DUE = "not_due"
    SLOT = "slot"  # it waits for a slot of its concurrency key
    LIMIT = "limit"  # as many jobs are in flight as `tm_max_in_flight` allows; it waits in the job table
    WAITS = "waits"  # it waits until the job that has its key ends
    INVALID = "invalid"  # it can never run as it is: it becomes a dead letter


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The gate's answer: the job if it may run, else why not, and the success of its key where that is the reason."""

    verdict: Verdict
    job: Job | None = None
    reason: str = ""
    refusal: Refusal | None = None
    definition: str | None = None  # of the job that was refused, where it is known
    done: DoneKey | None = None
    revoked: bool = False  # somebody took it back before it came
    fault: InvalidValue | None = None  # why it can never run, where its caller is to hear of it from this delivery
    begins_at: int | None = None  # a new call with an id that was used before: its first attempt


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A direct `.delay()`: everything needed to send it again if its worker dies."""

    id: str
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    key: str | None
    keep_key: timedelta | None
    max_retries: int | None
    retry: Any
    options: Mapping[str, Any]
    attempt: int = 1  # later ones replace an earlier attempt, or their id was used before
    queue: str | None = None
    priority: int | None = None
    concurrency_key: str | None = None
    concurrency: int | None = None
    expires_at: datetime | None = None
    fault: InvalidValue | None = None  # why its task's rules make no key of it
    call: str | None = None  # what tells it from other calls with its id
    replaces: bool = False  # it was put in the place of an earlier attempt
    keep: Mapping[str, Any] = field(default_factory=dict)  # how long its key is kept otherwise, as columns
    entity_id: str | None = None  # of the job that it replaces
    scope: Mapping[str, Any] | None = None
    limit: timedelta | None = None  # how long it may run before it counts as stuck; None: `tm_stuck_after`


def job_of(call: Call) -> Job:
    """Return the job that a direct call becomes."""
    if not call.id or len(call.id) > MAX_ID:
        raise InvalidValue("task_id", f"{call.id!r} is empty or too long", f"stay within {MAX_ID} characters")
    args, kwargs, options = _text(list(call.args), "args"), _text(dict(call.kwargs), "kwargs"), call.options
    if _text(dict(options), "options") is None:
        args = kwargs = None  # without its links it were another call
        options = {} if call.call is None else {"headers": {CALL: call.call}}
    return Job(
        id=call.id,
        task=call.task,
        args=args,
        kwargs=kwargs,
        run_at=EPOCH,  # the database's clock sets it
        created_at=EPOCH,
        original_delay=timedelta(0),
        max_retries=call.max_retries,
        retry=None if call.retry is None else write_policy(read_policy(call.retry)),
        dedupe_key=call.key,
        keep_key=call.keep_key,
        **call.keep,
        attempt=call.attempt,
        tries_from=call.attempt,
        source=Source.DIRECT,
        options=options,
        queue=call.queue,
        priority=call.priority,
        concurrency_key=call.concurrency_key,
        concurrency=call.concurrency,
        slot=Slot.OPEN if call.concurrency_key else None,
        expires_at=call.expires_at,
        entity_id=call.entity_id,
        scope=call.scope,
    )


def _text(value: Any, field: str) -> str | None:
    """Return arguments as JSON, or None: such a call runs, but cannot be sent again."""
    try:
        return encode(value, field=field)
    except InvalidValue:
        return None
