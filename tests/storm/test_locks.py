"""Nobody waits for a stranger's lock: one row is locked by an open transaction, and everything about other rows goes on.

Of each table one row is locked in turn, and of `tm_job` one in each state. Meanwhile beat ticks, a delivery passes its gate
and ends, leases are renewed, jobs are cancelled, and commands about other rows are answered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import Connection, insert, select, text, update
from tmtest.courier import Courier
from tmtest.ledger import start

from celery_tm import Scheduler, TimeManagement, cancel, defer, workflow
from celery_tm.store import tables
from celery_tm.worker.context import JobContext
from celery_tm.worker.lease import LeaseKeeper

pytestmark = pytest.mark.timeout(240)
BOUND = 30.0  # seconds for all that goes on while one row is locked; a wait for the lock would never end
HOUR = timedelta(hours=1)

# Which row a stranger locks: a table, and the condition that finds the row that `make_theirs` put there.
LOCKS = {
    "a job that is pending": ("tm_job", "id = 'theirs-pending'"),
    "a job that is held": ("tm_job", "id = 'theirs-held'"),
    "a job that is dispatched": ("tm_job", "id = 'theirs-dispatched'"),
    "a job that runs": ("tm_job", "id = 'theirs-running'"),
    "a job that was orphaned": ("tm_job", "id = 'theirs-orphaned'"),
    "a job with callbacks": ("tm_job", "id = 'theirs-ended'"),
    "the job of a run": ("tm_job", "task = 'celery_tm.workflow'"),
    "a run": ("tm_workflow", "1 = 1"),
    "a step": ("tm_step", "1 = 1"),
    "a concurrency key": ("tm_lane", "`key` = 'theirs'"),
    "a definition": ("tm_definition", "name = 'theirs'"),
    "an occurrence": ("tm_occurrence", "id = 'theirs'"),
    "a version": ("tm_version", "1 = 1"),
    "a key": ("tm_key", "`key` = 'theirs'"),
    "an execution": ("tm_execution", "id = 'theirs'"),
    "a reference of a scope": ("tm_scope", "execution = 'theirs'"),
    "a dead letter": ("tm_dead_letter", "id = 'theirs'"),
    "a calendar": ("tm_calendar", "name = 'theirs'"),
    "a node": ("tm_node", "name = 'theirs'"),
    "a mark": ("tm_mark", "name = 'theirs'"),
    "a log line": ("tm_log", "execution = 'theirs'"),
    "an entry of the audit": ("tm_audit", "object = 'theirs'"),
}


@dataclass
class Ours:
    """The rows that nobody else has locked, and what is to become of them."""

    due: str
    unwanted: str
    lane: list[str]
    keeper: LeaseKeeper
    healthy: JobContext


def now() -> datetime:
    return datetime.now(UTC)


def put(connection: Connection, job: str, **values: Any) -> None:
    """Bring a job into a state, under another id if it says so."""
    connection.execute(update(tables.job).where(tables.job.c.id == job).values(**values))


def make_theirs(tm: TimeManagement, app: Celery) -> None:
    """Put one row into every table, and a job into every state."""
    states: dict[str, dict[str, Any]] = {
        "theirs-pending": {"run_at": now() - HOUR},
        "theirs-held": {"run_at": now() - HOUR, "slot": "held", "concurrency_key": "theirs", "concurrency": 1},
        "theirs-dispatched": {"state": "dispatched", "lease_until": now() - HOUR, "dispatches": 1},
        "theirs-orphaned": {
            "state": "running",
            "lease_until": now() - HOUR,
            "claimed_by": "gone",
            "claimed_at": now() - HOUR,
        },
        "theirs-ended": {"state": "running", "lease_until": now() - HOUR, "claimed_by": "gone", "ended": {"result": 1}},
        "theirs-running": {"state": "dispatched", "lease_until": now() + HOUR, "dispatches": 1},
    }
    made = {id: defer(app.tasks["effect"].s(id), delay=600, app=app).id for id in states}
    tm.definitions.add(name="theirs", task="effect", args=[1], schedule="* * * * *")
    defer(workflow([app.tasks["effect"].s(1), app.tasks["effect"].s(2)]), app=app)
    Scheduler(app).work()  # the run begins
    with tm.installation.database.engine.begin() as connection:
        for id, values in states.items():
            put(connection, made[id], id=id, **values)
        _fill(connection)
        connection.execute(
            update(tables.definition).where(tables.definition.c.name == "theirs").values(next_run_at=now() - HOUR)
        )


def _fill(connection: Connection) -> None:
    """Put a row into the tables that have none."""
    at = now()
    rows: dict[Any, dict[str, Any]] = {
        tables.lane: {"key": "theirs"},
        tables.node: {"name": "theirs", "kind": "worker", "started_at": at, "seen_at": at, "version": "0"},
        tables.mark: {"name": "theirs", "value": "1", "at": at},
        tables.log: {"execution": "theirs", "at": at, "level": "info", "message": "theirs"},
        tables.audit: {"at": at, "actor": "theirs", "action": "cancel", "object": "theirs"},
        tables.key: {
            "task": "effect", "key": "theirs", "job": "theirs", "execution": "theirs", "done_at": at,
            "kept_until": at + HOUR,
        },
        tables.scope: {"name": "tenant_id", "value": "7", "completed_at": at, "execution": "theirs"},
        tables.execution: {
            "id": "theirs", "job": "theirs", "task": "effect", "source": "deferred", "attempt": 1, "completed_at": at,
            "started_at": at, "outcome": "succeeded",
        },
        tables.occurrence: {
            "id": "theirs", "definition": "gone", "version": 1, "scheduled_at": at - HOUR, "state": "running",
            "is_recovery": False, "started_at": at - HOUR, "deadline_at": at - HOUR / 2,
        },
        tables.calendar: {"name": "theirs", "entries": [], "updated_at": at},
    }  # fmt: skip
    for table, row in rows.items():
        connection.execute(insert(table).values(**row))
    one = connection.execute(select(tables.job).limit(1)).mappings().one()
    letter = dict(one) | {"id": "theirs", "dedupe_key": None, "reason": "theirs", "traceback": None, "buried_at": at}
    connection.execute(insert(tables.dead_letter).values(**letter))


def make_ours(tm: TimeManagement, app: Celery) -> Ours:
    """Make what goes on while a row of the others is locked."""
    effect = app.tasks["effect"]
    due, unwanted, running = (defer(effect.s(name), delay=600, app=app).id for name in ("due", "no", "run"))
    lane = [defer(effect.s(n), delay=600, concurrency_key="ours", app=app).id for n in range(2)]
    tm.definitions.add(name="ours", task="effect", args=["ours"], schedule="* * * * *")
    with tm.installation.database.engine.begin() as connection:
        for id in (due, *lane):
            put(connection, id, run_at=now() - timedelta(seconds=5))
        put(connection, running, state="dispatched", lease_until=now() + HOUR, dispatches=1)
        due_at = {"next_run_at": now() - timedelta(minutes=1), "planned_until": now() - timedelta(minutes=3)}
        connection.execute(update(tables.definition).where(tables.definition.c.name == "ours").values(**due_at))
    keeper = LeaseKeeper(tm.installation)
    healthy, theirs = (JobContext(start(tm, id), tm.installation) for id in (running, "theirs-running"))
    keeper._running = {(each.id, each.attempt): each for each in (theirs, healthy)}  # renewed by hand
    return Ours(due, unwanted, lane, keeper, healthy)


@contextmanager
def locked(tm: TimeManagement, table: str, where: str) -> Iterator[None]:
    """Be the stranger: lock a row, and do nothing more."""
    engine = tm.installation.database.engine
    quote = '"' if engine.dialect.name == "postgresql" else "`"
    with engine.connect() as connection:
        # All columns: a scan of an index that has all that is asked for keeps rows locked, on MySQL, that do not fit.
        query = text(f"SELECT * FROM {table} WHERE {where.replace('`', quote)} LIMIT 1 FOR UPDATE")
        assert connection.execute(query).all(), f"there is no such row in {table}"
        try:
            yield
        finally:
            connection.rollback()


def within(seconds: float, *acts: Callable[[], Any]) -> list[str]:
    """Do these one after the other; return which of them failed, or was still at it when the time was over."""
    done: list[str] = []
    failed: list[str] = []

    def go() -> None:
        for act in acts:
            done.append(act.__name__)
            try:
                act()
            except Exception as error:
                failed.append(f"{act.__name__}: {type(error).__name__}: {error}")
        done.append("")

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    thread.join(seconds)
    return [*failed, f"{done[-1]} still waits after {seconds} s"] if thread.is_alive() else failed


@pytest.mark.parametrize("database_url", ["postgresql", "mysql"], indirect=True)
@pytest.mark.parametrize("what", LOCKS)
def test_other_rows_go_on_while_a_stranger_has_locked(what: str, app: Celery, tm: TimeManagement) -> None:
    make_theirs(tm, app)
    ours = make_ours(tm, app)
    scheduler, courier = Scheduler(app), Courier(tm)
    before = lease_of(tm, ours.healthy.id)
    time.sleep(0.05)

    def beat_ticks() -> None:
        for _ in range(3):
            scheduler.work()
        assert outcome(tm, ours.due) in ("dispatched", "running"), f"the due job is {outcome(tm, ours.due)}"
        assert outcome(tm, ours.lane[0]) == "dispatched", f"the one with a concurrency key is {outcome(tm, ours.lane[0])}"
        assert tm.occurrences("ours"), "the definition was not planned"

    def worker_runs() -> None:
        for message in courier.collect():
            if message.headers["id"] in (ours.due, *ours.lane):
                courier.deliver(message)
        assert outcome(tm, ours.due) == "succeeded", f"the due job is {outcome(tm, ours.due)}"
        scheduler.work()
        for message in courier.collect():
            if message.headers["id"] in ours.lane:
                courier.deliver(message)
        assert [outcome(tm, id) for id in ours.lane] == ["succeeded"] * 2

    def lease_is_renewed() -> None:
        ours.keeper.renew_all()
        assert lease_of(tm, ours.healthy.id) > before, "the lease of a healthy neighbour was not renewed"

    def caller_cancels() -> None:
        assert cancel(id=ours.unwanted, app=app)

    def caller_defers() -> None:
        defer(app.tasks["keyed"].s("ours"), app=app)
        defer(app.tasks["effect"].s("more"), concurrency_key="ours", delay=60, app=app)

    def operator_asks() -> None:
        tm.status()
        tm.doctor()
        tm.jobs()
        tm.history()
        tm.explain("ours")

    def operator_acts() -> None:
        tm.pause("ours")
        tm.resume("ours")
        tm.trigger("ours")
        tm.definitions.update("ours", args=["later"])
        tm.disable("ours")

    acts = (beat_ticks, lease_is_renewed, worker_runs, caller_cancels, caller_defers, operator_asks, operator_acts)
    with locked(tm, *LOCKS[what]):
        trouble = within(BOUND, *acts)
    scheduler.close()
    assert not trouble, "\n".join(trouble)


def outcome(tm: TimeManagement, id: str) -> str:
    """Return the state of a job's row, or how it ended."""
    with tm.installation.database.engine.connect() as connection:
        state = connection.execute(select(tables.job.c.state).where(tables.job.c.id == id)).scalar()
        ended = connection.execute(select(tables.execution.c.outcome).where(tables.execution.c.job == id)).scalar()
    return str(state or ended)


def lease_of(tm: TimeManagement, id: str) -> datetime:
    with tm.installation.database.engine.connect() as connection:
        found: datetime = connection.execute(select(tables.job.c.lease_until).where(tables.job.c.id == id)).scalar_one()
        return found


def test_every_table_has_a_row_that_is_locked() -> None:
    assert {table for table, _ in LOCKS.values()} == {table.name for table in tables.metadata.sorted_tables}
