"""Ends earlier runs of a definition that a new one replaces (`overlap="replace"`)."""

from __future__ import annotations

from collections.abc import Sequence

from ..domain.execution import Outcome
from ..domain.workflow import TASK
from . import (
    jobs,
    lanes,
    occurrences,
    workflows,
)
from .database import Transaction
from .settlement import drop, stop_run


def may_make_room(tx: Transaction, occurrences_owed: Sequence[str]) -> bool:
    """Lock what `make_room` changes, without waiting; False if another transaction has locked some of it."""
    return all(
        workflows.try_lock(tx, id) and jobs.may_lock_of_run(tx, id) and lanes.try_lock(tx, jobs.keys_of_occurrence(tx, id))
        for id in occurrences_owed
    ) and occurrences.try_lock(tx, occurrences_owed)


def make_room(tx: Transaction, occurrences_owed: Sequence[str], *, reason: str) -> None:
    """Cancel what is owed of these occurrences: what waits goes at once, what runs is asked to stop."""
    runs = {id: run for id in occurrences_owed if (run := workflows.lock(tx, id))}
    for run in runs.values():
        stop_run(tx, run, by=reason)
    for job in jobs.lock_of_occurrences(tx, [id for id in occurrences_owed if id not in runs]):
        begun = workflows.lock(tx, job.occurrence) if job.task == TASK else None
        if begun is not None:  # while we waited for its job
            stop_run(tx, begun, by=reason)
        elif not drop(tx, job, Outcome.CANCELLED, reason=reason):
            jobs.request_cancel(tx, job.id, job.attempt)
