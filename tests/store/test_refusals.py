"""Deliveries that the gate refuses: none is lost, none leaves its chain, chord or links waiting, on every database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, chain, chord
from celery.exceptions import TaskRevokedError
from sqlalchemy import update
from sqlalchemy.exc import DBAPIError
from tmtest.courier import Courier, owed

from celery_tm import Task, TimeManagement, cancel, defer
from celery_tm.domain.execution import Outcome
from celery_tm.domain.job import JobState
from celery_tm.errors import InvalidValue
from celery_tm.store import executions, keys, tables
from celery_tm.store.database import Database
from celery_tm.testing import MovableClock
from celery_tm.worker import gate
from celery_tm.worker.request import Request


class Strange:
    """An argument that no JSON holds."""


@pytest.fixture
def courier(tm: TimeManagement, app: Celery) -> Courier:
    app.conf.update(result_backend="cache+memory://", result_chord_retry_interval=0.01)

    @app.task(base=Task, name="renew", shared=False, key="renew:{tenant}", max_retries=0)
    def renew(tenant: Any, note: str = "") -> Any:
        return tenant

    @app.task(base=Task, name="limited", shared=False, concurrency_key="limited", max_retries=0)
    def limited(n: Any = "the default") -> Any:
        return n

    @app.task(base=Task, bind=True, name="replaced", shared=False, concurrency_key="replaced")
    def replaced(self: Task, n: int) -> Any:
        return self.replace(self.s(n - 1)) if n else "done"

    @app.task(base=Task, name="add", shared=False)
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(base=Task, name="total", shared=False)
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    return Courier(tm)


def outcomes(tm: TimeManagement, id: str) -> list[Outcome]:
    with tm.installation.database.transaction(write=False) as tx:
        return [one.outcome for one in executions.of_job(tx, id)]


def has_succeeded(tm: TimeManagement, task: str, key: str) -> bool:
    with tm.installation.database.transaction(write=False) as tx:
        return keys.find_kept(tx, task, key) is not None


# self.replace() under a concurrency key


def test_a_replacement_with_a_concurrency_key_is_not_lost_however_soon_it_comes(
    app: Celery, courier: Courier, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the worker that was replaced is still about to delete the row of the attempt before."""
    result = app.tasks["replaced"].delay(1)
    [message] = courier.collect()
    courier.deliver(message)
    courier.dispatch()
    [first] = courier.collect()
    send = courier.app.tasks["replaced"].apply_async
    during: list[Any] = []

    def sends(*args: Any, **kwargs: Any) -> Any:
        sent = send(*args, **kwargs)
        during.extend(courier.deliver(one) for one in courier.collect())
        return sent

    with monkeypatch.context() as patch:
        patch.setattr(app.tasks["replaced"], "apply_async", sends)
        courier.deliver(first)
    assert during, "the replacement came before the attempt before it was over"
    courier.deliver_all()
    assert result.get(timeout=5) == "done"
    assert owed(database) == []


# Keys by the names of arguments


@pytest.mark.parametrize(("args", "kwargs"), [((7,), {}), ((), {"tenant": 7}), ((7, "x"), {}), ((7,), {"note": "y"})])
def test_a_rule_by_name_makes_one_key_however_the_arguments_are_passed(
    app: Celery, courier: Courier, tm: TimeManagement, args: Any, kwargs: Any, noon: MovableClock
) -> None:
    renew = app.tasks["renew"]
    direct = renew.apply_async(args, kwargs)
    far = renew.apply_async(args, kwargs, countdown=3600)
    [message] = courier.collect()
    courier.deliver(message)
    assert outcomes(tm, direct.id) == []  # the call far ahead has the key
    assert far.id == defer(renew.s(*args, **kwargs)).id
    noon.forward("1h")
    courier.deliver_all()
    renew.apply_async(args, kwargs)
    assert courier.deliver_all() == 1
    assert has_succeeded(tm, "renew", "renew:7")
    with tm.installation.database.transaction(write=False) as tx:
        assert [one.outcome for one in executions.latest(tx, task="renew", limit=10)] == [Outcome.SUCCEEDED]


def test_a_rule_may_number_arguments_that_are_passed_by_name(app: Celery, courier: Courier, tm: TimeManagement) -> None:
    app.tasks["keyed"].delay(n=3)
    courier.deliver_all()
    assert has_succeeded(tm, "keyed", "keyed:3")


def no_key(*_: Any, **__: Any) -> str:
    raise ZeroDivisionError("no key today")


async def later_key(*_: Any, **__: Any) -> str:
    return "k"


@pytest.mark.parametrize("rule", ["renew:{nobody}", no_key, later_key])
@pytest.mark.parametrize("name", ["key", "concurrency_key"])
def test_a_rule_that_makes_no_key_of_a_call_is_never_passed_over(
    app: Celery, courier: Courier, tm: TimeManagement, rule: Any, name: str, effects
) -> None:
    """The caller hears of it; a message that somebody else sent becomes a dead letter, and its caller hears of that."""

    @app.task(base=Task, name="misruled", shared=False, **{name: rule})
    def misruled(n: int) -> None:
        raise AssertionError("it ran without its key")

    for call in (misruled.delay, lambda n: defer(misruled.s(n)), lambda n: misruled.apply_async((n,), countdown=3600)):
        with pytest.raises(InvalidValue, match=f"the task's {name}= makes none"):
            call(1)
    errback = app.tasks["effect"].si("told")
    sent = app.send_task("misruled", (1,), link_error=errback)
    courier.deliver_all()
    assert isinstance(sent.get(timeout=5, propagate=False), Exception)
    [letter] = tm.dead_letters.list()
    assert (letter.id, f"the task's {name}= makes none" in letter.reason) == (sent.id, True)
    assert len(effects.read_text().splitlines()) == 1


def test_arguments_that_the_body_does_not_take_are_the_body_s_to_refuse(
    app: Celery, courier: Courier, tm: TimeManagement
) -> None:
    sent = app.send_task("renew", (1, 2, 3, 4))
    courier.deliver_all()
    assert outcomes(tm, sent.id) == [Outcome.FAILED]


# Duplicates that others wait for


def keyed_success(app: Celery, courier: Courier, n: int) -> None:
    app.tasks["keyed"].delay(n)
    courier.deliver_all()


@pytest.mark.parametrize("way", ["direct", "deferred", "far ahead"])
def test_a_duplicate_whose_key_has_succeeded_publishes_its_callbacks_with_that_result(
    app: Celery, courier: Courier, tm: TimeManagement, database: Database, noon: MovableClock, way: str, effects
) -> None:
    keyed, effect = app.tasks["keyed"], app.tasks["effect"]
    linked = keyed.s(1).set(link=effect.s())
    if way == "deferred":  # before its key succeeds, else defer() says so at once
        defer(keyed.s(1).set(link=effect.s()), delay="50m", key="another")
        with database.transaction() as tx:
            tx.execute(update(tables.job).values(dedupe_key="keyed:1"))
        app.tasks["keyed"].delay(1)
        with database.transaction() as tx:
            tx.execute(update(tables.job).values(dedupe_key=None))
        courier.deliver_all()
        with database.transaction() as tx:
            tx.execute(update(tables.job).values(dedupe_key="keyed:1"))
    else:
        keyed_success(app, courier, 1)
        linked.apply_async(countdown=3000 if way == "far ahead" else None)
    before = effects.read_text()
    noon.forward("50m")
    courier.deliver_all()
    came = effects.read_text().removeprefix(before).splitlines()
    assert [line.split(" ", 1)[1].rsplit(" ", 2)[0] for line in came] == ["{'n': 1}"]
    assert owed(database) == []


def test_a_chain_and_a_chord_go_on_past_duplicates(
    app: Celery, courier: Courier, tm: TimeManagement, database: Database
) -> None:
    @app.task(base=Task, name="once", shared=False, key="once:{0}")
    def once(n: int) -> int:
        return n

    for n in (1, 2):
        once.delay(n)
    courier.deliver_all()
    chained = chain(once.s(1), app.tasks["add"].s(10)).apply_async()
    counted = chord([once.s(1), once.s(2), app.tasks["add"].s(3, 4)])(app.tasks["total"].s())
    courier.deliver_all()
    assert (chained.get(timeout=5), counted.get(timeout=5)) == (11, 10)
    assert outcomes(tm, chained.parent.id) == [Outcome.DEDUPLICATED]
    assert owed(database) == []


@pytest.mark.parametrize("end", ["succeeds", "fails", "is cancelled"])
@pytest.mark.parametrize("way", ["direct", "far ahead"])
def test_a_duplicate_that_others_wait_for_is_kept_until_its_key_ends(
    app: Celery, courier: Courier, tm: TimeManagement, database: Database, noon: MovableClock, end: str, way: str
) -> None:
    """Its chain goes on with the result of the key, or, if the key did not succeed, with its own."""
    runs: list[int] = []

    @app.task(base=Task, bind=True, name="slow", shared=False, key="slow", max_retries=0, concurrency_key="slow")
    def slow(self: Task, n: int) -> int:
        runs.append(n)
        if n == 1 and end == "fails":
            raise ValueError("no")
        return n

    first = defer(slow.s(1), delay="2h")
    part = slow.s(5).set(countdown=3600) if way == "far ahead" else slow.s(5)
    result = chain(part, app.tasks["add"].s(10)).apply_async()
    noon.forward("90m")
    for _ in range(5):
        courier.deliver_all()
        noon.forward("1m")
    assert runs == []
    kept = [job for job in owed(database) if job.task == "slow"]
    assert [job.state for job in kept] == [JobState.PENDING] * 2
    if end == "is cancelled":
        assert cancel(id=first.id, app=app)
    for _ in range(4):
        noon.forward("20m")
        courier.deliver_all()
    assert result.get(timeout=5) == (11 if end == "succeeds" else 15)
    assert runs == {"succeeds": [1], "fails": [1, 5], "is cancelled": [5]}[end]
    assert owed(database) == []


def test_a_duplicate_that_nobody_waits_for_leaves_no_row(app: Celery, courier: Courier, database: Database) -> None:
    first = defer(app.tasks["keyed"].s(1), delay="1h")
    app.tasks["keyed"].delay(1)
    courier.deliver_all()
    assert [job.id for job in owed(database)] == [first.id]


def test_a_duplicate_with_callbacks_that_is_delivered_twice_publishes_them_once(
    app: Celery, courier: Courier, database: Database, effects
) -> None:
    keyed_success(app, courier, 1)
    app.tasks["keyed"].apply_async((1,), link=app.tasks["effect"].si("linked"))
    [message] = courier.collect()
    courier.deliver(message)
    courier.deliver(message)
    courier.deliver_all()
    courier.deliver(message)
    courier.deliver_all()
    assert sum("linked" in line for line in effects.read_text().splitlines()) == 1
    assert owed(database) == []


# Arguments that cannot be kept


@pytest.mark.parametrize("what", ["not JSON", "too long"])
def test_a_call_that_cannot_wait_for_a_slot_is_refused_and_never_run_without_its_arguments(
    app: Celery, courier: Courier, tm: TimeManagement, what: str
) -> None:
    app.conf.update(accept_content=["pickle", "json"])
    value = Strange() if what == "not JSON" else "x" * 1_100_000
    with pytest.raises(InvalidValue, match="concurrency_key"):
        app.tasks["limited"].apply_async((value,), serializer="pickle")
    sent = app.send_task("limited", (value,), serializer="pickle")
    courier.deliver_all()
    [letter] = tm.dead_letters.list()
    assert letter.id == sent.id
    assert isinstance(sent.get(timeout=5, propagate=False), Exception)
    assert outcomes(tm, sent.id) == [Outcome.FAILED]


# Expired deliveries


@pytest.mark.parametrize("where", ["at the gate", "at the claim"])
def test_a_chord_hears_of_a_part_that_expired(
    app: Celery, courier: Courier, tm: TimeManagement, database: Database, noon: MovableClock, where: str
) -> None:
    counted = chord([app.tasks["add"].s(1, 2).set(countdown=3600)])(app.tasks["total"].s())
    with database.transaction() as tx:  # Celery would reckon by the machine's clock
        tx.execute(update(tables.job).values(expires_at=noon.now + timedelta(hours=2)))
    noon.forward("1h")
    messages = []
    if where == "at the gate":
        courier.dispatch()
        messages = courier.collect()
    noon.forward("2h")
    for message in messages:
        courier.deliver(message)
    courier.dispatch()
    courier.deliver_all()
    with pytest.raises((Exception, TaskRevokedError)):
        counted.get(timeout=5)
    assert counted.state in ("FAILURE", "REVOKED")
    assert owed(database) == []


# A gate that cannot answer


@pytest.mark.parametrize("kind", ["direct", "deferred"])
def test_a_delivery_whose_gate_fails_for_any_reason_of_the_database_is_not_lost(
    app: Celery, courier: Courier, tm: TimeManagement, monkeypatch: pytest.MonkeyPatch, kind: str, effects
) -> None:
    effect = app.tasks["effect"]
    id = effect.delay(1).id if kind == "direct" else defer(effect.s(1)).id
    [message] = courier.collect()

    def broken(*_: Any, **__: Any) -> Any:
        raise DBAPIError("INSERT", {}, Exception("a trigger says no"))

    with monkeypatch.context() as patch:
        patch.setattr(gate, "admit_call" if kind == "direct" else "admit_job", broken)
        courier.deliver(message)
    assert effect.AsyncResult(id).state == "PENDING"
    if kind == "deferred":
        with tm.installation.database.transaction() as tx:
            tx.execute(update(tables.job).values(lease_until=tx.later(-timedelta(seconds=1))))
        from celery_tm.recovery.sweeper import sweep

        sweep(tm.installation.database, default=tm.installation.default_policy, limit=10)
    courier.deliver_all()
    assert len(effects.read_text().splitlines()) == 1
    assert effect.AsyncResult(id).get(timeout=5) == 1


# The database's clock says what is too late


def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clock of this machine, but not the database server's, be an hour ahead."""

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(hours=1)

    monkeypatch.setattr("celery.worker.request.datetime", Ahead)
    monkeypatch.setattr("celery_tm.clock.now", lambda: datetime.now(UTC) + timedelta(hours=1))


@pytest.fixture
def server(database: Database) -> Database:
    if not database.dialect.is_server:
        pytest.skip("its clock is this machine's")
    return database


def request_of(app: Celery, message: Any) -> Request:
    return Request(message, app=app, hostname="w@test", task=app.tasks["effect"], connection_errors=())


def test_a_worker_whose_clock_is_ahead_leaves_it_to_the_gate_what_is_too_late(
    app: Celery, courier: Courier, monkeypatch: pytest.MonkeyPatch, server: Database, effects
) -> None:
    defer(app.tasks["effect"].s(1), expires=timedelta(minutes=5))
    app.tasks["effect"].apply_async((2,), expires=300)
    job, call = courier.collect()
    ahead(monkeypatch)
    assert not request_of(app, job).maybe_expire()
    assert request_of(app, call).maybe_expire()  # nothing but its message says so
    courier.deliver(job)
    assert len(effects.read_text().splitlines()) == 1


def test_a_beat_whose_clock_is_ahead_sends_no_message_that_the_broker_drops(
    app: Celery, courier: Courier, monkeypatch: pytest.MonkeyPatch, server: Database
) -> None:
    handle = defer(app.tasks["effect"].s(1), delay="4m", expires=timedelta(minutes=5))
    with server.transaction() as tx:
        tx.execute(update(tables.job).where(tables.job.c.id == handle.id).values(run_at=tx.now))
    ahead(monkeypatch)
    assert courier.dispatch() == 1
    [message] = courier.collect()
    assert message.properties.get("expiration") is None
    assert message.headers["expires"] is not None
    courier.deliver(message)
    assert owed(server) == []
