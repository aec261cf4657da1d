"""A frozen signature that is applied again is a new call, as in plain Celery; a message that comes again is not."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import Reject
from tmtest.courier import Courier, owed

from celery_tm import Task, TimeManagement
from celery_tm.domain.execution import Outcome
from celery_tm.domain.job import CALL
from celery_tm.errors import DuplicateId
from celery_tm.store import executions
from celery_tm.store.database import Database
from celery_tm.testing import MovableClock
from celery_tm.worker.request import Request


@pytest.fixture
def courier(tm: TimeManagement, app: Celery) -> Courier:
    app.conf.result_backend = "cache+memory://"

    @app.task(base=Task, name="broken", shared=False, max_retries=0)
    def broken(*_: Any) -> None:
        raise ValueError("no")

    @app.task(base=Task, name="plainly", shared=False)
    def plainly(*args: Any) -> Any:
        return args

    return Courier(tm)


def recorded(database: Database, id: str) -> list[tuple[int, str]]:
    """Return the recorded attempts of an id with their outcomes, the first one first."""
    with database.transaction(write=False) as tx:
        return [(one.attempt, str(one.outcome)) for one in reversed(executions.of_job(tx, id))]


def test_a_frozen_signature_runs_each_time_it_is_applied(app: Celery, courier: Courier, database: Database, effects) -> None:
    frozen = app.tasks["effect"].s(7)
    id = frozen.freeze().id
    messages = []
    for _ in range(3):
        frozen.apply_async()
        [message] = courier.collect()
        courier.deliver(message)
        messages.append(message)
    assert recorded(database, id) == [(n, Outcome.SUCCEEDED) for n in (1, 2, 3)]
    for message in messages:  # the broker delivers each once more
        courier.deliver(message)
    assert len(effects.read_text().splitlines()) == 3
    assert owed(database) == []


def test_calls_of_one_frozen_signature_wait_for_each_other(
    app: Celery, courier: Courier, database: Database, effects
) -> None:
    @app.task(base=Task, bind=True, name="again", shared=False, max_retries=2)
    def again(self: Task) -> str:
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        return "done"

    frozen = again.s()
    id = frozen.freeze().id
    frozen.apply_async()
    frozen.apply_async()
    first, second = courier.collect()
    courier.deliver(first)  # and is pending again
    courier.deliver(second)
    [back] = courier.collect()
    assert back.headers["id"] == id
    assert back.headers[CALL] == second.headers[CALL] != first.headers[CALL]
    assert len(owed(database)) == 1
    courier.dispatch()
    [retried] = courier.collect()
    courier.deliver(retried)
    courier.deliver(back)
    courier.deliver(first)
    courier.deliver(second)
    courier.deliver_all()
    assert [outcome for _, outcome in recorded(database, id)].count("succeeded") == 2
    assert [attempt for attempt, _ in recorded(database, id)] == [1, 2, 3, 4]
    assert owed(database) == []


def test_a_call_with_an_id_of_its_own_choice_runs_once(app: Celery, courier: Courier, effects) -> None:
    for _ in range(2):
        app.tasks["effect"].apply_async((7,), task_id="chosen")
    courier.deliver_all()
    assert len(effects.read_text().splitlines()) == 1


def test_a_signature_that_fails_each_time_is_one_dead_letter(
    app: Celery, courier: Courier, tm: TimeManagement, database: Database, effects
) -> None:
    frozen = app.tasks["broken"].s(1).on_error(app.tasks["effect"].si("errback"))
    id = frozen.freeze().id
    for _ in range(2):
        frozen.apply_async()
        courier.deliver_all()
    assert recorded(database, id) == [(1, Outcome.FAILED), (2, Outcome.FAILED)]
    assert tm.dead_letters.get(id).job.attempt == 2
    assert [line.split()[1] for line in effects.read_text().splitlines()] == ["errback"] * 2
    assert owed(database) == []


@pytest.mark.parametrize("shape", ["chain", "group", "links", "errback"])
def test_all_that_a_frozen_canvas_calls_runs_each_time(
    app: Celery, courier: Courier, database: Database, shape: str, effects
) -> None:
    effect, broken = app.tasks["effect"], app.tasks["broken"]
    frozen: Any = {
        "chain": lambda: chain(effect.si(1), effect.si(2), effect.si(3)),
        "group": lambda: group(effect.si(1), effect.si(2), effect.si(3)),
        "links": lambda: effect.si(1).on_error(effect.si(0)).set(link=[_frozen(effect.si(2)), _frozen(effect.si(3))]),
        "errback": lambda: chain(effect.si(1), broken.si().set(link_error=[_frozen(effect.si(2)), _frozen(effect.si(3))])),
    }[shape]()
    frozen.freeze()
    for _ in range(2):
        frozen.apply_async()
        courier.deliver_all()
    assert sorted(line.split()[1] for line in effects.read_text().splitlines()) == ["1", "1", "2", "2", "3", "3"]
    assert owed(database) == []


def _frozen(signature: Any) -> Any:
    signature.freeze()
    return signature


def test_the_body_of_a_frozen_chord_runs_each_time(app: Celery, courier: Courier, database: Database, effects) -> None:
    frozen = chord(group(app.tasks["plainly"].s(1), app.tasks["plainly"].s(2)), app.tasks["effect"].si("body"))
    frozen.freeze()
    for _ in range(2):
        frozen.apply_async()
        courier.deliver_all()
    assert [line.split()[1] for line in effects.read_text().splitlines()] == ["body"] * 2
    assert owed(database) == []


def test_a_signature_used_in_two_canvases_runs_in_both(app: Celery, courier: Courier, database: Database, effects) -> None:
    effect = app.tasks["effect"]
    shared = _frozen(effect.si("shared"))
    for n in (1, 2):
        chain(effect.si(n), shared, effect.si(n)).apply_async()
        courier.deliver_all()
    assert [line.split()[1] for line in effects.read_text().splitlines()] == ["1", "shared", "1", "2", "shared", "2"]
    assert owed(database) == []


def test_a_body_that_runs_again_calls_its_frozen_signatures_once(
    app: Celery, courier: Courier, database: Database, noon: MovableClock, effects
) -> None:
    frozen = _frozen(app.tasks["effect"].si("child"))

    @app.task(base=Task, bind=True, name="parent", shared=False, max_retries=2, retry={"kind": "fixed", "delay": 1})
    def parent(self: Task) -> None:
        frozen.apply_async()
        frozen.apply_async()
        if self.job.attempt == 1:
            raise ValueError("once more")

    parent.delay()
    courier.deliver_all()
    noon.forward("1m")
    courier.deliver_all()
    assert effects.read_text().count("child") == 2  # as often as one run of the body calls it
    assert owed(database) == []


def test_a_frozen_signature_far_ahead_runs_each_time_or_is_refused(
    app: Celery, courier: Courier, database: Database, noon: MovableClock, effects
) -> None:
    frozen = _frozen(app.tasks["effect"].si("later"))
    frozen.apply_async(countdown=600)
    with pytest.raises(DuplicateId, match="still pending"):
        frozen.apply_async(countdown=600)
    noon.forward("10m")
    courier.deliver_all()
    frozen.apply_async(countdown=600)
    noon.forward("10m")
    courier.deliver_all()
    assert effects.read_text().count("later") == 2
    assert len(recorded(database, frozen.id)) == 2
    assert owed(database) == []


# The worker's main process, and what goes back to the broker


class Killed(BaseException):
    """Stands for a pool process that is killed."""


@pytest.fixture
def ended(app: Celery, courier: Courier) -> list[Any]:
    """How the bodies of the task `ending` end, one after the other; when there is nothing left, they return."""
    ways: list[Any] = []

    @app.task(base=Task, name="ending", shared=False, acks_late=True, max_retries=2)
    def ending() -> None:
        if (way := ways.pop(0) if ways else None) is not None:
            raise way

    return ways


def second_of(app: Celery, courier: Courier, ended: list[Any], way: BaseException) -> tuple[str, Any]:
    """Return the id and the message of a second application, whose body ends in this way."""
    frozen = _frozen(app.tasks["ending"].s())
    frozen.apply_async()
    courier.deliver_all()
    frozen.apply_async()
    [message] = courier.collect()
    ended.append(way)
    return frozen.id, message


@pytest.mark.parametrize("how", ["a hard limit", "a shutdown", "a revoke"])
def test_the_end_of_a_second_application_is_recorded_when_its_process_is_gone(
    app: Celery, courier: Courier, database: Database, ended: list[Any], how: str
) -> None:
    id, message = second_of(app, courier, ended, Killed())
    with pytest.raises(Killed):
        courier.deliver(message)
    request = Request(message, app=app, hostname=courier.hostname, task=app.tasks["ending"], connection_errors=())
    if how == "a hard limit":
        request.on_timeout(soft=False, timeout=5)
    elif how == "a shutdown":
        request.hand_back()
    else:
        request._announce_revoked("terminated", True, "SIGTERM", False)
    outcome = {"a hard limit": Outcome.TIMEOUT, "a shutdown": Outcome.INTERRUPTED, "a revoke": Outcome.CANCELLED}[how]
    assert recorded(database, id) == [(1, Outcome.SUCCEEDED), (2, outcome)]


def test_a_second_application_that_is_requeued_comes_again(
    app: Celery, courier: Courier, database: Database, ended: list[Any]
) -> None:
    id, message = second_of(app, courier, ended, Reject(requeue=True))
    courier.deliver(message)
    assert (recorded(database, id), owed(database)) == ([(1, Outcome.SUCCEEDED)], [])
    courier.deliver(message)  # as the broker does
    assert recorded(database, id) == [(1, Outcome.SUCCEEDED), (2, Outcome.SUCCEEDED)]
    assert owed(database) == []
