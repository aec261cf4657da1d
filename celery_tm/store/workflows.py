"""Runs of workflows and their steps, as rows.

Whoever ends a step, stops a run or cancels one locks the run first and its jobs afterwards, so that none waits for another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Row, and_, insert, select, update

from ..domain.occurrence import OccurrenceState
from ..domain.run import Run, RunStep
from ..domain.workflow import StepState
from . import keys, tables
from .database import Transaction

job, workflow, step = tables.job, tables.workflow, tables.step
RUN_COLUMNS = tuple(f.name for f in fields(Run) if f.name != "app")
STEP_COLUMNS = tuple(f.name for f in fields(RunStep))
# Its job says whose a run is, not its settings: what an app had may have been taken over since.
RUNS = select(workflow, select(job.c.app).where(job.c.id == workflow.c.job).scalar_subquery().label("app"))


def insert_run(tx: Transaction, run: Run, steps: Sequence[RunStep]) -> None:
    """Write a run that begins, with its steps."""
    tx.execute(insert(workflow).values({name: getattr(run, name) for name in RUN_COLUMNS}))
    tx.insert_all(step, [_step_values(one) for one in steps])


def _step_values(one: RunStep) -> dict[str, Any]:
    values = {name: getattr(one, name) for name in STEP_COLUMNS}
    return values | {"feeds": " ".join(map(str, one.feeds))}  # a text: lists of lists are something else to some databases


def lock(tx: Transaction, id: str | None) -> Run | None:
    """Make a run ours until the transaction ends, and return it as it is now; None if there is none of this id."""
    if id is None:
        return None
    query = RUNS.where(workflow.c.id == id)
    row = tx.execute(query.with_for_update() if tx.dialect.skips_locked else query).first()
    return read_run(row) if row else None


def try_lock(tx: Transaction, id: str) -> bool:
    """Make a run ours until the transaction ends, unless somebody else has it; True also if there is none of this id."""
    query = select(workflow.c.id).where(workflow.c.id == id)
    if tx.execute(tx.dialect.locked(query)).first() is not None:
        return True
    return tx.execute(query).first() is None


def find(tx: Transaction, id: str) -> Run | None:
    """Return a run."""
    row = tx.execute(RUNS.where(workflow.c.id == id)).first()
    return read_run(row) if row else None


def known(tx: Transaction, ids: Sequence[str]) -> set[str]:
    """Return which of these occurrences are runs."""
    if not ids:
        return set()
    return set(tx.execute(select(workflow.c.id).where(tx.dialect.among(workflow.c.id, ids))).scalars())


def save(tx: Transaction, run: Run) -> None:
    """Write how far a run has come. The caller has locked it."""
    changed = {name: getattr(run, name) for name in ("remaining", "stopped_by", "stopped_as")}
    tx.execute(update(workflow).where(workflow.c.id == run.id).values(changed))


def steps_of(tx: Transaction, run: str) -> list[RunStep]:
    """Return the steps of a run, as they were stated."""
    query = select(step).where(step.c.workflow == run).order_by(step.c.number)
    return [read_step(row) for row in tx.execute(query)]


def find_step(tx: Transaction, run: str, name: str) -> RunStep | None:
    """Return one step of a run."""
    row = tx.execute(tx.dialect.latest(select(step).where(step.c.workflow == run, step.c.name == name))).first()
    return read_step(row) if row else None


def waiting_for(tx: Transaction, run: str, joins: Collection[int]) -> list[RunStep]:
    """Return the steps that wait for these joins."""
    mine = and_(step.c.workflow == run, step.c.waits_for.in_(joins), step.c.state == StepState.WAITING)
    return _current(tx, mine)


def in_state(tx: Transaction, run: str, *states: StepState) -> list[RunStep]:
    """Return the steps of a run that are in one of these states."""
    return _current(tx, and_(step.c.workflow == run, step.c.state.in_(states)))


def _current(tx: Transaction, wanted: Any) -> list[RunStep]:
    """Return steps as they are committed now; the caller has locked their run."""
    query = tx.dialect.latest(select(step).where(wanted).order_by(step.c.number))
    return [read_step(row) for row in tx.execute(query)]


def change(tx: Transaction, run: str, names: Sequence[str], **values: Any) -> None:
    """Write how steps stand now. The caller has locked their run."""
    for start in range(0, len(names), 1000):
        mine = and_(step.c.workflow == run, tx.dialect.among(step.c.name, names[start : start + 1000]))
        tx.execute(update(step).where(mine).values(values))


def results_of(tx: Transaction, run: str) -> dict[str, tuple[StepState, str | None]]:
    """Return how the steps of a run stand, and their results as JSON text, by name."""
    query = select(step.c.name, step.c.state, step.c.result).where(step.c.workflow == run).order_by(step.c.number)
    return {row.name: (StepState(row.state), keys.whole(row.result)) for row in tx.execute(query)}


def names_of(tx: Transaction, jobs: Mapping[str, str]) -> dict[str, str]:
    """Return the names of the steps that jobs carry out, by job; each job comes with its occurrence."""
    found: dict[str, str] = {}
    given = list(jobs.items())
    for start in range(0, len(given), 500):
        part = dict(given[start : start + 500])
        mine = and_(step.c.workflow.in_(set(part.values())), step.c.job.in_(list(part)))
        found |= {row.job: row.name for row in tx.execute(select(step.c.job, step.c.name).where(mine))}
    return found


def read_run(row: Row[Any]) -> Run:
    """Return a row as a value."""
    values = {name: row._mapping[name] for name in RUN_COLUMNS}
    values["stopped_as"] = OccurrenceState(values["stopped_as"]) if values["stopped_as"] else None
    return Run(**values, app=row._mapping.get("app") or values["settings"].get("app") or "")


def read_step(row: Row[Any]) -> RunStep:
    """Return a row as a value."""
    values = {name: row._mapping[name] for name in STEP_COLUMNS}
    values["state"] = StepState(values["state"])
    values["feeds"] = [int(join) for join in values["feeds"].split()]
    return RunStep(**values)
