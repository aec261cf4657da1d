"""A PostgreSQL that loses its memory: what is on its disk counts, and the start of an attempt is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tmtest.app import make_app
from tmtest.ledger import claim
from tmtest.servers import OwnPostgreSQL

from celery_tm import TimeManagement, defer
from celery_tm.domain.job import JobState
from celery_tm.store import executions, jobs, schema
from celery_tm.worker import gate, recorder
from celery_tm.worker.decision import Call


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OwnPostgreSQL]:
    server = OwnPostgreSQL(tmp_path)
    with (server.data / "postgresql.conf").open("a") as file:
        file.write("wal_writer_delay=10s\nwal_writer_flush_after=0\n")  # so that what may wait for the disk does
    server.start()
    yield server
    server.stop()


@pytest.fixture
def tm(server: OwnPostgreSQL) -> Iterator[TimeManagement]:
    tm = TimeManagement(make_app({"broker_url": "memory://", "tm_database_url": server.url}))
    schema.upgrade(tm.installation.database)
    yield tm
    tm.installation.database.dispose()


def crash(server: OwnPostgreSQL) -> None:
    """End the server in the middle of everything, and start it again."""
    server.stop(mode="immediate")
    server.start()


@pytest.mark.timeout(60)
def test_the_start_of_an_attempt_survives_a_crash_and_nobody_else_gets_in(tm: TimeManagement, server: OwnPostgreSQL) -> None:
    handle = defer(tm.app.tasks["effect"].s(1), delay=0.001)
    assert claim(tm) == [handle.id]
    first = gate.admit_job(tm.installation, handle.id, 1, worker="w:1").job
    assert first is not None
    crash(server)
    with tm.installation.database.transaction(write=False) as tx:
        found = jobs.find(tx, handle.id)
    assert found is not None
    assert found.state is JobState.RUNNING
    assert gate.admit_job(tm.installation, handle.id, 1, worker="w:2").job is None
    recorder.record_success(tm.installation, first, None)
    crash(server)
    with tm.installation.database.transaction(write=False) as tx:
        assert [one.worker for one in executions.of_job(tx, handle.id)] == ["w:1"]
        assert jobs.find(tx, handle.id) is None


@pytest.mark.timeout(60)
def test_what_was_deferred_and_what_has_ended_survive_a_crash(tm: TimeManagement, server: OwnPostgreSQL) -> None:
    waiting, done = (defer(tm.app.tasks["effect"].s(n), delay="1h" if n else 0.001) for n in (1, 0))
    assert claim(tm) == [done.id]
    job = gate.admit_job(tm.installation, done.id, 1, worker="w:1").job
    assert job is not None
    recorder.record_success(tm.installation, job, None)
    crash(server)
    with tm.installation.database.transaction(write=False) as tx:
        assert jobs.find(tx, waiting.id) is not None
        assert jobs.find(tx, done.id) is None
        assert [one.worker for one in executions.of_job(tx, done.id)] == ["w:1"]


@pytest.mark.timeout(60)
def test_a_direct_call_is_on_the_disk_before_it_runs(tm: TimeManagement, server: OwnPostgreSQL) -> None:
    call = Call(
        id="call", task="effect", args=(1,), kwargs={}, key=None, keep_key=None, max_retries=3, retry=None, options={}
    )
    assert gate.admit_call(tm.installation, call, worker="w:1").job is not None
    crash(server)
    with tm.installation.database.transaction(write=False) as tx:
        found = jobs.find(tx, "call")
    assert found is not None
    assert found.state is JobState.RUNNING
