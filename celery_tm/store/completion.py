"""The end of most attempts, a success that frees no slot and that nothing follows, as one statement.

The row goes, the record is written, the key is kept and the occurrence ends: all if the attempt is still ours, else nothing.
`store.settlement` does the same one by one, for databases whose statements change one table each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    CTE,
    Column,
    ColumnElement,
    Executable,
    String,
    Text,
    any_,
    bindparam,
    delete,
    func,
    literal,
    select,
    update,
)
from sqlalchemy.dialects import postgresql

from ..domain.execution import MAX_MESSAGE, Outcome, cut
from ..domain.facts import Closed, Ended
from ..domain.job import Job, Source
from ..domain.occurrence import OccurrenceState
from ..domain.scope import refs_of
from . import tables
from .clocks import Clock, ahead
from .conditions import IS_OWED, IS_RUNNING
from .database import Transaction
from .dialect_base import Dialect
from .given import as_texts, given_array, given_rows, storable
from .prepared import Prepared
from .types import Duration

job, execution, key, occurrence, scope = tables.job, tables.execution, tables.key, tables.occurrence, tables.scope
# What a record has from its job's row; the row knows best when the attempt began, and where.
COPIED: Mapping[str, Column[Any]] = {
    "job": job.c.id,
    "task": job.c.task,
    "source": job.c.source,
    "occurrence": job.c.occurrence,
    "definition": job.c.definition,
    "entity_id": job.c.entity_id,
    "attempt": job.c.attempt,
    "started_at": job.c.claimed_at,
    "worker": job.c.claimed_by,
    "actor": job.c.actor,
    "dedupe_key": job.c.dedupe_key,
    "scope": job.c.scope,
    "run_at": job.c.run_at,
}
REF_LISTS = ("ref_jobs", "ref_names", "ref_values")  # the references of all jobs, by job


def is_single(dialect: Dialect, one: Job, ended: Mapping[str, Any] | None) -> bool:
    """Say whether the success of this attempt can be written by one statement."""
    return dialect.changes_many and ended is None and one.slot is None and not one.is_step


def succeed(tx: Transaction, one: Job, *, result: str | None, message: str | None, keep_key: timedelta) -> bool:
    """Write a success. False: the lease was lost, and nothing was written."""
    values = {"job_id": one.id, **claim_of(one), "execution_": one.execution_id}
    values["message_"] = cut(message, MAX_MESSAGE)
    if one.dedupe_key is not None:
        values |= {"result_": result, "keep_key_": keep_key}
    refs = _refs([one])
    statement = _success(
        keeps_key=one.dedupe_key is not None, ends_occurrence=one.occurrence is not None, has_scope=bool(refs)
    )
    if not tx.run(statement, **values, **refs):
        return False
    tx.tell(Ended(one, Outcome.SUCCEEDED, message))
    if one.occurrence is not None:
        tx.tell(Closed(one.definition, OccurrenceState.COMPLETED, one.occurrence, None, one.source is Source.RECOVERY))
    return True


@cache
def _success(*, keeps_key: bool, ends_occurrence: bool, has_scope: bool) -> Prepared:
    def build(_: Dialect, clock: Clock) -> Executable:
        gone = take(job.c.id == bindparam("job_id"))
        id = bindparam("execution_", type_=String)
        also = [record(gone, id, bindparam("message_", type_=String), clock)]
        if keeps_key:
            also.append(keep(gone, id, bindparam("result_", type_=String), clock))
        if has_scope:
            also.append(_index(gone, also[0], id, clock))
        if ends_occurrence:
            also.append(_completed(gone, clock))
        return select(gone.c.id).add_cte(*also)

    return Prepared(build, returns=[job.c.id])


def succeed_all(tx: Transaction, done: Sequence[tuple[Job, str | None, str | None]], *, keep_key: timedelta) -> set[str]:
    """Write the successes of many jobs that one worker has at the same attempt, each with its result and message.

    Return the ids of those whose lease was held. None of them has an occurrence or a slot.
    """
    keeps_keys = any(one.dedupe_key is not None for one, _, _ in done)
    lists: dict[str, list[Any]] = {
        "ids": [one.id for one, _, _ in done],
        "executions": [one.execution_id for one, _, _ in done],
        "messages": [message and storable(cut(message, MAX_MESSAGE)) for _, _, message in done],
    }
    if keeps_keys:
        lists["results"] = [result for _, result, _ in done]
    values = as_texts(lists) | ({"keep_key_": keep_key} if keeps_keys else {})
    refs = _refs([one for one, _, _ in done])
    statement = _successes(keeps_keys=keeps_keys, has_scopes=bool(refs))
    held = {row[0] for row in tx.run(statement, **claim_of(done[0][0]), **values, **refs)}
    for one, _, message in done:
        if one.id in held:
            tx.tell(Ended(one, Outcome.SUCCEEDED, message))
    return held


@cache
def _successes(*, keeps_keys: bool, has_scopes: bool) -> Prepared:
    lists = ("ids", "executions", "messages", "results") if keeps_keys else ("ids", "executions", "messages")

    def build(_: Dialect, clock: Clock) -> Executable:
        given = given_rows(Column(name, Text) for name in lists)
        gone = take(job.c.id == any_(given_array("ids")))
        told = gone.join(given, given.c.ids == gone.c.id)
        also = [record(gone, given.c.executions, given.c.messages, clock, told)]
        if keeps_keys:
            also.append(keep(gone, given.c.executions, given.c.results, clock, told))
        if has_scopes:
            also.append(_index(gone, also[0], given.c.executions, clock, told))
        return select(gone.c.id).add_cte(*also)

    return Prepared(build, returns=[job.c.id])


def claim_of(one: Job) -> dict[str, Any]:
    """Return which attempt is ended, and who was let in for it."""
    return {"attempt_": one.attempt, "worker_": one.claimed_by}


def take(chosen: ColumnElement[bool]) -> CTE:
    """Take the rows of attempts that are still ours; nothing else is written for any other."""
    mine = (job.c.attempt == bindparam("attempt_"), job.c.claimed_by == bindparam("worker_"))
    held = delete(job).where(chosen, *mine, IS_RUNNING, IS_OWED)
    return held.returning(*COPIED.values(), job.c.keep_key).cte("gone")


def record(gone: CTE, id: Any, message: Any, clock: Clock, told: Any = None) -> CTE:
    """Write the executions of what succeeded."""
    stated: dict[str, Any] = {name: gone.c[column.name] for name, column in COPIED.items()}
    stated |= {"id": id, "message": message, "completed_at": clock.now, "outcome": literal(Outcome.SUCCEEDED.value)}
    rows = select(*stated.values()).select_from(gone if told is None else told)
    recorded = postgresql.insert(execution).from_select(list(stated), rows)
    return recorded.on_conflict_do_nothing().returning(execution.c.id).cte("recorded")


def keep(gone: CTE, id: Any, result: Any, clock: Clock, told: Any = None) -> CTE:
    """Keep the keys of what succeeded; an older success whose retention has ended is overwritten."""
    kept_for = func.coalesce(gone.c.keep_key, bindparam("keep_key_", type_=Duration))
    stated: dict[str, Any] = {
        "task": gone.c.task,
        "key": gone.c.dedupe_key,
        "job": gone.c.id,
        "execution": id,
        "result": result,
        "done_at": clock.now,
        "kept_until": ahead(clock.now, kept_for),
        "outcome": literal(Outcome.SUCCEEDED.value),
    }
    rows = select(*stated.values()).select_from(gone if told is None else told).where(gone.c.dedupe_key.is_not(None))
    kept = postgresql.insert(key).from_select(list(stated), rows)
    newer = {name: kept.excluded[name] for name in stated if name not in ("task", "key")}
    return kept.on_conflict_do_update(index_elements=["task", "key"], set_=newer).returning(key.c.job).cte("kept")


def _refs(jobs: Sequence[Job]) -> dict[str, str]:
    """Return the references of jobs as parameters; nothing where none has a scope."""
    found = [(one.id, *ref) for one in jobs if one.scope for ref in refs_of(one.scope)]
    return as_texts(dict(zip(REF_LISTS, zip(*found, strict=True), strict=True))) if found else {}


def _index(gone: CTE, recorded: CTE, id: Any, clock: Clock, told: Any = None) -> CTE:
    """Write by what references the executions are found that were recorded just now."""
    refs = given_rows((Column(name, Text) for name in REF_LISTS), name="refs")
    source = (gone if told is None else told).join(refs, refs.c.ref_jobs == gone.c.id)
    source = source.join(recorded, recorded.c.id == id)
    rows = select(refs.c.ref_names, refs.c.ref_values, clock.now, recorded.c.id).select_from(source)
    indexed = postgresql.insert(scope).from_select(["name", "value", "completed_at", "execution"], rows)
    return indexed.on_conflict_do_nothing().cte("indexed")


def _completed(gone: CTE, clock: Clock) -> CTE:
    end = update(occurrence).where(occurrence.c.id == gone.c.occurrence)
    end = end.values(state=OccurrenceState.COMPLETED, ended_at=clock.now)
    return end.returning(occurrence.c.id).cte("completed")
