"""An occurrence: one instant of a definition and what was decided about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class OccurrenceState(StrEnum):
    """Where an occurrence stands; the last three never ran."""

    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STALE = "stale"
    SKIPPED = "skipped"
    MISSED = "missed"
    COALESCED = "coalesced"


ACTIVE = (OccurrenceState.PENDING, OccurrenceState.QUEUED, OccurrenceState.RUNNING)
# What somebody may ask "why?" about. A coalesced instant is none: another run stood for it.
TROUBLED = (
    OccurrenceState.FAILED,
    OccurrenceState.STALE,
    OccurrenceState.MISSED,
    OccurrenceState.SKIPPED,
    OccurrenceState.CANCELLED,
)

# What may follow each state, and why. States that are not here are final.
OCCURRENCE_NEXT: Mapping[OccurrenceState, Mapping[OccurrenceState, str]] = {
    OccurrenceState.PENDING: {
        OccurrenceState.QUEUED: "its job was claimed by a beat",
        OccurrenceState.RUNNING: "a late delivery of its job was let in",
        OccurrenceState.COMPLETED: "its plain Celery task was handed to the broker",
        OccurrenceState.CANCELLED: "its job was cancelled, replaced or expired",
        OccurrenceState.SKIPPED: "planned ahead, and not to run when its instant came; so for missed and coalesced",
    },
    OccurrenceState.QUEUED: {
        OccurrenceState.RUNNING: "the gate let its job in",
        OccurrenceState.COMPLETED: "its plain Celery task was handed to the broker",
        OccurrenceState.CANCELLED: "its job was cancelled, replaced or expired",
    },
    OccurrenceState.RUNNING: {
        OccurrenceState.COMPLETED: "its job succeeded",
        OccurrenceState.FAILED: "its job became a dead letter",
        OccurrenceState.CANCELLED: "its job was cancelled while it ran or waited for its next try",
        OccurrenceState.STALE: "its execution timeout, or `tm_stuck_after`, was over",
    },
    OccurrenceState.FAILED: {
        OccurrenceState.PENDING: "its dead letter was revived",
    },
    OccurrenceState.STALE: {
        OccurrenceState.PENDING: "its dead letter was revived",
    },
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Occurrence:
    """One row of `tm_occurrence`."""

    id: str
    definition: str
    version: int
    scheduled_at: datetime
    state: OccurrenceState
    reason: str | None = None
    is_recovery: bool = False
    covers_from: datetime | None = None
    covers_until: datetime | None = None
    replay_of: str | None = None
    decided_at: datetime | None = None  # None: only planned ahead
    started_at: datetime | None = None
    deadline_at: datetime | None = None
    ended_at: datetime | None = None
    report: Mapping[str, Any] | None = None
    overrides: Mapping[str, Any] | None = None  # values that hold for this one only, see `domain.overrides`
