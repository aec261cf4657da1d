"""Looking at what was decided: a definition's instants as minutes after noon, with their states."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from celery_tm import TimeManagement
from celery_tm.domain.occurrence import Occurrence
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.scheduler.planner import Planner
from celery_tm.store import jobs, occurrences
from celery_tm.worker import gate

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def add(tm: TimeManagement, **values: Any) -> Any:
    """Add a definition that fires every minute unless it says otherwise."""
    return tm.definitions.add(**({"name": "tick", "task": "effect", "args": [1], "schedule": "* * * * *"} | values))


def plan(tm: TimeManagement) -> int:
    """Plan all that is due and return in how many rounds."""
    rounds, more = 0, True
    while more:
        more = Planner(tm.installation).plan_due().more
        rounds += 1
    return rounds


def rows(tm: TimeManagement, name: str = "tick", *, limit: int = 100_000) -> list[Occurrence]:
    """Return a definition's occurrences in order."""
    definition = tm.definitions.get(name).id
    with tm.installation.database.transaction(write=False) as tx:
        return occurrences.of_definition(tx, definition, limit=limit)[::-1]


def ledger(tm: TimeManagement, name: str = "tick") -> list[tuple[float, str]]:
    """Return (minutes after noon, state) of every instant of a definition."""
    return [((row.scheduled_at - NOON) / MINUTE, str(row.state)) for row in rows(tm, name)]


def claim(tm: TimeManagement, node: str = "beat", *, limit: int = 100) -> list[str]:
    """Claim what is due, as a beat does, and return the ids: also what was deferred to the next millisecond just now."""
    time.sleep(0.002)
    return [job.id for job in Dispatcher(tm.installation, node).claim(limit)[1]]


def start(tm: TimeManagement, id: str, attempt: int = 1) -> Any:
    """Let a claimed job in, as a worker does, and return it."""
    return gate.admit_job(tm.installation, id, attempt, worker="worker").job


def owed(tm: TimeManagement) -> list[tuple[float, str, str | None]]:
    """Return (minutes after noon, state, slot) of every owed job, the oldest first."""
    with tm.installation.database.transaction(write=False) as tx:
        found = jobs.select_jobs(tx, limit=100_000)
    return [((job.run_at - NOON) / MINUTE, str(job.state), job.slot and str(job.slot)) for job in found]
