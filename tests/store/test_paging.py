"""Long lists a page at a time, on every database: complete, nothing twice, and told apart by filters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete
from tmtest.ledger import MINUTE, NOON, add, claim, plan, start

from celery_tm import TimeManagement, defer
from celery_tm.domain.execution import Execution, Outcome
from celery_tm.domain.ids import execution_id, new_id
from celery_tm.domain.job import Source
from celery_tm.domain.paging import Page
from celery_tm.store import logs, tables
from celery_tm.testing import MovableClock


def write(tm: TimeManagement, rows: Iterable[Execution]) -> None:
    names = [column.name for column in tables.execution.columns]
    with tm.installation.database.transaction() as tx:
        tx.insert_all(tables.execution, [{name: getattr(row, name) for name in names} for row in rows])


def execution(n: int = 0, **values: Any) -> Execution:
    """Return an execution that ended so many minutes after noon."""
    usual = Execution(
        id=new_id(), job=new_id(), task="effect", source=Source.SCHEDULED, attempt=1, outcome=Outcome.SUCCEEDED,
        completed_at=NOON + n * MINUTE, started_at=NOON, worker="w", occurrence=None, definition="tick",
    )  # fmt: skip
    return replace(usual, **values)


def walk(ask: Callable[[str | None], Page[Any]], between: Callable[[], None] = lambda: None) -> list[Any]:
    """Return what all pages have, one after the other."""
    found, cursor = [], None
    while True:
        page = ask(cursor)
        found += page
        if page.next is None:
            return found
        cursor = page.next
        between()


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    minutes=st.lists(st.integers(0, 5), max_size=25),  # many at the same instant
    later=st.lists(st.lists(st.integers(-3, 9), max_size=4), max_size=6),
    limit=st.integers(1, 7),
)
def test_pages_are_complete_and_have_nothing_twice_while_rows_are_written(
    tm: TimeManagement, minutes: list[int], later: list[list[int]], limit: int
) -> None:
    with tm.installation.database.transaction() as tx:
        tx.execute(delete(tables.execution))
    rows = [execution(n) for n in minutes]
    write(tm, [*rows, execution(0, definition="other")])
    waiting = iter(later)

    def between() -> None:
        write(tm, [execution(n) for n in next(waiting, [])])

    found = walk(lambda cursor: tm.history("tick", before=cursor, limit=limit) if rows else Page(), between)
    ids = [one.id for one in found]
    assert len(ids) == len(set(ids))
    assert {row.id for row in rows} <= set(ids)
    assert {one.definition for one in found} <= {"tick"}
    assert [one.completed_at for one in found] == sorted((one.completed_at for one in found), reverse=True)


def test_executions_are_told_apart(tm: TimeManagement) -> None:
    failed = execution(3, outcome=Outcome.FAILED, task="other", entity_id="order:1", worker="v", source=Source.MANUAL)
    write(tm, [execution(n) for n in range(3)] + [failed, execution(4, definition=None), execution(5, definition="Tick")])
    asked: dict[str, Any] = {"outcome": "failed", "task": "other", "entity_id": "order:1", "worker": "v", "source": "manual"}
    for name, value in asked.items():
        assert [one.id for one in tm.history(**{name: value})] == [failed.id], name
        assert [one.id for one in tm.history("tick", **{name: value})] == [failed.id], name
    assert tm.history(**asked)[0] == failed
    assert len(tm.history(outcome=Outcome.SUCCEEDED)) == 5
    assert len(tm.history("tick", since=NOON + MINUTE, until=NOON + 3 * MINUTE)) == 2
    assert len(tm.history()) == 6


def test_a_definition_that_was_removed_has_its_history(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm)
    noon.forward("1m")
    tm.run_due_jobs()
    tm.definitions.remove("tick")
    [run] = tm.history("tick")
    assert (run.definition, tm.job(run.job).definition) == ("tick", "tick")


def test_jobs_of_every_kind_come_in_order_page_by_page(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    effect = app.tasks["effect"]
    for n in range(12):
        concurrency_key = None if n % 3 else "lane"
        defer(effect.s(n), delay=timedelta(minutes=n), concurrency_key=concurrency_key, entity_id=f"e{n % 2}", key=f"k{n}")
    noon.forward("6m")
    claimed = claim(tm, limit=3)
    start(tm, claimed[0])
    every = walk(lambda cursor: tm.jobs(after=cursor, limit=5))
    assert [job.args for job in every] == [f"[{n}]" for n in range(12)]
    assert [str(job.state) for job in walk(lambda cursor: tm.jobs(state="running", after=cursor, limit=1))] == ["running"]
    assert len(walk(lambda cursor: tm.jobs(state="pending", after=cursor, limit=2))) == 12 - len(claimed)
    assert len(walk(lambda cursor: tm.jobs(entity_id="e1", after=cursor, limit=4))) == 6
    assert [job.args for job in tm.jobs(key="k7", state="pending")] == ["[7]"]
    assert tm.jobs(task="other") == []


def test_live_jobs_have_their_progress(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    from celery_tm.store import jobs

    defer(app.tasks["effect"].s(1))
    defer(app.tasks["effect"].s(2), delay="1m")
    noon.forward("1m")
    [id, *_] = claim(tm)
    job = start(tm, id)
    with tm.installation.database.transaction() as tx:
        jobs.report_progress(tx, job, "half way")
    [live] = tm.jobs(state="running")
    assert (live.id, live.progress) == (id, "half way")


def test_instants_are_told_apart_page_by_page(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, recovery="skip", overlap="allow")
    noon.forward("9m")
    plan(tm)
    every = walk(lambda cursor: tm.occurrences("tick", before=cursor, limit=4))
    assert [one.scheduled_at for one in every] == [NOON + n * MINUTE for n in range(9, 0, -1)]
    states = [str(one.state) for one in every]
    assert len(tm.occurrences("tick", state="missed")) == states.count("missed") > 0
    assert len(tm.occurrences("tick", since=NOON + 2 * MINUTE, until=NOON + 4 * MINUTE)) == 2


def test_the_audit_is_told_apart_page_by_page(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm)
    for _ in range(3):
        tm.pause("tick", actor="ann", reason="a break")
        noon.forward("1s")
        tm.resume("tick", actor="bob")
    every = walk(lambda cursor: tm.audit(before=cursor, limit=2))
    assert [line.action for line in every] == ["resume", "pause"] * 3 + ["add"]
    assert [line.id for line in every] == sorted((line.id for line in every), reverse=True)
    [latest, *_] = tm.audit(actor="ann", object="definition:tick", action="pause")
    assert (latest.actor, latest.reason, latest.at) == ("ann", "a break", NOON + timedelta(seconds=2))
    assert latest.after is not None
    assert (len(tm.audit(since=NOON + timedelta(seconds=2))), tm.audit(actor="cy")) == (3, [])


def test_the_log_of_a_job_has_the_lines_of_all_its_attempts(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    handle = defer(app.tasks["fails"].s(1), delay="1m", max_retries=3)
    noon.forward("1m")
    tm.run_due_jobs()
    noon.forward("1h")
    claim(tm)
    start(tm, handle.id, attempt=2)
    with tm.installation.database.transaction() as tx:
        for attempt in (1, 2):
            for n in range(3):
                logs.write(tx, execution_id(handle.id, attempt), "INFO", f"{attempt}.{n}")
        logs.write(tx, execution_id("another", 1), "INFO", "not ours")
    every = walk(lambda cursor: tm.log(handle.id, after=cursor, limit=2))
    assert [(line.attempt, line.message) for line in every] == [(a, f"{a}.{n}") for a in (1, 2) for n in range(3)]
    [first] = tm.history(task="fails")
    assert [line.message for line in tm.log(first.id)] == ["1.0", "1.1", "1.2"]
    assert [line.message for line in tm.log(execution_id(handle.id, 2))] == ["2.0", "2.1", "2.2"], "it still runs"


def test_definitions_are_told_apart_page_by_page(tm: TimeManagement) -> None:
    for n in range(5):
        add(tm, name=f"Report_{n}", group="a" if n % 2 else "b")
    add(tm, name="other", task="100%")
    tm.pause("Report_1")
    tm.disable("Report_2")
    names: list[str] = []
    page = tm.definitions.list(limit=4)
    while True:
        names += [one.name for one in page]
        if page.next is None:
            break
        page = tm.definitions.list(after=page.next, limit=4)
    assert names == sorted(names)
    assert len(names) == 6
    found = {"report_": 5, "REPORT_3": 1, "rep%": 0, "0%": 1, "t_1": 1, "effect": 5}
    assert {search: len(tm.definitions.list(search=search)) for search in found} == found
    standings = {"on": 4, "paused": 1, "disabled": 1, "retired": 0}
    assert (
        {word: len(tm.definitions.list(standing=word)) for word in standings} == standings == dict(tm.status().definitions)
    )
    assert (tm.definitions.groups(), len(tm.definitions.list("a")), len(tm.glance(search="3"))) == ({"a": 2, "b": 3}, 2, 1)
    assert [one.name for one in tm.definitions.list(task="100%")] == ["other"]


def at(minutes: int) -> datetime:
    return NOON + minutes * MINUTE


@pytest.mark.parametrize("given", [at(2), at(2).isoformat()])
def test_a_time_may_be_text(tm: TimeManagement, given: Any) -> None:
    write(tm, [execution(n) for n in range(4)])
    assert len(tm.history(since=given)) == 2
