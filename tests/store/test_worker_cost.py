"""What a job costs its worker on PostgreSQL, counted on the wire: round trips, statements and commits. Nothing is timed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event, text
from tmtest.app import make_app
from tmtest.ledger import add, claim, plan
from tmtest.wire import Spent, relayed

from celery_tm import TimeManagement, defer, defer_many
from celery_tm.domain.job import Job
from celery_tm.store import executions, jobs
from celery_tm.testing import MovableClock
from celery_tm.worker import gate, recorder
from celery_tm.worker.context import JobContext
from celery_tm.worker.gate import Call, Verdict
from celery_tm.worker.lease import LeaseKeeper
from conftest import prepare

MANY = 100


@pytest.fixture
def wire(postgresql_url: str) -> Iterator[tuple[str, Spent]]:
    prepare(postgresql_url)
    with relayed(postgresql_url) as relay:
        yield relay


@pytest.fixture
def spent(wire: tuple[str, Spent]) -> Spent:
    return wire[1]


@pytest.fixture
def tm(wire: tuple[str, Spent]) -> Iterator[TimeManagement]:
    tm = TimeManagement(make_app({"broker_url": "memory://", "tm_database_url": wire[0]}))
    with tm.installation.database.transaction(write=False) as tx:
        tx.execute(text("SELECT 1"))  # connected, and the schema is known to be right
    yield tm
    tm.installation.database.dispose()


def cost(spent: Spent) -> tuple[int, int, int]:
    return spent.round_trips, spent.statements, spent.transactions


def admit(tm: TimeManagement, id: str, **more: Any) -> Job:
    job = gate.admit_job(tm.installation, id, 1, worker="w:1", **more).job
    assert job is not None
    return job


@pytest.mark.parametrize("key", [None, "one"])
def test_a_gate_and_a_finish_are_one_round_trip_one_statement_and_one_commit_each(
    tm: TimeManagement, spent: Spent, key: str | None
) -> None:
    handle = defer(tm.app.tasks["effect"].s(1), delay=0.001, key=key)
    assert claim(tm) == [handle.id]
    spent.reset()
    job = admit(tm, handle.id)
    assert cost(spent) == (1, 1, 1)
    spent.reset()
    recorder.record_success(tm.installation, job, {"a": 1}, message="done")
    assert cost(spent) == (1, 1, 1)
    found = tm.job(handle.id)
    assert (found.state, found.result) == ("SUCCEEDED", {"a": 1} if key else None)
    assert (found.executions[0].message, found.executions[0].worker) == ("done", "w:1")


def test_so_are_those_of_an_occurrence(tm: TimeManagement, spent: Spent, noon: MovableClock) -> None:
    add(tm)
    noon.forward("1m")
    plan(tm)
    (id,) = claim(tm)
    spent.reset()
    job = admit(tm, id, occurring=True)
    assert cost(spent) == (1, 1, 1)
    assert [str(row.state) for row in tm.occurrences("tick")] == ["running"]
    spent.reset()
    recorder.record_success(tm.installation, job, None)
    assert cost(spent) == (1, 1, 1)
    assert [str(row.state) for row in tm.occurrences("tick")] == ["completed"]


def test_a_chunk_is_let_in_and_recorded_with_two_statements_however_many_it_has(tm: TimeManagement, spent: Spent) -> None:
    handles = defer_many([(tm.app.tasks["effect"].s(n), {"delay": 0.001, "key": str(n)}) for n in range(MANY)])
    assert len(claim(tm)) == MANY
    spent.reset()
    attempts = [(handle.id, 1) for handle in handles]
    admitted, refused = gate.admit_all(tm.installation, attempts, carrier="chunk", worker="w:1")
    assert (len(admitted), len(refused), cost(spent)) == (MANY, 0, (1, 1, 1))
    spent.reset()
    assert not recorder.record_all(tm.installation, [(job, n, f"m{n}") for n, job in enumerate(admitted)])
    assert cost(spent) == (1, 1, 1)
    assert {tm.job(handle.id).result for handle in handles} == set(range(MANY))
    with tm.installation.database.transaction(write=False) as tx:
        assert {executions.of_job(tx, handle.id)[0].message for handle in handles} == {f"m{n}" for n in range(MANY)}


def test_a_direct_call_is_one_transaction(tm: TimeManagement, spent: Spent) -> None:
    call = Call(id="c", task="effect", args=(1,), kwargs={}, key=None, keep_key=None, max_retries=3, retry=None, options={})
    gate.admit_call(tm.installation, call, worker="w:1")
    spent.reset()
    one_more = Call(
        id="d", task="effect", args=(1,), kwargs={}, key=None, keep_key=None, max_retries=3, retry=None, options={}
    )
    assert gate.admit_call(tm.installation, one_more, worker="w:1").verdict is Verdict.RUN
    round_trips, _, transactions = cost(spent)
    assert round_trips <= 4
    assert transactions == 1


def test_leases_are_renewed_by_one_statement_for_all(tm: TimeManagement, spent: Spent) -> None:
    defer_many([(tm.app.tasks["effect"].s(n), {"delay": 0.001}) for n in range(MANY)])
    keeper = LeaseKeeper(tm.installation)
    for id in claim(tm):
        keeper._running[id, 1] = JobContext(admit(tm, id), tm.installation)
    keeper.renew_all()
    spent.reset()
    keeper.renew_all()
    assert spent.transactions == 1
    assert spent.round_trips <= 3  # BEGIN, the statement, COMMIT


def test_a_connection_is_asked_whether_it_lives_only_after_a_pause(
    tm: TimeManagement, spent: Spent, monkeypatch: Any
) -> None:
    ids = defer_many([(tm.app.tasks["effect"].s(n), {"delay": 0.001}) for n in range(3)])
    claim(tm)
    admit(tm, ids[0].id)
    spent.reset()
    admit(tm, ids[1].id)
    assert spent.round_trips == 1
    monkeypatch.setattr("celery_tm.store.database.TRUSTED_FOR", 0.0)
    spent.reset()
    admit(tm, ids[2].id)
    assert spent.round_trips == 2


def test_whoever_listens_to_the_engine_sees_every_statement(tm: TimeManagement) -> None:
    handle = defer(tm.app.tasks["effect"].s(1), delay=0.001)
    claim(tm)
    seen: list[str] = []
    engine = tm.installation.database.engine

    def note(*given: Any) -> None:
        seen.append(given[2])

    event.listen(engine, "before_cursor_execute", note)
    job = admit(tm, handle.id)
    recorder.record_success(tm.installation, job, None)
    event.remove(engine, "before_cursor_execute", note)
    assert any(said.startswith("UPDATE tm_job") for said in seen)
    assert any("DELETE FROM tm_job" in said for said in seen)
    with tm.installation.database.transaction(write=False) as tx:
        assert jobs.find(tx, handle.id) is None
