"""Celery's own calls through the job table: ETAs far ahead, retries, brokers that are away, on every database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import MaxRetriesExceededError, Retry
from celery.signals import after_task_publish, before_task_publish
from kombu.exceptions import OperationalError
from sqlalchemy import select
from tmtest.courier import Courier, owed

from celery_tm import Task, TimeManagement, defer
from celery_tm.domain.job import JobState, Status
from celery_tm.errors import DatabaseUnavailable
from celery_tm.store import tables
from celery_tm.store.database import Database
from celery_tm.testing import MovableClock
from celery_tm.worker import release, strategy

MINUTE = timedelta(minutes=1)


@pytest.fixture
def courier(tm: TimeManagement) -> Courier:
    return Courier(tm)


@pytest.mark.parametrize(
    "when",
    [
        lambda now: {"countdown": 300},
        lambda now: {"eta": now + 5 * MINUTE},
        lambda now: {"eta": (now + 5 * MINUTE).replace(tzinfo=None)},
        lambda now: {"eta": (now + 5 * MINUTE).isoformat()},
        lambda now: {"countdown": 300.0, "eta": now},
    ],
    ids=["countdown", "aware", "naive", "text", "both"],
)
def test_a_call_far_ahead_is_a_row_and_no_message(
    app: Celery, courier: Courier, database: Database, noon: MovableClock, when: Callable[[datetime], dict[str, Any]]
) -> None:
    result = app.tasks["effect"].apply_async((7,), **when(noon.now))
    assert courier.collect() == []
    [job] = owed(database)
    assert (job.id, job.state, job.run_at, job.original_delay) == (
        result.id, JobState.PENDING, noon.now + 5 * MINUTE, 5 * MINUTE,
    )  # fmt: skip
    noon.forward("5m")
    assert courier.deliver_all() == 1
    assert courier.tm.job(result.id).state == Status.SUCCEEDED
    assert result.get(timeout=1) == 7 if app.conf.result_backend else True


@pytest.mark.parametrize("when", [{}, {"countdown": 59}, {"countdown": -5}, {"eta": datetime(2020, 1, 1, tzinfo=UTC)}])
def test_a_call_that_is_near_or_past_goes_to_the_broker_as_ever(
    app: Celery, courier: Courier, database: Database, when: dict[str, Any]
) -> None:
    app.tasks["effect"].apply_async((7,), **when)
    assert owed(database) == []
    assert len(courier.collect()) == 1


def test_how_far_is_far_is_a_setting(app: Celery, tm: TimeManagement, database: Database) -> None:
    from dataclasses import replace

    tm.installation.settings = replace(tm.settings, tm_capture_eta_after=timedelta(seconds=5))
    app.tasks["effect"].apply_async((7,), countdown=6)
    assert len(owed(database)) == 1


def test_all_that_a_call_carries_is_kept_and_sent(
    app: Celery, courier: Courier, database: Database, noon: MovableClock
) -> None:
    effect = app.tasks["effect"]
    link, errback = effect.s(), effect.si("err")
    effect.apply_async(
        (7,), countdown=300, queue="slow", priority=3, expires=3600, headers={"tenant": 9}, shadow="seven", link=link,
        link_error=errback, time_limit=60, soft_time_limit=50, compression="gzip", task_id="seven-id",
    )  # fmt: skip
    noon.forward("5m")
    courier.dispatch()
    [message] = courier.collect("slow")
    headers = message.headers
    assert (headers["id"], headers["shadow"], headers["tenant"], headers["timelimit"]) == ("seven-id", "seven", 9, [60, 50])
    assert headers["eta"] is None
    assert message.properties["priority"] == 3
    assert message.headers["compression"] == "application/x-gzip"
    expires = datetime.fromisoformat(headers["expires"])  # Celery reckons by the machine's clock
    assert abs(expires - datetime.now(UTC) - 60 * MINUTE) < MINUTE
    _, _, embed = message.payload
    assert [one["task"] for one in embed["callbacks"]] == ["effect"]
    assert [one["args"] for one in embed["errbacks"]] == [["err"]]


def test_the_options_a_task_states_hold_for_jobs_too(
    app: Celery, courier: Courier, noon: MovableClock, recwarn: pytest.WarningsRecorder
) -> None:
    @app.task(base=Task, name="stated", shared=False, queue="own", compression="gzip", time_limit=9, ignore_result=True)
    def stated() -> None: ...

    defer(stated.s(), delay="1m")
    stated.apply_async(countdown=60.5)
    noon.forward("61s")
    courier.dispatch()
    messages = courier.collect("own")
    assert [message.headers["timelimit"][0] for message in messages] == [9, 9]
    assert {message.headers["compression"] for message in messages} == {"application/x-gzip"}
    recwarn.clear()  # Celery says that task attributes like queue= go one day


def test_a_call_with_the_key_of_another_is_that_other(app: Celery, database: Database) -> None:
    first = app.tasks["keyed"].apply_async((1,), countdown=300)
    second = app.tasks["keyed"].apply_async((1,), countdown=400)
    assert first.id == second.id
    assert len(owed(database)) == 1


def test_a_rule_for_keys_may_be_a_function(app: Celery, database: Database) -> None:
    @app.task(base=Task, name="ruled", shared=False, key=lambda n, **_: f"n:{n}")
    def ruled(n: int, **more: int) -> None: ...

    ruled.apply_async((1,), {"x": 1}, countdown=300)
    ruled.apply_async((1,), {"x": 2}, countdown=300)
    assert [job.dedupe_key for job in owed(database)] == ["n:1"]


def test_what_is_no_json_goes_the_plain_way_and_says_so(
    app: Celery, courier: Courier, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    app.tasks["effect"].apply_async((object(),), countdown=300, serializer="pickle")
    assert owed(database) == []
    assert "goes to the broker as plain Celery sends it: args" in caplog.text


def test_a_wrong_call_is_refused_as_by_plain_celery(app: Celery, database: Database) -> None:
    with pytest.raises(TypeError):
        app.tasks["flaky"].apply_async((1, 2, 3, 4), countdown=300)
    assert owed(database) == []


def test_receivers_of_publishing_are_asked_where_the_call_is_made(app: Celery, courier: Courier, noon: MovableClock) -> None:
    user, heard = ["ann"], []

    def add_user(headers: dict[str, Any] | None = None, **_: Any) -> None:
        assert headers is not None
        headers["user"] = user[0]
        headers["traceparent"] = f"00-{user[0]}"

    def hear(sender: str = "", **_: Any) -> None:
        heard.append(sender)

    before_task_publish.connect(add_user)
    after_task_publish.connect(hear)
    try:
        app.tasks["effect"].apply_async((1,), countdown=300)
        defer(app.tasks["effect"].s(2).set(headers={"own": 1}), delay="5m")
        user[0] = "beat"
        noon.forward("5m")
        courier.dispatch()
    finally:
        before_task_publish.disconnect(add_user)
        after_task_publish.disconnect(hear)
    messages = courier.collect()
    assert [(one.headers["user"], one.headers["traceparent"]) for one in messages] == [("ann", "00-ann")] * 2
    assert sorted(one.headers.get("own", 0) for one in messages) == [0, 1]
    assert heard == ["effect"] * 2, "once for each call, where it is made"


def test_a_broker_that_is_away_is_not_the_callers_problem(
    app: Celery, courier: Courier, database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("connection refused")

    with monkeypatch.context() as patch:
        patch.setattr("kombu.messaging.Producer.publish", away)
        result = app.tasks["effect"].delay(7)
    assert "waits in the job table, for the broker does not answer" in caplog.text
    assert [job.id for job in owed(database)] == [result.id]
    courier.deliver_all()
    assert courier.tm.job(result.id).state == Status.SUCCEEDED


def test_without_broker_and_database_the_caller_hears_of_the_broker(
    app: Celery, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("connection refused")

    def gone(*_: Any, **__: Any) -> None:
        raise DatabaseUnavailable("db", "gone")

    monkeypatch.setattr("kombu.messaging.Producer.publish", away)
    monkeypatch.setattr(type(database), "run", gone)
    with pytest.raises(OperationalError, match="connection refused"):
        app.tasks["effect"].delay(7)


def test_a_message_and_a_row_for_the_same_call_run_once(app: Celery, courier: Courier, noon: MovableClock, effects) -> None:
    app.tasks["effect"].apply_async((7,), task_id="once")
    app.tasks["effect"].apply_async((7,), task_id="once", countdown=300)
    [message] = courier.collect()
    courier.deliver(message)  # its id belongs to the row, which is not due
    assert effects.read_text() == ""
    noon.forward("5m")
    courier.deliver_all()
    courier.deliver(message)
    assert len(effects.read_text().splitlines()) == 1


def test_calls_that_are_kept_borrow_no_connection_for_good(app: Celery, database: Database) -> None:
    app.conf.result_backend = "rpc://"
    for n in range(app.conf.broker_pool_limit + 5):
        app.tasks["effect"].apply_async((n,), countdown=300)
    assert len(owed(database)) == app.conf.broker_pool_limit + 5


@pytest.mark.parametrize("how", ["stops", "asks again"])
def test_a_call_whose_arguments_are_not_kept_is_never_sent_without_them(
    app: Celery, courier: Courier, database: Database, how: str
) -> None:
    app.conf.update(task_serializer="pickle", accept_content=["pickle", "json"])

    @app.task(base=Task, name="odd", shared=False)
    def odd(n: Any) -> None:
        if how == "asks again":
            raise Retry("later", when=0)
        [job] = owed(database)
        release.record_handed_back(courier.tm.installation, [(job.id, 1)], "it stops", workers={job.claimed_by})

    result = odd.apply_async(({1, 2},))
    [message] = courier.collect()
    courier.deliver(message)
    assert owed(database) == []
    [letter] = courier.tm.dead_letters.list()
    assert (letter.id, letter.reason) == (result.id, "its arguments were not JSON, so it cannot be sent again")


# Retries


def retried(app: Celery, **retry: Any) -> Any:
    @app.task(base=Task, bind=True, name="retried", shared=False, max_retries=2)
    def again(self: Task, *args: Any, **kwargs: Any) -> Any:
        if self.request.retries == 0:
            raise self.retry(**retry)
        return [list(args), kwargs]

    return again


@pytest.mark.parametrize(
    ("retry", "changed"),
    [
        ({"countdown": 5}, {}),
        ({"countdown": 5, "queue": "slow"}, {"queue": "slow"}),
        ({"countdown": 5, "priority": 7}, {"priority": 7}),
        ({"countdown": 5, "args": (8,)}, {"args": "[8]"}),
        ({"countdown": 5, "kwargs": {"y": 2}}, {}),
        ({"eta": datetime(2026, 6, 1, 13, tzinfo=UTC)}, {"run_at": datetime(2026, 6, 1, 13, tzinfo=UTC)}),
    ],
    ids=["countdown", "queue", "priority", "args", "kwargs", "eta"],
)
def test_a_retry_goes_back_to_its_row_with_what_it_asks_for(
    app: Celery, courier: Courier, database: Database, noon: MovableClock, retry: dict[str, Any], changed: dict[str, Any]
) -> None:
    result = retried(app, **retry).delay(7)
    [message] = courier.collect()
    traced = courier.deliver(message)
    assert traced.info.state == "RETRY"
    [job] = owed(database)
    assert (job.id, job.attempt, job.state) == (result.id, 2, JobState.PENDING)
    expected = {"run_at": noon.now + timedelta(seconds=5)} | changed
    assert {name: getattr(job, name) for name in expected} == expected
    assert courier.collect() == []
    noon.forward("1h")
    courier.dispatch()
    [message] = courier.collect(retry.get("queue"))
    assert message.headers["retries"] == 1
    courier.deliver(message)
    assert courier.tm.job(result.id).state == Status.SUCCEEDED


def test_a_retry_keeps_the_rest_of_a_chain(app: Celery, courier: Courier, noon: MovableClock, effects) -> None:
    again = retried(app, countdown=5)
    (again.s(7) | app.tasks["effect"].s()).apply_async()
    courier.deliver_all()
    noon.forward("5s")
    courier.deliver_all()
    assert [line.split()[0] for line in effects.read_text().splitlines()] == ["effect"]


def test_the_jobs_own_limit_counts_and_not_the_tasks(app: Celery, courier: Courier, noon: MovableClock) -> None:
    @app.task(base=Task, bind=True, name="stubborn", shared=False, max_retries=1)
    def stubborn(self: Task) -> None:
        raise self.retry(countdown=1, exc=ValueError("no"))

    handle = defer(stubborn.s(), max_retries=3)
    for _ in range(6):
        courier.deliver_all()
        noon.forward("2s")
    assert [one.attempt for one in courier.tm.job(handle.id).executions] == [4, 3, 2, 1]
    assert courier.tm.job(handle.id).state == Status.FAILED
    assert "override_max_retries" not in vars(stubborn)


def test_a_retry_without_an_exception_gives_up_as_in_celery(app: Celery, courier: Courier, noon: MovableClock) -> None:
    @app.task(base=Task, bind=True, name="stubborn", shared=False, max_retries=0)
    def stubborn(self: Task) -> None:
        raise self.retry(countdown=1)

    stubborn.delay()
    [message] = courier.collect()
    info = courier.deliver(message).info
    assert (info.state, type(info.retval)) == ("FAILURE", MaxRetriesExceededError)


def test_the_policy_never_leaves_failures_to_the_body(app: Celery, courier: Courier, noon: MovableClock) -> None:
    @app.task(base=Task, name="once", shared=False, retry="never")
    def once() -> None:
        raise ValueError("no")

    @app.task(base=Task, bind=True, name="asks", shared=False, retry="never")
    def asks(self: Task) -> int:
        if self.request.retries == 0:
            raise self.retry(countdown=1)
        return 1

    failed, asked = once.delay(), asks.delay()
    courier.deliver_all()
    noon.forward("2s")
    courier.deliver_all()
    assert [courier.tm.job(one.id).state for one in (failed, asked)] == [Status.FAILED, Status.SUCCEEDED]
    assert courier.tm.job(failed.id).attempt_count == 1


def test_a_retry_raised_by_hand_is_one(app: Celery, courier: Courier, database: Database, noon: MovableClock) -> None:
    @app.task(base=Task, name="by_hand", shared=False)
    def by_hand() -> None:
        raise Retry("later", when=30)

    by_hand.delay()
    courier.deliver(courier.collect()[0])
    assert [job.run_at for job in owed(database)] == [noon.now + timedelta(seconds=30)]


# Eager


def test_nothing_is_written_where_everything_is_eager(app: Celery, database: Database, effects) -> None:
    app.conf.task_always_eager = True
    assert app.tasks["effect"].apply_async((1,), countdown=300).get() == 1
    handle = defer(app.tasks["effect"].s(2), delay="15m")
    assert (handle.state, handle.result) == (Status.SUCCEEDED, 2)
    assert defer(app.tasks["fails"].s(3)).state == Status.FAILED
    with database.transaction(write=False) as tx:
        assert tx.execute(select(tables.execution)).all() == []
        assert tx.execute(select(tables.job)).all() == []
    assert len(effects.read_text().splitlines()) == 3


# Protocol 1


def test_calls_in_protocol_1_are_kept_and_tried_again_as_in_protocol_2(
    app: Celery, courier: Courier, database: Database, noon: MovableClock, effects
) -> None:
    app.conf.task_protocol = 1
    app.amqp.__dict__.pop("create_task_message", None)
    effect = app.tasks["effect"]
    far = effect.apply_async((7,), countdown=300, link=effect.si("linked"), headers={"tenant": 9}, expires=10**9)
    again = retried(app, countdown=300).delay(8, y=2)
    [message] = courier.collect()
    assert isinstance(message.payload, dict)
    courier.deliver(message)
    [first, second] = sorted(owed(database), key=lambda job: job.task)
    assert (first.id, first.args, first.options["headers"]["tenant"]) == (far.id, "[7]", 9)
    assert (second.id, second.attempt, second.state) == (again.id, 2, JobState.PENDING)
    noon.forward("5m")
    courier.deliver_all()
    assert [courier.tm.job(id).state for id in (far.id, again.id)] == [Status.SUCCEEDED] * 2
    assert [line.split()[1] for line in effects.read_text().splitlines()] == ["7", "linked"]
    assert owed(database) == []


@pytest.mark.parametrize("protocol", [1, 2])
def test_a_message_far_ahead_that_comes_to_a_worker_is_kept_whatever_its_protocol(
    app: Celery, courier: Courier, database: Database, protocol: int
) -> None:
    app.conf.task_protocol = protocol
    app.amqp.__dict__.pop("create_task_message", None)
    sent = app.send_task("effect", (7,), countdown=3600, task_id="far", link=app.tasks["effect"].si("linked"))
    [message] = courier.collect()
    message.accept = None
    said = message.payload if protocol == 1 else message.headers
    assert strategy._captured(app.tasks["effect"], app, message, said)
    [job] = owed(database)
    assert (job.id, job.args, job.options["link"][0]["args"]) == (sent.id, "[7]", ["linked"])
