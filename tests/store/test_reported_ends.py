"""However a job ends without its body, its replacement, its result and its callbacks agree with its record."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Reject
from celery.signals import task_unknown
from celery.worker import state
from sqlalchemy import text, update
from sqlalchemy.orm import Session
from tmtest.courier import Courier, owed
from tmtest.strangers import at_once, locked, skip_embedded

from celery_tm import Task, TimeManagement, cancel, defer, workflow
from celery_tm.domain.execution import Failure, Outcome
from celery_tm.domain.job import Status
from celery_tm.errors import DatabaseUnavailable
from celery_tm.installation import worker_name
from celery_tm.producer.cancelling import revoke_all
from celery_tm.recovery.sweeper import sweep
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import executions, tables
from celery_tm.store.database import Database
from celery_tm.testing import MovableClock
from celery_tm.worker import gate, recorder, release, unknown
from celery_tm.worker.request import Request

ran: list[Any] = []


@pytest.fixture
def courier(tm: TimeManagement, app: Celery) -> Courier:
    ran.clear()
    app.conf.update(result_backend="cache+memory://", tm_dispatch_lease=60)

    @app.task(base=Task, bind=True, name="first", shared=False, max_retries=0)
    def first(self: Task, **options: Any) -> Any:
        return self.replace(app.tasks["second"].s().set(**options))

    @app.task(base=Task, name="second", shared=False, max_retries=0)
    def second() -> str:
        ran.append("second")
        return "done"

    @app.task(base=Task, name="after", shared=False)
    def after(*_: Any) -> None:
        ran.append("after")

    return Courier(tm)


def outcomes(database: Database, id: str) -> list[Outcome]:
    with database.transaction(write=False) as tx:
        return [one.outcome for one in reversed(executions.of_job(tx, id))]


# Replacements


def test_a_replacement_whose_message_is_lost_is_sent_again(
    courier: Courier, app: Celery, database: Database, noon: MovableClock
) -> None:
    handle = defer(app.tasks["first"].s(), delay="1s")
    noon.forward("2s")
    courier.dispatch()
    for message in courier.collect():
        courier.deliver(message)
    assert len(courier.collect()) == 1, "the replacement, which nobody gets to see"
    assert courier.deliver_all() == 0
    noon.forward("61s")
    courier.deliver_all()
    assert ran == ["second"]
    assert owed(database) == []
    assert outcomes(database, handle.id) == [Outcome.REPLACED, Outcome.SUCCEEDED]


def test_copies_of_a_replacement_run_once(courier: Courier, app: Celery, database: Database, noon: MovableClock) -> None:
    defer(app.tasks["first"].s(), delay="1s")
    noon.forward("2s")
    courier.dispatch()
    for message in courier.collect():
        courier.deliver(message)
    [slow] = courier.collect()
    noon.forward("61s")
    courier.deliver_all()
    courier.deliver(slow)
    assert ran == ["second"]
    assert owed(database) == []


@pytest.mark.parametrize("how", ["cancel", "revoke", "discarded by a worker"])
def test_a_replacement_that_waits_can_be_cancelled(
    courier: Courier, app: Celery, tm: TimeManagement, database: Database, noon: MovableClock, how: str
) -> None:
    handle = defer(app.tasks["first"].s(countdown=3600))
    courier.deliver_all()
    if how == "cancel":
        assert cancel(id=handle.id, app=app)
    elif how == "revoke":
        revoke_all(tm.installation, [handle.id])
    else:
        said = {"outcome": Outcome.CANCELLED, "reason": "revoked", "workers": (), "task": "second"}
        recorder.record_revoked(tm.installation, handle.id, 2, **said)
    noon.forward("2h")
    courier.deliver_all()
    assert ran == []
    assert owed(database) == []
    assert handle.state is Status.CANCELED
    if how != "discarded by a worker":  # that worker marks it itself
        assert app.AsyncResult(handle.id).state == "REVOKED"


# Outages and interruptions


def test_a_retry_that_cannot_be_written_is_not_taken_for_a_reject(courier: Courier, app: Celery, database: Database) -> None:
    @app.task(base=Task, name="outage", shared=False)
    def outage() -> None:
        raise Reject(DatabaseUnavailable("postgresql://", "it is away"), requeue=False)  # as Celery's retry() does

    handle = defer(outage.s())
    for message in courier.collect():
        courier.deliver(message)
    assert outcomes(database, handle.id) == []
    assert handle.state is Status.RUNNING, "its lease ends, and it is tried again"


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit(), SystemExit(1), KeyboardInterrupt()])
def test_whatever_is_no_exception_counts_as_a_process_that_vanished(
    courier: Courier, app: Celery, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    seen: list[BaseException] = []
    monkeypatch.setattr(Request, "_vanishes", lambda self, error: bool(seen.append(error)))
    app.tasks["second"].delay()
    [message] = courier.collect()

    class Info:
        exception = error

    Request(message, app=app, hostname="w@test", task=app.tasks["second"], connection_errors=()).on_failure(Info())
    assert seen == [error]


# The worker's main process serves all its pool processes: it waits for nobody's transaction


def running_in_a_pool(courier: Courier, app: Celery, *, jobs: int = 1) -> list[Request]:
    """Return deliveries whose bodies run, as the worker's main process knows them."""
    for _ in range(jobs):
        defer(app.tasks["effect"].s(1))
    messages = courier.collect()
    requests = [
        Request(message, app=app, hostname="w@test", task=app.tasks["effect"], connection_errors=()) for message in messages
    ]
    worker = worker_name("w@test", os.getpid())
    for request in requests:
        assert gate.admit_job(courier.tm.installation, request.id, 1, worker=worker).job
        request.worker_pid = os.getpid()
    return requests


@pytest.mark.timeout(60)
def test_a_hard_limit_is_left_to_the_lease_while_another_transaction_has_the_row(
    courier: Courier, app: Celery, tm: TimeManagement, database: Database
) -> None:
    held, free = running_in_a_pool(courier, app, jobs=2)
    with locked(database, held.id):
        at_once(lambda: [one.on_timeout(soft=False, timeout=5) for one in (held, free)])
    assert outcomes(database, free.id) == [Outcome.TIMEOUT]
    assert outcomes(database, held.id) == []
    assert tm.job(held.id).state is Status.RUNNING
    with database.transaction() as tx:
        tx.execute(update(tables.job).where(tables.job.c.id == held.id).values(lease_until=tx.now))
    sweep(database, default=tm.installation.default_policy, limit=10)
    assert outcomes(database, held.id) == [Outcome.ORPHANED]


@pytest.mark.timeout(60)
def test_a_worker_that_stops_gives_back_what_no_other_transaction_has(
    courier: Courier, app: Celery, tm: TimeManagement, database: Database
) -> None:
    held, free = running_in_a_pool(courier, app, jobs=2)
    worker = worker_name("w@test", os.getpid())
    both = [(held.id, 1), (free.id, 1)]
    with locked(database, held.id):
        given = at_once(lambda: release.record_handed_back(tm.installation, both, "it stops", workers={worker}))
    assert given == [free.id]
    assert (tm.job(held.id).state, outcomes(database, free.id)) == (Status.RUNNING, [Outcome.INTERRUPTED])


@pytest.mark.timeout(60)
def test_a_row_that_cannot_be_read_keeps_no_other_from_being_released(
    courier: Courier, app: Celery, tm: TimeManagement, database: Database
) -> None:
    bad, sound = running_in_a_pool(courier, app, jobs=2)
    worker = worker_name("w@test", os.getpid())
    with database.transaction() as tx:
        tx.execute(text("UPDATE tm_job SET state = 'unheard of' WHERE id = :id"), {"id": bad.id})
    killed = Failure(error="killed", outcome=Outcome.ORPHANED)
    assert recorder.record_vanished(tm.installation, bad.id, 1, killed, workers={worker}) is None
    both = [(bad.id, 1), (sound.id, 1)]
    assert release.record_handed_back(tm.installation, both, "it stops", workers={worker}) == [sound.id]
    assert outcomes(database, sound.id) == [Outcome.INTERRUPTED]


@pytest.mark.timeout(60)
def test_an_unknown_task_is_left_to_the_lease_while_another_transaction_has_its_run(
    courier: Courier, app: Celery, tm: TimeManagement, database: Database
) -> None:
    skip_embedded(database)
    defer(workflow([app.tasks["effect"].s(1), app.tasks["effect"].s(2)]), app=app)
    dispatcher = Dispatcher(tm.installation, "beat")
    dispatcher.expand(dispatcher.claim(10)[1])
    courier.dispatch()
    [message] = courier.collect()
    with Session(database.engine) as session:
        session.execute(update(tables.workflow).values(job=tables.workflow.c.job))
        then = at_once(lambda: unknown._record(app, message.headers["id"], 1, "effect"))
    assert then is None
    assert outcomes(database, message.headers["id"]) == []


# Ends that no body reports


def test_a_revoke_does_not_stop_the_callbacks_of_a_job_that_has_ended(
    courier: Courier, app: Celery, database: Database
) -> None:
    handle = defer(app.tasks["second"].s(), delay="1h")
    with database.transaction() as tx:
        ended = {"result": "done", "attempt": 1}
        tx.execute(update(tables.job).where(tables.job.c.id == handle.id).values(ended=ended, run_at=tx.now))
    courier.dispatch()
    [message] = courier.collect()
    request = Request(message, app=app, hostname="w@test", task=app.tasks["second"], connection_errors=())
    state.revoked.add(handle.id)
    try:
        assert not request.revoked()
    finally:
        state.revoked.discard(handle.id)


def test_what_expired_before_it_was_sent_is_revoked(
    courier: Courier, app: Celery, database: Database, noon: MovableClock
) -> None:
    result = app.tasks["second"].apply_async(countdown=3600, expires=noon.now + timedelta(minutes=50))
    noon.forward("2h")
    assert courier.dispatch() == 0
    courier.deliver_all()
    assert ran == []
    assert result.state == "REVOKED"
    assert owed(database) == []


def test_a_dead_letter_that_could_not_be_sent_is_reported(courier: Courier, app: Celery, database: Database) -> None:
    second, after = app.tasks["second"], app.tasks["after"]
    result = second.apply_async(countdown=3600, link_error=after.si(), serializer="json")
    with database.transaction() as tx:
        changed = {"run_at": tx.now, "args": "[1]", "options": {"serializer": "nobody's", "link_error": [after.si()]}}
        tx.execute(update(tables.job).where(tables.job.c.id == result.id).values(**changed))
    assert courier.dispatch() == 0
    courier.deliver_all()
    assert result.state == "FAILURE"
    assert ran == ["after"]
    assert owed(database) == []


@pytest.mark.parametrize("by_others", [False, True])
def test_a_process_that_vanished_for_good_is_reported_also_if_its_worker_dies(
    courier: Courier, app: Celery, tm: TimeManagement, database: Database, by_others: bool
) -> None:
    result = app.tasks["second"].apply_async(countdown=3600, link_error=app.tasks["after"].si())
    with database.transaction() as tx:
        running = {"state": "running", "claimed_by": "gone", "claimed_at": tx.now, "lease_until": tx.later(timedelta(0, 60))}
        tx.execute(update(tables.job).where(tables.job.c.id == result.id).values(**running))
    recorder.record_vanished(tm.installation, result.id, 1, Failure.orphaned("killed"), workers={"gone"})
    assert [job.ended is not None for job in owed(database)] == [True], "kept until that is reported"
    recorder.record_reported(tm.installation, result.id, 1, workers={"gone"}, by_others=by_others)
    courier.deliver_all()
    assert owed(database) == []
    assert (result.state, ran) == (("FAILURE", ["after"]) if by_others else ("PENDING", []))


class Consumer:
    """What a worker's consumer is to a message of a task that nobody has registered."""

    connection_errors = ()

    def __init__(self, app: Celery) -> None:
        self.app = app


@pytest.mark.parametrize("tries", [1, 0])
def test_an_unknown_task_is_a_failure_only_when_its_tries_are_used_up(
    courier: Courier, app: Celery, database: Database, tries: int
) -> None:
    after = app.tasks["after"]
    handle = defer("not.here", app=app, remote=True, delay="1h", max_retries=tries)
    with database.transaction() as tx:
        tx.execute(update(tables.job).where(tables.job.c.id == handle.id).values(options={"link_error": [after.si()]}))
        tx.execute(update(tables.job).values(state="pending", run_at=tx.now, lease_until=None))
    courier.dispatch()
    [message] = courier.collect()
    told: list[str] = []
    receiver: Callable[..., None] = lambda name, **_: told.append(name)  # noqa: E731
    task_unknown.connect(receiver, weak=False)
    try:
        assert unknown.is_recorded(Consumer(app), message)
    finally:
        task_unknown.disconnect(receiver)
    assert told == ["not.here"]
    assert app.AsyncResult(handle.id).state == ("PENDING" if tries else "FAILURE")
    courier.deliver_all()
    assert ran == ([] if tries else ["after"])


# The caller's transaction


def test_a_cancel_on_a_bare_connection_is_reported_by_a_worker(courier: Courier, app: Celery, database: Database) -> None:
    result = app.tasks["second"].apply_async(countdown=3600)
    with database.engine.connect() as connection, connection.begin():
        assert cancel(id=result.id, session=connection, app=app)
    courier.deliver_all()
    assert ran == []
    assert result.state == "REVOKED"
    assert owed(database) == []


def test_a_cancel_in_a_savepoint_of_the_connection_that_is_rolled_back_marks_nothing(
    courier: Courier, app: Celery, database: Database
) -> None:
    if database.dialect.name == "sqlite":
        pytest.skip("its driver has no savepoints here")
    result = app.tasks["second"].apply_async(countdown=3600)
    with Session(database.engine) as session:
        savepoint = session.connection().begin_nested()
        assert cancel(id=result.id, session=session, app=app)
        savepoint.rollback()
        session.commit()
    assert result.state == "PENDING"
    assert [job.id for job in owed(database)] == [result.id]


@pytest.mark.parametrize("spoiled", ["a row that cannot be read", "headers that are no mapping"])
def test_a_bad_message_of_an_unknown_task_does_not_end_its_worker(
    courier: Courier, app: Celery, database: Database, spoiled: str
) -> None:
    handle = defer("not.here", app=app, remote=True, delay="1h")
    with database.transaction() as tx:
        tx.execute(update(tables.job).where(tables.job.c.id == handle.id).values(run_at=tx.now))
    courier.dispatch()
    [message] = courier.collect()
    if spoiled == "headers that are no mapping":
        message.headers = ["tm"]
        assert not unknown.is_recorded(Consumer(app), message), "Celery refuses it"
        return
    with database.transaction() as tx:
        tx.execute(text("UPDATE tm_job SET source = 'moon' WHERE id = :id"), {"id": handle.id})
    assert unknown.is_recorded(Consumer(app), message)
    assert app.AsyncResult(handle.id).state == "PENDING"
