"""Leases and due checks go by the database's clock: a machine whose clock is wrong neither starts nor steals anything."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from celery import Celery

from celery_tm import TimeManagement, defer
from celery_tm.recovery.sweeper import sweep
from celery_tm.store import admission, claims, jobs
from celery_tm.store.database import Database

HOUR = timedelta(hours=1)
LEASE = timedelta(seconds=30)


@pytest.mark.parametrize("skew", [HOUR, -HOUR], ids=["fast", "slow"])
def test_a_skewed_machine_goes_by_the_database_s_clock(
    app: Celery, tm: TimeManagement, database: Database, skew: timedelta
) -> None:
    if not database.dialect.is_server:
        pytest.skip("an embedded database has its machine's clock")
    true_time = datetime.now(UTC)
    running = defer(app.tasks["effect"].s(1))
    with database.transaction() as tx:
        assert admission.admit(tx, running.id, 1, worker="w", lease=LEASE)
    with time_machine.travel(true_time + skew, tick=True):
        handle = defer(app.tasks["effect"].s(2), delay="10m")
        assert abs(handle.run_at - true_time - timedelta(minutes=10)) < timedelta(seconds=20)
        with database.transaction() as tx:
            assert claims.claim_due(tx, node="b", lease=LEASE, limit=10) == [], "nothing is due"
        assert len(sweep(database, default=tm.installation.default_policy, limit=10)) == 0, "the lease has not ended"
        soon = defer(app.tasks["effect"].s(3), delay=0.001)
        time.sleep(0.01)
        with database.transaction() as tx:
            claimed = claims.claim_due(tx, node="b", lease=LEASE, limit=10)
        assert [job.id for job in claimed] == [soon.id]
        assert claimed[0].lease_until is not None
        assert abs(claimed[0].lease_until - true_time - LEASE) < timedelta(seconds=20)


def test_a_delay_of_months_is_as_long_where_the_clocks_change_on_the_way(app: Celery, database: Database) -> None:
    if database.dialect.name != "postgresql":
        pytest.skip("only PostgreSQL reckons with the zone of a session")
    months = [timedelta(days=30 * n) for n in range(1, 13)]
    with database.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("SET LOCAL TIME ZONE 'Europe/Warsaw'")
        ids = [defer(app.tasks["effect"].s(1), delay=delay, session=connection).id for delay in months]
    with database.transaction(write=False) as tx:
        written = [jobs.find(tx, id) for id in ids]
    assert [job.run_at - job.created_at for job in written if job] == months
