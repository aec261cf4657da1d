"""What follows a body (links, chains, chords, errbacks, replacements) is handed on once, whenever its worker dies."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from kombu.exceptions import EncodeError, OperationalError
from sqlalchemy import select, update
from tmtest.courier import Courier, owed

from celery_tm import Task, TimeManagement, defer
from celery_tm.domain.job import Job, JobState, Status
from celery_tm.recovery.sweeper import sweep
from celery_tm.store import executions, tables
from celery_tm.store.database import Database
from celery_tm.worker import context as contexts


class Killed(BaseException):
    """Stands for a worker that is killed: nothing of ours or of Celery's handles it."""


@pytest.fixture
def courier(tm: TimeManagement, app: Celery) -> Courier:
    app.conf.result_backend = "cache+memory://"

    @app.task(base=Task, name="add", shared=False, max_retries=0)
    def add(*numbers: int) -> int:
        return sum(numbers)

    @app.task(base=Task, name="total", shared=False)
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @app.task(base=Task, name="broken", shared=False, max_retries=0)
    def broken(*_: Any) -> None:
        raise ValueError("no")

    return Courier(tm)


def lose_leases(tm: TimeManagement) -> None:
    """Let every lease end, and sweep."""
    with tm.installation.database.transaction() as tx:
        tx.execute(update(tables.job).where(tables.job.c.state != "pending").values(lease_until=tx.now))
    sweep(tm.installation.database, default=tm.installation.default_policy, limit=100)


def succeeded(database: Database, task: str) -> int:
    with database.transaction(write=False) as tx:
        return sum(one.outcome == "succeeded" for one in executions.latest(tx, task=task, limit=1000))


def test_a_chain_with_links_runs_each_step_once(app: Celery, courier: Courier, database: Database, effects) -> None:
    add, effect = app.tasks["add"], app.tasks["effect"]
    result = chain(add.s(1, 2), add.s(10), add.s(100)).apply_async(link=effect.s())
    courier.deliver_all()
    assert result.get(timeout=5) == 113
    assert [line.split()[1] for line in effects.read_text().splitlines()] == ["113"]
    assert owed(database) == []


@pytest.mark.parametrize("moment", ["before anything is sent", "after it is sent"])
def test_a_worker_that_dies_after_the_body_loses_no_step_and_doubles_none(
    app: Celery, courier: Courier, database: Database, moment: str, monkeypatch: pytest.MonkeyPatch, effects
) -> None:
    add, effect = app.tasks["add"], app.tasks["effect"]
    result = chain(add.s(1, 2).set(link=[effect.s(), effect.si("second")]), add.s(10)).apply_async()
    [message] = courier.collect()
    with monkeypatch.context() as patch:
        target = (
            "celery_tm.worker.calling.call" if moment.startswith("before") else "celery.backends.base.Backend.mark_as_done"
        )
        patch.setattr(target, dies)
        killed(courier, message, patch)
    [kept] = [job for job in owed(database) if job.task == "add"]
    assert (kept.ended, kept.state) == ({"result": 3, "attempt": 1}, JobState.RUNNING)
    assert courier.tm.job(kept.id).state == Status.SUCCEEDED

    courier.deliver(message)  # once more by the broker: it has succeeded
    lose_leases(courier.tm)
    courier.deliver_all()
    assert result.get(timeout=5) == 13
    assert sorted(line.split()[1] for line in effects.read_text().splitlines()) == ["3", "second"]
    assert succeeded(database, "add") == 2
    assert owed(database) == []


def dies(*_: Any, **__: Any) -> Any:
    raise Killed


def killed(courier: Courier, message: Any, patch: pytest.MonkeyPatch) -> None:
    """Deliver a message to a worker that dies on it and writes nothing more."""
    for name in ("forget", "carry_on"):
        patch.setattr(f"celery_tm.store.following.{name}", dies)
    with pytest.raises(Killed):
        courier.deliver(message)
    contexts.leave()


def test_a_chord_whose_part_dies_before_it_is_counted_completes(
    app: Celery, courier: Courier, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.conf.result_chord_retry_interval = 0.01
    add = app.tasks["add"]
    result = chord([add.s(1, 1), add.s(2, 2), add.s(3, 3)])(app.tasks["total"].s())
    messages = [one for one in courier.collect() if one.headers["task"] == "add"]
    with monkeypatch.context() as patch:
        patch.setattr("celery.backends.base.Backend.mark_as_done", dies)
        killed(courier, messages[0], patch)
    for message in messages[1:]:
        courier.deliver(message)
    lose_leases(courier.tm)
    courier.deliver_all()
    assert add.AsyncResult(messages[0].headers["id"]).state == "SUCCESS"
    assert succeeded(database, "add") == 3
    chord_id = messages[0].payload[2]["chord"]["options"]["task_id"]
    assert result.id == chord_id


def test_each_part_of_a_chord_keeps_its_place_in_all_its_messages(app: Celery, courier: Courier) -> None:
    @app.task(base=Task, name="tries_twice", bind=True, shared=False, max_retries=1)
    def tries_twice(self: Any, number: int) -> int:
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        return number

    chord([tries_twice.s(number) for number in range(3)])(app.tasks["total"].s())
    places: list[list[Any]] = []
    for _ in range(2):
        messages = [one for one in courier.collect() if one.headers["task"] == "tries_twice"]
        places.append(sorted((one.payload[0][0], one.headers["group_index"]) for one in messages))
        for message in messages:
            courier.deliver(message)
        courier.dispatch()
    assert places == [[(0, 0), (1, 1), (2, 2)]] * 2


def test_errbacks_of_a_failure_whose_worker_dies_are_called_once(
    app: Celery, courier: Courier, database: Database, monkeypatch: pytest.MonkeyPatch, effects
) -> None:
    result = app.tasks["broken"].apply_async(link_error=app.tasks["effect"].si("told"))
    [message] = courier.collect()
    with monkeypatch.context() as patch:
        patch.setattr("celery.backends.base.Backend.mark_as_failure", dies)
        killed(courier, message, patch)
    assert courier.tm.job(result.id).state == Status.FAILED
    lose_leases(courier.tm)
    courier.deliver_all()
    assert [line.split()[1] for line in effects.read_text().splitlines()] == ["told"]
    assert result.state == "FAILURE"
    assert "ValueError: no" in str(result.result)
    assert len(courier.tm.dead_letters.list(task="broken")) == 1
    assert owed(database) == []


def test_whoever_waits_for_a_job_that_the_sweeper_buries_is_told(
    app: Celery, courier: Courier, database: Database, monkeypatch: pytest.MonkeyPatch, effects
) -> None:
    result = app.tasks["add"].apply_async((1, 1), link_error=app.tasks["effect"].si("told"))
    [message] = courier.collect()
    with monkeypatch.context() as patch:
        patch.setattr("celery_tm.worker.running._run", dies)
        killed(courier, message, patch)
    lose_leases(courier.tm)
    courier.deliver_all()
    assert result.state == "FAILURE"
    assert [line.split()[1] for line in effects.read_text().splitlines()] == ["told"]
    [letter] = courier.tm.dead_letters.list(task="add")
    courier.tm.dead_letters.revive(letter.id)
    courier.deliver_all()
    again = app.AsyncResult(result.id)  # the other one has seen the failure
    assert (again.get(timeout=5), courier.tm.job(result.id).state) == (2, Status.SUCCEEDED)


def test_a_letter_may_be_revived_before_anybody_is_told(
    app: Celery, courier: Courier, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = defer(app.tasks["add"].s(1, 1))
    [message] = courier.collect()
    with monkeypatch.context() as patch:
        patch.setattr("celery_tm.worker.running._run", dies)
        killed(courier, message, patch)
    lose_leases(courier.tm)
    courier.tm.dead_letters.revive(handle.id)
    courier.deliver_all()
    assert handle.state == Status.SUCCEEDED
    assert owed(database) == []


def test_what_cannot_be_handed_on_is_tried_again(
    app: Celery, courier: Courier, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = chain(app.tasks["add"].s(1, 2), app.tasks["add"].s(10)).apply_async()
    [message] = courier.collect()

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such luck")

    with monkeypatch.context() as patch:
        patch.setattr("celery.backends.base.Backend.mark_as_done", fails)
        with pytest.warns(RuntimeWarning, match="no such luck"):
            courier.deliver(message)
    [kept] = [job for job in owed(database) if job.ended]
    assert (kept.state, kept.attempt) == (JobState.PENDING, 2)
    with database.transaction() as tx:
        tx.execute(update(tables.job).values(run_at=tx.now))
    courier.deliver_all()
    assert result.get(timeout=5) == 13
    assert succeeded(database, "add") == 2


def test_a_link_that_cannot_be_published_is_tried_again_and_the_success_stands(
    app: Celery, courier: Courier, database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    result = app.tasks["add"].apply_async((1, 2), link=app.tasks["plain"].s())
    [message] = courier.collect()

    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("connection refused")

    with monkeypatch.context() as patch:
        patch.setattr("celery.app.amqp.AMQP._retry_publish", away, raising=False)
        patch.setattr(app.tasks["plain"], "apply_async", away)
        courier.deliver(message)
    [kept] = owed(database)
    assert (kept.state, kept.ended["tried"]) == (JobState.PENDING, 1)
    assert "could not be handed on; it is tried again in 0:00:02" in caplog.text
    assert courier.tm.job(result.id).state == Status.SUCCEEDED
    with database.transaction() as tx:
        tx.execute(update(tables.job).values(run_at=tx.now))
    courier.deliver_all()
    assert owed(database) == []
    assert app.AsyncResult(result.id).state == "SUCCESS"


def test_errbacks_are_called_again_when_a_revived_job_fails_again(app: Celery, courier: Courier, effects) -> None:
    handle = defer(app.tasks["broken"].s().set(link_error=app.tasks["effect"].si("told")))
    courier.deliver_all()
    courier.tm.dead_letters.revive(handle.id)
    courier.deliver_all()
    assert [line.split()[1] for line in effects.read_text().splitlines()] == ["told", "told"]


# Replacements


def replacing(app: Celery, sig: Any) -> Any:
    @app.task(base=Task, bind=True, name="replacing", shared=False)
    def replaces(self: Task, *_: Any) -> Any:
        return self.replace(sig())

    return replaces


@pytest.mark.parametrize(
    ("sig", "value"),
    [
        (lambda app: app.tasks["add"].s(1, 2), 3),
        (lambda app: chain(app.tasks["add"].s(1, 2), app.tasks["add"].s(10)), 13),
    ],
    ids=["task", "chain"],
)
@pytest.mark.parametrize("dead", [False, True], ids=["alive", "dead in between"])
def test_a_replacement_has_the_id_and_runs_once(
    app: Celery, courier: Courier, database: Database, sig: Any, value: int, dead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = replacing(app, lambda: sig(app)).delay()
    [message] = courier.collect()
    if dead:
        with monkeypatch.context() as patch:
            patch.setattr("celery_tm.worker.calling.call", dies)
            killed(courier, message, patch)
        assert courier.tm.job(result.id).state == Status.RUNNING
        lose_leases(courier.tm)
    else:
        courier.deliver(message)
    courier.deliver(message)  # once more by the broker
    courier.deliver_all()
    courier.deliver(message)
    assert courier.collect() == []
    assert result.get(timeout=5) == value
    outcomes = [one.outcome for one in reversed(courier.tm.job(result.id).executions)]
    assert outcomes == ["replaced", "succeeded"]
    assert owed(database) == []


def test_a_replacement_in_a_chain_hands_on_what_follows(app: Celery, courier: Courier, database: Database) -> None:
    replaces = replacing(app, lambda: app.tasks["add"].s(1, 2))
    result = chain(replaces.s(), app.tasks["add"].s(10)).apply_async()
    courier.deliver_all()
    assert result.get(timeout=5) == 13
    assert owed(database) == []


def test_a_replacement_that_fails_is_retried_under_the_same_id(
    app: Celery, courier: Courier, database: Database, effects
) -> None:
    result = replacing(app, lambda: app.tasks["flaky"].s(5, 3)).delay()
    for _ in range(40):
        courier.deliver_all()
        if courier.tm.job(result.id).state == Status.SUCCEEDED:
            break
        time.sleep(0.05)
    assert result.get(timeout=5) == 5
    assert [one.outcome for one in reversed(courier.tm.job(result.id).executions)] == [
        "replaced", "failed", "failed", "succeeded",
    ]  # fmt: skip


def test_a_replacement_that_cannot_be_sent_is_sent_later(
    app: Celery, courier: Courier, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = replacing(app, lambda: app.tasks["plain"].s(7)).delay()
    [message] = courier.collect()

    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("connection refused")

    for _ in range(2):  # where it is put in its place, and where that is tried again
        with monkeypatch.context() as patch:
            patch.setattr(app.tasks["plain"], "apply_async", away)
            courier.deliver(message)
        [kept] = owed(database)
        assert kept.state is JobState.PENDING
        with database.transaction() as tx:
            tx.execute(update(tables.job).values(run_at=tx.now))
        courier.dispatch()
        [message] = courier.collect()
    courier.deliver(message)
    courier.deliver_all()
    assert result.get(timeout=5) == 7
    assert owed(database) == []


def test_a_replacement_that_is_no_json_is_sent_once_as_in_plain_celery(
    app: Celery, courier: Courier, database: Database
) -> None:
    app.conf.update(result_serializer="pickle", task_serializer="pickle", accept_content=["pickle", "json"])
    result = replacing(app, lambda: app.tasks["plain"].s({1, 2})).delay()
    courier.deliver_all()
    assert result.get(timeout=5) == {1, 2}
    assert owed(database) == []


def test_a_body_that_cannot_serialize_what_it_calls_fails_as_any_other(app: Celery, courier: Courier) -> None:
    @app.task(base=Task, name="calls", shared=False, max_retries=3)
    def calls() -> None:
        raise EncodeError("not the result")

    result = calls.delay()
    [message] = courier.collect()
    courier.deliver(message)
    assert courier.tm.job(result.id).state == Status.RETRY_SCHEDULED


def test_links_get_the_same_ids_each_time(app: Celery) -> None:
    from celery.app.task import Context

    from celery_tm.worker.following import name_links

    effect, now = app.tasks["effect"], datetime.now(UTC)
    blank = Job(id="job-1", task="t", args="[]", kwargs="{}", run_at=now, created_at=now, original_delay=timedelta(0))

    def named(job: Job = blank) -> list[Any]:
        made = group(effect.s(1), chain(effect.s(2), effect.s(3)))
        links = [dict(effect.s()), dict(made), dict(chord([effect.s(4)], effect.s(5)))]
        request = Context(callbacks=links, errbacks=[dict(effect.si(6))])
        name_links(request, job)
        return [*request.callbacks, *request.errbacks]

    def ids(sig: Any) -> list[str]:
        from celery_tm.worker.signatures import parts_of

        return [sig["options"]["task_id"], *(id for part in parts_of(sig) for id in ids(part))]

    first, second = ([id for sig in named() for id in ids(sig)] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first) == 1 + 5 + 3 + 1
    handed_on_later = [id for sig in named(replace(blank, attempt=3, ended={"attempt": 1})) for id in ids(sig)]
    assert handed_on_later == first
    second_try = [id for sig in named(replace(blank, attempt=2)) for id in ids(sig)]
    assert not set(second_try) & set(first)


def test_a_result_that_is_no_json_follows_as_in_plain_celery(app: Celery, courier: Courier, database: Database) -> None:
    app.conf.update(result_serializer="pickle", task_serializer="pickle", accept_content=["pickle", "json"])

    @app.task(base=Task, name="odd", shared=False, serializer="pickle")
    def odd() -> Any:
        return {1, 2}

    @app.task(base=Task, name="size", shared=False, serializer="pickle")
    def size(found: Any) -> int:
        return len(found)

    result = chain(odd.s(), size.s()).apply_async()
    courier.deliver_all()
    assert result.get(timeout=5) == 2
    assert owed(database) == []


def test_a_result_that_cannot_be_serialized_is_a_failure_in_both_books(
    app: Celery, courier: Courier, database: Database
) -> None:
    @app.task(base=Task, name="odd", shared=False)
    def odd() -> Any:
        return object()

    result = odd.delay()
    courier.deliver_all()
    assert result.state == "FAILURE"
    [letter] = courier.tm.dead_letters.list(task="odd")
    assert (letter.attempts, letter.reason) == (1, "its result cannot be serialized")


def test_rows_that_have_ended_are_nobodys_work(
    app: Celery, courier: Courier, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery_tm import cancel

    handle = defer(app.tasks["add"].s(1, 2).set(link=app.tasks["add"].s(5)), key="k")
    [message] = courier.collect()
    with monkeypatch.context() as patch:
        patch.setattr("celery.backends.base.Backend.mark_as_done", dies)
        killed(courier, message, patch)
    assert (handle.state, cancel(id=handle.id, app=app)) == (Status.SUCCEEDED, False)
    again = defer(app.tasks["add"].s(1, 2), key="k")
    assert (again.created, again.id, again.state) == (False, handle.id, Status.SUCCEEDED)
    with database.transaction(write=False) as tx:
        assert len(tx.execute(select(tables.execution).where(tables.execution.c.job == handle.id)).all()) == 1
