"""What a tick costs on every database: as many statements with many definitions as with few, each answered by an index."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from celery import Celery
from sqlalchemy import insert, text, update
from tmtest import said
from tmtest.ledger import NOON, add
from tmtest.said import Said

from celery_tm import Scheduler, TimeManagement, defer_many
from celery_tm.domain.definition import COLUMNS
from celery_tm.domain.ids import new_id
from celery_tm.scheduler import outlook
from celery_tm.store import claims, tables
from celery_tm.testing import MovableClock

MANY = 5_000


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def many_definitions(tm: TimeManagement, *, count: int) -> None:
    """Copy a definition, none of them due, as a bulk import would."""
    first = add(tm, name="template", schedule="0 0 1 1 *")
    copies = (replace(first, id=new_id(), name=f"copy {n}") for n in range(count))
    rows = [{name: getattr(copy, name) for name in COLUMNS} for copy in copies]
    with tm.installation.database.transaction() as tx:
        for start in range(0, count, 1000):
            tx.execute(insert(tables.definition), rows[start : start + 1000])


@contextmanager
def listening(tm: TimeManagement) -> Iterator[Said]:
    """Note what a tick says, but for being seen, which is due every ten seconds."""
    with said.listening(tm.installation.database) as heard:
        yield heard
    heard.statements[:] = [one for one in heard.statements if "tm_node" not in one[0]]


def statements_of(tm: TimeManagement, scheduler: Scheduler) -> list[str]:
    """Return what one tick asks the database."""
    with listening(tm) as heard:
        scheduler.work()
    return heard.texts


def test_an_idle_tick_is_one_statement_however_many_definitions_and_jobs_wait(tm: TimeManagement, app: Celery) -> None:
    app.conf.result_expires = None
    scheduler = Scheduler(app)
    scheduler.work()  # what beat does once
    few = statements_of(tm, scheduler)
    many_definitions(tm, count=MANY)
    defer_many([app.tasks["effect"].s(n) for n in range(MANY)], delay="1d")
    scheduler.work()  # what beat does every few seconds, if writing all that took as long
    assert statements_of(tm, scheduler) == few
    assert len(few) == 1


def test_a_herd_is_planned_and_claimed_in_few_statements(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    app.conf.result_expires = None
    app.conf.broker_url = "memory://"
    scheduler = Scheduler(app)
    scheduler.work()
    for n in range(100):
        add(tm, name=f"d{n}")
    noon.forward("1m")
    asked = statements_of(tm, scheduler)
    assert len(tm.jobs(state="dispatched", limit=200)) == 100
    assert len(asked) <= 20, asked


@pytest.mark.parametrize("count", [1, 300])
def test_a_tick_with_due_jobs_looks_claims_and_looks_again(
    tm: TimeManagement, app: Celery, noon: MovableClock, count: int
) -> None:
    app.conf.result_expires = None
    scheduler = Scheduler(app)
    scheduler.work()
    defer_many([app.tasks["effect"].s(n) for n in range(count)], delay="1m")
    noon.forward("1m")
    with listening(tm) as heard:
        scheduler.work()
    assert len(tm.jobs(state="dispatched", limit=count + 1)) == count
    assert heard.transactions == 3
    # Nobody asks for jobs that take turns: there are none. MySQL, which gives nothing back, is asked three times to claim.
    claiming = 1 if tm.installation.database.dialect.gives_back_updates else 3
    assert len(heard.texts) == 2 + claiming, heard.texts


def test_jobs_that_take_turns_are_asked_for_where_one_is_due(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    app.conf.result_expires = None
    scheduler = Scheduler(app)
    defer_many([app.tasks["effect"].s(n) for n in range(3)], delay="1m", concurrency_key="one")
    noon.forward("1m")
    scheduler.work()
    assert len(tm.jobs(state="dispatched")) == 1


def test_dead_rows_at_the_head_of_an_index_are_walked_over_once(
    tm: TimeManagement, app: Celery, noon: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that was slow is followed by ones that begin where it found something, and some time later by a whole one."""
    monkeypatch.setattr(outlook, "SLOW", -1.0)
    monkeypatch.setattr(outlook, "SHARE", 10**9)  # however short this look is, the next whole one is far off
    seen = outlook.Outlook(tm.installation)
    [late] = defer_many([app.tasks["effect"].s(1)], delay="1h")
    noon.forward("2h")
    assert seen.look().due_at == late.run_at
    assert seen.due_since == late.run_at
    [early] = defer_many([app.tasks["effect"].s(2)], run_at=NOON + timedelta(hours=2))
    with tm.installation.database.transaction() as tx:  # as if the broker had given it back
        tx.execute(update(tables.job).where(tables.job.c.id == early.id).values(run_at=NOON))
        found = claims.claim_due(tx, node="beat", lease=timedelta(minutes=1), limit=10, since=seen.due_since)
    assert [job.id for job in found] == [late.id]
    assert seen.look().due_at is None, "it lies before the place where looking begins"
    seen.begin_anew()
    assert seen.look().due_at == NOON


@pytest.fixture
def a_million(tm: TimeManagement, app: Celery, noon: MovableClock) -> int:
    """A million jobs of all kinds that wait, a few that are due, and many definitions, none due."""
    if tm.installation.database.dialect.name != "postgresql":
        pytest.skip("the plans of PostgreSQL are read")
    tm.installation.database.serve_own_app()
    defer_many([app.tasks["effect"].s(1)], delay="1d")
    add(tm, name="template", schedule="0 0 1 1 *")
    with tm.installation.database.transaction() as tx:
        for table, changed, count in ((tables.job, COPIED_JOB, 1_000_000), (tables.definition, COPIED_DEFINITION, 50_000)):
            names = [column.name for column in table.columns]
            values = ", ".join(changed.get(name, f'one."{name}"') for name in names)
            into = ", ".join(f'"{name}"' for name in names)
            copied = (
                f"INSERT INTO {table.name} ({into}) SELECT {values} FROM {table.name} one, generate_series(1, {count}) n"
            )
            tx.execute(text(copied))
    defer_many([app.tasks["effect"].s(n) for n in range(20)], delay="1m")
    noon.forward(timedelta(hours=1))
    with tm.installation.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE tm_job, tm_definition"))
    return 20


COPIED_JOB = {"id": "one.id || n", "run_at": "one.run_at + n * interval '1 s'"}
COPIED_DEFINITION = {"id": "left(one.id, 24) || lpad(to_hex(n), 12, '0')", "name": "one.name || n"}


def test_with_a_million_rows_what_is_due_is_found_by_index(tm: TimeManagement, app: Celery, a_million: int) -> None:
    """The very statements of a tick, with their parameters, as PostgreSQL plans them."""
    app.conf.result_expires = None
    scheduler = Scheduler(app)
    scheduler.zones.check_once = scheduler.seeder.seed_some = lambda: None  # type: ignore[method-assign]
    with listening(tm) as heard:
        scheduler.work()
        scheduler.dispatcher.dispatch_due()
        scheduler.planner.plan_due()
    assert len(tm.jobs(state="dispatched")) == a_million
    with tm.installation.database.engine.connect() as connection:
        for statement, parameters in heard.statements:
            plan = "\n".join(row[0] for row in connection.exec_driver_sql(f"EXPLAIN {statement}", parameters))
            assert "Seq Scan on tm_job" not in plan, plan
            assert "Seq Scan on tm_definition" not in plan, plan
            if "UPDATE tm_job" in statement:
                assert "Index Scan using tm_job_app_due" in plan, plan
                assert "Index Scan using tm_job_pkey" in plan, plan
        connection.rollback()
