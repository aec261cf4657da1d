"""Workers whose bodies are threads or greenlets of one process, each with a transaction open: none loses its lease."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import pytest
from conftest import OpenStand
from tmtest.stand import Stand

from celery_tm import defer_many
from celery_tm.store import tables

BODIES = 24  # more than the connections that a process has for itself


@pytest.mark.parametrize("size", [None, 6], ids=["sized by its bodies", "six connections"])
@pytest.mark.parametrize("pool", ["threads", "gevent"])
@pytest.mark.parametrize("pair", ["postgresql+redis", "mysql+rabbitmq"])
@pytest.mark.timeout(150)
def test_bodies_that_hold_a_connection_each_keep_their_leases(
    open_stand: OpenStand, tmp_path: Path, effects: Path, pair: str, pool: str, size: int | None
) -> None:
    if importlib.util.find_spec(pool) is None and pool != "threads":
        pytest.skip(f"{pool} is not installed")
    with open_stand(pair, tmp_path, effects) as stand:
        stand.conf |= {"tm_lease": 3, "tm_pool_size": size, "tm_dispatch_lease": 60}
        stand.beat()
        stand.worker("-P", pool, concurrency=BODIES)
        count = BODIES if size is None else size
        defer_many([(stand.app.tasks["holds"].s(n, 8), {"delay": 0.1}) for n in range(count)])
        stand.wait(lambda: has_ended(stand, count), seconds=100, what="the end of all bodies")
        assert stand.outcomes() == Counter(succeeded=count)
        assert Counter(line[1] for line in stand.effects("holds")) == Counter(str(n) for n in range(count))


def has_ended(stand: Stand, count: int) -> bool:
    return len(stand.effects("holds")) >= count and stand.count(tables.job) == 0
