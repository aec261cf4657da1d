"""Renewals reach every lease they can: neither a locked row nor a pool that is used up stops them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session
from tmtest.ledger import claim, start

from celery_tm import TimeManagement, cancel, defer_many
from celery_tm.installation import Installation
from celery_tm.store import tables
from celery_tm.store.body import BodyTransaction
from celery_tm.worker.context import JobContext
from celery_tm.worker.lease import LeaseKeeper

job = tables.job


def running(tm: TimeManagement, count: int) -> list[JobContext]:
    """Return attempts that were let in."""
    defer_many([(tm.app.tasks["effect"].s(n), {"delay": 0.001, "entity_id": f"entity-{n}"}) for n in range(count)])
    contexts = [JobContext(start(tm, id), tm.installation) for id in claim(tm)]
    return sorted(contexts, key=lambda context: context.entity_id or "")


def leases(tm: TimeManagement) -> dict[str, datetime]:
    with tm.installation.database.transaction(write=False) as tx:
        return {row.id: row.lease_until for row in tx.execute(select(job.c.id, job.c.lease_until))}


def holding(tm: TimeManagement, contexts: list[JobContext]) -> LeaseKeeper:
    """Return a keeper that has these attempts, and whose thread leaves them alone."""
    keeper = LeaseKeeper(tm.installation)
    keeper._running = {(context.id, context.attempt): context for context in contexts}
    return keeper


@contextmanager
def cancelled_by_a_caller(tm: TimeManagement, context: JobContext, *, commit: bool) -> Iterator[None]:
    """Have an open transaction of a caller that has cancelled one running job."""
    with Session(tm.installation.database.engine) as session:
        assert cancel(entity_id=context.entity_id, session=session, app=tm.app)
        yield
        if commit:
            session.commit()


def skip_embedded(tm: TimeManagement) -> None:
    if not tm.installation.database.dialect.skips_locked:
        pytest.skip("one writer locks all of SQLite")


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.timeout(60)
def test_one_locked_row_stops_no_other_renewal(tm: TimeManagement, commit: bool) -> None:
    skip_embedded(tm)
    locked, *others = contexts = running(tm, 4)
    keeper, before = holding(tm, contexts), leases(tm)
    with cancelled_by_a_caller(tm, locked, commit=commit):
        done = threading.Thread(target=keeper.renew_all, daemon=True)
        done.start()
        done.join(20)
        assert not done.is_alive(), "the renewal waits for the caller's transaction"
        after = leases(tm)
        assert all(after[context.id] > before[context.id] for context in others)
        assert after[locked.id] == before[locked.id]
        assert not any(context.lease_lost for context in contexts)
        assert not keeper.renew_all(), "the rest is not left to the next regular renewal"
    assert keeper.renew_all()
    assert leases(tm)[locked.id] > before[locked.id]
    assert (locked.cancelled, locked.lease_lost) == (commit, False)


def test_what_is_gone_is_told_from_what_is_locked(tm: TimeManagement) -> None:
    gone, held = contexts = running(tm, 2)
    with tm.installation.database.transaction() as tx:
        tx.execute(job.delete().where(job.c.id == gone.id))
    assert holding(tm, contexts).renew_all()
    assert (gone.lease_lost, held.lease_lost) == (True, False)


@pytest.mark.timeout(60)
def test_bodies_that_hold_every_connection_do_not_stop_the_renewals(own_pool: TimeManagement) -> None:
    database = own_pool.installation.database
    skip_embedded(own_pool)
    contexts = running(own_pool, 4)
    for context in contexts:
        context.log("said before the renewal")
    keeper, before = holding(own_pool, contexts), leases(own_pool)
    with ExitStack() as held:
        for context in contexts:
            context.body = BodyTransaction(database)
            held.callback(context.body.roll_back)
            context.body.session.execute(text("SELECT 1"))
        began = time.monotonic()
        assert keeper.renew_all()
        assert time.monotonic() - began < 15, "it waited for a connection of the pool"
    after = leases(own_pool)
    assert all(after[context.id] > before[context.id] for context in contexts)


@pytest.fixture
def own_pool(tm: TimeManagement) -> Iterator[TimeManagement]:
    """An installation whose pool has four connections."""
    tm.app.conf.tm_pool_size = 4
    installation = tm.app._celery_tm = Installation(tm.app)
    yield TimeManagement(tm.app)
    installation.database.dispose()
