"""Revokes that last: rows that wait are cancelled, messages on their way are refused, results say REVOKED."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery, group
from tmtest.courier import Courier, owed

from celery_tm import Task, TimeManagement, cancel, defer
from celery_tm.domain.job import Job, JobState, Source, Status
from celery_tm.producer.cancelling import revoke_all
from celery_tm.store import admission, executions, jobs
from celery_tm.store.database import Database
from celery_tm.worker import gate
from celery_tm.worker.control import Control


@pytest.fixture
def courier(tm: TimeManagement, app: Celery) -> Courier:
    app.conf.result_backend = "cache+memory://"
    return Courier(tm)


def test_a_revoked_call_far_ahead_is_gone(app: Celery, courier: Courier, database: Database) -> None:
    result = app.tasks["effect"].apply_async((1,), countdown=300)
    app.AsyncResult(result.id).revoke()
    assert owed(database) == []
    assert (app.AsyncResult(result.id).state, courier.tm.job(result.id).state) == ("REVOKED", Status.CANCELED)


def test_a_group_far_ahead_is_revoked_as_one(app: Celery, courier: Courier, database: Database) -> None:
    result = group(app.tasks["effect"].s(n) for n in range(3)).apply_async(countdown=300)
    assert len(owed(database)) == 3
    result.revoke()
    assert owed(database) == []
    assert {one.state for one in result.results} == {"REVOKED"}


def test_a_message_on_its_way_is_refused_by_workers_that_never_heard_of_it(
    app: Celery, courier: Courier, database: Database, effects
) -> None:
    result = app.tasks["effect"].delay(1)
    result.revoke()
    [message] = courier.collect()
    courier.deliver(message)
    assert effects.read_text() == ""
    assert app.AsyncResult(result.id).state == "REVOKED"
    assert courier.tm.job(result.id).state == Status.CANCELED


def test_a_call_that_is_let_in_while_it_is_revoked_runs_and_is_asked_to_stop(app: Celery, courier: Courier) -> None:
    installation = courier.tm.installation
    call = Job(
        id="c", task="effect", args="[1]", kwargs="{}", run_at=gate.EPOCH, created_at=gate.EPOCH,
        original_delay=timedelta(0), state=JobState.RUNNING, claimed_by="worker", source=Source.DIRECT,
    )  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        with installation.database.transaction() as tx:
            assert admission.insert_running(tx, call, lease=timedelta(minutes=1))
            revoking = pool.submit(revoke_all, installation, ["c"])
            time.sleep(0.3)  # it has asked whether there is a row, and not seen this one
        revoking.result(timeout=20)

    with installation.database.transaction() as tx:
        found = jobs.find(tx, "c")
        assert found is not None
        assert (found.state, found.cancel_requested, executions.of_job(tx, "c")) == (JobState.RUNNING, True, [])


def test_revoking_what_is_done_or_unknown_changes_nothing(app: Celery, courier: Courier) -> None:
    result = app.tasks["effect"].delay(1)
    courier.deliver_all()
    result.revoke()
    assert courier.tm.job(result.id).state == Status.SUCCEEDED
    app.control.revoke("nobody knows it")
    app.control.revoke(["nobody knows it", "x" * 500, uuid.uuid4()])
    assert courier.tm.job("nobody knows it").state == Status.CANCELED


def test_a_revoke_while_it_runs_asks_the_body_and_ends_its_tries(app: Celery, courier: Courier) -> None:
    @app.task(base=Task, bind=True, name="stubborn", shared=False)
    def stubborn(self: Task) -> None:
        app.control.revoke(self.request.id)
        raise ValueError("no")

    result = stubborn.delay()
    courier.deliver_all()
    assert courier.tm.job(result.id).state == Status.CANCELED
    assert courier.tm.job(result.id).attempt_count == 1
    assert app.AsyncResult(result.id).state == "REVOKED"


def test_cancel_tells_whoever_waits(app: Celery, courier: Courier) -> None:
    handle = defer(app.tasks["effect"].s(1), delay="1h")
    assert cancel(id=handle.id, app=app)
    assert app.AsyncResult(handle.id).state == "REVOKED"


def test_a_result_backend_that_is_away_is_asked_once(app: Celery, courier: Courier, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def away(self: Any, task_id: str, *_: Any, **__: Any) -> None:
        asked.append(task_id)
        raise ConnectionError("gone")

    monkeypatch.setattr("celery.backends.base.Backend.mark_as_revoked", away)
    for n in range(5):
        defer(app.tasks["effect"].s(n), delay="1h", entity_id="42")
    assert cancel(entity_id="42", app=app)
    assert len(asked) == 1


def test_the_control_of_an_app_is_ours_unless_it_has_its_own(app: Celery, tm: TimeManagement) -> None:
    assert isinstance(app.control, Control)

    class Own(Celery):
        control_cls = "celery.app.control:Control2"

    own = Own("own", set_as_current=False)

    @own.task(base=Task, shared=False)
    def some() -> None: ...

    assert some.name  # which binds it
    assert own.control_cls == "celery.app.control:Control2"


def test_a_database_that_is_away_leaves_the_revoke_to_the_workers(
    app: Celery, courier: Courier, database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from celery_tm.errors import DatabaseUnavailable

    def away(*_: Any, **__: Any) -> None:
        raise DatabaseUnavailable("db", "gone")

    monkeypatch.setattr(type(database), "run", away)
    app.control.revoke("some id")
    assert "1 revokes are known to the workers that hear them, but are not written" in caplog.text
