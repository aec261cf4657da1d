"""Breaks celery_tm in a stated way, to see that a run would notice: TM_CHAOS_SABOTAGE=no-fencing and the like.

Only the processes of a run are broken, and only in memory. Each way takes one guard away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sqlalchemy import bindparam, delete, true

from celery_tm import clock
from celery_tm.producer import cancelling, inserting, writing
from celery_tm.store import admission, completion, overdue, tables
from celery_tm.store.clocks import GivenClock
from celery_tm.store.dialects import PostgreSQL

VARIABLE = "TM_CHAOS_SABOTAGE"


def _no_fencing() -> None:
    """Let whoever finished an attempt take the row of a later one."""
    job = tables.job

    def take(chosen: Any) -> Any:
        held = delete(job).where(chosen, job.c.attempt >= bindparam("attempt_"))
        return held.returning(*completion.COPIED.values(), job.c.dedupe_key, job.c.keep_key).cte("gone")

    completion.take = take


def _no_gate() -> None:
    """Let every delivery in whose job is still owed."""
    admission._may_start = lambda _: true()


def _no_sweep() -> None:
    """Forget what a dead worker was at."""
    overdue.lock = lambda *_, **__: []


def _own_transaction() -> None:
    """Write what a caller defers in its transaction apart from it."""
    alone = partial(_without_session, writing.write)
    inserting.write = cancelling.write = alone


def _without_session(write: Callable[..., Any], installation: Any, _: Any, work: Any, **options: Any) -> Any:
    return write(installation, None, work, **options)


def _own_clock() -> None:
    """Go by the machine's clock instead of the database's."""
    PostgreSQL.clock = GivenClock
    PostgreSQL.now = lambda _: clock.now()
    PostgreSQL.later = lambda _, delay: clock.now() + delay


WAYS: dict[str, Callable[[], None]] = {
    "no-fencing": _no_fencing,
    "no-gate": _no_gate,
    "no-sweep": _no_sweep,
    "own-transaction": _own_transaction,
    "own-clock": _own_clock,
}


def break_as_told(environ: Mapping[str, str]) -> None:
    """Break what the environment names, if it names anything."""
    name = environ.get(VARIABLE)
    if name:
        WAYS[name]()
