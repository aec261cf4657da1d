"""Deletes what is older than its retention, or more than is to be kept, in small transactions that hold nobody up.

What is still owed, dead letters, definitions and their versions are never pruned.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from ..errors import DatabaseBusy, DatabaseUnavailable
from ..settings import Settings
from ..store import retention
from ..store.database import Database, Transaction

logger = logging.getLogger(__name__)
T = TypeVar("T")
BATCH = 1000
KINDS = ("executions", "occurrences", "steps", "runs", "logs", "keys", "audit", "lanes")
PASS = 60.0  # seconds of one pass
GO_TOGETHER = {"occurrences": ("occurrences", "steps", "runs")}  # a run goes with its occurrence
Batch = Callable[[Transaction], Any]  # deletes some rows
Removal = tuple[str, bool, Batch]  # of a kind of row; whether because there are too many; one batch


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

    def __add__(self, later: Pruned) -> Pruned:
        """Return what this pass and the next one deleted."""
        both = {name: getattr(self, name) + getattr(later, name) for name in KINDS}
        by_count = Counter(self.by_count) + Counter(later.by_count)
        return Pruned(**both, by_count=dict(by_count), finished=later.finished)


def prune(database: Database, settings: Settings, *, seconds: float | None = None, batch: int = BATCH) -> Pruned:
    """Delete what is too old, and what is beyond the number of rows to keep, for at most so many seconds.

    A kind of row that cannot be pruned holds up no other; the first such error is raised after all of them.
    """
    until = time.monotonic() + (PASS if seconds is None else seconds)
    counts: Counter[str] = Counter()
    beyond: Counter[str] = Counter()
    errors: list[Exception] = []
    walks = {kind: retention.Walk(settings.tm_keep_last) for kind in ("executions", "occurrences")}
    for kind, is_beyond, remove in chain(_by_age(settings, batch, walks), _by_count(database, settings, batch, errors)):
        more = True
        while more and time.monotonic() < until:
            done = _try(database, kind, remove, errors) or 0
            removed, more = (done, done == batch) if isinstance(done, int) else (done.removed, done.reached is not None)
            if not isinstance(done, int):
                walks[kind].after = done.reached
            counts[kind] += removed
            beyond[kind] += removed if is_beyond else 0
        if more:
            break  # no time is left
    for error in errors:
        raise error
    return replace(Pruned(**counts), by_count=dict(+beyond), finished=not more)  # type: ignore[arg-type]


def _try(database: Database, kind: str, work: Callable[[Transaction], T], errors: list[Exception]) -> T | None:
    """Do `work` for a kind of row; note why not, where only this kind is concerned."""
    try:
        return database.run(work)
    except Exception as error:
        if isinstance(error, DatabaseUnavailable) and not isinstance(error, DatabaseBusy):
            raise
        logger.warning("%s could not be pruned: %s", kind, error)
        errors.append(error)
        return None


def _by_age(settings: Settings, batch: int, walks: Mapping[str, retention.Walk]) -> Iterator[Removal]:
    kept = settings.tm_keep_executions
    yield "executions", False, partial(retention.remove_executions, age=kept, walk=walks["executions"], limit=batch)
    yield "occurrences", False, partial(retention.remove_occurrences, age=kept, walk=walks["occurrences"], limit=batch)
    ages = {
        "steps": settings.tm_keep_executions,  # of runs whose occurrence is gone
        "runs": settings.tm_keep_executions,
        "logs": settings.tm_keep_logs,
        "keys": None,
        "audit": settings.tm_keep_audit,
        "lanes": None,
    }
    for kind, age in ages.items():
        yield kind, False, partial(retention.remove_old, kind=kind, age=age, limit=batch)


def _by_count(database: Database, settings: Settings, batch: int, errors: list[Exception]) -> Iterator[Removal]:
    for kind, most in settings.tm_keep_rows.items():
        start = _try(database, kind, partial(retention.start_of_newest, kind=kind, count=most), errors)
        if start is None:
            continue
        # What is from that very instant stays, so that no row goes that is among the newest.
        for each in GO_TOGETHER.get(kind, (kind,)):
            yield each, True, partial(retention.remove_before, kind=each, before=start, limit=batch)
