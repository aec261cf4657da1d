"""Releases the attempts of a worker that stops: they wait again at once, and no retry is used."""

from __future__ import annotations

import time
from collections.abc import Container, Sequence

from ..domain.execution import Failure
from ..domain.job import Job, JobState
from ..errors import OUT_OF_REACH
from ..installation import Installation
from ..store import following, jobs, rows, settlement
from ..store.database import Transaction
from .recorder import FIRST_WAIT

LOCKED_FOR = 2.0  # seconds for which a worker that stops tries to give back what another transaction has locked


def record_handed_back(
    installation: Installation, attempts: Sequence[tuple[str, int]], why: str, *, workers: Container[str | None]
) -> Sequence[str]:
    """A worker stops in the middle of attempts: let them wait again at once, no try used; return which were given back.

    A row that another transaction has is tried again for a moment: another end of the same run has it no longer than that.
    After that its lease ends.
    """
    failure, given, left = Failure.interrupted(why), list[str](), list(attempts)

    def work(tx: Transaction) -> tuple[list[str], list[tuple[str, int]]]:
        held = [job for id, attempt in left if (job := _find(tx, id)) and job.attempt == attempt]
        running = [job for job in held if job.state is JobState.RUNNING and job.claimed_by in workers]
        mine = [job for job in running if settlement.try_lock(tx, job)]
        ids = [job.id for job in mine if job.ended is None and settlement.hand_back(tx, job, failure)]
        ids += [job.id for job in mine if job.ended is not None and following.carry_on(tx, job)]
        return ids, [(job.id, job.attempt) for job in running if job not in mine]

    until = time.monotonic() + LOCKED_FOR
    while left:
        try:
            ids, left = installation.database.run(work)
        except OUT_OF_REACH:
            break  # their leases end
        given += ids
        if left and time.monotonic() >= until:
            break
        if left:
            time.sleep(FIRST_WAIT)
    return given


def _find(tx: Transaction, id: str) -> Job | None:
    """Return a job; None also for a row that cannot be read: its lease ends, and the others are released."""
    try:
        return jobs.find(tx, id)
    except rows.UNREADABLE:
        return None
