"""Chunks: due jobs of a task share a message, and each is still its own job, on every database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery
from celery.signals import task_postrun, task_prerun, task_success
from sqlalchemy import update
from tmtest.courier import Courier, owed
from tmtest.said import listening
from tmtest.strangers import at_once, locked, skip_embedded

from celery_tm import Task, TimeManagement, current_job, defer, defer_many
from celery_tm.domain.job import JobState, Status
from celery_tm.domain.loads import in_loads
from celery_tm.recovery.sweeper import sweep
from celery_tm.store import tables
from celery_tm.store.database import Database
from celery_tm.testing import MovableClock
from celery_tm.worker import gate, release
from celery_tm.worker.chunk import Collector
from celery_tm.worker.context import JobContext
from celery_tm.worker.lease import LeaseKeeper


class Killed(BaseException):
    """Stands for a worker that is killed."""


@pytest.fixture
def courier(tm: TimeManagement, app: Celery) -> Courier:
    @app.task(base=Task, bind=True, name="small", shared=False, chunk=10, max_retries=1)
    def small(self: Task, n: int, how: str = "") -> int:
        ran.append((n, self.request.id, self.job.id, self.job.attempt, self.request.retries))
        assert current_job() is self.job
        if how == "fails":
            raise ValueError(f"no {n}")
        if how == "asks" and self.request.retries == 0:
            raise self.retry(countdown=0)
        if how == "dies":
            raise Killed
        return n

    ran.clear()
    return Courier(tm)


ran: list[tuple[int, str, str, int, int]] = []


def test_due_jobs_share_messages_and_each_runs_as_itself(
    app: Celery, courier: Courier, database: Database, noon: MovableClock
) -> None:
    handles = defer_many([(app.tasks["small"].s(n), {"delay": 1}) for n in range(25)])
    noon.forward("1s")
    assert courier.dispatch() == 25
    messages = courier.collect()
    assert [len(one.headers["tm"]["chunk"]) for one in messages] == [10, 10, 5]
    for message in messages:
        courier.deliver(message)
    assert [(n, id, attempt) for n, id, _, attempt, _ in ran] == [(n, handles[n].id, 1) for n in range(25)]
    assert all(request_id == job_id for _, request_id, job_id, _, _ in ran)
    assert {courier.tm.job(handle.id).state for handle in handles} == {Status.SUCCEEDED}
    assert owed(database) == []
    for message in messages:  # delivered again: nothing is left to run
        courier.deliver(message)
    assert len(ran) == 25


def test_jobs_deferred_together_for_now_share_messages_too(app: Celery, courier: Courier) -> None:
    defer_many([app.tasks["small"].s(n) for n in range(12)])
    assert [len(one.headers["tm"]["chunk"]) for one in courier.collect()] == [10, 2]


def test_one_that_fails_retries_or_asks_again_is_nothing_to_its_neighbours(
    app: Celery, courier: Courier, database: Database, noon: MovableClock
) -> None:
    small = app.tasks["small"]
    fails, asks, *fine = defer_many([small.s(0, "fails"), small.s(1, "asks"), small.s(2), small.s(3)])
    courier.deliver_all()
    assert [handle.state for handle in (fails, asks, *fine)] == [
        Status.RETRY_SCHEDULED, Status.SUCCEEDED, Status.SUCCEEDED, Status.SUCCEEDED,
    ]  # fmt: skip
    noon.forward("1m")
    courier.deliver_all()
    assert (fails.state, len(courier.tm.dead_letters.list())) == (Status.FAILED, 1)
    assert [one.outcome for one in courier.tm.job(asks.id).executions] == ["succeeded", "failed"]
    assert owed(database) == []


def test_gate_and_record_are_a_handful_of_statements_for_all(app: Celery, courier: Courier, database: Database) -> None:
    app.tasks["small"].ignore_result = True
    few, many = (_said_for(app, courier, database, number) for number in (3, 10))
    assert len(many) == len(few), many


def _said_for(app: Celery, courier: Courier, database: Database, number: int) -> list[str]:
    defer_many([app.tasks["small"].s(i) for i in range(number)])
    [message] = courier.collect()
    with listening(database) as said:
        courier.deliver(message)
    return said.texts


def test_what_wants_something_of_its_message_travels_alone(app: Celery, courier: Courier, database: Database) -> None:
    from dataclasses import replace

    small = app.tasks["small"]
    defer_many([small.s(n) for n in range(4)])
    plain = owed(database)[0]
    alone = [
        replace(plain, attempt=2),
        replace(plain, options={"chord": {"task": "total"}}),
        replace(plain, options={"serializer": "yaml"}),
        replace(plain, slot="open"),
        replace(plain, occurrence="o"),
        replace(plain, ended={"result": 1}),
    ]
    mixed = [plain, *alone, replace(plain, options={"headers": {"a": 1}}), replace(plain, queue="other")]
    loads = in_loads(mixed, lambda name: 10)
    assert [len(load) for load in loads] == [2, 1, 1, 1, 1, 1, 1, 1]


def test_a_chunk_expires_as_its_task_says(app: Celery, courier: Courier) -> None:
    @app.task(base=Task, name="brief", shared=False, chunk=5, expires=60)
    def brief() -> None: ...

    defer_many([brief.s() for _ in range(3)])
    [message] = courier.collect()
    left = datetime.fromisoformat(message.headers["expires"]) - datetime.now(UTC)
    assert 50 < left.total_seconds() <= 60


def test_a_chord_of_chunked_tasks_is_as_in_plain_celery(app: Celery, courier: Courier, noon: MovableClock) -> None:
    from celery import group

    app.conf.result_backend = "cache+memory://"
    small = app.tasks["small"]
    result = group(small.s(n) for n in range(4)).apply_async(countdown=300)
    noon.forward("5m")
    courier.deliver_all()
    assert result.get(timeout=5) == [0, 1, 2, 3]


def test_results_are_written_after_their_record(app: Celery, courier: Courier) -> None:
    app.conf.result_backend = "cache+memory://"
    handles = defer_many([app.tasks["small"].s(n) for n in range(4)])
    seen: list[Status] = []

    def look(sender: Any = None, result: Any = None, **_: Any) -> None:
        seen.append(handles[result].state)

    task_success.connect(look)
    try:
        courier.deliver_all()
    finally:
        task_success.disconnect(look)
    assert seen == [Status.SUCCEEDED] * 4
    assert [app.AsyncResult(handle.id).get(timeout=5) for handle in handles] == [0, 1, 2, 3]


def test_signals_and_headers_are_each_jobs_own(app: Celery, courier: Courier) -> None:
    heard: list[tuple[str, str]] = []

    def before(task_id: str = "", task: Any = None, **_: Any) -> None:
        heard.append(("pre", task_id))

    def after(task_id: str = "", state: str = "", **_: Any) -> None:
        heard.append((state, task_id))

    @app.task(base=Task, bind=True, name="headed", shared=False, chunk=5)
    def headed(self: Task) -> Any:
        seen.append((self.request.headers or {}).get("tenant"))

    seen: list[Any] = []
    handles = defer_many([headed.s().set(headers={"tenant": n}) for n in range(3)])
    [message] = courier.collect()
    task_prerun.connect(before)
    task_postrun.connect(after)
    try:
        courier.deliver(message)
    finally:
        task_prerun.disconnect(before)
        task_postrun.disconnect(after)
    ids = {handle.id for handle in handles}
    own = [one for one in heard if one[1] in ids]
    assert own == [one for handle in handles for one in (("pre", handle.id), ("SUCCESS", handle.id))]
    assert seen == [0, 1, 2]


def test_of_a_chunk_whose_worker_dies_none_is_blamed_and_each_goes_on_alone(
    app: Celery, courier: Courier, database: Database, tm: TimeManagement
) -> None:
    small = app.tasks["small"]
    handles = defer_many([small.s(0), small.s(1, "dies"), small.s(2)], max_retries=0)
    [message] = courier.collect()
    with pytest.raises(Killed):
        courier.deliver(message)
    assert handles[0].state == Status.SUCCEEDED  # written when the chunk came to its end
    with database.transaction() as tx:
        tx.execute(update(tables.job).values(lease_until=tx.now))
    sweep(database, default=tm.installation.default_policy, limit=10)
    left = owed(database)
    assert [(job.state, job.attempt, job.tries_from, job.carrier) for job in left] == [(JobState.PENDING, 2, 2, None)] * 2
    courier.dispatch()
    messages = courier.collect()
    assert [one.headers["id"] for one in messages] == [job.id for job in left]  # alone
    courier.deliver(next(one for one in messages if one.headers["id"] == handles[2].id))
    assert handles[2].state == Status.SUCCEEDED


def test_a_worker_that_stops_hands_back_all_of_a_chunk(app: Celery, courier: Courier, database: Database) -> None:
    from celery_tm.worker import gate

    handles = defer_many([app.tasks["small"].s(n) for n in range(3)])
    [message] = courier.collect()
    attempts = [(id, attempt) for id, attempt in message.headers["tm"]["chunk"]]
    installation = courier.tm.installation
    admitted, refused = gate.admit_all(installation, attempts, carrier="c", worker="w:1")
    assert (len(admitted), refused) == (3, [])
    assert release.record_handed_back(installation, attempts, "it stops", workers={"w:2"}) == []
    given = release.record_handed_back(installation, attempts, "it stops", workers={"w:1"})
    assert sorted(given) == sorted(handle.id for handle in handles)
    assert {one.outcome for handle in handles for one in courier.tm.job(handle.id).executions} == {"interrupted"}
    courier.deliver_all()
    assert [handle.state for handle in handles] == [Status.SUCCEEDED] * 3


@pytest.mark.parametrize(
    "header", [{"chunk": "all"}, {"chunk": [1, 2]}, {"chunk": [["id"]]}, {"chunk": [["id", True]]}, {"chunk": [[1, 1]]}, 7]
)
def test_a_forged_chunk_runs_nothing(app: Celery, courier: Courier, header: Any) -> None:
    app.send_task("small", headers={"tm": header})
    courier.deliver_all()
    assert ran == []


def test_a_late_or_done_job_in_a_chunk_is_settled(app: Celery, courier: Courier, database: Database) -> None:
    small = app.tasks["small"]
    kept, gone, other = defer_many([(small.s(0), {"key": "k"}), (small.s(1), {}), (small.s(2), {})])
    [message] = courier.collect()
    gone.cancel()
    courier.deliver(message)
    assert [n for n, *_ in ran] == [0, 2]
    assert (kept.state, gone.state, other.state) == (Status.SUCCEEDED, Status.CANCELED, Status.SUCCEEDED)
    assert defer(small.s(0), key="k").created is False


# A row that another transaction has locked


def running_together(courier: Courier, count: int) -> tuple[LeaseKeeper, Collector, list[JobContext]]:
    """Return jobs that came in one message and were let in, with what renews their leases and gathers their successes."""
    installation = courier.tm.installation
    defer_many([courier.app.tasks["small"].s(n) for n in range(count)])
    [message] = courier.collect()
    attempts = [(id, attempt) for id, attempt in message.headers["tm"]["chunk"]]
    admitted, _ = gate.admit_all(installation, attempts, carrier="c", worker="w:1")
    keeper, collector = LeaseKeeper(installation), Collector(installation, size=count)
    contexts = [JobContext(job, installation) for job in admitted]
    for context in contexts:
        context.collector = collector
        collector._done[context.id] = (context, None)
    keeper._running = {(context.id, context.attempt): context for context in contexts}
    return keeper, collector, contexts


@contextmanager
def brief_waits(tm: TimeManagement) -> Iterator[None]:
    """Let this process wait for locks only for a moment, as a worker does."""
    before, tm.installation._database = tm.installation.database, None
    tm.installation.database.serve(lock_timeout=1.0)
    try:
        yield
    finally:
        tm.installation.database.dispose()
        tm.installation._database = before


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.05)


def lease_of(database: Database, id: str) -> datetime:
    return next(job.lease_until for job in owed(database) if job.id == id and job.lease_until)


@pytest.mark.timeout(60)
def test_the_renewals_write_the_successes_beside_a_locked_one(courier: Courier, database: Database) -> None:
    keeper, _, (held, free, *_) = running_together(courier, 3)
    with locked(database, held.id):
        assert at_once(keeper.renew_all) is False
        assert (courier.tm.job(held.id).state, courier.tm.job(free.id).state) == (Status.RUNNING, Status.SUCCEEDED)
    keeper.renew_all()
    assert owed(database) == []


@pytest.mark.timeout(60)
def test_a_body_that_is_writing_stops_no_renewal(courier: Courier, database: Database) -> None:
    keeper, collector, (context, *_) = running_together(courier, 2)
    before = lease_of(database, context.id)
    with collector._lock:
        assert at_once(keeper.renew_all)
    assert lease_of(database, context.id) > before


@pytest.mark.timeout(60)
def test_a_locked_row_holds_up_nothing_else_of_its_chunk(app: Celery, courier: Courier, database: Database) -> None:
    skip_embedded(database)
    app.tasks["small"].ignore_result = True
    defer_many([app.tasks["small"].s(n) for n in range(4)])
    [message] = courier.collect()
    held, *free = (id for id, _ in message.headers["tm"]["chunk"])
    locks = ExitStack()

    def lock_first(task_id: str = "", **_: Any) -> None:
        if task_id == held:
            locks.enter_context(locked(database, held))

    task_prerun.connect(lock_first)
    try:
        with brief_waits(courier.tm):
            chunk = threading.Thread(target=courier.deliver, args=[message], daemon=True)
            chunk.start()
            wait_until(lambda: all(courier.tm.job(id).state is Status.SUCCEEDED for id in free))
            assert courier.tm.job(held).state is Status.RUNNING
            assert chunk.is_alive(), "the end of the chunk does not wait for the row that is locked"
            locks.close()
            chunk.join(30)
    finally:
        task_prerun.disconnect(lock_first)
        locks.close()
    assert owed(database) == []
    assert sorted(n for n, *_ in ran) == [0, 1, 2, 3]
