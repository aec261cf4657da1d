"""How long a key is kept is a policy per task and outcome, on every database."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from tmtest.courier import Courier
from tmtest.ledger import MINUTE, NOON, add

from celery_tm import Task, TimeManagement, cancel, defer, defer_many, workflow
from celery_tm.errors import DuplicateKey, InvalidValue
from celery_tm.testing import MovableClock
from celery_tm.worker import gate, recorder
from celery_tm.worker.decision import Call

POLICY = {"succeeded": "31d", "failed": "7d", "cancelled": "1d"}


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


@pytest.fixture(autouse=True)
def tasks(app: Celery) -> None:
    @app.task(base=Task, name="bill", shared=False, keep_key=POLICY, max_retries=0)
    def bill(n: int = 0) -> int:
        if n < 0:
            raise ValueError("no money")
        return n


def key_of(app: Celery, n: int, **more: Any) -> Any:
    return defer(app.tasks["bill"].s(n), key="k", delay="1s", **more)


def test_the_key_of_a_failed_job_is_kept_by_policy(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    first = key_of(app, -1)
    noon.forward("2s")
    tm.run_due_jobs()
    assert first.state == "FAILED"
    for many in (False, True):
        [again] = defer_many([(app.tasks["bill"].s(1), {"key": "k"})]) if many else [key_of(app, 1)]
        assert (again.id, again.created, again.state) == (first.id, False, "FAILED")
    with pytest.raises(DuplicateKey):
        key_of(app, 1, on_duplicate="raise")
    noon.forward("8d")
    assert key_of(app, 1).created, "seven days are over"


def test_the_key_of_a_cancelled_job_is_kept_by_policy(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    first = key_of(app, 1)
    assert cancel(key="k", task=app.tasks["bill"])
    again = key_of(app, 1)
    assert (again.id, again.created, again.state) == (first.id, False, "CANCELED")
    noon.forward("25h")
    assert key_of(app, 1).created


def test_an_expired_job_counts_as_cancelled(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    first = key_of(app, 1, expires="1m")
    noon.forward("2m")
    tm.run_due_jobs()
    again = key_of(app, 1)
    assert (again.id, again.created, again.state) == (first.id, False, "CANCELED")


def test_a_success_is_kept_for_its_own_time(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    first = key_of(app, 1)
    noon.forward("2s")
    tm.run_due_jobs()
    noon.forward("30d")
    assert (key_of(app, 2).id, first.result) == (first.id, 1)
    noon.forward("2d")
    assert key_of(app, 2).created


def test_without_a_policy_a_failed_or_cancelled_job_frees_its_key(
    tm: TimeManagement, app: Celery, noon: MovableClock
) -> None:
    failed = defer(app.tasks["fails"].s(1), key="k", delay="1s", max_retries=0)
    noon.forward("2s")
    tm.run_due_jobs()
    fresh = defer(app.tasks["fails"].s(1), key="k", delay="1h", max_retries=0)
    assert fresh.created
    assert fresh.id != failed.id
    assert cancel(id=fresh.id, app=app)
    assert defer(app.tasks["fails"].s(1), key="k", delay="1h").created


def test_on_failed_returns_the_dead_letter_also_without_a_policy(
    tm: TimeManagement, app: Celery, noon: MovableClock
) -> None:
    failed = defer(app.tasks["fails"].s(1), key="k", delay="1s", max_retries=0)
    noon.forward("2s")
    tm.run_due_jobs()
    asked = {"key": "k", "delay": "1h", "on_failed": "return"}
    again = defer(app.tasks["fails"].s(1), **asked)
    assert (again.id, again.created, again.state) == (failed.id, False, "FAILED")
    [again] = defer_many([app.tasks["fails"].s(1)], **asked)
    assert again.id == failed.id
    fresh = defer(app.tasks["fails"].s(1), key="k", delay="1h")
    assert fresh.created
    assert defer(app.tasks["fails"].s(1), **asked).id == fresh.id, "the job that is pending goes before"
    with pytest.raises(InvalidValue, match=r"on_failed: 'retry' is unknown; use one of new, return"):
        defer(app.tasks["fails"].s(1), key="k", on_failed="retry")


def test_a_revived_dead_letter_runs_though_its_key_was_kept(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    first = key_of(app, -1)
    noon.forward("2s")
    tm.run_due_jobs()
    tm.dead_letters.revive(first.id)
    again = key_of(app, 1)
    assert (again.id, again.created, again.state) == (first.id, False, "SCHEDULED")
    tm.run_due_jobs()
    assert tm.job(first.id).attempt_count == 2, "the gate refuses only keys that have succeeded"
    assert key_of(app, 1).state == "FAILED"


def test_a_revived_dead_letter_that_is_cancelled_frees_its_key(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    policy = {"failed": "7d"}
    first = defer(app.tasks["fails"].s(1), key="k", delay="1s", max_retries=0, keep_key=policy)
    noon.forward("2s")
    tm.run_due_jobs()
    assert not defer(app.tasks["fails"].s(1), key="k", delay="1h").created
    tm.dead_letters.revive(first.id)
    assert cancel(id=first.id, app=app)
    assert defer(app.tasks["fails"].s(1), key="k", delay="1h").created, "nothing is kept after a cancellation"


def test_the_gate_admits_a_step_whose_key_belongs_to_a_failed_job(
    tm: TimeManagement, app: Celery, noon: MovableClock
) -> None:
    key_of(app, -1)
    noon.forward("2s")
    tm.run_due_jobs()
    run = defer(workflow([(app.tasks["bill"].s(5), {"key": "k"})]), app=app)
    for _ in range(3):
        noon.forward("1s")
        tm.run_due_jobs()
    assert run.state == "SUCCEEDED"
    again = key_of(app, 1)
    assert (again.state, again.result) == ("SUCCEEDED", 5), "the success replaces the failure"


def test_a_direct_call_runs_though_the_key_of_a_failed_job_is_kept(
    tm: TimeManagement, app: Celery, noon: MovableClock
) -> None:
    key_of(app, -1)
    noon.forward("2s")
    tm.run_due_jobs()
    options: dict[str, Any] = {"keep_key": None, "max_retries": 0, "retry": None, "options": {}}
    call = Call(id="direct", task="bill", args=(5,), kwargs={}, key="k", **options)
    decision = gate.admit_call(tm.installation, call, worker="w:1")
    assert decision.job is not None
    recorder.record_success(tm.installation, decision.job, 5)
    again = key_of(app, 1)
    assert (again.id, again.state, again.result) == ("direct", "SUCCEEDED", 5), "a success replaces the failure"


def test_a_direct_call_that_fails_keeps_its_key_too(tm: TimeManagement, app: Celery) -> None:
    @app.task(base=Task, name="direct bill", shared=False, key="d:{0}", keep_key=POLICY, max_retries=0)
    def direct_bill(n: int) -> None:
        raise ValueError("no money")

    courier = Courier(tm)
    result = app.tasks["direct bill"].delay(1)
    for message in courier.collect():
        courier.deliver(message)
    again = defer(app.tasks["direct bill"].s(1), delay="1s")
    assert (again.id, again.created, again.state) == (result.id, False, "FAILED")


def test_the_setting_is_a_policy_too(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    object.__setattr__(tm.installation.settings, "tm_keep_keys", {"failed": MINUTE})
    failed = defer(app.tasks["fails"].s(1), key="k", delay="1s", max_retries=0)
    done = defer(app.tasks["effect"].s(1), key="k", delay="1s")
    noon.forward("2s")
    tm.run_due_jobs()
    assert defer(app.tasks["fails"].s(1), key="k", delay="1h").id == failed.id
    noon.forward("2m")
    assert defer(app.tasks["fails"].s(1), key="k", delay="1h").created
    noon.forward("6d")
    assert defer(app.tasks["effect"].s(1), key="k", delay="1h").id == done.id, "successes are kept for seven days as ever"


@pytest.mark.parametrize("bad", [{"success": "1d"}, {"failed": "soon"}, {1: "1d"}, "soon", []])
def test_a_malformed_policy_is_refused(app: Celery, bad: Any) -> None:
    with pytest.raises(InvalidValue, match="keep_key"):
        defer(app.tasks["fails"].s(1), key="k", keep_key=bad)
    with pytest.raises(InvalidValue, match="keep_key"):

        @app.task(base=Task, name="bad", shared=False, keep_key=bad)
        def wrong() -> None: ...


def test_doctor_warns_of_keys_that_are_forgotten_before_the_next_run(tm: TimeManagement, app: Celery) -> None:
    @app.task(base=Task, name="monthly bill", shared=False, key="bill:{0}")
    def monthly_bill(n: int) -> None: ...

    add(tm, name="billing", task="monthly bill", schedule="0 0 1 * *")
    add(tm, name="hourly", task="monthly bill", schedule="0 * * * *")
    add(tm, name="kept long enough", task="bill", schedule="0 0 * * *")
    found = [one for one in tm.doctor() if one.check == "keys"]
    assert [(str(one.level), list(one.objects)) for one in found] == [("warning", ["billing"])]
    assert "the keys of monthly bill are kept for 7d after a success, and billing runs it every 31d" in found[0].text
    assert "keep_key=" in (found[0].advice or "")


def test_doctor_does_not_mind_old_executions_that_are_kept_as_the_last_of_their_task(
    tm: TimeManagement, app: Celery, noon: MovableClock
) -> None:
    defer(app.tasks["effect"].s(1), delay="1s")
    noon.forward("2s")
    tm.run_due_jobs()
    noon.forward("400d")
    assert [one.text for one in tm.doctor() if one.check == "retention" and str(one.level) != "ok"] == []
    object.__setattr__(tm.installation.settings, "tm_keep_last", 0)
    assert [str(one.level) for one in tm.doctor() if one.check == "retention"] == ["warning"]
