"""Dispatched jobs that still wait in line behind one that a worker holds are not dispatched again, on every database."""

from __future__ import annotations

from datetime import timedelta

import pytest
from celery import Celery
from sqlalchemy import column, table, update
from tmtest.courier import Courier, owed

from celery_tm import TimeManagement, defer_many
from celery_tm.domain.job import JobState
from celery_tm.recovery.sweeper import sweep
from celery_tm.store import claims, tables
from celery_tm.store.database import Database
from celery_tm.testing import MovableClock

LEASE = timedelta(seconds=60)


@pytest.fixture
def ids(app: Celery, tm: TimeManagement, noon: MovableClock) -> list[str]:
    """Five jobs, in the order in which they are dispatched, a minute and a second ago."""
    handles = defer_many([(app.tasks["effect"].s(n), {"delay": 1 + n}) for n in range(5)])
    noon.forward("10s")
    assert Courier(tm).dispatch() == 5
    noon.forward("61s")
    return [handle.id for handle in handles]


def again(tm: TimeManagement) -> list[str]:
    """Sweep as beat does, and return the jobs that are to be dispatched again."""
    database, default = tm.installation.database, tm.installation.default_policy
    return sorted(job.id for job in sweep(database, default=default, limit=100, dispatch_lease=LEASE).redispatched)


def hold(database: Database, *ids: str, patience: timedelta | None = None) -> None:
    """Renew the leases of messages as the worker does that holds them; with a patience, behind a busy pool."""
    database.run(lambda tx: claims.keep_dispatched(tx, [(id, 1) for id in ids], lease=LEASE, patience=patience))


def test_what_waits_behind_a_held_message_is_not_dispatched_again(
    tm: TimeManagement, database: Database, ids: list[str], noon: MovableClock
) -> None:
    hold(database, ids[0])
    assert again(tm) == []
    for _ in range(3):
        noon.forward("61s")
        hold(database, ids[0])
        assert again(tm) == []
    noon.forward("61s")  # the worker is gone
    assert again(tm) == sorted(ids)


def test_a_message_that_waits_for_a_busy_pool_is_dispatched_again_in_the_end(
    tm: TimeManagement, database: Database, ids: list[str], noon: MovableClock
) -> None:
    for _ in range(claims.PATIENCE - 2):
        hold(database, ids[0], patience=LEASE * claims.PATIENCE)
        assert again(tm) == []
        noon.forward("60s")
    noon.forward("120s")
    hold(database, ids[0], patience=LEASE * claims.PATIENCE)
    assert again(tm) == sorted(ids), "another worker may be idle"


def test_one_that_died_with_another_worker_does_not_wait_behind_a_rate_limit_for_ever(
    tm: TimeManagement, database: Database, ids: list[str], noon: MovableClock
) -> None:
    found: list[str] = []
    for _ in range(claims.PATIENCE):
        hold(database, ids[0])
        found += again(tm)
        noon.forward("60s")
    assert found == sorted(ids[1:]), "each is dispatched again once"


def test_one_that_was_overtaken_is_lost(tm: TimeManagement, database: Database, ids: list[str]) -> None:
    hold(database, ids[2], ids[3])
    assert again(tm) == sorted(ids[:2])
    assert {job.state for job in owed(database) if job.id in ids[2:]} == {JobState.DISPATCHED}


@pytest.mark.parametrize("other", [{"task": "fails"}, {"queue": "elsewhere"}])
def test_only_a_message_of_the_same_task_and_queue_tells_of_a_line(
    tm: TimeManagement, database: Database, ids: list[str], other: dict[str, str]
) -> None:
    with database.transaction() as tx:
        tx.execute(update(tables.job).where(tables.job.c.id == ids[0]).values(other))
    hold(database, ids[0])
    assert again(tm) == sorted(ids[1:])


@pytest.mark.parametrize("blank", [0, 1])
def test_a_message_without_a_time_of_dispatch_has_no_place_in_the_line(
    tm: TimeManagement, database: Database, ids: list[str], blank: int
) -> None:
    with database.transaction() as tx:
        tx.execute(update(tables.job).where(tables.job.c.id == ids[blank]).values(claimed_at=None))
    hold(database, ids[0])
    assert again(tm) == (sorted(ids[1:]) if blank == 0 else [ids[1]])


def test_a_lease_is_never_made_shorter_and_a_running_job_left_alone(
    tm: TimeManagement, database: Database, ids: list[str], noon: MovableClock
) -> None:
    with database.transaction() as tx:
        tx.execute(update(tables.job).where(tables.job.c.id == ids[0]).values(lease_until=noon.now + 9 * LEASE))
        tx.execute(update(tables.job).where(tables.job.c.id == ids[1]).values(state="running"))
    hold(database, *ids[:3])
    until = {job.id: job.lease_until for job in owed(database)}
    assert until[ids[0]] == noon.now + 9 * LEASE
    assert (until[ids[1]] or noon.now) < noon.now
    assert until[ids[2]] == noon.now + LEASE


@pytest.mark.parametrize("spoiled", ["claimed_at", "run_at"])
def test_a_held_message_whose_place_cannot_be_read_keeps_no_lost_one_waiting(
    app: Celery, tm: TimeManagement, database: Database, ids: list[str], spoiled: str
) -> None:
    hold(database, ids[0])
    plain = table("tm_job", column("id"), column(spoiled))
    if database.dialect.name == "mysql":
        pytest.skip("this database keeps no such instant")
    value = "infinity" if database.dialect.name == "postgresql" else "~"
    database.run(lambda tx: tx.execute(update(plain).where(plain.c.id == ids[0]).values({spoiled: value})))
    installation = tm.installation
    swept = sweep(database, default=installation.default_policy, limit=100, dispatch_lease=LEASE, aside=installation)
    assert sorted(job.id for job in swept.redispatched) == sorted(ids[1:])
    assert installation.skipped("tm_job") == []
