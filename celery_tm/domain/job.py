"""A job: one piece of work that is still owed, and the states it passes through.

A job row exists only while work is owed. What became of it afterwards is answered by its executions, its dead letter or
its key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Any

from ..clock import parse_duration
from ..errors import InvalidValue, shown
from .ids import execution_id
from .workflow import TASK

MAX_KEY = 255
DEFAULT_RETRIES = 3  # as Celery has it
MAX_ENTITY = 200
MAX_TASK = 255
MAX_ID = 155
MAX_NAME = 100  # of a definition
MAX_SCOPE = 10_000  # characters of JSON: it is for ids
MAX_WORKER = 255
MAX_APP = 90
WAITS_FOR_KEY = "tm_waits_for_key"  # among the options of a row: the key that another job has, until which it waits
LINK_OPTIONS = ("link", "callbacks", "link_error", "errbacks")
# Among the options of a row: what waits for the end of the call, and where the call belongs in a canvas.
CANVAS_OPTIONS = frozenset({
    *LINK_OPTIONS, "chain", "chord", "group_id", "group", "group_index", "root_id", "parent_id", "reply_to",
})  # fmt: skip
CALL = "tm_call"  # the header that tells apart the calls made with one id, e.g. of a frozen signature


class JobState(StrEnum):
    """Where a job that is still owed stands."""

    PENDING = "pending"  # waits for its instant, or for a beat to claim it
    DISPATCHED = "dispatched"  # claimed, its message is on the way to a worker
    RUNNING = "running"  # a worker holds its lease


# The whole state machine: what may follow each state, and why. docs/explanation/states.md is drawn from it.
# `None` means that the row is gone: the work is no longer owed.
NEXT: Mapping[JobState, Mapping[JobState | None, str]] = {
    JobState.PENDING: {
        JobState.DISPATCHED: "claimed by a beat",
        JobState.RUNNING: "a late delivery of this attempt arrives while it is due",
        None: "cancelled, expired, or its key has succeeded meanwhile",
    },
    JobState.DISPATCHED: {
        JobState.RUNNING: "the gate lets a delivery in",
        JobState.PENDING: "the broker refused or lost the message; no try is used",
        None: "cancelled, expired, or its key has succeeded meanwhile",
    },
    JobState.RUNNING: {
        JobState.PENDING: "failed, orphaned or stuck, with tries left, or handed back by a worker that stops",
        None: "succeeded, cancelled, or moved to the dead letters, and what follows it is handed on",
    },
}


class Slot(StrEnum):
    """Where a pending job stands whose concurrency key limits how many may be in flight; None where nothing limits it."""

    OPEN = "open"  # may be claimed if a slot is free
    HELD = "held"  # found none, and waits until one is


class Source(StrEnum):
    """Where a job came from."""

    SCHEDULED = "scheduled"
    DEFERRED = "deferred"
    MANUAL = "manual"
    REPLAY = "replay"
    RECOVERY = "recovery"
    DIRECT = "direct"


class Status(StrEnum):
    """What a job answers to a caller, also after its row is gone."""

    SCHEDULED = "SCHEDULED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    RETRY_SCHEDULED = "RETRY_SCHEDULED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One row of `tm_job`. Arguments are JSON text; `args is None` means they could not be kept."""

    id: str
    task: str
    args: str | None
    kwargs: str | None
    run_at: datetime
    created_at: datetime
    original_delay: timedelta
    scheduled_at: datetime | None = None  # the instant of its occurrence; run_at may be later
    covers_from: datetime | None = None  # the range it stands for, the end not included
    covers_until: datetime | None = None
    state: JobState = JobState.PENDING
    attempt: int = 1
    tries_from: int = 1  # the attempt that tries are counted from; a revival moves it
    max_retries: int | None = None  # None: no limit
    retry: Mapping[str, Any] | None = None
    dedupe_key: str | None = None
    keep_key: timedelta | None = None
    entity_id: str | None = None
    scope: Mapping[str, Any] | None = None
    lease_until: datetime | None = None
    claimed_by: str | None = None
    claimed_at: datetime | None = None
    dispatches: int = 0
    queue: str | None = None
    priority: int | None = None
    expires_at: datetime | None = None
    timeout: timedelta | None = None
    execution_timeout: timedelta | None = None
    concurrency_key: str | None = None
    concurrency: int | None = None
    slot: Slot | None = None
    occurrence: str | None = None
    definition: str | None = None  # the name of the one whose occurrence it carries out; names never change
    step: str | None = None
    source: Source = Source.DEFERRED
    options: Mapping[str, Any] = field(default_factory=dict)
    cancel_requested: bool = False
    progress: str | None = None
    last_error: str | None = None
    actor: str | None = None
    ended: Mapping[str, Any] | None = None  # how its body ended, while what follows (links, chain, chord) is handed on
    carrier: str | None = None  # the message it shares with other jobs, while it runs
    app: str = ""  # the app whose beats claim it; empty: that of the process which writes it
    keep_failed: timedelta | None = None  # how long its key is kept if it becomes a dead letter, or is cancelled; None: not
    keep_cancelled: timedelta | None = None
    stuck_at: datetime | None = None  # when the running attempt has run for too long; its lease never ends later

    @property
    def longest(self) -> timedelta | None:
        """Return how long the running attempt may take before it counts as stuck."""
        return None if self.stuck_at is None or self.claimed_at is None else self.stuck_at - self.claimed_at

    @property
    def has_stuck_lease(self) -> bool:
        """Say whether its lease ends where its stuck limit is: its worker renewed it until then."""
        return self.stuck_at is not None and self.lease_until == self.stuck_at

    @property
    def is_step(self) -> bool:
        """Say whether it is a step of a run, whose end means something for the other steps."""
        return self.step is not None and self.occurrence is not None

    @property
    def has_callbacks(self) -> bool:
        """Say whether something follows its success: links, the rest of a chain, a chord."""
        return any(self.options.get(name) for name in ("link", "callbacks", "chain", "chord"))

    @property
    def is_replaced(self) -> bool:
        """Say whether only its replacement is left, which no gate has admitted yet."""
        return self.ended is not None and "replaced" in self.ended

    @property
    def is_awaited(self) -> bool:
        """Say whether a chain, a chord, a group, links or errbacks wait for its end."""
        return self.has_callbacks or any(self.options.get(name) for name in ("link_error", "errbacks", "group_id", "group"))

    def without_call(self) -> Job:
        """Return the job with nothing that could keep its message from being sent: only what waits for its end."""
        options = {name: value for name, value in self.options.items() if name in CANVAS_OPTIONS}
        return replace(self, args="[]", kwargs="{}", options=options, timeout=None)

    def replacing(self, before: Job) -> Job:
        """Return the job as it takes the place of a pending one: what waits for that one waits for this one.

        Links and errbacks of both are called. A concurrency key that this one does not state stays.
        """
        options = {name: value for name, value in before.options.items() if name in CANVAS_OPTIONS}
        both = {
            name: [*_as_list(options[name]), *_as_list(self.options.get(name))] for name in LINK_OPTIONS if name in options
        }
        limit: dict[str, Any] = {}
        if self.concurrency_key is None:
            limit = {name: getattr(before, name) for name in ("concurrency_key", "concurrency", "slot")}
        return replace(self, options={**self.options, **options, **both}, **limit)

    @property
    def run(self) -> str | None:
        """Return the run of a workflow that it is a step or a hook of, or stands for."""
        if self.task == TASK:
            return self.occurrence or self.id
        if self.step is None:
            return None
        return self.occurrence or (self.scope or {}).get("run")

    @property
    def call(self) -> str | None:
        """Return what tells this call from others with its id; None where the id was made for it alone."""
        headers = self.options.get("headers")
        return read_call(headers.get(CALL)) if isinstance(headers, Mapping) else None

    @property
    def execution_id(self) -> str:
        """Return the id under which the present attempt is recorded."""
        return execution_id(self.id, self.attempt, self.call)

    @property
    def retries(self) -> int:
        """Return how many tries came before this attempt since it was deferred or revived: Celery's `request.retries`."""
        return self.attempt - self.tries_from

    @property
    def status(self) -> Status:
        """Return what a caller is told about a job that is still owed."""
        return status_of(self.state, attempt=self.attempt, tries_from=self.tries_from)

    def is_expired(self, now: datetime) -> bool:
        """Say whether it is too late to start this job."""
        return self.expires_at is not None and self.expires_at <= now


def read_call(value: Any) -> str | None:
    """Return the value of the header `tm_call`; None where there is none, or nonsense."""
    return value if isinstance(value, str) and 0 < len(value) <= MAX_ID else None


def status_of(state: JobState, *, attempt: int, tries_from: int) -> Status:
    """Return what a caller is told about a job that is still owed."""
    if state is JobState.RUNNING:
        return Status.RUNNING
    return Status.RETRY_SCHEDULED if attempt > tries_from else Status.SCHEDULED


def checked_text(value: Any, *, field: str, limit: int, remedy: str = "") -> str:
    """Return a name, key or id that every database stores and compares alike."""
    if not isinstance(value, str):
        raise InvalidValue(field, f"{shown(value)} is not text", remedy or "give a string")
    if not value.strip():
        raise InvalidValue(field, "it is empty", remedy or "give at least one character")
    if len(value) > limit:
        raise InvalidValue(field, f"{len(value)} characters are too many", remedy or f"stay within {limit}")
    if value != value.strip() or not value.isprintable():
        raise InvalidValue(field, f"{value!r} has blanks at its ends or characters that cannot be seen", "remove them")
    return value


def fitted(name: str, limit: int) -> str:
    """Return a name that fits: one that is too long ends with what tells it from others that begin alike."""
    return name if len(name) <= limit else f"{name[: limit - 13]} {sha256(name.encode(errors='replace')).hexdigest()[:12]}"


def checked_actor(value: Any) -> str | None:
    """Return who does something, for the audit."""
    return None if value is None else checked_text(value, field="actor", limit=255)


def checked_timeout(value: Any, *, field: str = "timeout") -> timedelta:
    """Return a timeout that leaves some time."""
    timeout = parse_duration(value, field=field)
    if timeout <= timedelta(0):
        raise InvalidValue(field, f"{value!r} leaves no time", "give a longer duration, e.g. '5m'")
    return timeout


def checked_concurrency(key: Any, limit: Any) -> tuple[str | None, int | None]:
    """Return a concurrency key with its limit, which is 1 where only a key is given."""
    if key is None:
        if limit is not None:
            raise InvalidValue("concurrency", "there is no concurrency_key to limit", "give concurrency_key= too")
        return None, None
    checked_text(key, field="concurrency_key", limit=MAX_KEY)
    limit = 1 if limit is None else limit
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 1_000_000:
        raise InvalidValue("concurrency", f"{shown(limit)} is not a limit", "give a whole number of one or more")
    return key, limit


def checked_priority(value: Any) -> int:
    """Return a priority between 0 and 255, the range brokers share."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 255:
        raise InvalidValue("priority", f"{shown(value)} is not a priority", "give a whole number from 0 to 255")
    return value


def checked_retries(value: Any) -> int:
    """Return a number of retries of zero or more."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1_000_000:
        raise InvalidValue(
            "max_retries", f"{shown(value)} is not a number of retries", "give a whole number of zero or more"
        )
    return value


def _as_list(links: Any) -> list[Any]:
    """Return links as a list: a single signature may stand alone."""
    return [] if not links else list(links) if isinstance(links, (list, tuple)) else [links]
