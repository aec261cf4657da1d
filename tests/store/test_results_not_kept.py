"""A key whose result is too long to be kept: a duplicate fails and says so, it never gets another value."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, chain, chord, group
from tmtest.courier import Courier, owed

from celery_tm import Task, TimeManagement, current_job, defer, workflow
from celery_tm.domain.execution import Outcome
from celery_tm.store import executions
from celery_tm.store.database import Database

LENGTH = 200_000  # numbers: 1.3 MB of JSON


@pytest.fixture
def courier(tm: TimeManagement, app: Celery) -> Courier:
    app.conf.result_backend = "cache+memory://"

    @app.task(base=Task, name="long", shared=False, key="{0}")
    def long(_: str) -> list[int]:
        return list(range(LENGTH))

    @app.task(base=Task, name="size", shared=False, max_retries=0)
    def size(value: Any) -> int:
        assert isinstance(value, list)
        return len(value)

    courier = Courier(tm)
    first = chain(long.s("k"), size.s()).apply_async()
    courier.deliver_all()
    assert first.get(timeout=5) == LENGTH
    return courier


def outcomes(database: Database, task: str) -> list[Outcome]:
    with database.transaction(write=False) as tx:
        return sorted(one.outcome for one in executions.latest(tx, task=task, limit=100))


@pytest.mark.parametrize("shape", ["alone", "in a group", "in a chain", "in a chord", "with an errback"])
def test_a_duplicate_of_a_key_whose_result_is_not_kept_fails_and_says_so(
    app: Celery, courier: Courier, database: Database, shape: str, effects
) -> None:
    long, size = app.tasks["long"], app.tasks["size"]
    result: Any
    if shape == "alone":
        result = long.delay("k")
    elif shape == "in a group":
        result = group([long.s("k")]).apply_async().results[0]
    elif shape == "in a chain":
        result = chain(long.s("k"), size.s()).apply_async().parent
    elif shape == "in a chord":
        result = chord([long.s("k")])(size.s())
    else:
        result = long.apply_async(("k",), link_error=app.tasks["effect"].si("errback"))
    [message] = courier.collect()
    courier.deliver(message)
    courier.deliver(message)  # once more by the broker
    courier.deliver_all()
    assert result.state == "FAILURE"
    assert "ResultNotKept" in str(result.result)
    assert outcomes(database, "long").count(Outcome.SUCCEEDED) == 1
    assert outcomes(database, "size") == [Outcome.SUCCEEDED]  # the first chain's
    called = [line.split()[1] for line in effects.read_text().splitlines()] if effects.exists() else []
    assert called == (["errback"] if shape == "with an errback" else [])
    assert owed(database) == []


def test_a_deferred_duplicate_shows_what_the_result_was(app: Celery, courier: Courier) -> None:
    handle = defer(app.tasks["long"].s("k"))
    assert not handle.created
    assert handle.result.startswith("[0, 1, 2")


def test_a_later_step_finds_no_result_of_a_step_whose_key_could_not_keep_it(app: Celery, courier: Courier) -> None:
    found: list[Any] = []

    @app.task(base=Task, name="reads", shared=False, max_retries=0)
    def reads() -> None:
        found.extend(current_job().results)

    defer(
        workflow(
            [
                (app.tasks["long"].s("other"), {"name": "long", "key": "other"}),
                (reads.s(), {"name": "reads", "after": ["long"]}),
            ]
        )
    )
    for _ in range(4):  # the run begins, then each of its steps
        courier.deliver_all()
    assert outcomes(courier.tm.installation.database, "reads") == [Outcome.SUCCEEDED]
    assert found == []
