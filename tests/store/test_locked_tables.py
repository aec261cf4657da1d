"""Beat goes on where somebody else has locked rows or a whole table that it could do without for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import Table, create_engine, func, insert, select, text, update

from celery_tm import TimeManagement, defer
from celery_tm.domain.set_aside import BadRow
from celery_tm.scheduler import Scheduler
from celery_tm.store import occurrences, tables
from celery_tm.worker import gate

ROWS = [f"SELECT * FROM {table} FOR UPDATE" for table in ("tm_node", "tm_mark")]
WHOLE = [
    "LOCK TABLE tm_node IN SHARE MODE",
    "LOCK TABLE tm_node IN ACCESS EXCLUSIVE MODE",
    "LOCK TABLE tm_mark IN SHARE MODE",
    "LOCK TABLE tm_mark IN ACCESS EXCLUSIVE MODE",
]


def done(tm: TimeManagement, id: str) -> bool:
    """Say whether the definition was planned and the job dispatched."""
    with tm.installation.database.transaction(write=False) as tx:
        planned = tx.execute(select(func.count()).select_from(tables.occurrence)).scalar_one()
        state = tx.execute(select(tables.job.c.state).where(tables.job.c.id == id)).scalar()
    return planned > 0 and state == "dispatched"


@pytest.mark.parametrize("begun", [True, False], ids=["a beat that runs", "a beat that starts"])
@pytest.mark.parametrize("lock", [*ROWS, *WHOLE])
def test_beat_plans_and_dispatches_while_others_hold_a_lock(app: Celery, tm: TimeManagement, lock: str, begun: bool) -> None:
    kind = tm.installation.database.dialect.name
    if kind == "sqlite" or (kind == "mysql" and lock in WHOLE):
        pytest.skip("this database has no such locks")
    tm.installation.database.move_to(tm.installation.settings)  # connections of its own, which wait for nobody
    before = Scheduler(app, max_interval=5)
    before.work()  # rows to lock, of a beat that is not signed off
    beat = before if begun else Scheduler(app, max_interval=5)
    beat._seen_at = 0.0
    tm.definitions.add(name="each", task="effect", schedule="every 1s")
    id = defer(app.tasks["effect"].s(1), delay=timedelta(milliseconds=1)).id
    tm.installation.database._knows_apps_until = 0.0
    engine = create_engine(tm.installation.database.url)
    with engine.connect() as other, other.begin():
        other.execute(text(lock)).close()
        deadline = time.monotonic() + 30
        while not done(tm, id):
            assert time.monotonic() < deadline, "nothing was done beside the lock"
            time.sleep(min(beat._work_safely(), 0.2))
    engine.dispose()
    beat.close()


def test_a_definition_whose_earlier_run_somebody_holds_is_planned_as_soon_as_it_is_free(
    app: Celery, tm: TimeManagement
) -> None:
    if tm.installation.database.dialect.name == "sqlite":
        pytest.skip("this database has no such locks")
    tm.installation.database.move_to(tm.installation.settings)
    beat = Scheduler(app, max_interval=5)
    tm.definitions.add(name="each", task="effect", schedule="every 1s", overlap="replace")
    until(beat, lambda: planned(tm) > 0)
    engine = create_engine(tm.installation.database.url)
    with engine.connect() as other, other.begin():
        other.execute(text("SELECT * FROM tm_job FOR UPDATE")).close()
        before = planned(tm)
        until(beat, lambda: bool(tm.installation.skipped("tm_definition")))
    engine.dispose()
    assert tm.installation.set_aside.rows() == [], "there is nothing wrong with it"
    until(beat, lambda: planned(tm) > before)
    beat.close()


LOCKED = {
    "a caller has cancelled a job of one that replaces": ("tm_job", {"overlap": "replace"}),
    "an occurrence of one that replaces": ("tm_occurrence", {"overlap": "replace"}),
    "the concurrency key of one that replaces": ("tm_lane", {"overlap": "replace"}),
    "the run of one that replaces": (
        "tm_workflow",
        {"overlap": "replace", "task": None, "args": None, "steps": [{"name": "one", "task": "effect", "args": [1]}]},
    ),
    "what is planned ahead": ("tm_occurrence", {"plan_ahead": "2m"}),
}


@pytest.mark.parametrize("what", LOCKED)
def test_one_definition_whose_rows_somebody_holds_does_not_stop_the_others(
    app: Celery, tm: TimeManagement, what: str
) -> None:
    if tm.installation.database.dialect.name == "sqlite":
        pytest.skip("this database has no such locks")
    tm.installation.database.move_to(tm.installation.settings)
    beat = Scheduler(app, max_interval=5)
    table, values = LOCKED[what]
    stated = {"task": "effect", "args": [1], "schedule": "every 1s"} | values
    held = tm.definitions.add(name="held", **{name: value for name, value in stated.items() if value is not None})
    until(beat, lambda: bool(decided(tm, held.id)) and count_of(tm, table) > 0)
    free = tm.definitions.add(name="free", task="effect", schedule="every 1s", overlap="allow")
    engine = create_engine(tm.installation.database.url, isolation_level="READ COMMITTED")  # rows, and no gaps between them
    with engine.connect() as other, other.begin():
        other.execute(text(f"SELECT * FROM {table} FOR UPDATE")).all()
        met = tm.installation.database.times_busy
        before, seen = len(decided(tm, held.id)), len(decided(tm, free.id))
        until(beat, lambda: len(decided(tm, free.id)) >= seen + 4)
        instants = decided(tm, free.id)
        assert tm.installation.database.times_busy == met, "nobody waited for the lock"
        assert all(one.decided_at - one.scheduled_at < timedelta(seconds=8) for one in instants), "each in its time"
        assert len(decided(tm, held.id)) == before
    engine.dispose()
    until(beat, lambda: len(decided(tm, held.id)) > before)
    assert tm.installation.set_aside.rows() == [], "there is nothing wrong with it"
    beat.close()


def test_one_definition_that_waits_for_a_lock_in_vain_does_not_stop_the_others(app: Celery, tm: TimeManagement) -> None:
    """A row that no plan foresees, here the key of a job which is replaced, costs one wait, and not all of the planning."""
    if tm.installation.database.dialect.name == "sqlite":
        pytest.skip("this database has no such locks")
    tm.installation.database.move_to(tm.installation.settings)
    beat = Scheduler(app, max_interval=5)
    held = tm.definitions.add(name="held", task="keyed", args=["theirs"], schedule="every 1s", overlap="replace")
    until(beat, lambda: bool(decided(tm, held.id)))
    with tm.installation.database.transaction() as tx:
        tx.execute(update(tables.job).values(dedupe_key="theirs", keep_cancelled=timedelta(hours=1)))
        values = {"task": "keyed", "key": "theirs", "job": "theirs", "execution": "theirs"}
        tx.execute(insert(tables.key).values(**values, done_at=tx.now, kept_until=tx.later(-timedelta(hours=1))))
    free = [tm.definitions.add(name=f"free{n}", task="effect", schedule="every 1s", overlap="allow") for n in range(5)]
    engine = create_engine(tm.installation.database.url)
    with engine.connect() as other, other.begin():
        other.execute(text("SELECT * FROM tm_key FOR UPDATE")).all()
        met = tm.installation.database.times_busy
        until(beat, lambda: tm.installation.database.times_busy > met)
        seen = [len(decided(tm, one.id)) for one in free]
        until(beat, lambda: all(len(decided(tm, one.id)) >= n + 4 for one, n in zip(free, seen, strict=True)))
        late = [one.decided_at - one.scheduled_at for each in free for one in decided(tm, each.id)]
        assert max(late) < timedelta(seconds=8), "each in its time"
    engine.dispose()
    beat.close()


def decided(tm: TimeManagement, definition: str) -> list[Any]:
    """Return the scheduled times of a definition that were decided."""
    with tm.installation.database.transaction(write=False) as tx:
        return [one for one in occurrences.of_definition(tx, definition, limit=1000) if one.decided_at is not None]


def count_of(tm: TimeManagement, table: str) -> int:
    with tm.installation.database.transaction(write=False) as tx:
        return int(tx.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def test_jobs_are_claimed_while_somebody_holds_an_occurrence(app: Celery, tm: TimeManagement) -> None:
    if tm.installation.database.dialect.name == "sqlite":
        pytest.skip("this database has no such locks")
    tm.installation.database.move_to(tm.installation.settings)
    beat = Scheduler(app, max_interval=5)
    beat.work()
    tm.definitions.add(name="each", task="effect", schedule="0 0 1 1 *", overlap="allow")
    held, free = tm.trigger("each").id, tm.trigger("each").id
    engine = create_engine(tm.installation.database.url)
    with engine.connect() as other, other.begin():
        other.execute(text("SELECT id FROM tm_occurrence WHERE id = :id FOR UPDATE"), {"id": held}).close()
        ids = [defer(app.tasks["effect"].s(n), delay=timedelta(milliseconds=1)).id for n in range(3)]
        met = tm.installation.database.times_busy
        until(beat, lambda: all(state_of(tm, tables.job, id) == "dispatched" for id in ids))
        assert tm.installation.database.times_busy == met, "nobody waited for the lock"
        assert (state_of(tm, tables.occurrence, held), state_of(tm, tables.occurrence, free)) == ("pending", "queued")
    engine.dispose()
    job = job_of(tm, held)
    assert gate.admit_job(tm.installation, job, 1, worker="worker:1").job is not None
    assert state_of(tm, tables.occurrence, held) == "running", "it starts as if it had been marked"
    beat.close()


def job_of(tm: TimeManagement, occurrence: str) -> str:
    """Return the job of an occurrence."""
    with tm.installation.database.transaction(write=False) as tx:
        query = select(tables.job.c.id).where(tables.job.c.occurrence == occurrence)
        return str(tx.execute(query).scalar_one())


def state_of(tm: TimeManagement, of: Table, id: str) -> str | None:
    """Return the state of a row."""
    with tm.installation.database.transaction(write=False) as tx:
        return tx.execute(select(of.c.state).where(of.c.id == id)).scalar()


def test_a_definition_that_could_be_planned_again_is_no_longer_set_aside(app: Celery, tm: TimeManagement) -> None:
    added = tm.definitions.add(name="each", task="effect", schedule="every 1s")
    with tm.installation.database.transaction(write=False) as tx:
        id = tx.execute(select(tables.definition.c.id).where(tables.definition.c.name == added.name)).scalar_one()
    tm.installation.set_aside.add(BadRow("tm_definition", id, "once", "each"), now=time.monotonic() - 60)
    beat = Scheduler(app, max_interval=5)
    until(beat, lambda: planned(tm) > 0)
    assert tm.installation.set_aside.rows() == []
    beat.close()


def planned(tm: TimeManagement) -> int:
    """Return how many instants were decided."""
    with tm.installation.database.transaction(write=False) as tx:
        return int(tx.execute(select(func.count()).select_from(tables.occurrence)).scalar_one())


def until(beat: Scheduler, condition: Callable[[], bool]) -> None:
    """Let beat work until something is so."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(min(beat._work_safely(), 0.2))
