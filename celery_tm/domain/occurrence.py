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

OCCURRENCE_NEXT: Mapping[OccurrenceState, frozenset[OccurrenceState]] = {
    OccurrenceState.PENDING: frozenset(
        {OccurrenceState.QUEUED, OccurrenceState.RUNNING, OccurrenceState.CANCELLED, OccurrenceState.FAILED}
    ),
    OccurrenceState.QUEUED: frozenset(
        {OccurrenceState.RUNNING, OccurrenceState.CANCELLED, OccurrenceState.FAILED, OccurrenceState.COMPLETED}
    ),
    OccurrenceState.RUNNING: frozenset(
        {OccurrenceState.COMPLETED, OccurrenceState.FAILED, OccurrenceState.CANCELLED, OccurrenceState.STALE}
    ),
    OccurrenceState.FAILED: frozenset({OccurrenceState.QUEUED, OccurrenceState.RUNNING}),  # revived
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
    started_at: datetime | None = None
    ended_at: datetime | None = None
    report: Mapping[str, Any] | None = None
