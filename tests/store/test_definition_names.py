"""Whatever a definition causes bears its name, on every database: its jobs, their executions and its dead letters."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import select
from tmtest.courier import Courier
from tmtest.ledger import NOON, add, claim, start

from celery_tm import TimeManagement, cancel, defer, defer_many, workflow
from celery_tm.domain.execution import Failure
from celery_tm.recovery.sweeper import sweep
from celery_tm.store import tables
from celery_tm.testing import MovableClock

STEPS = [
    {"name": "a", "task": "effect"},
    [{"name": "b", "task": "effect"}, {"name": "c", "task": "fails", "max_retries": 0}],
]


def names_in(tm: TimeManagement, table: str = "tm_execution") -> list[tuple[str, str | None]]:
    """Return the sources and names that the rows of a table have."""
    found = tables.metadata.tables[table]
    with tm.installation.database.transaction(write=False) as tx:
        return sorted(
            {(row.source, row.definition) for row in tx.execute(select(found.c.source, found.c.definition))}, key=str
        )


def test_planned_triggered_replayed_and_backfilled_jobs(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, overlap="allow")
    noon.forward("1m")
    tm.run_due_jobs()
    [done] = tm.occurrences("tick", state="completed")
    made = [tm.trigger("tick"), tm.replay(done.id)]
    tm.backfill("tick", since=NOON - timedelta(minutes=2), until=NOON)
    assert {job.definition for job in tm.jobs()} == {"tick"}
    assert len(tm.jobs(definition="tick")) == len(made) + 2
    tm.run_due_jobs()
    assert names_in(tm) == [("manual", "tick"), ("recovery", "tick"), ("replay", "tick"), ("scheduled", "tick")]
    assert len(tm.history("tick")) == 5


def test_a_run_its_steps_and_its_hooks(tm: TimeManagement, noon: MovableClock) -> None:
    tm.definitions.add(name="etl", schedule="0 3 * * *", steps=STEPS, on_start="effect", on_complete="effect")
    tm.trigger("etl")
    while tm.run_due_jobs().claimed:
        pass
    assert names_in(tm) == [("manual", "etl")]
    assert sorted(one.task for one in tm.history("etl")) == ["celery_tm.workflow", *["effect"] * 4, "fails"]
    [letter] = tm.dead_letters.list(definition="etl")
    assert (letter.job.definition, tm.job(letter.id).definition) == ("etl", "etl")
    again = tm.dead_letters.revive(letter.id)
    assert again.definition == "etl"
    while tm.run_due_jobs().claimed:
        pass
    assert {name for _, name in names_in(tm)} == {"etl"}


def test_what_no_definition_caused_has_none(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    defer(app.tasks["effect"].s(1))
    defer(workflow(STEPS[:1]), app=app)
    app.tasks["effect"].apply_async((2,))
    courier = Courier(tm)
    for _ in range(4):
        tm.run_due_jobs()
        for message in courier.collect():
            courier.deliver(message)
    assert names_in(tm) == [("deferred", None), ("direct", None)]


def fails(tm: TimeManagement, noon: MovableClock) -> None:
    tm.run_due_jobs()
    noon.forward("2h")
    tm.run_due_jobs()


def orphaned(tm: TimeManagement, noon: MovableClock) -> None:
    [id] = claim(tm)
    start(tm, id)
    noon.forward("10m")
    sweep(tm.installation.database, default=tm.installation.default_policy, limit=10)


def cancelled(tm: TimeManagement, noon: MovableClock) -> None:
    [job] = tm.jobs()
    cancel(id=job.id, app=tm.app)


def interrupted(tm: TimeManagement, noon: MovableClock) -> None:
    from celery_tm.store import settlement

    [id] = claim(tm)
    job = start(tm, id)
    tm.installation.database.run(lambda tx: settlement.hand_back(tx, job, Failure.interrupted("it stops")))


ENDS: dict[str, Any] = {"failed": fails, "orphaned": orphaned, "cancelled": cancelled, "interrupted": interrupted}


@pytest.mark.parametrize("outcome", ENDS)
def test_however_an_attempt_ends(tm: TimeManagement, noon: MovableClock, outcome: str) -> None:
    add(tm, task="fails", schedule="0 0 1 1 *", max_retries=1)
    tm.trigger("tick")
    ENDS[outcome](tm, noon)
    found = tm.history("tick")
    assert outcome in {str(one.outcome) for one in found}
    assert {name for _, name in names_in(tm)} == {"tick"}
    assert len(tm.dead_letters.list(definition="tick")) == (outcome == "failed")


def test_a_success_that_a_worker_records(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule="0 0 1 1 *")
    tm.trigger("tick")
    courier = Courier(tm)
    courier.dispatch()
    [message] = courier.collect()
    courier.deliver(message)
    [one] = tm.history("tick")
    assert (str(one.outcome), one.definition, (one.worker or "").split(":")[0]) == ("succeeded", "tick", "courier@test")


def test_jobs_that_share_a_message_have_none(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    defer_many([app.tasks["effect"].s(n) for n in range(3)], delay="1m")
    noon.forward("1m")
    assert tm.run_due_jobs().succeeded == 3
    assert names_in(tm) == [("deferred", None)]
