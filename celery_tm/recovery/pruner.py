"""Deletes what is older than its retention, in small transactions that hold nobody up.

What is still owed, dead letters, definitions and their versions are never pruned.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from ..settings import Settings
from ..store import retention
from ..store.database import Database

BATCH = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruned:
    """How many rows of each kind were deleted; `finished` is False if there was no time for all."""

    executions: int = 0
    occurrences: int = 0
    steps: int = 0
    runs: int = 0
    logs: int = 0
    keys: int = 0
    audit: int = 0
    lanes: int = 0
    finished: bool = True


def prune(database: Database, settings: Settings, *, seconds: float = 60.0, batch: int = BATCH) -> Pruned:
    """Delete what is too old, for at most so many seconds."""
    ages = {
        "executions": settings.tm_keep_executions,
        "occurrences": settings.tm_keep_executions,
        "steps": settings.tm_keep_executions,  # of runs whose occurrence is gone
        "runs": settings.tm_keep_executions,
        "logs": settings.tm_keep_logs,
        "keys": None,
        "audit": settings.tm_keep_audit,
        "lanes": None,
    }
    until = time.monotonic() + seconds
    counts = dict.fromkeys(ages, 0)
    for kind, age in ages.items():
        while time.monotonic() < until:
            removed = database.run(lambda tx, kind=kind, age=age: retention.remove_old(tx, kind, age, limit=batch))  # type: ignore[misc]
            counts[kind] += removed
            if removed < batch:
                break
        else:
            return replace(Pruned(**counts), finished=False)  # type: ignore[arg-type]
    return Pruned(**counts)  # type: ignore[arg-type]
