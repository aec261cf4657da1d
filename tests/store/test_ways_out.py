"""Every way out of a delivery that was admitted is recorded, and what Celery reports agrees with the record."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from billiard.pool import soft_timeout_sighandler
from celery import Celery
from celery.canvas import Signature
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from celery.signals import task_postrun
from kombu.exceptions import OperationalError
from sqlalchemy import event, text, update
from tmtest.courier import Courier, owed

from celery_tm import Task, TimeManagement, current_job, defer, defer_many
from celery_tm.domain.job import Status
from celery_tm.errors import InvalidValue
from celery_tm.recovery.sweeper import sweep
from celery_tm.store import tables
from celery_tm.store.database import Database
from celery_tm.worker import context as contexts
from celery_tm.worker.lease import keeper_of

ran: list[Any] = []


class Hooked(Task):
    """A task whose `before_start` and `__call__` are somebody's own."""

    abstract = True
    hook: Any = None
    around: Any = None

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        if self.hook is not None:
            self.hook(task_id, args, kwargs)
        super().before_start(task_id, args, kwargs)


class Mixin:
    """A class of somebody's own that is no task."""

    around: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.around(super().__call__, *args, **kwargs)  # type: ignore[misc]


class Around(Mixin, Hooked):
    abstract = True


@pytest.fixture
def courier(tm: TimeManagement, app: Celery) -> Iterator[Courier]:
    ran.clear()
    app.conf.result_backend = "cache+memory://"
    yield Courier(tm)
    assert contexts.peek() is None
    assert keeper_of(tm.installation)._running == {}, "a lease is renewed that nobody holds"


@pytest.fixture
def make(app: Celery) -> Callable[..., Any]:
    def made(base: type[Task] = Hooked, **options: Any) -> Any:
        @app.task(base=base, bind=True, name="made", shared=False, **{"max_retries": 0, **options})
        def body(self: Task, n: Any = None) -> Any:
            ran.append((n, self.job.id))
            return n

        return body

    return made


def ended(courier: Courier, id: str) -> tuple[str, str, int]:
    """Return a job's state here, its state in Celery, and how many rows are left."""
    state = courier.app.AsyncResult(id).state
    return str(courier.tm.job(id).state), state, len(owed(courier.tm.installation.database))


def raising(error: BaseException) -> Any:
    def hook(*_: Any, **__: Any) -> None:
        raise error

    return staticmethod(hook)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("no"), (Status.FAILED, "FAILURE", 0)),
        (Ignore(), (Status.SUCCEEDED, "PENDING", 0)),
        (Retry(when=60), (Status.RETRY_SCHEDULED, "RETRY", 1)),
        (SoftTimeLimitExceeded(), (Status.FAILED, "FAILURE", 0)),
        (RecursionError("deep"), (Status.FAILED, "FAILURE", 0)),
    ],
)
@pytest.mark.parametrize("where", ["before_start", "__call__"])
@pytest.mark.parametrize("way", ["defer", "delay"])
def test_an_error_before_the_body_is_recorded(
    courier: Courier, make: Callable[..., Any], error: BaseException, expected: Any, where: str, way: str
) -> None:
    task = make(hook=raising(error)) if where == "before_start" else make(Around, around=raising(error))
    id = defer(task.s(1)).id if way == "defer" else task.delay(1).id
    for message in courier.collect():
        courier.deliver(message)
    assert ended(courier, id) == expected
    assert ran == []


def test_a_rejection_before_the_body_is_recorded(courier: Courier, make: Callable[..., Any]) -> None:
    id = defer(make(hook=raising(Reject("no", requeue=False))).s(1)).id
    courier.deliver_all()
    assert (courier.tm.job(id).state, owed(courier.tm.installation.database)) == (Status.FAILED, [])


def test_an_error_before_the_body_is_retried_as_the_policy_says(courier: Courier, make: Callable[..., Any]) -> None:
    task = make(hook=raising(ValueError("no")), max_retries=2, retry={"kind": "fixed", "delay": 0})
    id = defer(task.s(1)).id
    assert courier.deliver_all() == 3
    assert [one.outcome for one in courier.tm.job(id).executions] == ["failed"] * 3
    assert ended(courier, id) == (Status.FAILED, "FAILURE", 0)


def test_a_call_that_returns_without_the_body_has_succeeded_with_that(courier: Courier, make: Callable[..., Any]) -> None:
    task = make(Around, around=staticmethod(lambda run, n: {"cached": n}))
    handle = defer(task.s(1), key="k")
    courier.deliver_all()
    assert ended(courier, handle.id) == (Status.SUCCEEDED, "SUCCESS", 0)
    assert (handle.result, courier.app.AsyncResult(handle.id).result, ran) == ({"cached": 1}, {"cached": 1}, [])


def test_what_a_call_makes_of_the_result_is_the_result(courier: Courier, make: Callable[..., Any]) -> None:
    task = make(Around, around=staticmethod(lambda run, n: [run(n), run(n + 1)]))
    handle = defer(task.s(1), key="k")
    courier.deliver_all()
    assert ended(courier, handle.id) == (Status.SUCCEEDED, "SUCCESS", 0)
    assert (handle.result, ran) == ([1, 2], [(1, handle.id), (2, handle.id)])
    assert len(courier.tm.job(handle.id).executions) == 1


def test_a_call_that_fails_after_the_body_has_failed(courier: Courier, make: Callable[..., Any]) -> None:
    def around(run: Any, n: Any) -> Any:
        run(n)
        raise OSError("while cleaning up")

    handle = defer(make(Around, around=staticmethod(around)).s(1))
    courier.deliver_all()
    assert ended(courier, handle.id) == (Status.FAILED, "FAILURE", 0)
    assert len(ran) == 1


def test_a_call_may_swallow_the_error_of_the_body(courier: Courier, app: Celery) -> None:
    class Lenient(Task):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().__call__(*args, **kwargs)
            except ValueError as error:
                return str(error)

    @app.task(base=Lenient, name="lenient", shared=False, max_retries=0)
    def lenient() -> None:
        raise ValueError("swallowed")

    handle = defer(lenient.s(), key="k")
    courier.deliver_all()
    assert ended(courier, handle.id) == (Status.SUCCEEDED, "SUCCESS", 0)
    assert handle.result == "swallowed"
    assert app.tasks["lenient"]() == "swallowed"
    assert lenient.apply().get() == "swallowed"


def test_a_delivery_that_the_gate_refuses_is_no_start(courier: Courier, make: Callable[..., Any]) -> None:
    started: list[str] = []
    defer(make(hook=staticmethod(lambda id, *_: started.append(current_job().id))).s(1))
    [message] = courier.collect()
    courier.deliver(message)
    courier.deliver(message)
    assert len(started) == len(ran) == 1


def test_what_only_publishes_callbacks_is_no_start(
    courier: Courier, make: Callable[..., Any], app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("the broker is away")

    calls: list[str] = []
    task = make(
        Around,
        hook=staticmethod(lambda *_: calls.append("start")),
        around=staticmethod(lambda run, n: (calls.append("call"), run(n))[1]),
    )
    task.apply_async((1,), link=app.tasks["effect"].s())
    [message] = courier.collect()
    with monkeypatch.context() as patch:
        patch.setattr(Signature, "apply_async", away)
        courier.deliver(message)
    [row] = owed(courier.tm.installation.database)
    assert row.ended is not None
    _make_due(courier.tm.installation.database)
    courier.deliver_all()
    assert (calls, len(ran), owed(courier.tm.installation.database)) == (["start", "call"], 1, [])


def _make_due(database: Database) -> None:
    with database.transaction() as tx:
        tx.execute(update(tables.job).values(run_at=tx.now))


def test_an_attempt_that_somebody_ended_unseen_is_recorded_as_celery_says(
    courier: Courier, make: Callable[..., Any]
) -> None:
    """A library that replaces `run` on the task, as some do, and does not call it."""
    task = make()
    task.run, kept = (lambda n: f"instead of {n}"), task.run
    handle = defer(task.s(1), key="k")
    courier.deliver_all()
    assert ended(courier, handle.id) == (Status.SUCCEEDED, "SUCCESS", 0)
    assert handle.result == "instead of 1"
    task.run = raising(ValueError("instead")).__func__
    failed = defer(task.s(2), max_retries=5)
    courier.deliver_all()
    assert ended(courier, failed.id) == (Status.FAILED, "FAILURE", 0)
    task.run = kept


def test_hooks_see_jobs_and_never_carriers(courier: Courier, make: Callable[..., Any]) -> None:
    seen: list[tuple[str, Any]] = []

    class Watched(Around):
        abstract = True

        def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
            seen.append((task_id, ("success", args[0])))

        def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            seen.append((task_id, (status, args[0])))

    task = make(
        Watched,
        chunk=10,
        hook=staticmethod(lambda id, args, _: seen.append((id, ("start", args[0])))),
        around=staticmethod(lambda run, n: (seen.append((current_job().id, ("call", n))), run(n))[1]),
    )
    handles = defer_many([task.s(n) for n in range(3)])
    [message] = courier.collect()
    courier.deliver(message)
    words = ("start", "call", "success", "SUCCESS")
    assert seen == [(handle.id, (word, n)) for n, handle in enumerate(handles) for word in words]
    assert [handle.state for handle in handles] == [Status.SUCCEEDED] * 3
    assert courier.app.AsyncResult(message.headers["id"]).state == "PENDING"
    direct = task.delay(42)
    courier.deliver_all()
    assert (courier.app.AsyncResult(direct.id).result, ran[-1]) == (42, (42, direct.id))


def test_a_hook_that_fails_for_one_of_a_chunk_is_nothing_to_the_others(courier: Courier, make: Callable[..., Any]) -> None:
    def hook(id: str, args: Any, kwargs: Any) -> None:
        if args[0] == 1:
            raise ValueError("not this one")

    task = make(chunk=10, hook=staticmethod(hook))
    handles = defer_many([task.s(n) for n in range(3)])
    courier.deliver_all()
    assert [handle.state for handle in handles] == [Status.SUCCEEDED, Status.FAILED, Status.SUCCEEDED]
    assert [n for n, _ in ran] == [0, 2]


def test_a_job_of_a_chunk_that_is_cancelled_before_its_body_does_not_run(courier: Courier, app: Celery) -> None:
    @app.task(base=Task, name="waits", shared=False, chunk=10)
    def waits(n: int) -> None:
        ran.append(n)
        if n == 0:
            handles[2].cancel()
            _wait(0.3)

    handles = defer_many([waits.s(n) for n in range(4)])
    courier.deliver_all()
    assert ran == [0, 1, 3]
    assert [str(handle.state) for handle in handles] == ["SUCCEEDED", "SUCCEEDED", "CANCELED", "SUCCEEDED"]
    assert (app.AsyncResult(handles[2].id).state, owed(courier.tm.installation.database)) == ("REVOKED", [])


def _wait(seconds: float) -> None:
    time.sleep(seconds)


def test_a_task_with_a_strategy_of_its_own_is_refused(app: Celery) -> None:
    class Batches:
        def Strategy(self, task: Any, app: Any, consumer: Any) -> Any:  # noqa: N802
            """Flush many messages at once, past the tracer."""

    with pytest.raises(InvalidValue, match="Strategy"):
        type("Batched", (Batches, Task), {"abstract": True})
    with pytest.raises(InvalidValue, match=r"base=celery\.Task"):
        app.task(base=Task, name="batched", shared=False, Strategy="celery_batches:strategy")(_wait).name  # noqa: B018


# Soft time limits


@contextmanager
def soft_limits() -> Iterator[None]:
    """Let SIGUSR1 do in this process what it does in a pool process."""
    before = signal.signal(signal.SIGUSR1, soft_timeout_sighandler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def limit_during(database: Database, words: tuple[str, ...], *, after: bool = False) -> Iterator[list[str]]:
    """Let a soft limit arrive while the first statement that begins so is executed."""
    hit: list[str] = []

    def interrupt(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if not hit and statement.lstrip().upper().startswith(words) and "job" in statement:
            hit.append(statement)
            os.kill(os.getpid(), signal.SIGUSR1)

    name = "after_cursor_execute" if after else "before_cursor_execute"
    event.listen(database.engine, name, interrupt)
    try:
        with soft_limits():
            yield hit
    finally:
        event.remove(database.engine, name, interrupt)


ENDS = ("DELETE", "WITH")
GATE = ("UPDATE", "INSERT", "WITH")


@pytest.mark.parametrize("after", [False, True])
def test_a_soft_limit_during_the_record_of_a_success_is_too_late(
    courier: Courier, make: Callable[..., Any], database: Database, after: bool
) -> None:
    handle = defer(make().s(1))
    [message] = courier.collect()
    with limit_during(database, ENDS, after=after) as hit:
        courier.deliver(message)
    assert hit
    assert ended(courier, handle.id) == (Status.SUCCEEDED, "SUCCESS", 0)


@pytest.mark.parametrize("after", [False, True])
def test_a_soft_limit_during_the_record_of_a_failure_is_too_late(
    courier: Courier, make: Callable[..., Any], database: Database, after: bool
) -> None:
    handle = defer(make(Around, around=raising(ValueError("no"))).s(1))
    [message] = courier.collect()
    with limit_during(database, ENDS, after=after) as hit:
        courier.deliver(message)
    assert hit
    assert ended(courier, handle.id) == (Status.FAILED, "FAILURE", 0)
    assert "ValueError: no" in (courier.tm.job(handle.id).last_error or "")


@pytest.mark.parametrize("way", ["defer", "delay"])
def test_a_soft_limit_at_the_gate_ends_the_body_that_begins(
    courier: Courier, make: Callable[..., Any], database: Database, way: str
) -> None:
    id = defer(make().s(1)).id if way == "defer" else make().delay(1).id
    [message] = courier.collect()
    with limit_during(database, GATE, after=True) as hit:
        courier.deliver(message)
    assert hit
    assert ended(courier, id) == (Status.FAILED, "FAILURE", 0)
    assert [one.outcome for one in courier.tm.job(id).executions] == ["timeout"]
    assert ran == []


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("ignore_result", [False, True])
def test_a_soft_limit_while_the_ends_of_a_chunk_are_written_leaves_no_lease(
    courier: Courier, make: Callable[..., Any], database: Database, after: bool, ignore_result: bool
) -> None:
    task = make(chunk=10, ignore_result=ignore_result)
    handles = defer_many([task.s(n) for n in range(3)])
    [message] = courier.collect()
    with limit_during(database, ENDS, after=after) as hit:
        courier.deliver(message)
    assert hit
    states = [str(handle.state) for handle in handles]
    assert states.count("SUCCEEDED") >= 2
    assert set(states) <= {"SUCCEEDED", "FAILED"}
    assert owed(database) == []


def test_a_soft_limit_in_the_body_ends_it_and_the_next_plain_task_has_its_own(
    courier: Courier, app: Celery, make: Callable[..., Any]
) -> None:
    def around(run: Any, n: Any) -> Any:
        os.kill(os.getpid(), signal.SIGUSR1)
        return run(n)

    handle = defer(make(Around, around=staticmethod(around)).s(1))

    @app.task(name="plain_limited", shared=False)
    def plain_limited() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)

    with soft_limits():
        courier.deliver_all()
        assert [one.outcome for one in courier.tm.job(handle.id).executions] == ["timeout"]
        result = plain_limited.delay()
        courier.deliver_all()
    assert isinstance(result.result, SoftTimeLimitExceeded)


def test_a_success_that_cannot_be_written_has_failed(courier: Courier, make: Callable[..., Any], database: Database) -> None:
    class Refused(Exception):
        pass

    def refuse(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.lstrip().upper().startswith(ENDS) and "job" in statement and not hit:
            hit.append(statement)
            raise Refused("a trigger of somebody's")

    hit: list[str] = []
    handle = defer(make().s(1))
    [message] = courier.collect()
    event.listen(database.engine, "before_cursor_execute", refuse)
    try:
        courier.deliver(message)
    finally:
        event.remove(database.engine, "before_cursor_execute", refuse)
    assert hit
    assert ended(courier, handle.id) == (Status.FAILED, "FAILURE", 0)


def test_the_end_of_a_task_of_others_is_none_of_ours(courier: Courier, app: Celery) -> None:
    task_postrun.send(sender=app.tasks["plain"], task_id="x", task=app.tasks["plain"], retval=None, state=None)


@pytest.mark.parametrize("hook", ["on_failure", "on_success", "after_return"])
def test_a_hook_that_fails_after_the_end_does_not_publish_callbacks_for_ever(
    courier: Courier, app: Celery, hook: str, effects: Path
) -> None:
    def broken(self: Any, *_: Any, **__: Any) -> None:
        calls.append(hook)
        raise ValueError("a hook of somebody's")

    calls: list[str] = []
    base = type("Broken", (Task,), {"abstract": True, hook: broken})

    @app.task(base=base, name="hooked", shared=False, max_retries=0)
    def hooked() -> None:
        if hook == "on_failure":
            raise KeyError("no")

    effect = app.tasks["effect"].si(1)
    result = hooked.apply_async(link=effect, link_error=effect)
    courier.deliver_all()
    assert owed(courier.tm.installation.database) == []
    assert courier.tm.job(result.id).state == (Status.FAILED if hook == "on_failure" else Status.SUCCEEDED)
    assert calls == [hook]
    assert len(effects.read_text().splitlines()) == 1


@pytest.mark.parametrize("where", ["before_start", "__call__"])
def test_what_is_cut_off_before_its_body_is_left_to_its_lease(
    courier: Courier, make: Callable[..., Any], where: str
) -> None:
    error = raising(SystemExit(1))
    task = make(hook=error) if where == "before_start" else make(Around, around=error)
    handle = defer(task.s(1), max_retries=3)
    [message] = courier.collect()
    with pytest.raises(SystemExit):
        courier.deliver(message)
    assert handle.state == Status.RUNNING
    with courier.tm.installation.database.transaction() as tx:
        tx.execute(update(tables.job).values(lease_until=tx.now))
    sweep(courier.tm.installation.database, default=courier.tm.installation.default_policy, limit=10)
    assert [one.outcome for one in courier.tm.job(handle.id).executions] == ["orphaned"]


# What Celery stores, publishes and calls beside the body


def test_a_copy_of_a_message_does_not_overwrite_a_result_with_started(
    courier: Courier, app: Celery, make: Callable[..., Any]
) -> None:
    seen: list[str] = []

    def look(self: Any, task_id: str, *_: Any) -> None:
        seen.append(app.AsyncResult(task_id).state)
        raise ValueError("no")

    result = make(track_started=True, hook=look, retry="never").delay(1)
    [message] = courier.collect()
    courier.deliver(message)
    assert seen == ["STARTED"]
    assert result.state == "FAILURE"
    courier.deliver(message)
    assert len(seen) == 1
    assert result.state == "FAILURE", "the copy was refused, and says nothing"


@pytest.mark.parametrize("outcome", ["on_success", "on_failure", "after_return"])
def test_a_hook_that_rejects_after_the_end_leaves_no_callbacks_pending(
    courier: Courier, app: Celery, database: Database, outcome: str
) -> None:
    class Rejecting(Task):
        abstract = True

    def reject(self: Any, *_: Any) -> None:
        raise Reject("a hook that rejects", requeue=False)

    setattr(Rejecting, outcome, reject)

    @app.task(base=Rejecting, name="rejecting", shared=False, retry="never")
    def rejecting() -> int:
        if outcome == "on_failure":
            raise ValueError("no")
        return 1

    @app.task(base=Task, name="after", shared=False)
    def after(*_: Any) -> None:
        ran.append("after")

    rejecting.apply_async(link=after.si(), link_error=after.si())
    for message in courier.collect():
        with suppress(Reject):
            courier.deliver(message)
    courier.deliver_all()
    assert ran == ["after"]
    assert owed(database) == [], "its callbacks were published, and are not published again"


def test_tasks_that_a_body_calls_have_a_context_of_their_own(courier: Courier, app: Celery, tm: TimeManagement) -> None:
    @app.task(base=Task, bind=True, name="inner", shared=False)
    def inner(self: Task) -> str:
        self.job.report_failure("the inner one")
        return self.job.id

    @app.task(base=Task, bind=True, name="reads", shared=False, transactional=True)
    def reads(self: Task) -> int:
        return int(self.job.session.execute(text("SELECT 1")).scalar())

    @app.task(base=Task, bind=True, name="outer", shared=False)
    def outer(self: Task) -> None:
        ran.append((inner.apply().state, reads.apply().result, reads(), current_job() is self.job))

    outer.delay()
    courier.deliver_all()
    assert ran == [("FAILURE", 1, 1, True)]
    assert [one.outcome.value for one in tm.history(limit=5)] == ["succeeded"]


def test_a_task_that_a_transactional_body_calls_is_part_of_its_transaction(
    courier: Courier, app: Celery, tm: TimeManagement, database: Database
) -> None:
    @app.task(base=Task, bind=True, name="writes", shared=False, transactional=True)
    def writes(self: Task) -> None:
        defer("plain", delay="1h", app=app)
        ran.append(self.job.session)

    @app.task(base=Task, bind=True, name="undone", shared=False, transactional=True, max_retries=0)
    def undone(self: Task) -> None:
        writes()
        writes.apply()
        assert ran == [self.job.session] * 2
        raise ValueError("undone, with what it called")

    undone.delay()
    courier.deliver_all()
    assert owed(database) == []
