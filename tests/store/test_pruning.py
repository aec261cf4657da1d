"""Old rows go, what is owed stays, by the built-in recurring job, on every database."""

from __future__ import annotations

from datetime import timedelta

import pytest
from celery import Celery
from sqlalchemy import func, select
from tmtest.ledger import NOON, add, plan, rows

from celery_tm import TimeManagement, defer
from celery_tm.recovery.pruner import prune
from celery_tm.scheduler.seeding import PRUNE, Seeder
from celery_tm.store import tables
from celery_tm.testing import MovableClock


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def count(tm: TimeManagement, table: str) -> int:
    with tm.installation.database.transaction(write=False) as tx:
        return int(tx.execute(select(func.count()).select_from(tables.metadata.tables[table])).scalar_one())


def a_past(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    """Leave rows of every kind behind."""
    add(tm, overlap="allow")
    for _ in range(3):
        noon.forward("1m")
        tm.run_due_jobs()
    defer(app.tasks["reports"].s("success"), key="k", concurrency_key="lane")
    defer(app.tasks["fails"].s(1), max_retries=0)
    tm.run_due_jobs()
    tm.definitions.remove("tick")


def test_what_is_older_than_its_retention_goes(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    a_past(tm, app, noon)
    assert count(tm, "tm_execution") == 5
    noon.forward("29d")
    pruned = tm.prune()
    assert (pruned.keys, pruned.lanes, pruned.executions, pruned.logs) == (1, 1, 0, 0)
    noon.forward("2d")
    assert tm.prune().logs == 1
    noon.forward("90d")
    pruned = tm.prune()
    assert (pruned.executions, pruned.occurrences, pruned.audit) == (5, 3, 0)
    noon.forward("365d")
    assert tm.prune().audit > 0
    assert {table: count(tm, table) for table in ("tm_execution", "tm_occurrence", "tm_log", "tm_key", "tm_lane")} == {
        "tm_execution": 0,
        "tm_occurrence": 0,
        "tm_log": 0,
        "tm_key": 0,
        "tm_lane": 0,
    }
    assert count(tm, "tm_dead_letter") == 1


def test_what_is_still_owed_is_never_pruned(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    add(tm, schedule="0 0 * * *", recovery="last")
    job = defer(app.tasks["fails"].s(1), max_retries=5)
    tm.run_due_jobs()
    noon.forward("12h")
    plan(tm)
    owed_before = count(tm, "tm_job")
    noon.forward("400d")
    tm.prune()
    assert count(tm, "tm_job") == owed_before
    assert tm.job(job.id).attempt_count == 1
    assert [str(row.state) for row in rows(tm)] == ["pending"]


def test_pruning_goes_in_small_steps_and_stops_when_its_time_is_over(
    tm: TimeManagement, app: Celery, noon: MovableClock
) -> None:
    a_past(tm, app, noon)
    noon.forward("200d")
    database, settings = tm.installation.database, tm.settings
    assert prune(database, settings, seconds=0).finished is False
    assert count(tm, "tm_execution") == 5
    pruned = prune(database, settings, batch=2)
    assert (pruned.executions, pruned.finished) == (5, True)


def test_a_pruned_ledger_decides_nothing_again(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule="0 */6 * * *", recovery="skip")
    noon.forward("25h")
    plan(tm)
    noon.forward("100d")
    plan(tm)
    tm.prune()
    before = rows(tm)
    plan(tm)
    assert rows(tm) == before
    assert before[0].scheduled_at > NOON + timedelta(days=9)


def test_the_built_in_job_prunes_daily(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    a_past(tm, app, noon)
    app.conf.result_expires = None
    Seeder(tm.installation).seed_once()
    noon.forward("100d")
    while tm.run_due_jobs().succeeded:
        pass
    assert count(tm, "tm_key") == 0
    [run] = tm.history(PRUNE)
    assert str(run.outcome) == "succeeded"
