"""Brokers and databases that go away, with all they hold: nothing is lost, nothing fails that did not run.

On servers of the test's own: PostgreSQL and Redis.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tmtest.servers import OwnPostgreSQL, OwnRedis
from tmtest.stand import Stand

from celery_tm import TimeManagement, defer
from celery_tm.domain.job import Status
from celery_tm.errors import DatabaseUnavailable
from celery_tm.store import tables


@pytest.fixture
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnPostgreSQL]:
    server = OwnPostgreSQL(tmp_path_factory.mktemp("pg"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def stand(broker: OwnRedis, postgres: OwnPostgreSQL, tmp_path: Path, effects: Path) -> Iterator[Stand]:
    conf = {"broker_url": broker.url, "tm_database_url": postgres.url, "tm_dispatch_lease": 3}
    stand = Stand(conf, tmp_path, effects)
    stand.tm.upgrade()
    yield stand
    stand.close()


def test_a_broker_that_is_down_at_dispatch_loses_nothing_and_uses_no_try(stand: Stand, broker: OwnRedis) -> None:
    broker.stop()
    beat = stand.beat()
    effect = stand.app.tasks["effect"]
    handles = [defer(effect.s(n), delay=0.2) for n in range(20)] + [defer(effect.s(n)) for n in range(20, 25)]
    stand.wait_for_text(beat, "OutageBegan what=broker")
    time.sleep(3)  # several rounds of trying
    assert beat.is_running
    assert stand.count(tables.execution) == 0
    assert stand.count(tables.job, tables.job.c.attempt == 1) == 25

    broker.start()
    stand.worker()
    stand.wait_until_settled()
    assert stand.outcomes() == Counter(succeeded=25)
    assert {stand.tm.job(handle.id).attempt for handle in handles} == {1}
    assert Counter(line[1] for line in stand.effects("effect")) == Counter({str(n): 1 for n in range(25)})
    assert "OutageEnded what=broker" in beat.text()


def test_messages_that_the_broker_forgot_are_dispatched_again(stand: Stand, broker: OwnRedis) -> None:
    effect = stand.app.tasks["effect"]
    handles = [defer(effect.s(n)) for n in range(50)]
    client = redis.Redis.from_url(broker.url)
    assert client.llen("celery") == 50
    client.flushall()
    client.close()
    stand.beat()
    stand.worker()

    stand.wait_until_settled()
    assert Counter(line[1] for line in stand.effects("effect")) == Counter({str(n): 1 for n in range(50)})
    assert {stand.tm.job(handle.id).attempt for handle in handles} == {1}


@pytest.mark.timeout(200)
def test_a_database_restarted_under_load_stops_nothing(stand: Stand, postgres: OwnPostgreSQL) -> None:
    beat, workers = stand.beat(), [stand.worker(), stand.worker()]
    effect = stand.app.tasks["effect"]
    ids: list[str] = []
    restarts = {40: "fast", 110: "immediate"}
    for n in range(160):
        if n in restarts:
            postgres.stop(mode=restarts[n])
            # While it is away: direct calls still reach the broker, and their deliveries find no database.
            ids += [effect.delay(f"direct{n}-{i}").id for i in range(10)]
            time.sleep(1)
            postgres.start()
        ids.append(defer_patiently(stand, f"job{n}", delay=(n % 5) * 0.2))
        time.sleep(0.02)
    stand.wait_until_settled(seconds=90)
    stand.wait(lambda: all(story_known(stand.tm, id) for id in ids), what="a record of every job")

    assert beat.is_running
    assert all(worker.is_running for worker in workers)
    assert {stand.tm.job(id).state for id in ids} == {Status.SUCCEEDED}
    outcomes = stand.outcomes()
    assert outcomes["succeeded"] == len(ids) == 180
    assert set(outcomes) <= {"succeeded", "orphaned"}
    assert {line[1] for line in stand.effects("effect")} >= {f"job{n}" for n in range(160)}
    assert stand.count(tables.dead_letter) == 0


def defer_patiently(stand: Stand, name: str, delay: float) -> str:
    """Defer as an application would that tries again; the key makes that safe."""
    for _ in range(50):
        try:
            return defer(stand.app.tasks["effect"].s(name), delay=delay, key=name).id
        except DatabaseUnavailable:
            time.sleep(0.1)
    raise AssertionError("the database did not come back")


def story_known(tm: TimeManagement, id: str) -> bool:
    from celery_tm.errors import JobNotFound

    try:
        tm.job(id)
    except JobNotFound:
        return False
    return True


def test_a_delivery_that_finds_no_database_is_neither_failed_nor_lost(stand: Stand, postgres: OwnPostgreSQL) -> None:
    effect = stand.app.tasks["effect"]
    deferred = [defer(effect.s(f"deferred{n}")) for n in range(5)]
    postgres.stop()
    direct = [effect.delay(f"direct{n}") for n in range(5)]
    worker = stand.worker()
    stand.wait_for_text(worker, "OutageBegan what=database")
    time.sleep(7)  # longer than the gate is patient
    postgres.start()
    stand.beat()

    ids = [handle.id for handle in deferred] + [result.id for result in direct]
    stand.wait(lambda: all(story_known(stand.tm, id) for id in ids), seconds=60, what="a record of every job")
    stand.wait_until_settled()
    assert stand.outcomes() == Counter(succeeded=10)
    assert {stand.tm.job(id).attempt for id in ids} == {1}
    assert len(stand.effects("effect")) == 10


def test_beat_and_defer_start_without_a_database(stand: Stand, postgres: OwnPostgreSQL) -> None:
    postgres.stop()
    beat = stand.beat()
    stand.wait_for_text(beat, "OutageBegan what=database")
    with pytest.raises(DatabaseUnavailable, match="tm_database_url"):
        defer(stand.app.tasks["effect"].s(1))
    postgres.start()
    stand.worker()
    handle = defer(stand.app.tasks["effect"].s(1), delay=0.1)
    stand.wait(lambda: handle.state == Status.SUCCEEDED, what="the job after the outage")
    assert beat.is_running


def test_a_direct_call_that_finds_neither_database_nor_broker_is_held(
    stand: Stand, broker: OwnRedis, postgres: OwnPostgreSQL
) -> None:
    effect = stand.app.tasks["effect"]
    worker = stand.worker(concurrency=1)
    postgres.stop()
    result = effect.delay("held")
    stand.wait_for_text(worker, f"effect[{result.id}] received")
    broker.stop()
    stand.wait_for_text(worker, "cannot be given back")
    postgres.start()
    stand.wait(lambda: story_known(stand.tm, result.id), seconds=30, what="the held call")
    stand.wait_until_settled()
    assert stand.outcomes() == Counter(succeeded=1)
    assert len(stand.effects("effect")) == 1
