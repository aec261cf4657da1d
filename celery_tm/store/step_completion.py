"""The end of most steps, a success after which others of the same group are still awaited, as one statement.

A run's row is locked for each end of a step. Said one by one, the statements of such an end hold the lock while they travel
to and fro, and a thousand steps at once wait in line for it; here it is held no longer than the database needs. Which join
comes to zero only the locked row tells: if one does, or the lease was lost, nothing is written and `store.settlement` goes
on, one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Executable,
    Integer,
    String,
    Text,
    and_,
    any_,
    bindparam,
    case,
    cast,
    exists,
    func,
    literal,
    literal_column,
    null,
    select,
    type_coerce,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, aggregate_order_by

from ..domain.execution import MAX_MESSAGE, Outcome, cut
from ..domain.facts import Ended
from ..domain.job import Job
from ..domain.workflow import StepState
from . import completion, tables
from .clocks import Clock
from .database import Transaction
from .dialect_base import Dialect
from .prepared import Prepared

job, workflow, step = tables.job, tables.workflow, tables.step
IS_MINE = and_(step.c.workflow == bindparam("run_"), step.c.name == bindparam("step_"))


def may_be_quiet(dialect: Dialect, one: Job, ended: Mapping[str, Any] | None) -> bool:
    """Say whether the success of this attempt is worth trying to write by one statement."""
    return dialect.changes_many and ended is None and one.slot is None and one.is_step


def succeed(tx: Transaction, one: Job, *, result: str | None, message: str | None, keep_key: timedelta) -> bool:
    """Write the success of a step that brings no join to zero. False: it would, or the lease was lost: then nothing is."""
    values = {"job_id": one.id, **completion.claim_of(one), "execution_": one.execution_id}
    values |= {"run_": one.occurrence, "step_": one.step, "result_": result, "message_": cut(message, MAX_MESSAGE)}
    if one.dedupe_key is not None:
        values["keep_key_"] = keep_key
    if not tx.run(_success(keeps_key=one.dedupe_key is not None), **values):
        return False
    tx.tell(Ended(one, Outcome.SUCCEEDED, message))
    return True


@cache
def _success(*, keeps_key: bool) -> Prepared:
    def build(_: Dialect, clock: Clock) -> Executable:
        run = (
            select(workflow.c.id, workflow.c.remaining)
            .where(workflow.c.id == bindparam("run_"))
            .with_for_update()
            .cte("run")
        )
        counted = _counted(run)
        # Asked for before the job is looked at, so the run is locked before the job, as everybody does who changes a run.
        gone = completion.take(and_(job.c.id == bindparam("job_id"), exists(select(counted.c.id))))
        id, result = bindparam("execution_", type_=String), bindparam("result_", type_=Text)
        also = [completion.record(gone, id, bindparam("message_", type_=String), clock)]
        if keeps_key:
            also.append(completion.keep(gone, id, result, clock))
        also += [_ended(gone, result, clock), _saved(gone, counted)]
        return select(gone.c.id).add_cte(*also)

    return Prepared(build, returns=[job.c.id])


def _counted(run: CTE) -> CTE:
    """Return what is left of a run's joins without this step; no row if one of them comes to zero."""
    feeds = cast(func.string_to_array(step.c.feeds, literal_column("' '")), ARRAY(Integer))
    fed = select(feeds.label("joins")).where(IS_MINE, step.c.state == literal_column(f"'{StepState.OWED.value}'")).cte("fed")
    joins = func.json_array_elements_text(cast(type_coerce(run.c.remaining, Text), JSON))
    each = joins.table_valued("count", with_ordinality="place").render_derived(name="each_join")
    is_fed: ColumnElement[bool] = each.c.place - 1 == any_(fed.c.joins)
    left = cast(each.c.count, Integer) - case((is_fed, 1), else_=0)
    remaining = cast(func.json_agg(aggregate_order_by(left, each.c.place)), Text)
    found = select(run.c.id, remaining.label("remaining")).select_from(
        run.join(fed, literal(True)).join(each, literal(True))
    )
    return found.group_by(run.c.id).having(~func.bool_or(and_(is_fed, left == 0))).cte("counted")


def _ended(gone: CTE, result: Any, clock: Clock) -> CTE:
    values = {"state": StepState.SUCCEEDED, "outcome": Outcome.SUCCEEDED.value, "result": result, "ended_at": clock.now}
    values |= {"attempts": gone.c.attempt, "started_at": gone.c.claimed_at, "cancelled_by": null()}
    change = update(step).where(IS_MINE, step.c.workflow == gone.c.occurrence).values(values)
    return change.returning(step.c.name).cte("ended")


def _saved(gone: CTE, counted: CTE) -> CTE:
    change = update(workflow).where(workflow.c.id == counted.c.id, workflow.c.id == gone.c.occurrence)
    return change.values(remaining=counted.c.remaining).returning(workflow.c.id).cte("saved")
