"""What a transaction has written and others want to hear of, kept until it has committed.

Whoever writes a row says so here (`tx.tell`), so nothing that happens is told twice, too early, or by some callers only.
What is made of it, events, is `celery_tm.telling`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .execution import Outcome
from .job import Job
from .occurrence import OccurrenceState


@dataclass(frozen=True, slots=True)
class Ended:
    """An execution was recorded. `seconds` is how long its body took, where this process saw it run."""

    job: Job
    outcome: Outcome
    reason: str | None = None
    next_delay: float | None = None
    actor: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Buried:
    """A job has become a dead letter."""

    job: Job
    reason: str


@dataclass(frozen=True, slots=True)
class Closed:
    """An occurrence has ended, or instants were decided that do not run."""

    definition: str | None
    state: OccurrenceState
    occurrence: str | None = None
    reason: str | None = None
    is_recovery: bool = False
    count: int = 1


@dataclass(frozen=True, slots=True)
class RunMoved:
    """A run of a workflow has begun, or ended after `seconds`."""

    definition: str | None
    occurrence: str
    state: OccurrenceState
    steps: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """Jobs were deferred: those of one task, with the id where it is one."""

    task: str
    count: int
    job: str | None = None


@dataclass(frozen=True, slots=True)
class Noted:
    """A line of the audit was written."""

    action: str
    object: str
    actor: str
    reason: str | None = None
    after: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Unread:
    """A row could not be read, and the rest was done without it."""

    table: str
    id: str
    error: str


Fact = Ended | Buried | Closed | RunMoved | Created | Noted | Unread
Facts = Sequence[Fact]
