"""What a tick costs on every database: as many statements with many definitions as with few, each answered by an index."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from celery import Celery
from sqlalchemy import event, insert, text
from tmtest.ledger import NOON, add, claim

from celery_tm import Scheduler, TimeManagement, defer_many
from celery_tm.domain.definition import COLUMNS
from celery_tm.domain.ids import new_id
from celery_tm.store import agenda, tables
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


def statements_of(tm: TimeManagement, scheduler: Scheduler) -> list[str]:
    """Return what one tick asks the database."""
    seen: list[str] = []
    engine = tm.installation.database.engine

    def note(conn: object, cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith("BEGIN") and "tm_node" not in statement:  # being seen is due every ten seconds
            seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        scheduler.work()
    finally:
        event.remove(engine, "before_cursor_execute", note)
    return seen


def test_an_idle_tick_is_one_statement_however_many_definitions_and_jobs_wait(tm: TimeManagement, app: Celery) -> None:
    app.conf.result_expires = None
    scheduler = Scheduler(app)
    scheduler.work()  # what beat does once
    few = statements_of(tm, scheduler)
    many_definitions(tm, count=MANY)
    defer_many([app.tasks["effect"].s(n) for n in range(MANY)], delay="1d")
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


def plan_of(tm: TimeManagement, statement: str) -> str:
    with tm.installation.database.transaction(write=False) as tx:
        return "\n".join(" ".join(map(str, row)) for row in tx.connection.execute(text(f"EXPLAIN {statement}")))


def test_the_agenda_and_what_is_due_are_found_by_index(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    """On PostgreSQL, whose planner tells most plainly."""
    if tm.installation.database.dialect.name != "postgresql":
        pytest.skip("the plans of PostgreSQL are read")
    many_definitions(tm, count=MANY)
    defer_many([app.tasks["effect"].s(n) for n in range(MANY)], delay="1d")
    defer_many([app.tasks["effect"].s(n) for n in range(MANY)], delay="1d", concurrency_key="k")
    noon.forward(timedelta(hours=1))
    assert claim(tm) == []
    engine = tm.installation.database.engine
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))
    asked = str(agenda._statement(None, False).compile(engine, compile_kwargs={"literal_binds": True}))
    due = "SELECT id FROM tm_definition WHERE next_run_at <= now() ORDER BY next_run_at LIMIT 500 FOR UPDATE SKIP LOCKED"
    jobs = "SELECT id FROM tm_job WHERE state = 'pending' AND {} AND run_at <= now() ORDER BY run_at LIMIT 500"
    for question in (asked, due, jobs.format("slot IS NULL"), jobs.format("slot = 'open'")):
        plan = plan_of(tm, question)
        assert "Seq Scan on tm_definition" not in plan, plan
        assert "Seq Scan on tm_job" not in plan, plan
        assert "Index" in plan
