"""Every attempt has a stuck limit: after it no lease is renewed, the sweep records *stale*, and the retry policy decides."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import update
from tmtest.ledger import add, claim, plan, rows, start

from celery_tm import Task, TimeManagement, defer, workflow
from celery_tm.domain.execution import Outcome
from celery_tm.domain.job import JobState, Status
from celery_tm.domain.retry import Bury, TryAgain
from celery_tm.recovery.reaper import reap
from celery_tm.recovery.sweeper import sweep
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import dead_letters, executions, jobs, tables
from celery_tm.testing import MovableClock
from celery_tm.worker import gate
from celery_tm.worker.context import JobContext
from celery_tm.worker.decision import Call
from celery_tm.worker.lease import LeaseKeeper

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
LIMIT = 15 * MINUTE


def swept(tm: TimeManagement) -> Any:
    return sweep(tm.installation.database, default=tm.installation.default_policy, limit=10)


def renew(tm: TimeManagement, *running: Any) -> Any:
    return tm.installation.database.run(lambda tx: jobs.renew(tx, running, lease=tm.settings.tm_lease)).held


def row(tm: TimeManagement, id: str) -> Any:
    with tm.installation.database.transaction(write=False) as tx:
        return jobs.find(tx, id)


def admitted(tm: TimeManagement, clock: MovableClock, kind: str) -> Any:
    """Return a running attempt that may take `LIMIT`, of a job of each kind."""
    effect = tm.app.tasks["effect"]
    if kind == "direct":
        call = Call(
            id="direct", task="effect", args=[1], kwargs={}, key=None, keep_key=None, max_retries=3, retry=None,
            options={}, limit=LIMIT,
        )  # fmt: skip
        return gate.admit_call(tm.installation, call, worker="worker").job
    if kind == "occurrence":
        add(tm)
        tm.trigger("tick")
    else:
        defer(workflow([effect.s(1), effect.s(2)]) if kind == "step" else effect.s(1), delay="1s", app=tm.app)
        clock.forward("1s")
    if kind == "step":
        dispatcher = Dispatcher(tm.installation, "beat")
        dispatcher.expand(dispatcher.claim(10)[1])
    [id] = claim(tm)
    return gate.admit_job(tm.installation, id, 1, worker="worker", occurring=kind == "occurrence", limit=LIMIT).job


@pytest.mark.parametrize("kind", ["deferred", "direct", "occurrence", "step"])
def test_an_attempt_of_each_kind_is_stale_after_its_limit_and_tried_again(
    tm: TimeManagement, noon: MovableClock, kind: str
) -> None:
    job = admitted(tm, noon, kind)
    assert job.longest == LIMIT
    begun = noon.now
    while noon.now < begun + LIMIT - 20 * SECOND:
        noon.forward(20 * SECOND)
        assert renew(tm, job)
        assert len(swept(tm)) == 0
    noon.move_to(begun + LIMIT)
    assert renew(tm, job), "until the sweep it is still held"
    assert row(tm, job.id).lease_until == begun + LIMIT, "but not for longer"
    found = swept(tm)
    [(_, failure, then)] = found.orphaned
    assert (failure.outcome, failure.error) == (Outcome.STALE, "MaxDurationExceeded: it did not end within 15m")
    assert isinstance(then, TryAgain)
    assert found.stale == 1
    assert renew(tm, job) == {}, "the worker lost its lease"
    after = row(tm, job.id)
    assert (after.state, after.attempt, after.stuck_at, after.last_error) == (JobState.PENDING, 2, None, failure.error)
    with tm.installation.database.transaction(write=False) as tx:
        [record] = executions.of_job(tx, job.id)
    assert (record.outcome, record.attempt, record.worker) == (Outcome.STALE, 1, "worker")


def test_a_worker_that_died_before_the_limit_is_an_orphan_however_late_it_is_swept(
    app: Celery, tm: TimeManagement, noon: MovableClock
) -> None:
    handle = defer(app.tasks["effect"].s(1), delay="1s")
    noon.forward("1s")
    [id] = claim(tm)
    gate.admit_job(tm.installation, id, 1, worker="worker", limit=LIMIT)
    noon.forward(2 * LIMIT)
    assert (len(swept(tm).orphaned), tm.job(handle.id).executions[0].outcome) == (1, Outcome.ORPHANED)


def test_a_row_of_a_release_that_knows_no_limit_is_renewed_as_ever(tm: TimeManagement, noon: MovableClock) -> None:
    job = admitted(tm, noon, "direct")
    with tm.installation.database.transaction() as tx:
        tx.execute(update(tables.job).values(stuck_at=None))
    noon.forward(10 * LIMIT)
    assert renew(tm, job)
    assert row(tm, job.id).lease_until == noon.now + tm.settings.tm_lease
    assert len(swept(tm)) == 0


def test_without_max_duration_the_setting_is_the_limit(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    defer(app.tasks["effect"].s(1), delay="1s")
    noon.forward("1s")
    [id] = claim(tm)
    assert start(tm, id).stuck_at == noon.now + tm.settings.tm_stuck_after


def test_the_last_try_becomes_a_dead_letter_that_says_so(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    handle = defer(app.tasks["effect"].s(1), delay="1s", max_retries=0)
    noon.forward("1s")
    [id] = claim(tm)
    job = gate.admit_job(tm.installation, id, 1, worker="worker", limit=LIMIT).job
    noon.forward(LIMIT)
    renew(tm, job)
    [(_, _, then)] = swept(tm).orphaned
    assert isinstance(then, Bury)
    with tm.installation.database.transaction(write=False) as tx:
        letter = dead_letters.find(tx, handle.id)
    assert letter is not None
    assert letter.reason == "stale: it did not end within 15m; failed 1 time, max_retries=0"
    assert tm.job(handle.id).state == Status.FAILED
    assert tm.dead_letters.revive(handle.id).id == handle.id
    assert row(tm, handle.id).stuck_at is None


def test_an_occurrence_whose_last_attempt_was_stuck_is_stale_and_explained(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, max_retries=0)
    noon.forward("1m")
    plan(tm)
    [id] = claim(tm)
    job = gate.admit_job(tm.installation, id, 1, worker="worker", occurring=True, limit=LIMIT).job
    noon.forward(LIMIT)
    renew(tm, job)
    swept(tm)
    [one] = [row for row in rows(tm) if row.ended_at is not None]
    assert (str(one.state), one.reason) == ("stale", "stale: it did not end within 15m; failed 1 time, max_retries=0")
    told = str(tm.explain("tick", at=one.scheduled_at))
    assert "was given up: it did not end within 15m" in told
    assert "attempt 1 stale after 15m on worker" in told
    assert "MaxDurationExceeded" in told
    assert reap(tm.installation.database, limit=10) == []


def test_callbacks_of_an_attempt_that_ended_in_time_are_published_without_haste(
    app: Celery, tm: TimeManagement, noon: MovableClock
) -> None:
    from celery_tm.store import settlement

    defer(app.tasks["effect"].s(1), delay="1s")
    noon.forward("1s")
    [id] = claim(tm)
    job = gate.admit_job(tm.installation, id, 1, worker="worker", limit=LIMIT).job
    begun = noon.now
    noon.move_to(begun + LIMIT - SECOND)
    renew(tm, job)
    ended = {"result": 1, "attempt": 1}
    tm.installation.database.run(
        lambda tx: settlement.succeed(tx, job, result=None, message=None, keep_key=MINUTE, ended=ended)
    )
    noon.forward("2s")
    assert len(swept(tm)) == 0
    assert renew(tm, job)
    assert row(tm, id).lease_until == noon.now + tm.settings.tm_lease


def test_the_worker_notices_tells_the_body_and_records_it_itself(app: Celery, tm: TimeManagement) -> None:
    seen: list[bool] = []

    @app.task(base=Task, bind=True, name="watches", shared=False, max_duration=0.3, max_retries=1)
    def watches(self: Task) -> str:
        deadline = time.monotonic() + 10
        while not self.job.cancelled and time.monotonic() < deadline:
            time.sleep(0.02)
        seen.append(self.job.cancelled)
        return "stopped"

    handle = defer(watches.s(), delay=0.001)
    time.sleep(0.01)
    assert tm.run_due_jobs().retried == 1
    assert seen == [True]
    [record] = tm.job(handle.id).executions
    assert (record.outcome, record.error) == (Outcome.STALE, "MaxDurationExceeded: it did not end within 300ms")
    assert tm.job(handle.id).attempt == 2


def test_a_body_that_ends_in_time_is_told_nothing(app: Celery, tm: TimeManagement) -> None:
    handle = defer(app.tasks["effect"].s(1), delay=0.001)
    time.sleep(0.01)
    assert tm.run_due_jobs().succeeded == 1
    assert tm.job(handle.id).executions[0].outcome is Outcome.SUCCEEDED


def test_a_keeper_tells_the_body_also_while_its_transaction_keeps_all_others_out(
    tm: TimeManagement, noon: MovableClock
) -> None:
    job = admitted(tm, noon, "direct")
    context, keeper = JobContext(job, tm.installation), LeaseKeeper(tm.installation)
    keeper.hold(context)
    assert not context.cancelled
    context.stuck_from = time.monotonic()
    keeper._stop_stuck()
    assert context.cancelled
    assert not context.lease_lost


def test_doctor_names_what_runs_far_longer_than_usual(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    for _ in range(2):
        defer(app.tasks["effect"].s(1), delay="1s")
    noon.forward("1s")
    assert tm.run_due_jobs(now=noon.now).succeeded == 2
    defer(app.tasks["effect"].s(1), delay="1s")
    noon.forward("1s")
    [slow] = claim(tm)
    start(tm, slow)
    noon.forward("4m")
    assert not [one for one in tm.doctor() if one.check == "long running" and str(one.level) != "ok"]
    noon.forward("2m")
    [finding] = [one for one in tm.doctor() if one.check == "long running"]
    assert finding.text.startswith(f"effect has been running for 6m (job {slow}) and usually takes 0s")
    assert list(finding.objects) == [slow]
