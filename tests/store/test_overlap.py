"""What becomes of an instant that comes while an earlier one is in process, by each policy on every database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from tmtest.app import make_app
from tmtest.courier import Courier
from tmtest.ledger import MINUTE, NOON, add, claim, ledger, owed, plan, rows, start

from celery_tm import Task, TimeManagement
from celery_tm.domain.execution import Failure
from celery_tm.recovery.reaper import reap
from celery_tm.testing import MovableClock
from celery_tm.worker import recorder


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def run_into_each_other(tm: TimeManagement, noon: MovableClock, *, instants: int, **values: Any) -> str:
    """Let the first instant run while the others come; return the first one's job."""
    add(tm, **values)
    noon.forward("1m")
    plan(tm)
    [first] = claim(tm)
    start(tm, first)
    for _ in range(instants - 1):
        noon.forward("1m")
        plan(tm)
    return first


def succeed(tm: TimeManagement, id: str) -> None:
    with tm.installation.database.transaction(write=False) as tx:
        from celery_tm.store import jobs

        job = jobs.find(tx, id)
    assert job is not None
    recorder.record_success(tm.installation, job, None)


def test_skip_runs_none_while_one_is_in_process(tm: TimeManagement, noon: MovableClock) -> None:
    first = run_into_each_other(tm, noon, instants=3, overlap="skip")
    assert [state for _, state in ledger(tm)] == ["running", "skipped", "skipped"]
    assert "overlap=skip" in (rows(tm)[-1].reason or "")
    succeed(tm, first)
    noon.forward("1m")
    plan(tm)
    assert ledger(tm)[-1] == (4, "pending")


def test_allow_runs_them_side_by_side(tm: TimeManagement, noon: MovableClock) -> None:
    run_into_each_other(tm, noon, instants=3, overlap="allow")
    assert len(claim(tm)) == 2


def test_queue_runs_them_one_after_the_other_in_order(tm: TimeManagement, noon: MovableClock) -> None:
    id = run_into_each_other(tm, noon, instants=4, overlap="queue")
    order = []
    for _ in range(3):
        assert claim(tm) == []
        succeed(tm, id)
        [id] = claim(tm)
        order.append((start(tm, id).scheduled_at - NOON) / MINUTE)
    succeed(tm, id)
    assert order == [2, 3, 4]
    assert [state for _, state in ledger(tm)] == ["completed"] * 4


def test_queue_one_lets_one_wait(tm: TimeManagement, noon: MovableClock) -> None:
    first = run_into_each_other(tm, noon, instants=4, overlap="queue_one")
    assert [state for _, state in ledger(tm)] == ["running", "pending", "skipped", "skipped"]
    succeed(tm, first)
    [second] = claim(tm)
    assert (start(tm, second).scheduled_at - NOON) / MINUTE == 2


def test_replace_asks_the_running_one_to_stop_and_runs_the_newest(tm: TimeManagement, noon: MovableClock) -> None:
    first = run_into_each_other(tm, noon, instants=3, overlap="replace")
    assert [state for _, state in ledger(tm)] == ["running", "cancelled", "pending"]
    assert claim(tm) == []
    [running] = tm.jobs(state="running")
    assert running.cancel_requested
    recorder.record_cancelled(tm.installation, running, message="replaced")
    [newest] = claim(tm)
    assert (start(tm, newest).scheduled_at - NOON) / MINUTE == 3
    assert ledger(tm)[0] == (1, "cancelled")
    assert first == running.id


def test_a_failure_ends_it_too_and_lets_the_next_go_on(tm: TimeManagement, noon: MovableClock) -> None:
    first = run_into_each_other(tm, noon, instants=2, overlap="queue", max_retries=0)
    [running] = tm.jobs(state="running")
    recorder.record_failure(tm.installation, running, Failure(error="no"))
    assert len(claim(tm)) == 1
    assert first == running.id


def test_a_manual_run_obeys_the_same_rule(tm: TimeManagement, noon: MovableClock) -> None:
    for overlap, expected in (("skip", "skipped"), ("queue", "pending"), ("allow", "pending")):
        run_into_each_other(tm, noon, instants=1, overlap=overlap, name=overlap)
        assert str(tm.trigger(overlap, actor="alice").state) == expected
        assert bool(claim(tm)) == (overlap == "allow")
        tm.disable(overlap)


def test_an_execution_timeout_ends_an_occurrence_as_stale_and_the_next_may_run(
    tm: TimeManagement, noon: MovableClock
) -> None:
    first = run_into_each_other(tm, noon, instants=2, overlap="queue", execution_timeout="10m")
    [running] = tm.jobs(state="running")
    noon.forward("5m")
    assert reap(tm.installation.database, limit=10) == []
    noon.forward("5m")
    [(job, failure, _)] = reap(tm.installation.database, limit=10)
    assert (job.id, str(failure.outcome)) == (first, "timeout")
    assert ledger(tm)[0] == (1, "stale")
    assert "did not end within 10m" in (rows(tm)[0].reason or "")
    with pytest.raises(Exception, match="lost its lease"):
        recorder.record_success(tm.installation, running, None)
    told, following = first, [id for id in claim(tm) if id != first]  # its failure is told, and the next may run
    assert (told, len(following)) == (first, 1)
    [letter] = tm.dead_letters.list()
    tm.dead_letters.revive(letter.id)
    assert ledger(tm)[0] == (1, "pending")


def test_without_a_timeout_an_occurrence_is_stale_after_a_day(tm: TimeManagement, noon: MovableClock) -> None:
    run_into_each_other(tm, noon, instants=1)
    noon.forward("23h")
    assert reap(tm.installation.database, limit=10) == []
    noon.forward("1h")
    assert tm.run_due_jobs(limit=1).swept >= 1
    assert ledger(tm)[0] == (1, "stale")


def test_without_a_timeout_an_occurrence_is_stale_after_the_time_that_the_setting_states(
    database_url: str, noon: MovableClock
) -> None:
    app = make_app({"broker_url": "memory://", "tm_database_url": database_url, "tm_stuck_after": "2h"})
    tm = TimeManagement(app)
    run_into_each_other(tm, noon, instants=1)
    noon.forward("119m")
    assert reap(tm.installation.database, limit=10) == []
    noon.forward("1m")
    [(_, failure, _)] = reap(tm.installation.database, limit=10)
    tm_ledger = ledger(tm)
    tm.installation.database.dispose()
    assert tm_ledger == [(1, "stale")]
    assert failure.error == "ExecutionTimeout: it did not end within 2h"


def test_an_occurrence_that_waits_for_its_next_try_can_be_stale_too(tm: TimeManagement, noon: MovableClock) -> None:
    run_into_each_other(tm, noon, instants=1, execution_timeout="10m", retry={"kind": "fixed", "delay": "1h"})
    [running] = tm.jobs(state="running")
    recorder.record_failure(tm.installation, running, Failure(error="no"))
    noon.forward("10m")
    reap(tm.installation.database, limit=10)
    assert ledger(tm)[0] == (1, "stale")
    assert owed(tm) == []
    assert [letter.reason for letter in tm.dead_letters.list()] == ["stale: it did not end within 10m"]


@pytest.mark.parametrize(
    ("of_attempt", "of_run", "limit"), [("5m", "3m", 3), ("2m", "3m", 2), ("2m", None, 2), (None, "3m", 3)]
)
def test_the_timeouts_travel_with_the_job(
    tm: TimeManagement, noon: MovableClock, of_attempt: str | None, of_run: str | None, limit: int
) -> None:
    add(tm, task_timeout=of_attempt, execution_timeout=of_run)
    noon.forward("1m")
    plan(tm)
    [job] = tm.jobs()
    assert (job.timeout, job.execution_timeout) == (timedelta(minutes=limit), timedelta(minutes=3) if of_run else None)
    courier = Courier(tm)
    assert courier.dispatch() == 1
    [message] = courier.collect()
    assert message.headers["timelimit"] == [limit * 60 + 10, limit * 60], "the hard limit leaves a moment for the soft one"


def test_the_timeout_that_a_task_states_holds_for_its_runs(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    @app.task(base=Task, name="bounded", shared=False, timeout="90s")
    def bounded() -> None: ...

    add(tm, task="bounded", args=[])
    noon.forward("1m")
    plan(tm)
    [job] = tm.jobs()
    assert (job.timeout, job.execution_timeout) == (timedelta(seconds=90), None)


def test_failures_in_a_row_pause_a_definition(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, task="fails", max_retries=0, pause_after=3)
    for _ in range(2):
        noon.forward("1m")
        tm.run_due_jobs()
    assert not tm.definitions.get("tick").paused
    noon.forward("1m")
    tm.run_due_jobs()
    kept = tm.definitions.get("tick")
    assert (kept.paused, kept.version) == (True, 2)
    noon.forward("1m")
    tm.run_due_jobs()
    assert [state for _, state in ledger(tm)] == ["failed", "failed", "failed", "skipped"]
    assert "its last 3 runs have failed" in str(tm.explain("tick"))


def test_a_success_in_between_starts_the_count_anew(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, task="fails", max_retries=0, pause_after=2)
    for task in ("fails", "effect", "fails", "effect"):
        tm.definitions.update("tick", task=task)
        noon.forward("1m")
        tm.run_due_jobs()
    assert not tm.definitions.get("tick").paused
