"""Plain Celery tasks, which have no gate and report nothing: sent once, settled, seen in the ledger, on every database."""

from __future__ import annotations

import pytest
from celery import Celery
from tmtest.ledger import NOON, add, claim, ledger, owed, rows

from celery_tm import Scheduler, TimeManagement, clock, defer
from celery_tm.recovery.sweeper import sweep
from celery_tm.testing import MovableClock


@pytest.fixture
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def test_beat_sends_it_once_and_settles_it(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    add(tm, task="plain")
    scheduler = Scheduler(app)
    noon.forward("1m")
    scheduler.work()
    assert [state for _, state in ledger(tm)] == ["completed"]
    assert "no celery_tm.Task" in (rows(tm)[0].reason or "")
    assert owed(tm) == []
    [record] = tm.history("tick")
    assert "handed to the broker" in (record.message or "")
    noon.forward("1m")
    scheduler.work()
    assert [state for _, state in ledger(tm)] == ["completed", "completed"], "overlap=skip is not held up by it"
    assert "handed to the broker" in str(tm.explain("tick", at=NOON + clock.parse_duration("1m", field="x")))


def test_a_beat_that_dies_before_it_settled_sends_it_again(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    scheduler = Scheduler(app)
    add(tm, task="plain")
    noon.forward("1m")
    scheduler.planner.plan_due()
    [id] = claim(tm)  # and dies
    noon.forward(tm.settings.tm_dispatch_lease)
    sweep(tm.installation.database, default=tm.installation.default_policy, limit=10)
    assert claim(tm) == [id]


def test_defer_sends_it_at_once_and_settles_it(tm: TimeManagement, app: Celery) -> None:
    handle = defer(app.tasks["plain"].s(1))
    assert owed(tm) == []
    assert handle.state == "SUCCEEDED"


def test_run_due_jobs_runs_it_between_our_own_gate_and_record(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    add(tm, task="plain")
    add(tm, name="broken", task="plain_fails", max_retries=0)

    @app.task(name="plain_fails", shared=False)
    def plain_fails(n: int) -> None:
        raise ValueError(n)

    noon.forward("1m")
    done = tm.run_due_jobs()
    assert (done.succeeded, done.failed) == (1, 1)
    assert (ledger(tm), ledger(tm, "broken")) == ([(1, "completed")], [(1, "failed")])
    assert owed(tm) == []
    assert tm.history("broken")[0].error == "ValueError: 1"
