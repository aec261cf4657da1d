"""However many rows cannot be read or planned, the sound ones behind them are reached."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import Table, func, insert, select, update

from celery_tm import Scheduler, TimeManagement, defer, events
from celery_tm.domain import set_aside
from celery_tm.domain.ids import new_id
from celery_tm.recovery.sweeper import sweep
from celery_tm.store import exclusions, tables

MANY, REPORTED = 1600, 50
SOON = timedelta(milliseconds=1)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What is reported of rows that are set aside, of fewer than in life."""
    monkeypatch.setattr(set_aside, "REPORTED", REPORTED)
    found: list[Any] = []
    events.row_set_aside.connect(receiver := (lambda **values: found.append(values["row"])))
    yield found
    events.row_set_aside.disconnect(receiver)


def copy(tm: TimeManagement, of: Table, count: int = MANY, **values: Any) -> None:
    """Copy the only row of a table many times, and delete it."""
    with tm.installation.database.transaction() as tx:
        row = dict(tx.execute(select(of)).mappings().one()) | values
        tx.execute(of.delete())
        names = {"name"} & {*row}
        rows = [row | {"id": new_id()} | dict.fromkeys(names, f"bad {n}") for n in range(count)]
        for start in range(0, count, 400):
            tx.execute(insert(of), rows[start : start + 400])


def work_until(beat: Scheduler, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline, "what is sound was not reached"
        time.sleep(min(beat.work(), 0.05))


def state_of(tm: TimeManagement, id: str) -> str | None:
    with tm.installation.database.transaction(write=False) as tx:
        return tx.execute(select(tables.job.c.state).where(tables.job.c.id == id)).scalar()


@pytest.mark.parametrize("key", [None, "k"], ids=["alone", "by turns"])
def test_sound_jobs_behind_many_bad_ones_are_dispatched(
    app: Celery, tm: TimeManagement, heard: list[Any], key: str | None
) -> None:
    beat = Scheduler(app, max_interval=5)
    beat.work()
    defer(app.tasks["effect"].s(1), delay=SOON, concurrency_key=key)
    copy(tm, tables.job, source="moon")
    sound = [defer(app.tasks["effect"].s(2), delay=SOON, concurrency_key=each).id for each in (None, "sound")]
    work_until(beat, lambda: all(state_of(tm, id) == "dispatched" for id in sound))
    assert len(heard) == REPORTED
    assert len(tm.installation.skipped("tm_job")) == MANY
    assert beat.work() > 0, "and beat has nothing more to do"
    beat.close()


def test_lost_messages_behind_many_bad_ones_are_sent_again(
    app: Celery, tm: TimeManagement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exclusions, "FEW", 10)
    monkeypatch.setattr(set_aside, "FIRST_PAUSE", 60.0)
    defer(app.tasks["effect"].s(1), delay=SOON)
    with tm.installation.database.transaction(write=False) as tx:
        ago = tx.read_now() - timedelta(hours=1)
    sent = {"state": "dispatched", "dispatches": 1, "lease_until": ago, "claimed_at": ago}
    copy(tm, tables.job, 40, source="moon", **sent)
    lost = defer(app.tasks["effect"].s(2), delay=SOON).id
    with tm.installation.database.transaction() as tx:
        late = sent | {"lease_until": tx.later(-SOON)}
        tx.execute(update(tables.job).where(tables.job.c.id == lost).values(late))
    installation, found = tm.installation, []
    for _ in range(100):  # each pass takes a fifth of a second at most
        swept = sweep(installation.database, default=installation.default_policy, limit=10, aside=installation)
        found += [job.id for job in swept.redispatched]
        if found:
            break
    assert found == [lost]


def test_sound_definitions_behind_many_bad_ones_are_planned(app: Celery, tm: TimeManagement, heard: list[Any]) -> None:
    beat = Scheduler(app, max_interval=5)
    beat.seeder.seed_some = lambda: None  # type: ignore[method-assign]
    tm.definitions.add(name="bad", task="effect", schedule="0 0 1 1 *")
    with tm.installation.database.transaction(write=False) as tx:
        ago = tx.read_now() - timedelta(hours=1)
    copy(tm, tables.definition, overlap="moon", next_run_at=ago)
    tm.definitions.add(name="sound", task="effect", schedule="every 1s")
    work_until(beat, lambda: planned(tm) > 0)
    assert len(heard) == REPORTED
    beat.close()


def planned(tm: TimeManagement) -> int:
    with tm.installation.database.transaction(write=False) as tx:
        return int(tx.execute(select(func.count()).select_from(tables.occurrence)).scalar_one())
