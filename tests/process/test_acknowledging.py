"""Messages of jobs are acknowledged many at a time: none is left in Redis, and one that comes again is refused."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from tmtest.servers import OwnRedis
from tmtest.stand import Stand

from celery_tm import defer_many
from celery_tm.scheduler.dispatcher import Dispatcher

JOBS = 300


@pytest.fixture
def stand(broker: OwnRedis, open_stand: Any, tmp_path: Path, effects: Path) -> Iterator[Stand]:
    soon = {"visibility_timeout": 2, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    with open_stand("postgresql+redis", tmp_path, effects) as shared:
        conf = {
            "broker_url": broker.url,
            "broker_transport_options": soon,
            "worker_prefetch_multiplier": JOBS,
            "tm_lease": 3,
        }
        stand = Stand(shared.conf | conf, tmp_path, effects)
        yield stand
        stand.close()


def dispatch(stand: Stand) -> None:
    defer_many([(stand.app.tasks["effect"].s(n), {"delay": 0.001}) for n in range(JOBS)])
    time.sleep(0.05)
    assert Dispatcher(stand.tm.installation, "test").dispatch_due().sent == JOBS


def test_few_commands_acknowledge_many_jobs_and_none_is_left(stand: Stand, broker: OwnRedis) -> None:
    client = redis.Redis.from_url(broker.url)
    dispatch(stand)
    worker = stand.worker()
    stand.wait_until_settled()
    stand.wait(lambda: not client.hlen("unacked") and not client.zcard("unacked_index"), seconds=3, what="the last one")
    spent = client.info("commandstats")["cmdstat_hdel"]["calls"]
    assert spent < JOBS / 3, f"{spent} commands for {JOBS} jobs"
    stand.app.tasks["effect"].delay("direct")
    stand.wait(lambda: len(stand.effects("effect")) == JOBS + 1, what="a direct call")
    worker.stop()
    assert worker.wait(20) == 0
    assert client.hlen("unacked") == client.zcard("unacked_index") == 0


def test_messages_that_a_killed_worker_had_not_acknowledged_come_again_for_nothing(stand: Stand, broker: OwnRedis) -> None:
    client = redis.Redis.from_url(broker.url)
    dispatch(stand)
    worker = stand.worker()
    stand.wait(lambda: len(stand.effects("effect")) > JOBS / 10, what="a part of them")
    worker.kill()
    left = client.hlen("unacked")
    assert left, "all were acknowledged: then this shows nothing"
    stand.beat()
    stand.worker()
    stand.wait(lambda: not client.hlen("unacked") and not client.llen("celery"), seconds=40, what="their second delivery")
    stand.wait_until_settled()
    ran = Counter(line[1] for line in stand.effects("effect"))
    assert len(ran) == JOBS
    twice = [name for name, times in ran.items() if times > 1]
    assert len(twice) <= 2, f"{twice} ran twice: more than the two that the killed worker was at"
    assert stand.outcomes()["succeeded"] == JOBS
