"""Key, scope and due time stay with the execution, and history is searched by scope, on every database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import func, select, text, update
from tmtest.commands import Cli
from tmtest.flower import serving
from tmtest.ledger import NOON, claim, start
from tmtest.said import listening

from celery_tm import TimeManagement, cancel, defer, defer_many
from celery_tm.errors import InvalidValue
from celery_tm.recovery.pruner import prune
from celery_tm.store import tables
from celery_tm.testing import MovableClock
from celery_tm.worker import recorder


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def refs(tm: TimeManagement) -> list[tuple[str, str]]:
    scope = tables.scope
    with tm.installation.database.transaction(write=False) as tx:
        return [tuple(row) for row in tx.execute(select(scope.c.name, scope.c.value).order_by(scope.c.name, scope.c.value))]


def jobs_in(tm: TimeManagement, **scope: Any) -> list[str]:
    return [one.job for one in tm.history(scope=scope)]


def test_key_scope_and_due_time_stay_with_the_execution(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    scope = {"tenant_id": 7, "region": "eu"}
    handle = defer(app.tasks["effect"].s(1), delay="10m", key="order:1", scope=scope)
    noon.forward("11m")
    tm.run_due_jobs()
    assert handle.state == "SUCCEEDED"
    [one] = tm.history(task="effect")
    assert (one.dedupe_key, one.scope, one.run_at) == ("order:1", scope, NOON + timedelta(minutes=10))
    assert refs(tm) == [("region", "eu"), ("tenant_id", "7")]
    assert [found.id for found in tm.history(scope={"tenant_id": "7"})] == [one.id], "values compare as text"


def test_a_job_without_a_scope_writes_no_row_of_the_index_and_no_statement_more(tm: TimeManagement, app: Celery) -> None:
    said: dict[bool, int] = {}
    for scoped in (False, True):
        handle = defer(app.tasks["effect"].s(1), delay=0.001, scope={"tenant_id": 7} if scoped else None)
        job = admitted(tm, handle.id)
        with listening(tm.installation.database) as heard:
            recorder.record_success(tm.installation, job, None)
        said[scoped] = sum("tm_scope" in statement for statement, _ in heard.statements)
    assert said == {False: 0, True: 1}
    assert refs(tm) == [("tenant_id", "7")]


def admitted(tm: TimeManagement, id: str) -> Any:
    with tm.installation.database.transaction() as tx:
        tx.execute(update(tables.job).where(tables.job.c.id == id).values(run_at=NOON))
    assert id in claim(tm)
    return start(tm, id)


def test_history_is_found_by_all_references_in_pages(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    made = []
    for n in range(7):
        made.append(defer(app.tasks["effect"].s(n), scope={"tenant_id": n % 2, "region": "eu" if n < 4 else "us"}).id)
        noon.forward("1s")
        tm.run_due_jobs()
    assert jobs_in(tm, tenant_id=0) == [made[6], made[4], made[2], made[0]]
    assert jobs_in(tm, tenant_id=0, region="eu") == [made[2], made[0]]
    assert jobs_in(tm, tenant_id=3) == []
    first = tm.history(scope={"tenant_id": 0}, limit=3)
    assert first.next is not None
    rest = tm.history(scope={"tenant_id": 0}, limit=3, before=first.next)
    assert [one.job for one in (*first, *rest)] == [made[6], made[4], made[2], made[0]]
    since = NOON + timedelta(seconds=4)
    assert [one.job for one in tm.history(scope={"tenant_id": 0}, since=since)] == [made[6], made[4]]
    assert [one.job for one in tm.history(scope={"tenant_id": 1}, task="effect", outcome="failed")] == []


def test_every_end_is_found(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    scope = {"tenant_id": 7}
    failed = defer(app.tasks["fails"].s(1), max_retries=1, retry={"kind": "fixed", "delay": "1m"}, scope=scope)
    cancelled = defer(app.tasks["effect"].s(1), delay="1h", scope=scope)
    assert cancel(id=cancelled.id, app=app)
    noon.forward("1s")
    tm.run_due_jobs()
    noon.forward("2m")
    tm.run_due_jobs()
    found = tm.history(scope=scope)
    assert [(one.job, str(one.outcome)) for one in found] == [
        (failed.id, "failed"),
        (failed.id, "failed"),
        (cancelled.id, "cancelled"),
    ]
    first, second = found[1], found[0]
    assert (first.run_at, second.run_at) == (NOON, NOON + timedelta(seconds=61))


def test_jobs_that_share_a_message_are_found_too(tm: TimeManagement, app: Celery) -> None:
    calls = [(app.tasks["chunked"].s(n), {"scope": {"tenant_id": n} if n else None, "key": str(n)}) for n in range(3)]
    handles = defer_many([(what, {k: v for k, v in own.items() if v is not None}) for what, own in calls])
    with tm.installation.database.transaction() as tx:
        tx.execute(update(tables.job).values(run_at=NOON))
    assert len(claim(tm)) == 3
    done = [(start(tm, handle.id), None, None) for handle in handles]
    recorder.record_all(tm.installation, done)
    assert refs(tm) == [("tenant_id", "1"), ("tenant_id", "2")]
    assert jobs_in(tm, tenant_id=2) == [handles[2].id]
    assert [one.dedupe_key for one in tm.history(scope={"tenant_id": 2})] == ["2"]


ODD = {"long": "x" * 500, "bad\x00name": "a\x1fb\x1e", "flag": True, "ends": "blank  ", "half": "\u00e9\U0001f600"}


def test_odd_names_and_values_are_kept_and_found(tm: TimeManagement, app: Celery) -> None:
    handle = defer(app.tasks["effect"].s(1), scope=ODD)
    other = defer(app.tasks["effect"].s(2), scope={"long": "x" * 499 + "y"})
    tm.run_due_jobs()
    for name, value in ODD.items():
        assert jobs_in(tm, **{name: value}) == [handle.id], name
    assert jobs_in(tm, long="x" * 499 + "y") == [other.id]
    assert jobs_in(tm, flag="true") == [handle.id]
    many = defer(app.tasks["effect"].s(3), scope={f"ref{n}": n for n in range(50)})
    tm.run_due_jobs()
    assert jobs_in(tm, ref0=0) == [many.id]
    assert jobs_in(tm, ref49=49) == [], "so many are not indexed"


@pytest.mark.parametrize("wanted", [{}, "tenant_id=7", {"tenant_id": [7]}, {7: 7}, {f"r{n}": n for n in range(21)}])
def test_a_malformed_scope_is_refused(tm: TimeManagement, wanted: Any) -> None:
    with pytest.raises(InvalidValue, match="scope: "):
        tm.history(scope=wanted)


def test_the_index_is_pruned_with_its_executions(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    defer(app.tasks["effect"].s(1), scope={"tenant_id": 1})
    tm.run_due_jobs()
    noon.forward("60d")
    defer(app.tasks["effect"].s(2), scope={"tenant_id": 2})
    tm.run_due_jobs()
    noon.forward("31d")
    assert prune(tm.installation.database, replace(tm.settings, tm_keep_last=0)).executions == 1
    assert refs(tm) == [("tenant_id", "2")]


def test_an_execution_of_an_older_node_is_read_as_it_is(tm: TimeManagement, app: Celery) -> None:
    defer(app.tasks["effect"].s(1), scope={"tenant_id": 1}, key="k")
    tm.run_due_jobs()
    empty = {"dedupe_key": None, "scope": None, "run_at": None, "next_delay": None}
    with tm.installation.database.transaction() as tx:
        tx.execute(update(tables.execution).values(**empty))
    [one] = tm.history()
    assert (one.dedupe_key, one.scope, one.run_at, one.next_delay) == (None, None, None, None)


def test_the_command_takes_references(tm: TimeManagement, app: Celery) -> None:
    wanted = defer(app.tasks["effect"].s(1), scope={"tenant_id": 7, "region": "eu"})
    defer(app.tasks["effect"].s(1), scope={"tenant_id": 8, "region": "eu"})
    tm.run_due_jobs()
    cli = Cli(app)
    found = cli.json("history", "--scope", "tenant_id=7", "--scope", "region=eu")
    assert [(one["job"], one["scope"]) for one in found] == [(wanted.id, {"tenant_id": 7, "region": "eu"})]
    assert "scope: 'tenant' is not name=value" in cli.refused("history", "--scope", "tenant")


def test_the_api_and_the_page_take_references(tm: TimeManagement, app: Celery) -> None:
    wanted = defer(app.tasks["effect"].s(1), scope={"tenant_id": 7, "region": "eu"})
    other = defer(app.tasks["effect"].s(1), scope={"tenant_id": 8, "region": "eu"})
    tm.run_due_jobs()
    with serving(app) as flower:
        ann = flower.client()
        answer = ann.get("/api/tm/history?scope=tenant_id%3D7&scope=region%3Deu").json
        assert [one["job"] for one in answer["items"]] == [wanted.id]
        page = ann.get("/tm/history?scope=tenant_id%3D7+region%3Deu").text
        assert f"/tm/job/{wanted.id}" in page
        assert f"/tm/job/{other.id}" not in page
        assert ann.get("/api/tm/history?scope=tenant").status == 400


def test_a_page_of_a_scope_is_found_by_its_index(tm: TimeManagement, app: Celery) -> None:
    database = tm.installation.database
    at = datetime(2026, 1, 1, tzinfo=UTC)
    count = 10_000
    with database.transaction() as tx:
        base = {"task": "t", "source": "deferred", "attempt": 1, "outcome": "succeeded"}
        made = [(f"e{n}", at + timedelta(seconds=n)) for n in range(count)]
        tx.insert_all(tables.execution, [{"id": id, "job": id, "completed_at": when, **base} for id, when in made])
        rows = [
            {"name": "tenant_id", "value": str(n % 3), "completed_at": w, "execution": i} for n, (i, w) in enumerate(made)
        ]
        tx.insert_all(tables.scope, rows)
    with database.engine.begin() as connection:
        for table in ("tm_scope", "tm_execution"):
            connection.execute(text(f"ANALYZE {'TABLE ' if database.dialect.name == 'mysql' else ''}{table}"))
    with listening(database) as heard:
        found = tm.history(scope={"tenant_id": 1}, limit=10)
    assert len(found) == 10
    [(statement, parameters)] = [one for one in heard.statements if "tm_scope" in one[0]]
    plan = "EXPLAIN QUERY PLAN" if database.dialect.name == "sqlite" else "EXPLAIN"
    with database.engine.connect() as connection:
        told = "\n".join(" ".join(map(str, row)) for row in connection.exec_driver_sql(f"{plan} {statement}", parameters))
    assert not any(word in told for word in ("Seq Scan", "SCAN tm_", "Sort", "TEMP B-TREE", "filesort")), told
    with database.transaction(write=False) as tx:
        assert tx.execute(select(func.count()).select_from(tables.scope)).scalar_one() == count
