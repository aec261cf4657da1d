"""A running job that is cancelled: however its attempt ends, its result is REVOKED and its chord ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, chord
from celery.exceptions import Reject
from sqlalchemy import update
from tmtest.courier import Courier, owed

from celery_tm import Task, TimeManagement, cancel
from celery_tm.domain.execution import Failure
from celery_tm.domain.job import Status
from celery_tm.recovery.sweeper import sweep
from celery_tm.store import tables
from celery_tm.worker import context as contexts
from celery_tm.worker import recorder, release


class Killed(BaseException):
    """Stands for a process that is killed: nothing of ours or of Celery's handles it."""


@pytest.fixture
def courier(tm: TimeManagement, app: Celery) -> Courier:
    app.conf.result_backend = "cache+memory://"

    @app.task(base=Task, name="killed", bind=True, shared=False, max_retries=3)
    def killed(self: Any) -> None:
        assert cancel(id=self.request.id, app=app)
        raise Killed

    @app.task(base=Task, name="killed_at_last", bind=True, shared=False, max_retries=0)
    def killed_at_last(self: Any) -> None:
        assert cancel(id=self.request.id, app=app)
        raise Killed

    @app.task(base=Task, name="total", shared=False)
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    return Courier(tm)


def its_lease_ends(tm: TimeManagement) -> None:
    with tm.installation.database.transaction() as tx:
        tx.execute(update(tables.job).where(tables.job.c.state == "running").values(lease_until=tx.now))
    sweep(tm.installation.database, default=tm.installation.default_policy, limit=100)


def its_worker_sees_it_die(tm: TimeManagement) -> None:
    [job] = running(tm)
    failure = Failure.orphaned("WorkerLostError: killed")
    assert recorder.record_vanished(tm.installation, job.id, job.attempt, failure, workers={job.claimed_by}) is None


def its_worker_stops(tm: TimeManagement) -> None:
    [job] = running(tm)
    release.record_handed_back(tm.installation, [(job.id, job.attempt)], "it stops", workers={job.claimed_by})


def running(tm: TimeManagement) -> list[Any]:
    return [job for job in owed(tm.installation.database) if job.state == "running"]


@pytest.mark.parametrize("end", [its_lease_ends, its_worker_sees_it_die, its_worker_stops])
@pytest.mark.parametrize("name", ["killed", "killed_at_last"])
def test_a_cancelled_body_that_is_killed_is_reported_as_revoked(
    app: Celery, courier: Courier, name: str, end: Callable[[TimeManagement], None]
) -> None:
    result = app.tasks[name].delay()
    deliver_and_kill(courier)
    end(courier.tm)
    courier.deliver_all()
    assert courier.tm.job(result.id).state == Status.CANCELED
    assert app.AsyncResult(result.id).state == "REVOKED"
    assert owed(courier.tm.installation.database) == []


@pytest.mark.parametrize("end", [its_lease_ends, its_worker_sees_it_die, its_worker_stops])
def test_a_chord_ends_whose_part_is_cancelled_and_killed(
    app: Celery, courier: Courier, end: Callable[[TimeManagement], None], effects
) -> None:
    body = app.tasks["total"].s().on_error(app.tasks["effect"].si("told"))
    result = chord([app.tasks["effect"].s(1), app.tasks["killed"].s()])(body)
    deliver_and_kill(courier)
    end(courier.tm)
    courier.deliver_all()
    assert sorted(line.split()[1] for line in effects.read_text().splitlines()) == ["1", "told"]
    assert result.state == "FAILURE"


@pytest.mark.parametrize("throw", [True, False])
def test_a_cancelled_body_that_asks_for_a_retry_is_reported_as_revoked(app: Celery, courier: Courier, throw: bool) -> None:
    @app.task(base=Task, name="polls", bind=True, shared=False, max_retries=None)
    def polls(self: Any) -> None:
        assert cancel(id=self.request.id, app=app)
        self.retry(countdown=0, throw=throw)

    result = polls.delay()
    courier.deliver_all()
    assert courier.tm.job(result.id).state == Status.CANCELED
    assert app.AsyncResult(result.id).state == "REVOKED"
    assert owed(courier.tm.installation.database) == []


def test_a_cancelled_body_that_wants_its_message_again_is_reported_as_revoked(app: Celery, courier: Courier) -> None:
    @app.task(base=Task, name="rejects", bind=True, shared=False, acks_late=True)
    def rejects(self: Any) -> None:
        assert cancel(id=self.request.id, app=app)
        raise Reject("again", requeue=True)

    result = rejects.delay()
    [message] = courier.collect()
    assert courier.deliver(message).info.state == "IGNORED"
    assert courier.tm.job(result.id).state == Status.CANCELED
    assert app.AsyncResult(result.id).state == "REVOKED"


def deliver_and_kill(courier: Courier) -> None:
    for message in courier.collect():
        if message.headers["task"].startswith("killed"):
            with pytest.raises(Killed):
                courier.deliver(message)
            contexts.leave()
        else:
            courier.deliver(message)
