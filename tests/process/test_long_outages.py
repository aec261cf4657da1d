"""Bodies that run while the database is away, for less than a lease and for longer: each of them runs once.

On servers of the test's own. The short form has a lease of two seconds; `--thorough` has the default one, bodies of two
minutes and outages of up to ninety seconds.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tmtest.servers import OwnMariaDB, OwnPostgreSQL, OwnRedis
from tmtest.stand import Stand

from celery_tm import defer_many
from celery_tm.store import tables


@dataclass(frozen=True)
class Scale:
    """How long everything takes, in seconds."""

    lease: float
    body: float
    bodies: int
    outages: tuple[float, ...]


SHORT = Scale(lease=2, body=20, bodies=8, outages=(1, 3, 6))
LONG = Scale(lease=30, body=120, bodies=20, outages=(2, 20, 45, 90))
Server = OwnPostgreSQL | OwnMariaDB


@pytest.fixture(params=["postgresql", "mysql"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    kinds = {"postgresql": OwnPostgreSQL, "mysql": OwnMariaDB}
    server: Server = kinds[request.param](tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()


def open_stand(server: Server, broker: OwnRedis, folder: Path, effects: Path, scale: Scale) -> Stand:
    conf = {"broker_url": broker.url, "tm_database_url": server.url, "tm_lease": scale.lease, "tm_dispatch_lease": 60}
    stand = Stand(conf, folder, effects)
    stand.tm.upgrade()
    return stand


def live_through(stand: Stand, server: Server, scale: Scale, outage: float) -> None:
    """Let the database be away while bodies run, and see that each of them has run once."""
    names = [f"{outage}-{n}" for n in range(scale.bodies)]
    sleepy = stand.app.tasks["sleepy"]
    defer_many([(sleepy.s(name, scale.body), {"delay": 0.1}) for name in names])
    stand.wait(lambda: started(stand, names) == scale.bodies, seconds=60, what="the start of all bodies")
    server.stop()
    time.sleep(outage)  # this is what is measured
    server.start()
    stand.wait(lambda: ended(stand, names) == scale.bodies, seconds=scale.body + 120, what="the end of all bodies")
    stand.wait(lambda: stand.count(tables.job) == 0, seconds=120, what="the record of all bodies")
    assert Counter(line[1] for line in stand.effects("start") if line[1] in names) == Counter(dict.fromkeys(names, 1))
    assert Counter(line[1] for line in stand.effects("end") if line[1] in names) == Counter(dict.fromkeys(names, 1))


def started(stand: Stand, names: list[str]) -> int:
    return len({line[1] for line in stand.effects("start")} & set(names))


def ended(stand: Stand, names: list[str]) -> int:
    return len({line[1] for line in stand.effects("end")} & set(names))


@pytest.mark.timeout(400)
def test_bodies_that_outlive_an_outage_run_once(server: Server, broker: OwnRedis, tmp_path: Path, effects: Path) -> None:
    stand = open_stand(server, broker, tmp_path, effects, SHORT)
    try:
        stand.beat()
        stand.worker("-P", "threads", concurrency=SHORT.bodies)
        for outage in SHORT.outages:
            live_through(stand, server, SHORT, outage)
        assert stand.outcomes() == Counter(succeeded=SHORT.bodies * len(SHORT.outages))
    finally:
        stand.close()


@pytest.mark.timeout(200)
def test_bodies_that_end_during_an_outage_are_recorded_after_it(
    server: Server, broker: OwnRedis, tmp_path: Path, effects: Path
) -> None:
    stand = open_stand(server, broker, tmp_path, effects, SHORT)
    try:
        stand.beat()
        stand.worker("-P", "threads", concurrency=4)
        live_through(stand, server, Scale(lease=2, body=4, bodies=4, outages=()), outage=10)
        assert stand.outcomes() == Counter(succeeded=4)
    finally:
        stand.close()


@pytest.mark.timeout(200)
def test_a_beat_that_was_stopped_during_the_outage_leaves_running_bodies_alone(
    server: Server, broker: OwnRedis, tmp_path: Path, effects: Path
) -> None:
    scale = Scale(lease=5, body=30, bodies=2, outages=())
    stand = open_stand(server, broker, tmp_path, effects, scale)
    try:
        beat = stand.beat()
        worker = stand.worker("-P", "threads", concurrency=2)
        names = ["a", "b"]
        defer_many([(stand.app.tasks["sleepy"].s(name, scale.body), {"delay": 0.1}) for name in names])
        stand.wait(lambda: started(stand, names) == 2, seconds=60, what="the start of all bodies")
        beat.signal_all(signal.SIGSTOP)
        worker.signal_all(signal.SIGSTOP)  # it renews after beat has looked
        time.sleep(2 * scale.lease)
        server.stop()
        server.start()
        beat.signal_all(signal.SIGCONT)
        # Another one starts meanwhile, which may take longer than the grace on a busy machine.
        going_on = threading.Timer(scale.lease / 2, worker.signal_all, [signal.SIGCONT])
        going_on.start()
        stand.beat()
        going_on.join()
        stand.wait(lambda: ended(stand, names) == 2, seconds=90, what="the end of all bodies")
        stand.wait(lambda: stand.count(tables.job) == 0, seconds=60, what="the record of all bodies")
        assert stand.outcomes() == Counter(succeeded=2)
    finally:
        stand.close()


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("outage", LONG.outages)
def test_the_same_with_the_default_lease(
    server: Server, broker: OwnRedis, tmp_path: Path, effects: Path, outage: float
) -> None:
    stand = open_stand(server, broker, tmp_path, effects, LONG)
    try:
        stand.beat()
        stand.worker("-P", "threads", concurrency=LONG.bodies)
        live_through(stand, server, LONG, outage)
        assert stand.outcomes() == Counter(succeeded=LONG.bodies)
    finally:
        stand.close()
