"""Which rows are old enough to go, kind by kind, each found by an index: by age, or because there are newer ones enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Column, Select, delete, exists, func, or_, select

from ..domain.occurrence import OccurrenceState
from . import tables
from .database import Transaction
from .dialect_base import Moment
from .rows import EARLIEST, is_instant

ENDED = tuple(state for state in OccurrenceState if state not in (
    OccurrenceState.PENDING, OccurrenceState.QUEUED, OccurrenceState.RUNNING,
))  # fmt: skip


def remove_old(tx: Transaction, kind: str, age: timedelta | None, *, limit: int) -> int:
    """Delete up to `limit` rows of a kind that are older than `age`, or past the retention they carry themselves."""
    return remove_before(tx, kind, tx.now if age is None else tx.later(-age), limit=limit)


def start_of_newest(tx: Transaction, kind: str, count: int) -> datetime | None:
    """Return the instant of the first of the newest `count` rows of a kind; None if there are fewer."""
    at = _AT[kind]
    # By what has come: what is planned ahead pushes nothing out.
    newest = select(at.label("at")).where(at <= tx.now).order_by(at.desc()).limit(count).subquery()
    found, first = tx.execute(select(func.count(), func.min(newest.c.at)).select_from(newest)).one()
    return first if found == count else None


_AT: Mapping[str, Column[Any]] = {
    "executions": tables.execution.c.completed_at,
    "occurrences": tables.occurrence.c.scheduled_at,
    "logs": tables.log.c.at,
    "audit": tables.audit.c.at,
}


def remove_before(tx: Transaction, kind: str, before: Moment, *, limit: int) -> int:
    """Delete up to `limit` rows of a kind that are from before an instant, those first that are from longest ago.

    Rows that others have locked are passed over.
    """
    table, chosen = _OLD[kind](before)
    key = next(iter(table.primary_key.columns))
    found = tx.execute(tx.dialect.locked(chosen.limit(limit))).all()
    if not found:
        return 0
    if kind == "keys":  # its primary key has two columns
        task, text = tables.key.c.task, tables.key.c.key
        for row in found:
            tx.execute(delete(table).where(task == row.task, text == row.key, table.c.kept_until <= before))
        return len(found)
    if kind == "executions":
        tx.execute(delete(tables.scope).where(tables.scope.c.execution.in_([row[0] for row in found])))
    if kind == "steps":
        return _remove_steps(tx, [(row.workflow, row.name) for row in found])
    return tx.execute(delete(table).where(key.in_([row[0] for row in found]))).rowcount


@dataclass(slots=True)
class Walk:
    """One pass over old executions or occurrences, the oldest first: how far it has come, and from where on the newest stay.

    Rows that stay are passed once, not again for every batch.
    """

    keep: int  # the newest so many stay: executions of each task and of each definition, occurrences of each definition
    after: tuple[datetime, str] | None = None
    edges: dict[tuple[str, str], datetime | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Walked:
    """What one batch of a walk did; `reached` is None at the end."""

    removed: int
    reached: tuple[datetime, str] | None


def remove_executions(tx: Transaction, *, age: timedelta, walk: Walk, limit: int) -> Walked:
    """Delete those of the next `limit` executions older than `age` that are not among the newest of their kind."""
    table, chosen = _OLD["executions"](tx.later(-age))
    chosen = chosen.add_columns(table.c.completed_at, table.c.task, table.c.definition).order_by(table.c.id).limit(limit)
    chosen = chosen.where(is_instant(table.c.completed_at))
    if walk.after is not None:
        at, id = walk.after
        chosen = chosen.where(table.c.completed_at >= at, or_(table.c.completed_at > at, table.c.id > id))
    found = tx.execute(chosen).all()
    old = [*_unreadable(tx, table.c.completed_at, walk, limit), *(row.id for row in found if _is_beyond(tx, walk, row))]
    free = tx.execute(tx.dialect.locked(select(table.c.id).where(table.c.id.in_(old)))).scalars().all() if old else []
    if free:
        tx.execute(delete(tables.scope).where(tables.scope.c.execution.in_(free)))
        tx.execute(delete(table).where(table.c.id.in_(free)))
    last = found[-1] if len(found) == limit else None
    return Walked(len(free), None if last is None else (last.completed_at, last.id))


def oldest_execution(tx: Transaction, *, keep: int, among: int = 200) -> datetime | None:
    """Return when the oldest execution ended that may be pruned, of the oldest so many; None: all of those stay."""
    table, chosen = _OLD["executions"](tx.now)
    columns = (table.c.completed_at, table.c.task, table.c.definition)
    walk = Walk(keep)
    for row in tx.execute(chosen.add_columns(*columns).where(is_instant(table.c.completed_at)).limit(among)).all():
        if _is_beyond(tx, walk, row):
            at: datetime = row.completed_at
            return at
    return None


def remove_occurrences(tx: Transaction, *, age: timedelta, walk: Walk, limit: int) -> Walked:
    """Delete those of the next `limit` occurrences older than `age` that are not among the newest of their definition.

    What a definition has behind it (`job.last_run_at`, `pause_after`) is read from them.
    """
    table, chosen = _OLD["occurrences"](tx.later(-age))
    at = table.c.scheduled_at
    chosen = chosen.add_columns(at, table.c.definition).where(is_instant(at)).order_by(table.c.id).limit(limit)
    if walk.after is not None:
        since, id = walk.after
        chosen = chosen.where(at >= since, or_(at > since, table.c.id > id))
    found = tx.execute(chosen).all()
    beyond = (row.id for row in found if (edge := _first_kept(tx, walk, row.definition)) is None or row.scheduled_at < edge)
    old = [*_unreadable(tx, at, walk, limit), *beyond]
    free = tx.execute(tx.dialect.locked(select(table.c.id).where(table.c.id.in_(old)))).scalars().all() if old else []
    if free:
        tx.execute(delete(table).where(table.c.id.in_(free)))
    last = found[-1] if len(found) == limit else None
    return Walked(len(free), None if last is None else (last.scheduled_at, last.id))


def _first_kept(tx: Transaction, walk: Walk, definition: str) -> datetime | None:
    """Return the instant of the first of a definition's occurrences that are kept; None: none is, as of one that is gone."""
    kind = ("definition", definition)
    if kind not in walk.edges:
        table, known = tables.occurrence, select(tables.definition.c.id).where(tables.definition.c.id == definition)
        newest = select(table.c.scheduled_at).where(table.c.definition == definition, table.c.state.in_(ENDED))
        newest = newest.where(is_instant(table.c.scheduled_at)).order_by(table.c.scheduled_at.desc()).limit(walk.keep)
        is_kept = walk.keep and tx.execute(known).first() is not None
        walk.edges[kind] = min(tx.execute(newest).scalars(), default=None) if is_kept else None
    return walk.edges[kind]


def _unreadable(tx: Transaction, at: Column[Any], walk: Walk, limit: int) -> Sequence[str]:
    """Return the rows whose time lies before all time, so that nobody can read it; a walk begins with them."""
    query = select(at.table.c.id).where(at < EARLIEST).limit(limit)
    return tx.execute(query).scalars().all() if walk.after is None else []


def _is_beyond(tx: Transaction, walk: Walk, row: Any) -> bool:
    """Say whether there are as many newer executions of the same task, and of the same definition, as are to be kept."""
    kinds = [("task", row.task), *([("definition", row.definition)] if row.definition is not None else [])]
    return not walk.keep or all((edge := _edge(tx, walk, kind)) is not None and row.completed_at < edge for kind in kinds)


def _edge(tx: Transaction, walk: Walk, kind: tuple[str, str]) -> datetime | None:
    """Return when the oldest of the executions ended that are kept of a kind; None: there are fewer. An index knows."""
    if kind not in walk.edges:
        table, (name, value) = tables.execution, kind
        newest = select(table.c.completed_at).where(table.c[name] == value, table.c[name].is_not(None))
        newest = newest.where(is_instant(table.c.completed_at))
        query = newest.order_by(table.c.completed_at.desc()).offset(walk.keep - 1).limit(1)
        walk.edges[kind] = tx.execute(query).scalar()
    return walk.edges[kind]


def _remove_steps(tx: Transaction, found: Sequence[tuple[str, str]]) -> int:
    """Delete steps, those of a run at once."""
    by_run: dict[str, list[str]] = {}
    for run, name in found:
        by_run.setdefault(run, []).append(name)
    for run, names in by_run.items():
        tx.execute(delete(tables.step).where(tables.step.c.workflow == run, tables.step.c.name.in_(names)))
    return len(found)


def _executions(before: Any) -> tuple[Any, Select[Any]]:
    table = tables.execution
    # A job that is still owed keeps its earlier attempts: they tell that a delivery of them is old.
    owed = exists(select(tables.job.c.id).where(tables.job.c.id == table.c.job))
    return table, select(table.c.id).where(table.c.completed_at < before, ~owed).order_by(table.c.completed_at)


def _occurrences(before: Any) -> tuple[Any, Select[Any]]:
    table = tables.occurrence
    letter = exists(select(tables.dead_letter.c.id).where(tables.dead_letter.c.occurrence == table.c.id))
    # What ran goes by its end too: a backfill of last year is kept as long as the records of its attempts are.
    ended = or_(table.c.ended_at.is_(None), table.c.ended_at < before)
    old = select(table.c.id).where(table.c.scheduled_at < before, ended, table.c.state.in_(ENDED), ~letter)
    return table, old.order_by(table.c.scheduled_at)


def _steps(before: Any) -> tuple[Any, Select[Any]]:
    """Choose the steps of runs whose occurrence is gone. They go before their run, so that none is left behind."""
    run, step = tables.workflow, tables.step
    chosen = select(step.c.workflow, step.c.name).join_from(run, step, step.c.workflow == run.c.id)
    # One run after the other, also where several began at once.
    return step, chosen.where(run.c.created_at < before, ~_has_occurrence()).order_by(run.c.created_at, run.c.id)


def _runs(before: Any) -> tuple[Any, Select[Any]]:
    run, left = tables.workflow, exists(select(tables.step.c.name).where(tables.step.c.workflow == tables.workflow.c.id))
    old = select(run.c.id).where(run.c.created_at < before, ~_has_occurrence(), ~left)
    return run, old.order_by(run.c.created_at)


def _has_occurrence() -> Any:
    """Say whether a run still has its occurrence: one that is owed, recent or has a dead letter keeps it."""
    return exists(select(tables.occurrence.c.id).where(tables.occurrence.c.id == tables.workflow.c.id))


def _logs(before: Any) -> tuple[Any, Select[Any]]:
    return tables.log, select(tables.log.c.id).where(tables.log.c.at < before).order_by(tables.log.c.at)


def _keys(before: Any) -> tuple[Any, Select[Any]]:
    table = tables.key
    return table, select(table.c.task, table.c.key).where(table.c.kept_until <= before).order_by(table.c.kept_until)


def _audit(before: Any) -> tuple[Any, Select[Any]]:
    return tables.audit, select(tables.audit.c.id).where(tables.audit.c.at < before).order_by(tables.audit.c.at)


def _lanes(before: Any) -> tuple[Any, Select[Any]]:  # noqa: ARG001
    used = exists(select(tables.job.c.id).where(tables.job.c.concurrency_key == tables.lane.c.key))
    return tables.lane, select(tables.lane.c.key).where(~used, tables.lane.c.key != "*")


_OLD: Mapping[str, Callable[[Any], tuple[Any, Select[Any]]]] = {
    "executions": _executions,
    "occurrences": _occurrences,
    "steps": _steps,
    "runs": _runs,
    "logs": _logs,
    "keys": _keys,
    "audit": _audit,
    "lanes": _lanes,
}
