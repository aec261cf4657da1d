"""Renewals reach every lease they can: neither a locked row nor a pool that is used up stops them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session
from tmtest.app import make_app
from tmtest.courier import Courier
from tmtest.ledger import claim, start
from tmtest.strangers import at_once

from celery_tm import Task, TimeManagement, cancel, defer, defer_many, workflow
from celery_tm.domain.job import Status
from celery_tm.installation import Installation
from celery_tm.recovery.sweeper import sweep
from celery_tm.scheduler import Scheduler
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import tables
from celery_tm.store.body import BodyTransaction
from celery_tm.worker.context import JobContext
from celery_tm.worker.lease import LeaseKeeper, keeper_of

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


# A broker that accepts and never answers


@pytest.fixture
def mute(tm: TimeManagement) -> Iterator[Installation]:
    """The installation of a worker on the same tables, whose broker does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        app = make_app({"broker_url": url, "tm_database_url": tm.app.conf.tm_database_url})
        yield Installation.of(app)
        Installation.of(app).database.dispose()


@pytest.mark.timeout(60)
def test_a_step_that_is_terminated_stops_no_renewal(tm: TimeManagement, mute: Installation) -> None:
    effect = tm.app.tasks["effect"]
    run = defer(workflow([effect.s("step")], terminate=True), app=tm.app)
    dispatcher = Dispatcher(tm.installation, "beat")
    dispatcher.expand(dispatcher.claim(10)[1])
    [id] = claim(tm)
    step = JobContext(start(tm, id), mute)
    [neighbour] = running(tm, 1)
    contexts, before = [step, neighbour], leases(tm)
    keeper = LeaseKeeper(mute)
    keeper._running = {(context.id, context.attempt): context for context in contexts}
    assert cancel(id=run.id, app=tm.app)
    assert at_once(keeper.renew_all)
    assert step.asked_to_stop
    assert leases(tm)[neighbour.id] > before[neighbour.id]


# One transaction that bars all others, as in SQLite


def skip_servers(tm: TimeManagement) -> None:
    if tm.installation.database.dialect.is_server:
        pytest.skip("a body bars nobody else")


def end_leases(tx: Any) -> None:
    tx.execute(update(job).values(lease_until=datetime(2020, 1, 1, tzinfo=UTC)))


def test_the_commit_of_a_body_that_bars_others_renews_their_leases(tm: TimeManagement) -> None:
    skip_servers(tm)
    ended: list[str] = []

    @tm.app.task(base=Task, bind=True, name="takes long", shared=False, transactional=True)
    def takes_long(self: Task) -> None:
        end_leases(self.job.session)
        assert not keeper_of(tm.installation).renew_all(), "the next try comes soon after the body"
        ended.append(self.job.id)

    neighbours = running(tm, 2)
    keeper = keeper_of(tm.installation)
    with keeper._lock:
        keeper._running |= {(context.id, context.attempt): context for context in neighbours}
    try:
        courier = Courier(tm)
        courier.collect()
        handle = defer(takes_long.s())
        for message in courier.collect():
            courier.deliver(message)
    finally:
        keeper.let_go(*neighbours)
    assert ended == [handle.id]
    assert not sweep(tm.installation.database, default=tm.installation.default_policy, limit=10)
    assert all(until > datetime.now(UTC) for until in leases(tm).values())


@pytest.mark.timeout(60)
def test_a_beat_that_was_barred_from_writing_takes_nobody_for_dead(tm: TimeManagement) -> None:
    skip_servers(tm)
    neighbours = running(tm, 2)
    beat = Scheduler(tm.app, max_interval=5)
    beat.work()
    with tm.installation.database.transaction() as tx:
        end_leases(tx)
    body = BodyTransaction(tm.installation.database)
    body.session.execute(text("SELECT 1"))
    timer = threading.Timer(2.0, body.roll_back)
    timer.start()
    beat.work()
    timer.join()
    assert {tm.job(context.id).state for context in neighbours} == {Status.RUNNING}


@pytest.fixture
def own_pool(tm: TimeManagement) -> Iterator[TimeManagement]:
    """An installation whose pool has four connections."""
    tm.app.conf.tm_pool_size = 4
    installation = tm.app._celery_tm = Installation(tm.app)
    yield TimeManagement(tm.app)
    installation.database.dispose()
