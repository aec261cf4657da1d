"""self.replace() under a dedupe key: one body at a time, one success, and every job ends, on every database."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, chain, chord, group
from kombu.exceptions import OperationalError
from sqlalchemy import delete, update
from tmtest.courier import Courier, owed

from celery_tm import Task, TimeManagement, cancel, defer
from celery_tm.domain.execution import Outcome
from celery_tm.domain.job import Status
from celery_tm.producer.cancelling import revoke_all
from celery_tm.recovery.sweeper import sweep
from celery_tm.store import executions, keys, tables
from celery_tm.store.database import Database
from celery_tm.testing import MovableClock
from celery_tm.worker import context as contexts


class Killed(BaseException):
    """Represents a worker that is killed: nothing of ours or of Celery's handles it."""


class Strange:
    """An argument that no JSON holds."""


@pytest.fixture
def bodies() -> list[Any]:
    return []


@pytest.fixture
def courier(tm: TimeManagement, app: Celery, bodies: list[Any]) -> Courier:
    app.conf.update(result_backend="cache+memory://", result_chord_retry_interval=0.01)

    def count_down(self: Task, n: int, *rest: Any) -> Any:
        bodies.append(n)
        return self.replace(self.s(n - 1, *rest)) if n else "done"

    def make(name: str, **options: Any) -> None:
        app.task(base=Task, bind=True, name=name, shared=False, max_retries=0, **options)(count_down)

    make("one_key", key="one")
    make("one_key_at_a_time", key="one", concurrency_key="turns")
    make("one_key_transactional", key="one", transactional=True)
    make("own_keys", key="own:{0}")
    make("no_rule")

    @app.task(base=Task, name="join", shared=False)
    def join(values: Any) -> Any:
        return "+".join(values) if isinstance(values, list) else values + "!"

    return Courier(tm)


KINDS = ("one_key", "one_key_at_a_time", "one_key_transactional")


def outcomes(tm: TimeManagement, id: str) -> list[Outcome]:
    with tm.installation.database.transaction(write=False) as tx:
        return [one.outcome for one in reversed(executions.of_job(tx, id))]


def lose_leases(tm: TimeManagement) -> None:
    """Let every lease end, and sweep."""
    with tm.installation.database.transaction() as tx:
        tx.execute(update(tables.job).where(tables.job.c.state != "pending").values(lease_until=tx.now))
    sweep(tm.installation.database, default=tm.installation.default_policy, limit=100)


def deliver_one_by_one(courier: Courier) -> None:
    """Deliver what is there before what it publishes, so that each replacement meets the other calls."""
    for _ in range(20):
        courier.dispatch()
        messages = courier.collect()
        if not messages:
            return
        for message in messages:
            courier.deliver(message)
    raise AssertionError("there is no end to the messages")


@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_one_key_at_once_run_one_body_and_its_replacements(
    app: Celery, courier: Courier, database: Database, bodies: list[Any], kind: str
) -> None:
    results = [app.tasks[kind].delay(2) for _ in range(3)]
    deliver_one_by_one(courier)
    assert bodies == [2, 1, 0]
    assert results[0].get(timeout=5) == "done"
    assert owed(database) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_chord_of_calls_of_one_key_goes_on_with_the_one_success(
    app: Celery, courier: Courier, database: Database, bodies: list[Any], noon: MovableClock, kind: str
) -> None:
    result = chord([app.tasks[kind].s(1) for _ in range(3)], app.tasks["join"].s()).apply_async()
    for _ in range(5):
        deliver_one_by_one(courier)
        noon.forward("1m")
    assert bodies == [1, 0]
    assert result.get(timeout=5) == "done+done+done"
    assert owed(database) == []


def test_a_chain_goes_on_after_replacements(app: Celery, courier: Courier, database: Database, bodies: list[Any]) -> None:
    result = chain(app.tasks["one_key"].s(2), app.tasks["join"].s()).apply_async()
    app.tasks["one_key"].delay(2)
    deliver_one_by_one(courier)
    assert (bodies, result.get(timeout=5)) == ([2, 1, 0], "done!")
    assert owed(database) == []


@pytest.mark.parametrize("rest", [(), (Strange(),)], ids=["json", "pickled"])
def test_the_key_is_taken_while_the_replacement_is_on_its_way(
    app: Celery, courier: Courier, tm: TimeManagement, database: Database, bodies: list[Any], rest: Any
) -> None:
    app.conf.update(task_serializer="pickle", accept_content=["json", "pickle"])
    first = app.tasks["one_key"].apply_async((1, *rest))
    courier.deliver(courier.collect()[0])
    replacement = courier.collect()
    second = app.tasks["one_key"].delay(1)
    assert defer(app.tasks["one_key"].s(5), on_duplicate="replace").id == first.id
    deliver_one_by_one(courier)
    assert (bodies, outcomes(tm, second.id)) == ([1], [])
    for message in replacement * 2:
        courier.deliver(message)
    deliver_one_by_one(courier)
    assert (bodies, first.get(timeout=5)) == ([1, 0], "done")
    assert outcomes(tm, first.id) == [Outcome.REPLACED, Outcome.SUCCEEDED]
    assert owed(database) == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_worker_that_dies_around_sending_a_replacement_leaves_the_key_taken(
    app: Celery,
    courier: Courier,
    tm: TimeManagement,
    bodies: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    noon: MovableClock,
    when: str,
) -> None:
    task = app.tasks["one_key"]
    result = task.delay(1)
    [message] = courier.collect()
    send = task.apply_async

    def die(*args: Any, **kwargs: Any) -> Any:
        if when == "after":
            send(*args, **kwargs)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(task, "apply_async", die)
        with pytest.raises(Killed):
            courier.deliver(message)
    contexts.leave()
    lost = courier.collect()
    other = task.delay(1)
    courier.deliver(courier.collect()[0])
    lose_leases(tm)
    noon.forward("1m")
    courier.deliver_all()
    for one in lost:
        courier.deliver(one)
    courier.deliver_all()
    assert (bodies, result.get(timeout=5)) == ([1, 0], "done")
    assert outcomes(tm, result.id) == [Outcome.REPLACED, Outcome.SUCCEEDED]
    assert outcomes(tm, other.id) == []
    assert owed(tm.installation.database) == []


def test_a_replacement_that_the_broker_loses_is_sent_again(
    app: Celery, courier: Courier, database: Database, bodies: list[Any], noon: MovableClock
) -> None:
    result = app.tasks["one_key"].delay(1)
    courier.deliver(courier.collect()[0])
    assert len(courier.collect()) == 1
    noon.forward("11m")
    courier.deliver_all()
    assert (bodies, result.get(timeout=5)) == ([1, 0], "done")
    assert owed(database) == []


def test_a_replacement_whose_own_key_has_succeeded_is_recorded_and_answered(
    app: Celery, courier: Courier, tm: TimeManagement, database: Database, bodies: list[Any]
) -> None:
    task = app.tasks["own_keys"]
    earlier, result = task.delay(0), task.delay(1)
    deliver_one_by_one(courier)
    assert bodies == [0, 1]
    assert (earlier.get(timeout=5), result.get(timeout=5)) == ("done", "done")
    assert outcomes(tm, result.id) == [Outcome.REPLACED, Outcome.DEDUPLICATED]
    assert owed(database) == []


def test_a_replacement_whose_own_key_is_in_process_waits_for_it(
    app: Celery, courier: Courier, tm: TimeManagement, database: Database, bodies: list[Any], noon: MovableClock
) -> None:
    task = app.tasks["own_keys"]
    result = task.delay(1)
    [message] = courier.collect()
    pending = defer(task.s(0), delay="1h")
    courier.deliver(message)
    courier.deliver_all()
    assert bodies == [1]
    noon.forward("2h")
    for _ in range(5):
        deliver_one_by_one(courier)
        noon.forward("1m")
    assert (bodies, result.get(timeout=5)) == ([1, 0], "done")
    assert outcomes(tm, result.id) == [Outcome.REPLACED, Outcome.DEDUPLICATED]
    assert outcomes(tm, pending.id) == [Outcome.SUCCEEDED]
    assert owed(database) == []


def test_a_key_that_a_job_was_deferred_with_is_kept_by_its_replacement(
    app: Celery, courier: Courier, tm: TimeManagement, bodies: list[Any]
) -> None:
    job = defer(app.tasks["no_rule"].s(1), key="chosen")
    courier.dispatch()
    courier.deliver(courier.collect()[0])
    assert defer(app.tasks["no_rule"].s(1), key="chosen").id == job.id
    courier.deliver_all()
    assert bodies == [1, 0]
    with tm.installation.database.transaction(write=False) as tx:
        done = keys.find_kept(tx, "no_rule", "chosen")
    assert done is not None
    assert done.job == job.id


@pytest.mark.parametrize("key", ["later", None])
def test_a_replacement_far_ahead_waits_for_its_time(
    app: Celery, courier: Courier, database: Database, bodies: list[Any], noon: MovableClock, key: str | None
) -> None:
    @app.task(base=Task, bind=True, name="later", shared=False, key=key)
    def later(self: Task, n: int) -> Any:
        bodies.append(n)
        return self.replace(self.s(n - 1).set(countdown=7200)) if n else "done"

    result = later.delay(1)
    deliver_one_by_one(courier)
    noon.forward("1h")
    deliver_one_by_one(courier)
    assert bodies == [1]
    noon.forward("2h")
    deliver_one_by_one(courier)
    assert (bodies, result.get(timeout=5)) == ([1, 0], "done")
    assert owed(database) == []


def test_a_replacement_that_the_broker_refuses_is_sent_when_it_is_back(
    app: Celery, courier: Courier, database: Database, bodies: list[Any], noon: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = app.tasks["one_key"].delay(1)
    [message] = courier.collect()

    def is_away(*_: Any, **__: Any) -> Any:
        raise OperationalError("the broker is away")

    with monkeypatch.context() as patch:
        patch.setattr(app.amqp, "send_task_message", is_away)
        courier.deliver(message)
    assert courier.deliver_all() == 0
    noon.forward("1m")
    deliver_one_by_one(courier)
    assert (bodies, result.get(timeout=5)) == ([1, 0], "done")
    assert owed(database) == []


def test_jobs_of_a_chunk_keep_their_keys_for_their_replacements(
    app: Celery, courier: Courier, tm: TimeManagement, database: Database, bodies: list[Any], noon: MovableClock
) -> None:
    @app.task(base=Task, bind=True, name="many", shared=False, key="many:{1}", chunk=10, max_retries=0)
    def many(self: Task, n: int, name: str) -> Any:
        bodies.append((n, name))
        return self.replace(self.s(n - 1, name)) if n else "done"

    jobs = [defer(many.s(1, name), delay="1m") for name in "ab"]
    noon.forward("2m")
    courier.dispatch()
    [message] = courier.collect()
    courier.deliver(message)
    assert [defer(many.s(1, name)).id for name in "ab"] == [job.id for job in jobs]
    deliver_one_by_one(courier)
    assert sorted(bodies) == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
    assert [outcomes(tm, job.id) for job in jobs] == [[Outcome.REPLACED, Outcome.SUCCEEDED]] * 2
    assert owed(database) == []


# What a replacement gets from its job


def test_a_replacement_keeps_the_entity_scope_and_retries_that_its_job_was_deferred_with(
    app: Celery, courier: Courier, tm: TimeManagement, bodies: list[Any]
) -> None:
    @app.task(base=Task, bind=True, name="fails_at_last", shared=False, max_retries=3)
    def fails_at_last(self: Task, n: int) -> Any:
        bodies.append((n, self.job.entity_id, dict(self.job.scope)))
        if n:
            return self.replace(self.s(n - 1))
        raise ValueError("at last")

    handle = defer(fails_at_last.s(2), entity_id="order 7", scope={"tenant_id": 7}, max_retries=0)
    courier.deliver_all()
    assert bodies == [(n, "order 7", {"tenant_id": 7}) for n in (2, 1, 0)]
    assert outcomes(tm, handle.id) == [Outcome.REPLACED, Outcome.REPLACED, Outcome.FAILED]
    assert [one.attempt for one in tm.history(scope={"tenant_id": 7})] == [3, 2, 1]
    assert handle.state is Status.FAILED, "no try was left"


@pytest.mark.parametrize("stated", [None, 1])
def test_a_replacement_of_another_task_goes_by_the_retries_of_its_task_or_those_that_were_stated(
    app: Celery, courier: Courier, tm: TimeManagement, stated: int | None
) -> None:
    @app.task(base=Task, name="careful", shared=False, max_retries=0)
    def careful() -> None:
        raise ValueError("not again")

    @app.task(base=Task, bind=True, name="makes_way", shared=False, max_retries=3)
    def makes_way(self: Task) -> Any:
        return self.replace(careful.s())

    handle = defer(makes_way.s(), **({} if stated is None else {"max_retries": stated}))
    courier.deliver_all()
    assert handle.state is (Status.FAILED if stated is None else Status.RETRY_SCHEDULED)


@pytest.mark.parametrize("expires", [None, 3600], ids=["", "expires"])
def test_a_running_replacement_is_cancelled_by_the_entity_of_its_job(
    app: Celery, courier: Courier, tm: TimeManagement, bodies: list[Any], expires: int | None
) -> None:
    @app.task(base=Task, bind=True, name="cancels", shared=False)
    def cancels(self: Task, *, last: bool = False) -> Any:
        if not last:
            return self.replace(self.s(last=True).set(expires=expires))
        bodies.append(cancel(entity_id="order 7", app=app))
        raise ValueError("it is not tried again")

    handle = defer(cancels.s(), entity_id="order 7")
    courier.deliver_all()
    assert bodies == [True]
    assert handle.state is Status.CANCELED


def test_a_replacement_waits_for_a_slot_of_the_key_that_its_job_was_deferred_with(
    app: Celery, courier: Courier, tm: TimeManagement, bodies: list[Any]
) -> None:
    limit = {"concurrency_key": "turns", "concurrency": 1}
    job = defer(app.tasks["no_rule"].s(1), **limit)
    courier.dispatch()
    courier.deliver(courier.collect()[0])
    [replacement] = courier.collect()
    defer(app.tasks["no_rule"].s(0), **limit)
    courier.dispatch()
    [other] = courier.collect()
    courier.deliver(replacement)
    courier.dispatch()
    assert bodies == [1], "the other job has the only slot"
    assert courier.collect() == []
    courier.deliver(other)
    courier.deliver_all()
    assert bodies == [1, 0, 0]
    assert outcomes(tm, job.id) == [Outcome.REPLACED, Outcome.SUCCEEDED]
    assert owed(tm.installation.database) == []


def test_a_replacement_that_no_row_can_hold_runs_without_a_slot(
    app: Celery, courier: Courier, tm: TimeManagement, bodies: list[Any]
) -> None:
    app.conf.update(accept_content=["json", "pickle"])

    @app.task(base=Task, bind=True, name="pickles", shared=False)
    def pickles(self: Task, *rest: Any) -> Any:
        bodies.append(len(rest))
        return None if rest else self.replace(self.s(Strange()).set(serializer="pickle"))

    job = defer(pickles.s(), key="k", concurrency_key="turns")
    deliver_one_by_one(courier)
    assert bodies == [0, 1]
    assert outcomes(tm, job.id) == [Outcome.REPLACED, Outcome.SUCCEEDED]


# Replacements of several calls


@pytest.fixture
def parts(app: Celery, courier: Courier, bodies: list[Any]) -> Any:
    """Return a task that its argument says what to replace with."""

    @app.task(base=Task, name="part", shared=False, max_retries=0)
    def part(name: str, *_: Any) -> str:
        bodies.append(name)
        if name == "bad":
            raise ValueError(name)
        return name

    @app.task(base=Task, bind=True, name="splits", shared=False, max_retries=0)
    def splits(self: Task, shape: str) -> Any:
        bodies.append(shape)
        bad = part.si("bad" if shape == "failing chain" else "a")
        shapes = {
            "chain": chain(bad, part.si("b")),
            "failing chain": chain(bad, part.si("b")),
            "group": group(part.si("a"), part.si("b")),
            "chord": chord([part.si("a"), part.si("b")], part.si("c")),
            "chain that begins with a group": chain(group(part.si("a"), part.si("b")), part.si("c")),
        }
        return self.replace(shapes[shape])

    return splits


SHAPES = ("chain", "group", "chord", "chain that begins with a group")


def live_on(courier: Courier, noon: MovableClock, *, rounds: int = 8) -> None:
    """Deliver all that there is, again and again, until no wait between two looks at a replacement is left."""
    for _ in range(rounds):
        courier.deliver_all()
        noon.forward("2d")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_replacement_of_several_calls_that_the_broker_loses_is_sent_again(
    parts: Any, courier: Courier, tm: TimeManagement, bodies: list[Any], noon: MovableClock, shape: str
) -> None:
    handle = defer(parts.s(shape))
    courier.dispatch()
    for message in courier.collect():
        courier.deliver(message)
    assert courier.collect(), "the messages of the replacement, which nobody gets to see"
    assert handle.state is Status.RUNNING
    live_on(courier, noon)
    assert bodies[0] == shape
    assert sorted(bodies[1:]) == (["a", "b"] if shape in ("chain", "group") else ["a", "b", "c"])
    assert owed(tm.installation.database) == []
    assert outcomes(tm, handle.id) == [Outcome.REPLACED] + [Outcome.SUCCEEDED] * (shape != "group")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_replacement_of_several_calls_runs_each_once_however_slow_they_are(
    parts: Any, courier: Courier, tm: TimeManagement, bodies: list[Any], noon: MovableClock, shape: str
) -> None:
    defer(parts.s(shape))
    slow: list[Any] = []
    for _ in range(4):
        courier.dispatch()
        slow += courier.collect()
        if slow:
            courier.deliver(slow.pop(0))
        noon.forward("11m")
    for message in slow:
        courier.deliver(message)
    live_on(courier, noon)
    assert sorted(bodies[1:]) == (["a", "b"] if shape in ("chain", "group") else ["a", "b", "c"])
    assert owed(tm.installation.database) == []


@pytest.mark.parametrize("how", ["cancel", "revoke", "revoke by a caller who finds no row"])
def test_a_chain_that_replaces_a_job_is_cancelled_while_its_first_part_runs(
    parts: Any, courier: Courier, app: Celery, tm: TimeManagement, bodies: list[Any], noon: MovableClock, how: str
) -> None:
    handle = defer(parts.s("chain"))
    deliver_rounds(courier, 2)
    assert bodies == ["chain", "a"]
    if how == "cancel":
        assert cancel(id=handle.id, app=app)
    else:
        if how != "revoke":
            with tm.installation.database.transaction() as tx:
                tx.execute(delete(tables.job).where(tables.job.c.id == handle.id))
        revoke_all(tm.installation, [handle.id])
    assert handle.state is Status.CANCELED
    live_on(courier, noon)
    assert bodies == ["chain", "a"]
    assert outcomes(tm, handle.id) == [Outcome.REPLACED, Outcome.CANCELLED]
    assert owed(tm.installation.database) == []


def test_a_chain_that_fails_leaves_no_row_of_the_job_that_it_replaces(
    parts: Any, courier: Courier, tm: TimeManagement, bodies: list[Any], noon: MovableClock
) -> None:
    handle = defer(parts.s("failing chain"))
    live_on(courier, noon)
    assert bodies == ["failing chain", "bad"]
    assert owed(tm.installation.database) == []
    assert outcomes(tm, handle.id) == [Outcome.REPLACED]


def deliver_rounds(courier: Courier, rounds: int) -> None:
    """Deliver what is there, and what that publishes, but not what follows."""
    for _ in range(rounds):
        courier.dispatch()
        for message in courier.collect():
            courier.deliver(message)
