"""The end of most attempts, a success that frees no slot and that nothing follows, as one statement.

The row goes, the record is written, the key is kept and the occurrence ends: all if the attempt is still ours, else nothing.
`store.settlement` does the same one by one, for databases whose statements change one table each.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from typing import Any

from sqlalchemy import CTE, Executable, bindparam, delete, select, update
from sqlalchemy.dialects import postgresql

from ..domain.execution import Outcome
from ..domain.job import Job
from ..domain.occurrence import OccurrenceState
from . import executions, tables
from .clocks import Clock
from .database import Transaction
from .dialects import Dialect
from .prepared import Prepared
from .tables import IS_RUNNING

job, execution, key, occurrence = tables.job, tables.execution, tables.key, tables.occurrence
RECORDED = tuple(name for name in executions.COLUMNS if name != "completed_at")


def is_single(dialect: Dialect, one: Job, ended: Mapping[str, Any] | None) -> bool:
    """Say whether the success of this attempt can be written by one statement."""
    return dialect.changes_many and ended is None and one.slot is None


def succeed(tx: Transaction, one: Job, *, result: str | None, message: str | None, keep: timedelta) -> bool:
    """Write a success. False: the lease was lost, and nothing was written."""
    values = executions.values_of(one, Outcome.SUCCEEDED, message=message)
    if one.dedupe_key is not None:
        values |= {"key": one.dedupe_key, "result": result, "keep": keep}
    statement = _success(keeps_key=one.dedupe_key is not None, ends_occurrence=one.occurrence is not None)
    return bool(tx.run(statement, **{f"{name}_": value for name, value in values.items()}))


@cache
def _success(*, keeps_key: bool, ends_occurrence: bool) -> Prepared:
    def build(_: Dialect, clock: Clock) -> Executable:
        held = (job.c.id == bindparam("job_"), job.c.attempt == bindparam("attempt_"), IS_RUNNING)
        gone = delete(job).where(*held).returning(job.c.id).cte("gone")
        also = [_recorded(gone, clock)]
        also += [_kept(gone, clock)] if keeps_key else []
        also += [_completed(gone, clock)] if ends_occurrence else []
        return select(gone.c.id).add_cte(*also)

    return Prepared(build, returns=[job.c.id])


def _recorded(gone: CTE, clock: Clock) -> CTE:
    stated = [bindparam(f"{name}_", type_=execution.c[name].type) for name in RECORDED]
    record = postgresql.insert(execution).from_select(
        [*RECORDED, "completed_at"], select(*stated, clock.now).select_from(gone)
    )
    return record.on_conflict_do_nothing().returning(execution.c.id).cte("recorded")


def _kept(gone: CTE, clock: Clock) -> CTE:
    stated = {
        "task": bindparam("task_", type_=key.c.task.type),
        "key": bindparam("key_", type_=key.c.key.type),
        "job": bindparam("job_", type_=key.c.job.type),
        "execution": bindparam("id_", type_=key.c.execution.type),
        "result": bindparam("result_", type_=key.c.result.type),
        "done_at": clock.now,
        "kept_until": clock.later("keep_"),
    }
    keep = postgresql.insert(key).from_select(list(stated), select(*stated.values()).select_from(gone))
    newer = {name: keep.excluded[name] for name in stated if name not in ("task", "key")}
    return keep.on_conflict_do_update(index_elements=["task", "key"], set_=newer).returning(key.c.job).cte("kept")


def _completed(gone: CTE, clock: Clock) -> CTE:
    mine = (occurrence.c.id == bindparam("occurrence_"), gone.c.id.is_not(None))
    end = update(occurrence).where(*mine).values(state=OccurrenceState.COMPLETED, ended_at=clock.now)
    return end.returning(occurrence.c.id).cte("completed")
