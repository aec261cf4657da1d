"""Deletes what is older than its retention, or more than is to be kept, in small transactions that hold nobody up.

What is still owed, dead letters, definitions and their versions are never pruned.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from ..settings import Settings
from ..store import retention
from ..store.database import Database, Transaction

BATCH = 1000
GO_TOGETHER = {"occurrences": ("occurrences", "steps", "runs")}  # a run goes with its occurrence
Removal = tuple[str, bool, Callable[[Transaction], int]]  # of a kind of row; whether because there are too many; one batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruned:
    """How many rows of each kind were deleted; `finished` is False if there was no time for all.

    `by_count` says how many of them were not too old, but beyond `tm_keep_rows`.
    """

    executions: int = 0
    occurrences: int = 0
    steps: int = 0
    runs: int = 0
    logs: int = 0
    keys: int = 0
    audit: int = 0
    lanes: int = 0
    by_count: Mapping[str, int] = field(default_factory=dict)
    finished: bool = True


def prune(database: Database, settings: Settings, *, seconds: float = 60.0, batch: int = BATCH) -> Pruned:
    """Delete what is too old, and what is beyond the number of rows to keep, for at most so many seconds."""
    until = time.monotonic() + seconds
    counts: Counter[str] = Counter()
    beyond: Counter[str] = Counter()
    for kind, is_beyond, remove in chain(_by_age(settings, batch), _by_count(database, settings, batch)):
        while time.monotonic() < until:
            removed = database.run(remove)
            counts[kind] += removed
            beyond[kind] += removed if is_beyond else 0
            if removed < batch:
                break
        else:
            return replace(Pruned(**counts), by_count=dict(+beyond), finished=False)  # type: ignore[arg-type]
    return replace(Pruned(**counts), by_count=dict(+beyond))  # type: ignore[arg-type]


def _by_age(settings: Settings, batch: int) -> Iterator[Removal]:
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
    for kind, age in ages.items():
        yield kind, False, partial(retention.remove_old, kind=kind, age=age, limit=batch)


def _by_count(database: Database, settings: Settings, batch: int) -> Iterator[Removal]:
    for kind, most in settings.tm_keep_rows.items():
        start = database.run(partial(retention.start_of_newest, kind=kind, count=most))
        if start is None:
            continue
        # What is from that very instant stays, so that no row goes that is among the newest.
        for each in GO_TOGETHER.get(kind, (kind,)):
            yield each, True, partial(retention.remove_before, kind=each, before=start, limit=batch)
