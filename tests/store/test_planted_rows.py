"""One row that cannot be read stops nobody: garbage in every column that is read as something, in every table.

What is planted follows from the tables: each column that holds JSON, a word of a fixed set, a reference, a duration or text
that is parsed gets a row of its own with garbage in it, older than everything else, so that it is first in line. Then a
beat, a gate and a pruner do their work, and everything that is sound is done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import Integer, SmallInteger, String, Table, column, delete, func, insert, select, table, update
from sqlalchemy.types import Text, TypeDecorator

from celery_tm import TimeManagement, defer, workflow
from celery_tm.domain.ids import new_id
from celery_tm.recovery.pruner import prune
from celery_tm.scheduler import Scheduler
from celery_tm.store import tables
from celery_tm.store.types import Duration, Instant, Json, LongText
from celery_tm.worker import gate, recorder

PAST = timedelta(hours=1)
NOT_JSON, OTHER_SHAPES = "{no json", ('"text"', "[1]", "7")
TOO_DEEP, LARGEST = "[" * 100_000, 2**31 - 1
NO_INSTANTS = {"postgresql": ("-infinity", "infinity", "0044-03-15 12:00:00+00 BC"), "sqlite": ("!", "~"), "mysql": ()}
TABLES = sorted(table.name for table in tables.metadata.sorted_tables)
# A job's row is read by others in each state: (state, slot, whether its lease has ended).
STATES: Mapping[str, Mapping[str, Any]] = {
    "due": {"state": "pending", "slot": None},
    "due in a lane": {"state": "pending", "slot": "open", "concurrency_key": "planted", "concurrency": 1},
    "held": {"state": "pending", "slot": "held", "concurrency_key": "planted", "concurrency": 1},
    "dispatched": {"state": "dispatched", "dispatches": 1},
    "running": {"state": "running", "claimed_by": "gone:1"},
    "step": {"state": "running", "claimed_by": "gone:1", "step": "first"},
    "ended": {"state": "running", "claimed_by": "gone:1", "ended": '{"result": 1}'},
}


def garbage_for(col: Any, dialect: str) -> Iterator[Any]:
    """Yield what a column can hold and nobody can read."""
    kind = col.type
    if isinstance(kind, Instant):
        yield from NO_INSTANTS[dialect]
    elif isinstance(kind, Integer):
        yield 2**15 - 1 if isinstance(kind, SmallInteger) else LARGEST
    elif isinstance(kind, Json):
        yield NOT_JSON
        yield TOO_DEEP
        yield from OTHER_SHAPES
    elif isinstance(kind, Duration):
        yield 1e300
    elif isinstance(kind, LongText | Text):
        yield NOT_JSON
    elif isinstance(kind, String) and not isinstance(kind, TypeDecorator):
        yield f"~{new_id()[::-1]}"[: kind.length]


def bare(of: Table) -> Any:
    """Return a table whose columns take and give what the driver does."""
    return table(of.name, *(column(c.name) for c in of.columns))


def template(tm: TimeManagement, of: Table) -> dict[str, Any]:
    """Return a row of a table as the driver has it."""
    plain = bare(of)
    with tm.installation.database.transaction(write=False) as tx:
        row = tx.execute(select(plain).limit(1)).mappings().first()
    assert row is not None, f"{of.name} is empty"
    return dict(row)


def plant(tm: TimeManagement, of: Table) -> int:
    """Plant a row for each column of a table and each garbage that it can hold; return how many."""
    sound, rows = template(tm, of), []
    for values in variants(tm, of, sound):
        for col in of.columns:
            for garbage in garbage_for(col, tm.installation.database.dialect.name):
                row = values | fresh_key(of, col.name)
                if col.name not in {key.name for key in of.primary_key} and row.get(col.name) != garbage:
                    rows.append(without_auto(of, row | {col.name: garbage}))
    with tm.installation.database.transaction() as tx:
        for row in rows:
            tx.execute(insert(bare(of)).values(row))
    return len(rows)


def variants(tm: TimeManagement, of: Table, sound: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield sound rows of a table to spoil: of jobs one in each state, and each first in line."""
    long_ago = raw_time(tm, -PAST)
    if of.name == "tm_job":
        run = template(tm, tables.workflow)["id"]
        for state in STATES.values():
            leased = state["state"] != "pending"
            yield sound | {
                "run_at": long_ago, "lease_until": long_ago if leased else None, "claimed_at": long_ago if leased else None,
                "slot": None, "concurrency_key": None, "occurrence": run if "step" in state else None, "ended": None,
                "dedupe_key": None, **state,
            }  # fmt: skip
    elif of.name == "tm_definition":
        yield sound | {"next_run_at": long_ago, "planned_until": long_ago}
    elif of.name == "tm_occurrence":
        yield sound | {"state": "running", "started_at": long_ago, "deadline_at": long_ago, "ended_at": None}
        yield sound | {"state": "completed", "scheduled_at": raw_time(tm, -timedelta(days=1000)), "ended_at": long_ago}
    elif of.name in ("tm_execution", "tm_log", "tm_audit", "tm_key", "tm_workflow"):
        instants = {c.name: raw_time(tm, -timedelta(days=1000)) for c in of.columns if c.name in AGES}
        yield sound | instants
        yield sound
    else:
        yield sound


AGES = frozenset({"completed_at", "at", "kept_until", "created_at"})


def fresh_key(of: Table, spoiled: str) -> dict[str, Any]:
    """Return a primary key, and whatever else is unique, that no other row has."""
    made: dict[str, Any] = {}
    for key in of.primary_key:
        if key.autoincrement is True:
            continue
        made[key.name] = new_id() if isinstance(key.type, String) else time.monotonic_ns() % 1_000_000
        if isinstance(key.type, String) and key.type.length and key.type.length < len(made[key.name]):
            made[key.name] = made[key.name][: key.type.length]
    if of.name == "tm_definition":
        made["name"] = f"planted {spoiled} {new_id()[-8:]}"
    return made


def raw_time(tm: TimeManagement, offset: timedelta) -> Any:
    instant = datetime.now(UTC) + offset
    dialect = tm.installation.database.dialect.name
    if dialect == "postgresql":
        return instant
    return instant.replace(tzinfo=None) if dialect == "mysql" else instant.replace(tzinfo=None).isoformat(" ")


def without_auto(of: Table, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without the number that the database gives it."""
    return {name: value for name, value in row.items() if of.c[name].autoincrement is not True}


@pytest.fixture
def world(app: Celery, tm: TimeManagement) -> Iterator[TimeManagement]:
    """A row of everything, made by using everything."""
    app.conf.beat_schedule = {"seeded": {"task": "effect", "schedule": 3600}}
    tm.calendars.set("holidays", ["2026-12-24"])
    tm.definitions.add(name="sound", task="effect", schedule="every 1s", recovery="last", calendars=["holidays"])
    tm.definitions.add(name="steps", steps=[{"name": "first", "task": "effect"}], schedule="every 1h")
    tm.trigger("steps")
    defer(
        app.tasks["effect"].s(1), delay=timedelta(milliseconds=1), key="kept", concurrency_key="lane", scope={"tenant_id": 7}
    )
    defer(app.tasks["fails"].s(1), delay=timedelta(milliseconds=1), max_retries=0)
    defer(app.tasks["reports"].s("success"), delay=timedelta(milliseconds=1))
    time.sleep(0.02)
    tm.run_due_jobs()
    beat = Scheduler(app, max_interval=5)
    beat.work()
    beat.close()
    with tm.installation.database.transaction() as tx:
        tx.execute(insert(tables.node).values(
            name="node", kind="beat", started_at=tx.now, seen_at=tx.now, version="1"
        ))  # fmt: skip
        tx.execute(insert(tables.mark).values(name="mark", value="1", at=tx.now))
        tx.execute(delete(tables.job))
    defer(app.tasks["effect"].s(1), delay=timedelta(days=1))
    yield tm
    tm.installation.database.dispose()


def fresh_work(app: Celery, tm: TimeManagement) -> dict[str, str]:
    """Defer, start and forget sound work of every kind; return its ids."""
    database, soon = tm.installation.database, timedelta(milliseconds=1)
    task = app.tasks["effect"]
    made = {
        "due": defer(task.s(1), delay=soon).id,
        "in a lane": defer(task.s(2), delay=soon, concurrency_key="sound").id,
        "a run": defer(workflow([{"name": "one", "task": "effect"}]), delay=soon, app=app).id,
        "lost": defer(task.s(3), delay=soon).id,
        "vanished": defer(task.s(4), delay=soon).id,
        "stale": tm.trigger("sound").id,
        "old": new_id(),
    }
    job, occurrence = tables.job, tables.occurrence
    with database.transaction() as tx:
        ago = tx.later(-timedelta(minutes=1))
        lost = {"state": "dispatched", "dispatches": 1, "lease_until": ago, "claimed_at": ago}
        tx.execute(update(job).where(job.c.id == made["lost"]).values(lost))
        gone = {"state": "running", "claimed_by": "gone:1", "lease_until": ago, "claimed_at": ago}
        tx.execute(update(job).where(job.c.id == made["vanished"]).values(gone))
        begun = {"state": "running", "started_at": ago, "deadline_at": ago}
        tx.execute(update(occurrence).where(occurrence.c.id == made["stale"]).values(begun))
        tx.execute(update(job).where(job.c.occurrence == made["stale"]).values(gone | {"lease_until": tx.later(PAST)}))
        old = {"id": made["old"], "job": new_id(), "task": "effect", "source": "deferred", "attempt": 1,
               "completed_at": tx.later(-timedelta(days=999)), "outcome": "succeeded"}  # fmt: skip
        tx.execute(insert(tables.execution).values(old))
    return made


def undone(tm: TimeManagement, made: Mapping[str, str], planned_from: int) -> set[str]:
    """Return what of the sound work has not been done yet."""
    job, occurrence, definition = tables.job, tables.occurrence, tables.definition
    with tm.installation.database.transaction(write=False) as tx:
        rows = {row.id: row for row in tx.execute(select(job.c.id, job.c.state, job.c.attempt, job.c.dispatches))}
        stale = tx.execute(select(occurrence.c.state).where(occurrence.c.id == made["stale"])).scalar()
        run = tx.execute(select(tables.workflow.c.id).where(tables.workflow.c.id == made["a run"])).scalar()
        sound = tx.execute(select(definition.c.id).where(definition.c.name == "sound")).scalar()
        planned = select(func.count()).select_from(occurrence).where(occurrence.c.definition == sound)
        count = tx.execute(planned).scalar_one()
        seeded = tx.execute(select(definition.c.id).where(definition.c.name == "seeded")).scalar()
    left = {name for name in ("due", "in a lane") if rows[made[name]].state != "dispatched"}
    left |= {"lost"} if rows[made["lost"]].dispatches < 2 else set()
    left |= {"vanished"} if rows[made["vanished"]].attempt < 2 else set()
    left |= {"stale"} if stale != "stale" else set()
    left |= {"a run"} if run is None else set()
    left |= {"planning"} if count <= planned_from else set()
    return left | ({"seeding"} if seeded is None else set())


@pytest.mark.parametrize("name", TABLES)
def test_everything_goes_on_beside_rows_that_cannot_be_read(app: Celery, world: TimeManagement, name: str) -> None:
    tm, of = world, tables.metadata.tables[name]
    assert plant(tm, of) > 0 or name in ("tm_lane", "tm_scope")
    made = fresh_work(app, tm)
    definition = tm.definitions.get("sound").id
    with tm.installation.database.transaction(write=False) as tx:
        mine = tables.occurrence.c.definition == definition
        planned = tx.execute(select(func.count()).select_from(tables.occurrence).where(mine)).scalar_one()
    beat, deadline = Scheduler(app, max_interval=5), time.monotonic() + 60
    left = {"everything"}
    while left and time.monotonic() < deadline:
        beat.work()
        left = undone(tm, made, planned)
        time.sleep(0.02)
    assert not left, f"beside rows of {name} that cannot be read, these were not done"
    admitted = gate.admit_job(tm.installation, made["due"], 1, worker="worker:1").job
    assert admitted is not None
    recorder.record_success(tm.installation, admitted, 1)
    prune(tm.installation.database, replace(tm.settings, tm_keep_last=1))
    with tm.installation.database.transaction(write=False) as tx:
        assert tx.execute(select(tables.execution.c.id).where(tables.execution.c.id == made["old"])).first() is None
    tm.run_due_jobs()
    beat.close()
