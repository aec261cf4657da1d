"""Jobs that will not be tried again by themselves, until a person acts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from ..domain.execution import MAX_ERROR, MAX_TRACEBACK, Failure, cut
from ..domain.facts import Buried
from ..domain.job import Job, JobState, Slot
from . import following, jobs, keys, rows, tables
from .database import Transaction

dead_letter = tables.dead_letter


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """One row of `tm_dead_letter`: the job as it was, why it was buried, and its last error."""

    job: Job
    reason: str
    traceback: str | None
    buried_at: datetime

    @property
    def id(self) -> str:
        """Return the job's id, which is the dead letter's too."""
        return self.job.id

    @property
    def task(self) -> str:
        """Return the task's name."""
        return self.job.task

    @property
    def attempts(self) -> int:
        """Return how often it was tried."""
        return self.job.attempt

    @property
    def last_error(self) -> str | None:
        """Return what the last attempt ended with."""
        return self.job.last_error


def bury(tx: Transaction, job: Job, *, reason: str, failure: Failure) -> None:
    """Write a job to the dead letters; removing its row is the caller's part of the same transaction."""
    values = jobs.columns_of(job) | {
        "last_error": cut(failure.error, MAX_ERROR),
        "traceback": cut(failure.traceback, MAX_TRACEBACK),
        "reason": reason,
        "buried_at": tx.now,
        "lease_until": None,
    }
    if not _insert(tx, values):  # of an earlier job that had the same id
        others = {name: value for name, value in values.items() if name != "id"}
        tx.execute(update(dead_letter).where(dead_letter.c.id == job.id).values(others))
    tx.tell(Buried(job, reason))


def _insert(tx: Transaction, values: Mapping[str, Any]) -> bool:
    """Insert a dead letter, with no other right than to insert; False if there is one of the same id."""
    if tx.dialect.gives_back_updates:
        new = tx.dialect.insert_if_new(dead_letter).values(**values)
        return tx.execute(new.execution_options(preserve_rowcount=True)).rowcount == 1
    try:
        tx.execute(insert(dead_letter).values(**values))
    except IntegrityError:  # does not end a transaction of MySQL
        return False
    return True


def find(tx: Transaction, id: str) -> DeadLetter | None:
    """Return one dead letter."""
    row = tx.execute(select(dead_letter).where(dead_letter.c.id == id)).first()
    return read_letter(row) if row else None


def find_by_key(tx: Transaction, task: str, key: str) -> DeadLetter | None:
    """Return the latest dead letter that has this key."""
    mine = (dead_letter.c.dedupe_key == key, dead_letter.c.dedupe_key.is_not(None), dead_letter.c.task == task)
    query = select(dead_letter).where(*mine).order_by(dead_letter.c.buried_at.desc()).limit(1)
    found = rows.read_all(tx, query, read_letter, dead_letter)
    return found[0] if found else None


def select_letters(tx: Transaction, *, task: str | None = None, limit: int = 100) -> Sequence[DeadLetter]:
    """Return the latest dead letters."""
    query = select(dead_letter).order_by(dead_letter.c.buried_at.desc(), dead_letter.c.id).limit(limit)
    if task is not None:
        query = query.where(dead_letter.c.task == task)
    return [read_letter(row) for row in tx.execute(query)]


def revive(tx: Transaction, letter: DeadLetter) -> Job | None:
    """Give a dead letter another chance, with all its tries again, now.

    Attempts go on counting, so that no earlier delivery or record is mistaken for a new one. None if somebody else revived
    or purged it, or its key has been taken by another job meanwhile.
    """
    if not remove(tx, letter.id):
        return None
    keys.free(tx, letter.id)
    following.call_off(tx, letter.id)  # nobody has to hear of a failure that is taken back
    attempt = letter.job.attempt + 1
    job = replace(
        letter.job, state=JobState.PENDING, attempt=attempt, tries_from=attempt, dispatches=0, lease_until=None,
        stuck_at=None, claimed_by=None, claimed_at=None, carrier=None, cancel_requested=False, progress=None,
        run_at=tx.read_now(), expires_at=None, slot=Slot.OPEN if letter.job.concurrency_key else None,
        app=letter.job.app or tx.app,
    )  # fmt: skip
    return job if tx.insert_new(jobs.job, jobs.columns_of(job)) else None


def remove(tx: Transaction, id: str) -> bool:
    """Delete a dead letter; False if it is gone already."""
    return tx.execute(delete(dead_letter).where(dead_letter.c.id == id)).rowcount == 1


def read_letter(row: Row[Any]) -> DeadLetter:
    """Return a row as a value."""
    extra = {name: row._mapping[name] for name in ("reason", "traceback", "buried_at")}
    return DeadLetter(job=jobs.read_job(row), **extra)
