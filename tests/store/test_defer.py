"""`defer`, `defer_many` and `cancel` on every database: one row each, in whose transaction, under which key."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from celery import Celery
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import Session
from tmtest.said import listening

from celery_tm import TimeManagement, cancel, defer, defer_many
from celery_tm.domain.execution import Outcome
from celery_tm.domain.job import Status
from celery_tm.errors import DuplicateKey, ForeignSession, InvalidValue
from celery_tm.publisher import ANNOUNCED
from celery_tm.store import admission, claims, executions, jobs, tables
from celery_tm.store.database import Database

HOUR = timedelta(hours=1)


def count_jobs(database: Database) -> int:
    with database.transaction(write=False) as tx:
        return tx.execute(select(func.count()).select_from(tables.job)).scalar_one()


def test_a_deferred_job_is_one_row_due_after_its_delay(app: Celery, database: Database) -> None:
    before = datetime.now(UTC)
    handle = defer(app.tasks["effect"].s(1), delay="15m", entity_id="42", scope={"tenant_id": 7}, priority=3)

    with database.transaction(write=False) as tx:
        job = jobs.find(tx, handle.id)
    assert job is not None
    assert (job.task, job.args, job.kwargs, job.entity_id, job.scope) == ("effect", "[1]", "{}", "42", {"tenant_id": 7})
    assert (job.state, job.attempt, job.priority, job.source) == ("pending", 1, 3, "deferred")
    assert job.original_delay == timedelta(minutes=15)
    assert abs(job.run_at - before - timedelta(minutes=15)) < timedelta(seconds=5)
    assert handle.run_at == job.run_at
    assert (handle.created, handle.state) == (True, Status.SCHEDULED)


def test_a_deferred_job_may_be_named_and_given_an_instant(app: Celery, tm: TimeManagement) -> None:
    when = datetime.now(UTC).replace(microsecond=0) + HOUR
    handle = defer("effect", args=[5], run_at=when, app=app)

    assert handle.run_at == when
    assert tm.job(handle.id).task == "effect"


def test_a_due_time_in_the_past_means_now(app: Celery, tm: TimeManagement) -> None:
    past = datetime.now(UTC) - HOUR

    late = defer(app.tasks["effect"].s(1), run_at=past)
    also = defer_many([(app.tasks["effect"].s(2), {"run_at": past}), app.tasks["effect"].s(3).set(eta=past)])

    assert all(abs(one.run_at - datetime.now(UTC)) < timedelta(seconds=5) for one in (late, *also))
    assert tm.job(late.id).job.state == "dispatched"  # as without a time: its message is out
    assert tm.run_due_jobs().succeeded == 3


@pytest.mark.parametrize(("own", "common"), [({}, {"past": "raise"}), ({"past": "raise"}, {})])
def test_a_due_time_in_the_past_can_be_refused(app: Celery, database: Database, own, common) -> None:
    call, past = app.tasks["effect"].s(1), datetime.now(UTC) - HOUR
    with pytest.raises(InvalidValue, match="in the past"):
        defer_many([call, (call, {"run_at": past, **own})], **common)

    assert count_jobs(database) == 0


def test_an_unkeyed_defer_is_one_insert(app: Celery, database: Database) -> None:
    database.serve_own_app()  # where no beat has registered, each transaction looks for one first
    with listening(database) as said:
        defer(app.tasks["effect"].s(1), delay=HOUR)
    first, *others = said.texts

    assert first.startswith("INSERT INTO tm_job"), "nothing is looked up first"
    # MySQL cannot give back what it has written, so it is asked when that was.
    asked = [] if database.dialect.gives_back_updates else ["SELECT tm_job.created_at"]
    assert [one.split(" \n")[0].strip() for one in others] == asked


def test_the_same_key_twice_returns_the_same_job(app: Celery, database: Database) -> None:
    effect = app.tasks["effect"]
    first = defer(effect.s(1), delay=HOUR, key="order:42")
    again = defer(effect.s(2), delay=2 * HOUR, key="order:42")

    assert (first.created, again.created, again.id, again.run_at) == (True, False, first.id, first.run_at)
    assert count_jobs(database) == 1


def test_the_same_key_of_another_task_is_another_job(app: Celery) -> None:
    assert defer(app.tasks["effect"].s(1), delay=HOUR, key="k").created
    assert defer(app.tasks["fails"].s(1), delay=HOUR, key="k").created


def test_keys_differ_by_case_and_accents(app: Celery) -> None:
    effect = app.tasks["effect"]
    assert [defer(effect.s(1), delay=HOUR, key=key).created for key in ("a", "A", "á", "ß", "ss")] == [True] * 5


def test_a_key_that_has_succeeded_returns_the_result_until_its_retention_ends(app: Celery, tm: TimeManagement) -> None:
    effect = app.tasks["effect"]
    first = defer(effect.s(7), delay=1, key="one", keep_key="2h")
    noon = datetime.now(UTC) + timedelta(seconds=2)
    assert tm.run_due_jobs(now=noon).succeeded == 1

    again = defer(effect.s(7), key="one")
    assert (again.created, again.id, again.state, again.result) == (False, first.id, Status.SUCCEEDED, 7)

    from celery_tm import clock

    with clock.moved_to(noon + timedelta(hours=2, seconds=1)):
        later = defer(effect.s(7), delay=HOUR, key="one")
    assert later.created
    assert later.id != first.id


def test_a_duplicate_may_raise(app: Celery) -> None:
    first = defer(app.tasks["effect"].s(1), delay=HOUR, key="k")
    with pytest.raises(DuplicateKey, match=first.id):
        defer(app.tasks["effect"].s(1), delay=HOUR, key="k", on_duplicate="raise")


def test_a_duplicate_may_replace_a_pending_job(app: Celery, tm: TimeManagement) -> None:
    effect = app.tasks["effect"]
    first = defer(effect.s(1), delay=HOUR, key="k")
    second = defer(effect.s(2), delay=3 * HOUR, key="k", on_duplicate="replace")

    job = tm.job(first.id).job
    assert (second.created, second.id) == (False, first.id)
    assert job is not None
    assert (job.args, job.original_delay) == ("[2]", 3 * HOUR)
    assert job.run_at - first.run_at > timedelta(minutes=119)


def test_what_waits_for_a_job_waits_for_the_one_that_replaces_it(app: Celery, database: Database) -> None:
    effect, flaky = app.tasks["effect"], app.tasks["fails"]
    first = defer(effect.s(1).set(link=flaky.s(1)), delay=HOUR, key="k", concurrency_key="lane", concurrency=1)
    with database.transaction() as tx:
        [row] = jobs.select_jobs(tx)
        options = {**row.options, "chord": {"task": "fails"}, "group_id": "g"}
        tx.execute(tables.job.update().values(options=options))
    second = defer(effect.s(2).set(link=flaky.s(2)), delay=2 * HOUR, key="k", on_duplicate="replace")
    assert (second.id, second.created) == (first.id, False)
    with database.transaction(write=False) as tx:
        [job] = jobs.select_jobs(tx)
    assert job.args == "[2]"
    assert [link["args"] for link in job.options["link"]] == [[1], [2]]
    assert (job.options["chord"], job.options["group_id"]) == ({"task": "fails"}, "g")
    assert (job.concurrency_key, job.concurrency, job.slot) == ("lane", 1, "open")


def test_a_running_job_is_not_replaced(app: Celery, tm: TimeManagement, database: Database) -> None:
    effect = app.tasks["effect"]
    first = defer(effect.s(1), delay=0.001, key="k")
    with database.transaction() as tx:
        wait_until_due(tx)
        claims.claim_due(tx, node="beat", lease=HOUR, limit=1)
        assert admission.admit(tx, first.id, 1, worker="w", lease=HOUR)

    second = defer(effect.s(2), delay=HOUR, key="k", on_duplicate="replace")
    job = tm.job(first.id).job
    assert (second.created, second.id) == (False, first.id)
    assert job is not None
    assert job.args == "[1]"


def wait_until_due(tx) -> None:
    import time

    time.sleep(0.01)


def test_a_cancelled_or_buried_job_frees_its_key(app: Celery) -> None:
    effect = app.tasks["effect"]
    first = defer(effect.s(1), delay=HOUR, key="k")
    assert cancel(key="k", task=effect)
    second = defer(effect.s(1), delay=HOUR, key="k")
    assert second.created
    assert second.id != first.id


def test_ten_threads_with_one_key_create_one_job(app: Celery, database: Database) -> None:
    effect = app.tasks["effect"]
    handles = []
    start = threading.Barrier(10)

    def work() -> None:
        start.wait()
        handles.append(defer(effect.s(1), delay=HOUR, key="race"))

    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(handles) == 10
    assert sum(handle.created for handle in handles) == 1
    assert len({handle.id for handle in handles}) == 1
    assert count_jobs(database) == 1


@pytest.fixture
def engine(database_url: str):
    from sqlalchemy.engine import make_url

    from celery_tm.store.dialects import with_driver

    engine = create_engine(with_driver(make_url(database_url)))
    yield engine
    engine.dispose()


@pytest.mark.parametrize("delay", [HOUR, None], ids=["delayed", "immediate"])
def test_a_rolled_back_session_leaves_nothing(app: Celery, database: Database, engine, delay) -> None:
    with Session(engine) as session:
        handle = defer(app.tasks["effect"].s(1), delay=delay, key="k", session=session)
        assert handle.created
        session.rollback()
    assert count_jobs(database) == 0


@pytest.mark.parametrize("delay", [HOUR, None], ids=["delayed", "immediate"])
def test_a_committed_session_leaves_exactly_one_job(app: Celery, database: Database, engine, delay) -> None:
    with Session(engine) as session:
        defer(app.tasks["effect"].s(1), delay=delay, key="k", session=session)
        assert not defer(app.tasks["effect"].s(1), delay=delay, key="k", session=session).created
        session.commit()
    assert count_jobs(database) == 1


def test_an_immediate_job_in_a_session_is_published_after_its_commit_only(app: Celery, tm: TimeManagement, engine) -> None:
    with Session(engine) as session:
        handle = defer(app.tasks["effect"].s(1), session=session)
        assert messages(app) == []
        session.commit()
    assert messages(app) == [handle.id]


def test_a_rolled_back_session_publishes_nothing_even_if_it_is_used_again(app: Celery, engine) -> None:
    with Session(engine) as session:
        defer(app.tasks["effect"].s(1), session=session)
        session.rollback()
        kept = defer(app.tasks["effect"].s(2), session=session)
        session.commit()
    assert messages(app) == [kept.id]


def test_a_connection_is_joined_too(app: Celery, tm: TimeManagement, database: Database, engine) -> None:
    with engine.connect() as connection:
        defer(app.tasks["effect"].s(1), session=connection)
        connection.rollback()
        kept = defer(app.tasks["effect"].s(2), session=connection)
        connection.commit()
    assert count_jobs(database) == 1
    # Its commit is not seen here, so beat dispatches it at once.
    assert tm.job(kept.id).job.state == "pending"


def test_a_session_on_another_database_is_refused(app: Celery, database: Database, tmp_path) -> None:
    other = create_engine(f"sqlite:///{tmp_path}/other.db")
    with Session(other) as session, pytest.raises(ForeignSession, match=r"other\.db"):
        defer(app.tasks["effect"].s(1), session=session)
    other.dispose()
    assert count_jobs(database) == 0


def messages(app: Celery) -> list[str]:
    """Take all messages from the broker and return their task ids."""
    found = []
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue(app.conf.task_default_queue)
        while True:
            try:
                message = queue.get(block=False)
            except queue.Empty:
                break
            found.append(message.headers["id"])
            message.ack()
        queue.close()
    return found


def test_an_immediate_job_is_published_at_once_and_leased(app: Celery, tm: TimeManagement) -> None:
    handle = defer(app.tasks["effect"].s(1))
    assert messages(app) == [handle.id]
    job = tm.job(handle.id).job
    assert job is not None
    assert (job.state, job.dispatches) == ("dispatched", 1)
    assert job.lease_until is not None


def test_many_jobs_keep_their_order_and_their_own_options(app: Celery, database: Database) -> None:
    effect = app.tasks["effect"]
    handles = defer_many([(effect.s(n), {"key": f"k{n}"}) for n in range(1500)], delay=HOUR)

    assert count_jobs(database) == 1500
    assert [handle.key for handle in handles] == [f"k{n}" for n in range(1500)]
    assert all(handle.created for handle in handles)
    again = defer_many([(effect.s(n), {"key": f"k{n}"}) for n in range(3)], delay=HOUR)
    assert [(one.created, one.id) for one in again] == [(False, handles[n].id) for n in range(3)]


def test_many_jobs_with_one_key_among_them_create_it_once(app: Celery, database: Database) -> None:
    effect = app.tasks["effect"]
    handles = defer_many([(effect.s(n), {"key": "same"}) for n in range(3)], delay=HOUR)
    assert [handle.created for handle in handles] == [True, False, False]
    assert len({handle.id for handle in handles}) == 1
    assert count_jobs(database) == 1


def test_many_jobs_may_replace_pending_ones(app: Celery, database: Database) -> None:
    effect = app.tasks["effect"]
    first = defer_many([(effect.s(n), {"key": f"k{n}"}) for n in range(3)], delay=HOUR)
    again = defer_many(
        [(effect.s(n + 10), {"key": f"k{n}"}) for n in range(4)] + [effect.s(99)], delay=2 * HOUR, on_duplicate="replace"
    )

    assert [one.created for one in again] == [False] * 3 + [True] * 2
    assert [one.id for one in again[:3]] == [one.id for one in first]
    with database.transaction(write=False) as tx:
        assert sorted(job.args or "" for job in jobs.select_jobs(tx)) == ["[10]", "[11]", "[12]", "[13]", "[99]"]


def test_many_jobs_of_which_one_may_not_be_are_not_written_at_all(app: Celery, database: Database) -> None:
    effect = app.tasks["effect"]
    defer(effect.s(1), delay=HOUR, key="taken")
    with pytest.raises(DuplicateKey):
        defer_many([effect.s(2), (effect.s(3), {"key": "taken"})], delay=HOUR, on_duplicate="raise")
    assert count_jobs(database) == 1


def test_many_jobs_roll_back_together(app: Celery, database: Database, engine) -> None:
    with Session(engine) as session:
        defer_many([app.tasks["effect"].s(n) for n in range(10)], delay=HOUR, session=session)
        session.rollback()
    assert count_jobs(database) == 0


def test_no_jobs_at_all_are_fine(app: Celery) -> None:
    assert defer_many([], app=app) == []


def test_a_waiting_job_is_cancelled_and_recorded(app: Celery, tm: TimeManagement, database: Database) -> None:
    handle = defer(app.tasks["effect"].s(1), delay=HOUR, key="k")
    assert cancel(key="k", task=app.tasks["effect"], actor="ann", reason="wrong order")

    story = tm.job(handle.id)
    assert (story.state, story.executions[0].outcome) == (Status.CANCELED, Outcome.CANCELLED)
    assert story.executions[0].actor == "ann"
    assert count_jobs(database) == 0
    assert not cancel(key="k", task=app.tasks["effect"])


def test_jobs_are_cancelled_by_task_and_entity(app: Celery, database: Database) -> None:
    effect, fails = app.tasks["effect"], app.tasks["fails"]
    defer(effect.s(1), delay=HOUR, entity_id="42")
    defer(effect.s(2), delay=HOUR, entity_id="42")
    other_entity = defer(effect.s(3), delay=HOUR, entity_id="43")
    other_task = defer(fails.s(4), delay=HOUR, entity_id="42")

    assert cancel(task=effect, entity_id="42")
    with database.transaction(write=False) as tx:
        left = {job.id for job in jobs.select_jobs(tx)}
    assert left == {other_entity.id, other_task.id}


def test_a_cancel_rolls_back_with_its_session(app: Celery, database: Database, engine) -> None:
    handle = defer(app.tasks["effect"].s(1), delay=HOUR)
    with Session(engine) as session:
        assert cancel(id=handle.id, app=app, session=session)
        session.rollback()
    assert count_jobs(database) == 1


def test_cancelling_a_running_job_asks_it_to_stop(app: Celery, database: Database) -> None:
    handle = defer(app.tasks["effect"].s(1))
    with database.transaction() as tx:
        running = admission.admit(tx, handle.id, 1, worker="w", lease=HOUR)
        assert running is not None
    assert cancel(id=handle.id, app=app)
    with database.transaction() as tx:
        assert jobs.renew(tx, [running], lease=HOUR).held == {(handle.id, 1): True}
        assert executions.of_job(tx, handle.id) == []


def test_an_expired_job_never_runs_and_says_so(app: Celery, tm: TimeManagement, effects) -> None:
    handle = defer(app.tasks["effect"].s(1), delay=60, expires=120)
    summary = tm.run_due_jobs(now=datetime.now(UTC) + timedelta(seconds=121))
    assert (summary.expired, summary.succeeded) == (1, 0)
    story = tm.job(handle.id)
    assert (story.state, story.executions[0].outcome) == (Status.CANCELED, Outcome.EXPIRED)
    assert effects.read_text() == ""


def test_a_signature_brings_its_own_options(app: Celery, tm: TimeManagement) -> None:
    signature = app.tasks["effect"].s(1).set(queue="slow", priority=4, countdown=120, headers={"x": 1})
    job = tm.job(defer(signature).id).job
    assert job is not None
    assert (job.queue, job.priority, job.original_delay) == ("slow", 4, timedelta(seconds=120))
    assert job.options == {"headers": {"x": 1, ANNOUNCED: True}}  # these tests listen to Celery's signals
