"""Keys that have succeeded, kept so that the same work is not done again.

By policy, the keys of jobs that failed or were cancelled are kept too: a caller who asks for one gets that job, but the gate
refuses only what has succeeded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Executable, Row, bindparam, literal_column, select, update

from ..domain.codec import decode
from ..domain.job import Job, Status
from . import tables
from .clocks import Clock
from .database import Transaction
from .dialect_base import Dialect
from .given import ByPairs
from .prepared import Prepared

key = tables.key
SUCCEEDED = "succeeded"
STATUS = {SUCCEEDED: Status.SUCCEEDED, "failed": Status.FAILED, "cancelled": Status.CANCELED}
IS_SUCCESS = key.c.outcome == literal_column("'succeeded'")


@dataclass(frozen=True, kw_only=True, slots=True)
class DoneKey:
    """One row of `tm_key`: this key's work has ended, by this job, with this result."""

    task: str
    key: str
    job: str
    execution: str
    result: str | None
    done_at: datetime
    kept_until: datetime
    outcome: str = "succeeded"

    @property
    def status(self) -> Status:
        """Return what a caller is told who asks for this key."""
        return STATUS.get(self.outcome, Status.SUCCEEDED)

    @property
    def shown(self) -> Any:
        """Return the result for people to read; of one that could not be kept whole, its beginning."""
        value = decode(self.result)
        return value[NOT_WHOLE] if _is_cut(value) else value

    @property
    def whole(self) -> str | None:
        """Return the result as JSON; None where it could not be kept whole."""
        return whole(self.result)

    @property
    def ended(self) -> Mapping[str, Any]:
        """Return how a call ends that has this key: with its result, or with an error where that is not kept."""
        if _is_cut(decode(self.result)):
            return {"error": f"ResultNotKept: key {self.key!r} has succeeded, but its result is too long or not JSON"}
        return {"result": decode(self.result)}

    def leaves_row(self, job: Job) -> bool:
        """Say whether a call that has this key leaves a row, with which a worker publishes its callbacks or errbacks."""
        return job.is_awaited if _is_cut(decode(self.result)) else job.has_callbacks


NOT_WHOLE = "tm_shown"  # instead of a result that is too long for its key, or not JSON: how it begins


def whole(text: str | None) -> str | None:
    """Return a result as JSON; None where only its beginning could be kept."""
    return None if text is not None and text.startswith(f'{{"{NOT_WHOLE}"') and _is_cut(decode(text)) else text


def _is_cut(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {NOT_WHOLE}


def keep(
    tx: Transaction,
    *,
    task: str,
    key_text: str,
    job: str,
    execution: str,
    result: str | None,
    keep: timedelta,
    outcome: str = SUCCEEDED,
) -> None:
    """Remember how a key ended; what is kept of an earlier job is overwritten."""
    values: dict[str, Any] = {
        "task": task, "key": key_text, "job": job, "execution": execution, "result": result,
        "done_at": tx.now, "kept_until": tx.later(keep), "outcome": outcome,
    }  # fmt: skip
    tx.execute(tx.dialect.upsert(key, values, ("task", "key")))


def keep_success(tx: Transaction, one: Job, execution: str, result: str | None, default: timedelta) -> None:
    """Remember that the key of a job, if it has one, has succeeded."""
    if one.dedupe_key is not None:
        kept = default if one.keep_key is None else one.keep_key
        keep(tx, task=one.task, key_text=one.dedupe_key, job=one.id, execution=execution, result=result, keep=kept)


def keep_failed(tx: Transaction, one: Job) -> None:
    """Remember the key of a job that becomes a dead letter, if its policy says so; a success that is kept stays."""
    _keep_unless_succeeded(tx, one, "failed", one.keep_failed)


def keep_cancelled(tx: Transaction, one: Job) -> None:
    """Remember the key of a job that was cancelled or has expired, if its policy says so; a success that is kept stays."""
    _keep_unless_succeeded(tx, one, "cancelled", one.keep_cancelled)


def _keep_unless_succeeded(tx: Transaction, one: Job, outcome: str, kept: timedelta | None) -> None:
    if one.dedupe_key is None or not kept or find_kept(tx, one.task, one.dedupe_key) is not None:
        return
    mine = {"task": one.task, "key_text": one.dedupe_key, "job": one.id, "execution": one.execution_id}
    keep(tx, **mine, result=None, keep=kept, outcome=outcome)


def free(tx: Transaction, job: str) -> None:
    """Free the key of a job that had not succeeded and gets another chance."""
    mine = (key.c.job == job, ~IS_SUCCESS)
    tx.execute(update(key).where(*mine, key.c.kept_until > tx.now).values(kept_until=tx.now))


def find_kept(tx: Transaction, task: str, key_text: str, *, locking: bool = True, any_end: bool = False) -> DoneKey | None:
    """Return the success of a key that is still kept; with `any_end` also the failure or cancellation.

    Not `locking`: as the transaction's snapshot has it.
    """
    rows = tx.run(_KEPT[locking, any_end], task_=task, key_=key_text)
    return DoneKey(**dict(zip(key.c.keys(), rows[0], strict=True))) if rows else None


def _find(*, locking: bool, any_end: bool) -> Prepared:
    def build(dialect: Dialect, clock: Clock) -> Executable:
        is_kept = _has_ended if any_end else _has_succeeded
        mine = (key.c.task == bindparam("task_"), key.c.key == bindparam("key_"), *is_kept(clock.now))
        return dialect.latest(select(key).where(*mine)) if locking else select(key).where(*mine)

    return Prepared(build, returns=list(key.c))


def _has_ended(now: Any) -> Sequence[ColumnElement[bool]]:
    return (key.c.kept_until > now,)


def _has_succeeded(now: Any) -> Sequence[ColumnElement[bool]]:
    return (key.c.kept_until > now, IS_SUCCESS)


_KEPT = {(locking, end): _find(locking=locking, any_end=end) for locking in (True, False) for end in (True, False)}
_PAIR = (key.c.task, key.c.key)
_AMONG = {True: ByPairs(key.c, _PAIR, _has_ended), False: ByPairs(key.c, _PAIR, _has_succeeded)}


def find_all_kept(
    tx: Transaction, wanted: Sequence[tuple[str, str]], *, any_end: bool = False
) -> dict[tuple[str, str], DoneKey]:
    """Return the successes of these (task, key) pairs that are still kept; with `any_end` also what else they ended with."""
    return {(row["task"], row["key"]): DoneKey(**row) for row in _AMONG[any_end].find(tx, wanted)}


def find_by_job(tx: Transaction, job: str) -> DoneKey | None:
    """Return the success that a job left behind."""
    row = tx.execute(select(key).where(key.c.job == job)).first()
    return _read(row) if row else None


def _read(row: Row[Any]) -> DoneKey:
    return DoneKey(**row._mapping)
