"""Long lists by what people ask for, a page at a time: executions, jobs, occurrences, dead letters, audit and log lines.

Every condition is checked by the caller. The words in it (outcomes, states) become literals, as in the partial indexes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Column, ColumnElement, Select, case, func, literal_column, or_, select, union_all

from ..domain.execution import Execution, Outcome
from ..domain.job import Job, JobState, Source
from ..domain.occurrence import Occurrence, OccurrenceState
from ..domain.paging import Page
from ..domain.scope import Ref
from . import paging, tables
from .audit import AuditLine, read_line
from .conditions import IS_LEASED, IS_OWED, IS_PENDING, NEEDS_NO_SLOT, is_state
from .database import UNNAMED, Transaction
from .dead_letters import DeadLetter, read_letter
from .executions import read_execution
from .jobs import read_job
from .logs import LogLine
from .occurrences import read_occurrence
from .rows import is_instant

Conditions = Sequence[ColumnElement[bool]]
execution, job, occurrence = tables.execution, tables.job, tables.occurrence
dead_letter, audit, log = tables.dead_letter, tables.audit, tables.log
DID_NOT_SUCCEED = execution.c.outcome != literal_column(f"'{Outcome.SUCCEEDED.value}'")


def _equal(table: Any, wanted: Mapping[str, Any]) -> list[ColumnElement[bool]]:
    """Return the conditions that columns have the wanted values; what is None is not asked for."""
    return [table.c[name] == value for name, value in wanted.items() if value is not None]


def _between(at: Column[Any], since: datetime | None, until: datetime | None) -> list[ColumnElement[bool]]:
    return [*([] if since is None else [at >= since]), *([] if until is None else [at < until])]


def executions(
    tx: Transaction,
    *,
    outcome: Outcome | None = None,
    source: Source | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    scope: Sequence[Ref] | None = None,
    cursor: str | None = None,
    limit: int = 50,
    **equal: str | None,
) -> Page[Execution]:
    """Return executions, the latest first: of a definition (by name), a task, an outcome, a scope …"""
    query, at = select(execution).where(*_equal(execution, equal | {"source": source})), execution.c.completed_at
    if scope:
        query, at = _in_scope(query, scope), tables.scope.c.completed_at
    query = query.where(*_between(at, since, until))
    for name in ("definition", "entity_id"):  # said, so that the indexes that are about these fit
        if equal.get(name) is not None:
            query = query.where(execution.c[name].is_not(None))
    if outcome is not None:
        query = query.where(execution.c.outcome == literal_column(f"'{outcome.value}'"))
        if outcome is not Outcome.SUCCEEDED:
            query = query.where(DID_NOT_SUCCEED)
    order = paging.BY_SCOPE if scope else paging.EXECUTIONS
    return paging.fetch(tx, query, order, cursor=cursor, limit=limit, read=read_execution)


def _in_scope(query: Select[Any], refs: Sequence[Ref]) -> Select[Any]:
    """Return a query for executions with only those that have all these references, found by the first one's index."""
    first = tables.scope
    query = query.join(first, first.c.execution == execution.c.id)
    query = query.where(first.c.name == refs[0][0], first.c.value == refs[0][1])
    for name, value in refs[1:]:
        other = first.alias()
        mine = (other.c.execution == first.c.execution, other.c.name == name, other.c.value == value)
        query = query.where(select(other.c.name).where(*mine).exists())
    return query


def has_traces(tx: Transaction, definition: str) -> bool:
    """Say whether a definition of this name, which may be removed, has left executions, jobs or dead letters behind."""
    for table in (execution, job, dead_letter):
        query = select(table.c.id).where(table.c.definition == definition, table.c.definition.is_not(None))
        if tx.execute(query.limit(1)).first() is not None:
            return True
    return False


def jobs(
    tx: Transaction, *, state: JobState | None = None, cursor: str | None = None, limit: int = 100, **equal: str | None
) -> Page[Job]:
    """Return jobs that are owed, those due first in front."""
    wanted = [IS_OWED, *_equal(job, {"app": tx.app, **equal})]
    parts = [_some_jobs([*wanted, *part], cursor, limit) for part in _job_parts(state, equal)]
    if len(parts) == 1:
        return paging.page_of(tx, parts[0], paging.JOBS, limit=limit, read=read_job)
    every = union_all(*(select(part.subquery()) for part in parts)).subquery()
    query = select(every).order_by(every.c.run_at, every.c.id).limit(limit + 1)
    return paging.page_of(tx, query, paging.JOBS, limit=limit, read=read_job, source=every)


def _some_jobs(conditions: Conditions, cursor: str | None, limit: int) -> Select[Any]:
    return paging.sorted_from(select(job).where(*conditions), paging.JOBS, cursor=cursor, limit=limit)


def _job_parts(state: JobState | None, equal: Mapping[str, str | None]) -> list[Conditions]:
    """Return the stretches of jobs that each have an index: no index holds all of them by time.

    Where a key or an entity is asked for, its own index finds the few there are.
    """
    if equal.get("dedupe_key") is not None or equal.get("entity_id") is not None:
        return [[] if state is None else [is_state(state)]]
    pending: list[Conditions] = [[IS_PENDING, NEEDS_NO_SLOT], [IS_PENDING, job.c.slot.is_not(None)]]
    if state is JobState.PENDING:
        return pending
    return [*pending, [IS_LEASED]] if state is None else [[IS_LEASED, is_state(state)]]


def occurrences(
    tx: Transaction,
    definition: str | None,
    *,
    states: Sequence[OccurrenceState] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> Page[Occurrence]:
    """Return the instants of a definition (by id), or of all, the latest first, those planned ahead included."""
    wanted = _equal(occurrence, {"definition": definition})
    wanted += [occurrence.c.state.in_(states)] if states else []
    query = select(occurrence).where(*wanted, *_between(occurrence.c.scheduled_at, since, until))
    return paging.fetch(tx, query, paging.OCCURRENCES, cursor=cursor, limit=limit, read=read_occurrence)


@dataclass(frozen=True, kw_only=True, slots=True)
class Letters:
    """Which dead letters are meant; what is None is not asked for."""

    task: str | None = None
    definition: str | None = None
    error: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    ids: Sequence[str] | None = None

    def conditions(self, tx: Transaction) -> Conditions:
        """Return what their rows have in common."""
        found = _equal(dead_letter, {"task": self.task, "definition": self.definition})
        if self.ids is None:
            app = dead_letter.c.app
            found.append(app.not_in(sorted(tx.foreign)) if tx.app == UNNAMED else app.in_((tx.app, UNNAMED)))
        found += _between(dead_letter.c.buried_at, self.since, self.until)
        if self.error is not None:
            told = (dead_letter.c.last_error, dead_letter.c.reason)
            found.append(or_(*(column.icontains(self.error, autoescape=True) for column in told)))
        if self.ids is not None:
            found.append(tx.dialect.among(dead_letter.c.id, self.ids))
        return found


def dead_letters(tx: Transaction, wanted: Letters, *, cursor: str | None = None, limit: int = 100) -> Page[DeadLetter]:
    """Return dead letters, the latest first."""
    query = select(dead_letter).where(*wanted.conditions(tx))
    return paging.fetch(tx, query, paging.DEAD_LETTERS, cursor=cursor, limit=limit, read=read_letter)


def dead_letter_ids(tx: Transaction, wanted: Letters) -> list[str]:
    """Return the ids of dead letters, the oldest first."""
    query = select(dead_letter.c.id).where(*wanted.conditions(tx))
    return list(tx.execute(query.order_by(dead_letter.c.buried_at, dead_letter.c.id)).scalars())


def dead_letters_by_task(tx: Transaction, wanted: Letters) -> list[tuple[str, int, datetime | None, datetime | None]]:
    """Return of each task how many dead letters there are, and when the first and the last of them was buried.

    That is None where no such instant can be read.
    """
    buried = case((is_instant(dead_letter.c.buried_at), dead_letter.c.buried_at))
    query = select(dead_letter.c.task, func.count(), func.min(buried), func.max(buried)).where(*wanted.conditions(tx))
    return [tuple(row) for row in tx.execute(query.group_by(dead_letter.c.task).order_by(dead_letter.c.task))]


def audit_lines(
    tx: Transaction,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    cursor: str | None = None,
    limit: int = 50,
    **equal: str | None,
) -> Page[AuditLine]:
    """Return lines of the audit, the latest first: about an object, of an actor, of an action."""
    query = select(audit).where(*_equal(audit, equal), *_between(audit.c.at, since, until))
    return paging.fetch(tx, query, paging.AUDIT, cursor=cursor, limit=limit, read=read_line)


def log_lines(
    tx: Transaction, attempts: Mapping[str, int | None], *, cursor: str | None = None, limit: int = 200
) -> Page[LogLine]:
    """Return the lines of executions in order; `attempts` are their ids with the attempt that each records."""
    query = select(log).where(tx.dialect.among(log.c.execution, list(attempts)))

    def read(row: Any) -> LogLine:
        return LogLine(attempt=attempts[row.execution], **row._mapping)

    return paging.fetch(tx, query, paging.LOG, cursor=cursor, limit=limit, read=read)
