"""A body that raises `Reject`: no call is lost, and its errbacks are called once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Reject
from sqlalchemy import update
from tmtest.courier import Courier, owed

from celery_tm import Task, TimeManagement
from celery_tm.domain.job import Status
from celery_tm.store import tables


@pytest.fixture
def courier(tm: TimeManagement, app: Celery) -> Courier:
    app.conf.result_backend = "cache+memory://"
    return Courier(tm)


def deliver_all(courier: Courier) -> None:
    """Deliver until nothing is left, as a broker that delivers a message again which was rejected with `requeue`."""
    messages = courier.collect()
    for _ in range(20):
        again = []
        for message in messages:
            info = courier.deliver(message).info
            if info is not None and info.state == "REJECTED" and info.retval.requeue:
                again.append(message)
        with courier.tm.installation.database.transaction() as tx:  # the backoff is over
            tx.execute(update(tables.job).where(tables.job.c.state == "pending").values(run_at=tx.now))
        courier.dispatch()
        messages = again + courier.collect()
        if not messages:
            return
    raise AssertionError("there is no end to the messages")


@pytest.mark.parametrize("options", [{}, {"concurrency_key": "lane"}, {"key": "same:{0}"}], ids=["plain", "slot", "key"])
def test_a_call_that_is_rejected_to_be_requeued_runs_again(
    app: Celery, courier: Courier, options: Mapping[str, Any]
) -> None:
    ran: list[int] = []

    @app.task(base=Task, name="rejects", bind=True, shared=False, acks_late=True, max_retries=3, **options)
    def rejects(self: Any, number: int) -> int:
        ran.append(number)
        if ran.count(number) == 1:
            raise Reject("again", requeue=True)
        return number

    results = [rejects.delay(number) for number in range(2)]
    deliver_all(courier)
    assert sorted(ran) == [0, 0, 1, 1]
    assert [courier.tm.job(one.id).state for one in results] == [Status.SUCCEEDED] * 2
    assert [app.AsyncResult(one.id).result for one in results] == [0, 1]
    assert owed(courier.tm.installation.database) == []


@pytest.mark.parametrize("requeue", [False, True])
def test_the_errbacks_of_a_rejected_job_are_called_by_the_process_that_ran_it(
    app: Celery, courier: Courier, requeue: bool, effects
) -> None:
    @app.task(base=Task, name="rejects", shared=False, max_retries=0)
    def rejects() -> None:
        raise Reject("no", requeue=requeue)

    result = rejects.apply_async(link_error=app.tasks["effect"].si("told"))
    [message] = courier.collect()
    info = courier.deliver(message).info
    # Celery's main process reports a job whose state is REJECTED itself, beside this one.
    assert (info.state, app.AsyncResult(result.id).state) == ("FAILURE", "FAILURE")
    assert owed(courier.tm.installation.database) == []
    courier.deliver_all()
    assert [line.split()[1] for line in effects.read_text().splitlines()] == ["told"]
    assert courier.tm.job(result.id).state == Status.FAILED
