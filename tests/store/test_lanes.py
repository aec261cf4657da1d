"""Slots on every database: never more in flight than a key allows, none lost, none held for ever."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import select
from tmtest.app import make_app
from tmtest.ledger import NOON, add, claim, ledger, owed, plan, start

from celery_tm import Task, TimeManagement, cancel, defer, defer_many
from celery_tm.domain.execution import Failure
from celery_tm.domain.retry import TryAgain
from celery_tm.errors import InvalidValue
from celery_tm.recovery.sweeper import sweep
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import settlement, tables
from celery_tm.store.database import Database
from celery_tm.testing import MovableClock
from celery_tm.worker import recorder


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def defer_five(app: Celery, **options: Any) -> list[str]:
    lane = {"concurrency_key": "tenant:7", "concurrency": 2} | options
    return [handle.id for handle in defer_many([app.tasks["effect"].s(n) for n in range(5)], **lane)]


def finish(tm: TimeManagement, id: str, attempt: int = 1) -> None:
    recorder.record_success(tm.installation, start(tm, id, attempt), None)


def test_no_more_than_the_limit_are_in_flight_and_each_end_lets_the_next_go_on(tm: TimeManagement, app: Celery) -> None:
    ids = defer_five(app)
    assert claim(tm) == ids[:2]
    assert [slot for _, _, slot in owed(tm)] == ["open", "open", "held", "held", "held"]
    assert claim(tm) == []
    finish(tm, ids[0])
    assert claim(tm, "another beat") == [ids[2]]
    finish(tm, ids[1])
    finish(tm, ids[2])
    assert claim(tm) == ids[3:]


def test_keys_limit_only_their_own_jobs_and_unlimited_ones_pass_by(tm: TimeManagement, app: Celery) -> None:
    ids = defer_five(app)
    others = defer_five(app, concurrency_key="tenant:8", concurrency=1)
    free = [defer(app.tasks["effect"].s(n)).id for n in range(3)]
    assert set(claim(tm)) == {*ids[:2], others[0], *free}


def test_held_jobs_never_stand_in_the_way_of_the_others(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    defer_many([app.tasks["effect"].s(n) for n in range(300)], concurrency_key="busy")
    noon.forward(1)
    free = defer(app.tasks["effect"].s("free")).id
    claimed = []
    while batch := claim(tm, limit=20):
        claimed += batch
    assert free in claimed
    assert len(claimed) == 2


def test_a_cancelled_job_passes_its_slot_on(tm: TimeManagement, app: Celery) -> None:
    ids = defer_five(app, concurrency=1)
    assert claim(tm) == ids[:1]
    assert cancel(id=ids[0], app=app)
    assert claim(tm) == [ids[1]]
    assert cancel(id=ids[2], app=app)  # one that waits
    finish(tm, ids[1])
    assert claim(tm) == [ids[3]]


def test_one_whose_turn_it_was_and_that_is_put_off_passes_its_turn_on(tm: TimeManagement, app: Celery) -> None:
    first, second, third = (defer(app.tasks["effect"].s(n), key=f"k{n}", concurrency_key="lane").id for n in range(3))
    assert claim(tm) == [first]
    finish(tm, first)  # the second one's turn
    defer(app.tasks["effect"].s(1), key="k1", concurrency_key="lane", delay="1h", on_duplicate="replace")
    assert claim(tm) == [third]
    assert second in {job.id for job in tm.jobs()}


def test_a_lane_that_was_pruned_holds_nobody_for_ever(tm: TimeManagement, app: Celery, database: Database) -> None:
    ids = defer_five(app, concurrency=1)
    claim(tm)
    with database.transaction() as tx:
        tx.execute(tables.lane.delete())
    finish(tm, ids[0])
    assert claim(tm) == [ids[1]]


def test_a_dead_worker_s_slot_comes_back_with_its_lease(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    ids = defer_five(app, concurrency=1)
    claim(tm)
    start(tm, ids[0])
    assert claim(tm) == []
    noon.forward(tm.settings.tm_lease)
    assert len(sweep(tm.installation.database, default=tm.installation.default_policy, limit=10)) == 1
    # The next one has the slot while the first waits for its next try.
    assert claim(tm) == [ids[1]]
    noon.forward("1h")
    assert claim(tm) == []
    finish(tm, ids[1])
    assert len(claim(tm)) == 1


def test_a_lost_message_keeps_its_place(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    ids = defer_five(app, concurrency=1)
    claim(tm)
    noon.forward(tm.settings.tm_dispatch_lease)
    sweep(tm.installation.database, default=tm.installation.default_policy, limit=10)
    assert claim(tm) == ids[:1]


def test_a_failed_deferred_job_lets_others_run_while_it_waits(tm: TimeManagement, app: Celery) -> None:
    ids = defer_five(app, concurrency=1)
    claim(tm)
    recorder.record_failure(tm.installation, start(tm, ids[0]), Failure(error="no"), then=TryAgain(timedelta(hours=1)))
    assert claim(tm) == [ids[1]]


def test_an_occurrence_keeps_its_turn_over_its_tries(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, overlap="queue")
    noon.forward("1m")
    plan(tm)
    [first] = claim(tm)
    noon.forward("1m")
    plan(tm)
    recorder.record_failure(tm.installation, start(tm, first), Failure(error="no"), then=TryAgain(timedelta(minutes=5)))
    assert claim(tm) == []
    noon.forward("5m")
    assert claim(tm) == [first]
    finish(tm, first, 2)
    assert len(claim(tm)) == 1


def test_a_revived_dead_letter_waits_for_a_slot_too(tm: TimeManagement, app: Celery) -> None:
    ids = defer_five(app, concurrency=1, max_retries=0)
    claim(tm)
    recorder.record_failure(tm.installation, start(tm, ids[0]), Failure(error="no"))
    assert claim(tm) == [ids[1]]
    tm.dead_letters.revive(ids[0])
    assert claim(tm) == []


def test_a_task_may_limit_itself_by_its_arguments(tm: TimeManagement, app: Celery) -> None:
    @app.task(base=Task, name="limited", concurrency_key="tenant:{0}", concurrency=1, shared=False)
    def limited(tenant: int, n: int) -> None: ...

    ids = [defer(limited.s(tenant, n)).id for n in range(2) for tenant in (1, 2)]
    assert set(claim(tm)) == set(ids[:2])


def test_a_late_delivery_never_takes_a_slot_by_itself(tm: TimeManagement, app: Celery) -> None:
    ids = defer_five(app, concurrency=1)
    claim(tm)
    assert start(tm, ids[3]) is None
    assert start(tm, ids[0]) is not None


def test_beats_that_claim_at_once_never_exceed_a_limit(tm: TimeManagement, app: Celery, database: Database) -> None:
    for key in range(10):
        defer_many([app.tasks["effect"].s(n) for n in range(20)], concurrency_key=f"k{key}", concurrency=3)
    taken: list[str] = []

    def beat(node: str) -> None:
        from celery_tm import clock

        with clock.moved_to(NOON):
            for _ in range(10):
                taken.extend(claim(tm, node, limit=50))

    threads = [threading.Thread(target=beat, args=(f"beat-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == len(set(taken)) == 30
    with database.transaction(write=False) as tx:
        leased = tx.execute(select(tables.job.c.concurrency_key).where(tables.job.c.state != "pending")).scalars().all()
    assert {leased.count(f"k{key}") for key in range(10)} == {3}


def test_workers_and_beats_at_once_lose_no_job_and_exceed_no_limit(
    tm: TimeManagement, app: Celery, database: Database
) -> None:
    ids = [
        handle.id for handle in defer_many([app.tasks["effect"].s(n) for n in range(60)], concurrency_key="k", concurrency=4)
    ]
    most: list[int] = []
    done: list[str] = []

    def work(node: str) -> None:
        from celery_tm import clock

        with clock.moved_to(NOON):
            for _ in range(400):
                for id in claim(tm, node, limit=5):
                    job = start(tm, id)
                    with database.transaction(write=False) as tx:
                        most.append(len(tx.execute(select(tables.job.c.id).where(tables.job.c.state != "pending")).all()))
                    database.run(
                        lambda tx, job=job: settlement.succeed(tx, job, result=None, message=None, keep_key=timedelta(1))
                    )
                    done.append(id)
                if len(done) == len(ids):
                    return

    threads = [threading.Thread(target=work, args=(f"node-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == sorted(ids)
    assert max(most) <= 4


def test_max_in_flight_keeps_the_backlog_in_the_database(database_url: str) -> None:
    app = make_app({"broker_url": "memory://", "tm_database_url": database_url, "tm_max_in_flight": 3})
    tm = TimeManagement(app)
    ids = [defer(app.tasks["effect"].s(n)).id for n in range(5)]
    lane = defer(app.tasks["effect"].s(5), concurrency_key="k").id
    first = claim(tm)
    assert len(first) == 3
    assert claim(tm) == []
    finish(tm, first[0])
    assert len(claim(tm)) == 1
    finish(tm, first[1])
    finish(tm, first[2])
    rest = claim(tm)
    assert len(rest) == 2
    assert {*first, *rest} <= {*ids, lane}
    tm.installation.database.dispose()


def test_neither_kind_waits_for_the_other_when_room_comes_one_by_one(database_url: str) -> None:
    app = make_app({"broker_url": "memory://", "tm_database_url": database_url, "tm_max_in_flight": 1})
    tm = TimeManagement(app)
    lane = {handle.id for handle in defer_many([app.tasks["effect"].s(n) for n in range(4)], concurrency_key="k")}
    free = {handle.id for handle in defer_many([app.tasks["effect"].s(n) for n in range(4)])}
    beat, order = Dispatcher(tm.installation, "beat"), []
    while claimed := beat.claim(10)[1]:
        order += [job.id for job in claimed]
        finish(tm, order[-1])
    assert set(order) == lane | free
    assert lane & set(order[:3])
    assert free & set(order[:3])
    tm.installation.database.dispose()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"concurrency": 2}, "there is no concurrency_key to limit"),
        ({"concurrency_key": "k", "concurrency": 0}, "0 is not a limit"),
        ({"concurrency_key": "k", "concurrency": "two"}, "'two' is not a limit"),
        ({"concurrency_key": ""}, "concurrency_key: it is empty"),
        ({"concurrency_key": "k" * 256}, "256 characters are too many"),
    ],
)
def test_a_malformed_limit_is_refused_and_writes_nothing(tm: TimeManagement, app: Celery, options: Any, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        defer(app.tasks["effect"].s(1), **options)
    assert tm.jobs() == []


def test_definitions_that_share_a_key_share_its_slots(tm: TimeManagement, noon: MovableClock) -> None:
    for name in ("a", "b", "c"):
        add(tm, name=name, overlap="allow", concurrency_key="database", concurrency=2)
    noon.forward("1m")
    plan(tm)
    assert len(claim(tm)) == 2
    assert [state for name in "abc" for _, state in ledger(tm, name)].count("queued") == 2
