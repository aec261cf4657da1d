"""What is going on in one installation, at one moment: the figures that people look at first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

SILENT_AFTER = timedelta(seconds=45)  # nodes are seen every ten seconds: four times missed is no accident


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A beat or a worker, and when it was last seen."""

    name: str
    kind: str
    started_at: datetime
    seen_at: datetime
    version: str
    is_silent: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class OldestDue:
    """The job that has been due the longest and that nobody has claimed."""

    id: str
    task: str
    run_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """One moment. Counts end at `cap`; the names of those that did are in `capped`: there are at least so many."""

    now: datetime
    schema: str | None
    definitions: Mapping[str, int]
    jobs: Mapping[str, int]
    lag: float = 0.0  # seconds that the oldest due job has waited to be claimed
    oldest_due: OldestDue | None = None
    in_flight: int = 0
    max_in_flight: int | None = None
    expired_leases: int = 0
    dead_letters: int = 0
    next_run_at: datetime | None = None
    recent: Mapping[str, int] = field(default_factory=dict)  # executions of the last hour by outcome
    occurrences_recent: Mapping[str, int] = field(default_factory=dict)  # instants of the last day by state
    nodes: Sequence[Node] = field(default_factory=list)
    cap: int = 10_000
    capped: Sequence[str] = field(default_factory=list)
