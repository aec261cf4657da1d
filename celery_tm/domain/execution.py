"""An execution: the record of one attempt, written once when it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, overload

from ..clock import format_duration
from ..errors import said
from .job import Source, Status

MAX_ERROR = 2_000  # characters, as all of these: what is longer keeps its two ends, and says how much is missing
MAX_TRACEBACK = 40_000
MAX_FRAMES = 2_000  # of a traceback, the last ones: more would take seconds to write, and be cut anyway
MAX_MESSAGE = 2_000
MAX_LINES = 10_000  # that a body keeps with one execution, progress among them
MAX_SHOWN_RESULT = 1_000  # of a result that a key cannot keep, as it shows itself
STUCK = "MaxDurationExceeded"  # how the error of an attempt begins that ran for too long
LOG_LEVELS = ("debug", "info", "warning", "error")  # of the lines that a body keeps; progress is marked as such


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMEOUT = "timeout"
    ORPHANED = "orphaned"  # its lease ended, or its worker was lost, with no outcome
    STALE = "stale"  # it ran longer than `max_duration`, or `tm_stuck_after`
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # too late to start
    DEDUPLICATED = "deduplicated"  # its key had succeeded already
    INTERRUPTED = "interrupted"  # its worker stopped and handed it back; no try is used
    REPLACED = "replaced"  # its body put another call in its place, which has its id


STATUS: Mapping[Outcome, Status] = {
    Outcome.SUCCEEDED: Status.SUCCEEDED,
    Outcome.DEDUPLICATED: Status.SUCCEEDED,
    Outcome.FAILED: Status.FAILED,
    Outcome.TIMEOUT: Status.FAILED,
    Outcome.ORPHANED: Status.FAILED,
    Outcome.STALE: Status.FAILED,
    Outcome.CANCELLED: Status.CANCELED,
    Outcome.EXPIRED: Status.CANCELED,
    Outcome.INTERRUPTED: Status.SCHEDULED,
    Outcome.REPLACED: Status.RUNNING,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """One row of `tm_execution`."""

    id: str
    job: str
    task: str
    source: Source
    attempt: int
    outcome: Outcome
    completed_at: datetime
    started_at: datetime | None = None
    occurrence: str | None = None
    definition: str | None = None  # its name, which history knows also after it was removed
    entity_id: str | None = None
    message: str | None = None
    error: str | None = None
    traceback: str | None = None
    worker: str | None = None
    actor: str | None = None
    dedupe_key: str | None = None
    scope: Mapping[str, Any] | None = None
    run_at: datetime | None = None  # when the attempt was due
    next_delay: timedelta | None = None  # the backoff before the next attempt, where one follows


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why an attempt did not succeed."""

    error: str
    traceback: str | None = None
    outcome: Outcome = Outcome.FAILED

    @classmethod
    def interrupted(cls, why: str) -> Failure:
        """Return the end of an attempt whose worker stopped."""
        return cls(error=why, outcome=Outcome.INTERRUPTED)

    @classmethod
    def orphaned(cls, why: str) -> Failure:
        """Return the failure of an attempt that vanished."""
        return cls(error=why, outcome=Outcome.ORPHANED)

    @classmethod
    def stale(cls, longest: timedelta | None) -> Failure:
        """Return the failure of an attempt that ran for longer than it may."""
        within = "in time" if longest is None else f"within {format_duration(longest)}"
        return cls(error=f"{STUCK}: it did not end {within}", outcome=Outcome.STALE)


@overload
def cut(text: str, limit: int) -> str: ...
@overload
def cut(text: None, limit: int) -> None: ...
@overload
def cut(text: str | None, limit: int) -> str | None: ...
def cut(text: str | None, limit: int) -> str | None:
    """Keep both ends of a text that is too long, and drop what no database stores."""
    if text is None:
        return None
    text = said(text).replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
    if len(text) <= limit:
        return text
    half = (limit - 20) // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} more …\n{text[-half:]}"
