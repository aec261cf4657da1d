"""Revokes that last: rows that wait are cancelled, messages on their way are refused, results say REVOKED."""

from __future__ import annotations

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, chord, group
from celery.worker.control import Panel
from tmtest.courier import Courier, owed

from celery_tm import Task, TimeManagement, cancel, defer
from celery_tm.domain.job import Job, JobState, Source, Status
from celery_tm.errors import DatabaseUnavailable
from celery_tm.producer.cancelling import revoke_all
from celery_tm.store import admission, executions, jobs
from celery_tm.store.database import Database
from celery_tm.worker import control, decision
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
        id="c", task="effect", args="[1]", kwargs="{}", run_at=decision.EPOCH, created_at=decision.EPOCH,
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


def test_cancel_by_an_app_without_the_task_ends_the_result_and_the_chord(
    app: Celery, courier: Courier, database_url: str, effects
) -> None:
    """As from a web process: it shares database, broker and result backend, but has not imported the tasks."""

    @app.task(base=Task, bind=True, name="later", shared=False, max_retries=None)
    def later(self: Task) -> None:
        self.retry(countdown=3600)

    @app.task(base=Task, name="gathers", shared=False)
    def gathers(_: Any) -> None:
        pass

    web = Celery("web", broker=app.conf.broker_url, set_as_current=False)
    shared = {name: app.conf[name] for name in ("result_backend", "task_default_queue")}
    web.conf.update(shared, tm_database_url=database_url)
    elsewhere = TimeManagement(web)
    alone = later.delay()
    together = chord([app.tasks["effect"].s(1), later.s()])(gathers.s().on_error(app.tasks["effect"].si("errback")))
    courier.deliver_all()
    waiting = [job.id for job in owed(courier.tm.installation.database)]
    assert len(waiting) == 2
    assert all(cancel(id=id, app=web) for id in waiting)
    elsewhere.installation.database.engine.dispose()
    courier.deliver_all()
    assert [app.AsyncResult(id).state for id in waiting] == ["REVOKED", "REVOKED"]
    assert alone.id in waiting
    assert together.state == "FAILURE"
    assert sorted(line.split()[1] for line in effects.read_text().splitlines()) == ["1", "errback"]


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
    def away(*_: Any, **__: Any) -> None:
        raise DatabaseUnavailable("db", "gone")

    monkeypatch.setattr(type(database), "run", away)
    app.control.revoke("some id")
    assert "a revoke is left to the workers that hear it" in caplog.text


class Away:
    """A database that is away, and takes its time to say so, until it is back."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.is_back, run = 0, threading.Event(), type(database).run

        def away(this: Database, *args: Any, **kwargs: Any) -> Any:
            self.asked += 1
            if self.is_back.is_set():
                return run(this, *args, **kwargs)
            self.is_back.wait(5)
            raise DatabaseUnavailable("db", "gone")

        monkeypatch.setattr(type(database), "run", away)


def hear(app: Celery, **arguments: Any) -> Any:
    """Let a worker of this app hear a revoke, as its event loop does."""
    control.listen()
    state = SimpleNamespace(app=app, consumer=None, hostname="here", tset=set)
    return Panel.data["revoke"](state, **arguments)


def test_a_worker_goes_on_while_a_revoke_is_written_and_writes_it_once_the_database_is_back(
    app: Celery, tm: TimeManagement, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [defer(app.tasks["effect"].s(n), delay="1h").id for n in range(3)]
    away = Away(database, monkeypatch)
    began = time.monotonic()
    for id in ids:
        assert "ok" in hear(app, task_id=id)
    assert time.monotonic() - began < 4, "the event loop waited for the database"
    away.is_back.set()
    deadline = time.monotonic() + 30
    while tm.jobs() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert tm.jobs() == []
    control.writer.flush(30)


def test_what_a_caller_has_written_no_worker_writes_again(
    app: Celery, tm: TimeManagement, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []
    monkeypatch.setattr(app.control, "broadcast", lambda name, **options: said.append(options["arguments"]))
    app.control.revoke(defer(app.tasks["effect"].s(1), delay="1h").id)
    assert tm.jobs() == []
    away = Away(database, monkeypatch)
    away.is_back.set()
    hear(app, **said[0])
    control.writer.flush(30)
    assert away.asked == 0
