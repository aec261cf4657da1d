"""What a job costs its worker on PostgreSQL, counted on the wire: round trips, statements and commits. Nothing is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from conftest import prepare
from sqlalchemy import make_url, text
from tmtest import wire
from tmtest.app import make_app
from tmtest.ledger import add, claim, plan
from tmtest.said import listening
from tmtest.wire import Talk

from celery_tm import TimeManagement, defer, defer_many
from celery_tm.domain.job import Job
from celery_tm.store import executions, jobs
from celery_tm.testing import MovableClock
from celery_tm.worker import gate, recorder
from celery_tm.worker.context import JobContext
from celery_tm.worker.decision import Call, Verdict
from celery_tm.worker.lease import LeaseKeeper

MANY = 100
ONE_OF_EACH = Talk(statements=1, round_trips=1, commits=1)
Cost = Callable[[Callable[[], object]], Talk]


@pytest.fixture
def cost(tm: TimeManagement, monkeypatch: pytest.MonkeyPatch) -> Cost:
    """Count what PostgreSQL is told."""
    database = tm.installation.database
    if database.dialect.name != "postgresql":
        pytest.skip("the wire of PostgreSQL is listened to")
    monkeypatch.setattr("celery_tm.store.connections.TRUSTED_FOR", 600)  # or a slow machine asks whether it lives
    return partial(wire.listen, database)


def admit(tm: TimeManagement, id: str, **more: Any) -> Job:
    job = gate.admit_job(tm.installation, id, 1, worker="w:1", **more).job
    assert job is not None
    return job


def admitted(cost: Cost, tm: TimeManagement, id: str, **more: Any) -> tuple[Job, Talk]:
    """Let a job in, and return what that cost."""
    found: list[Job] = []
    talk = cost(lambda: found.append(admit(tm, id, **more)))
    return found[0], talk


@pytest.mark.parametrize("key", [None, "one"])
def test_a_gate_and_a_finish_are_one_round_trip_one_statement_and_one_commit_each(
    tm: TimeManagement, cost: Cost, key: str | None
) -> None:
    handle = defer(tm.app.tasks["effect"].s(1), delay=0.001, key=key)
    assert claim(tm) == [handle.id]
    job, talk = admitted(cost, tm, handle.id)
    assert talk == ONE_OF_EACH
    assert cost(lambda: recorder.record_success(tm.installation, job, {"a": 1}, message="done")) == ONE_OF_EACH
    found = tm.job(handle.id)
    assert (found.state, found.result) == ("SUCCEEDED", {"a": 1} if key else None)
    assert (found.executions[0].message, found.executions[0].worker) == ("done", "w:1")


def test_so_are_those_of_an_occurrence(tm: TimeManagement, cost: Cost, noon: MovableClock) -> None:
    add(tm)
    noon.forward("1m")
    plan(tm)
    (id,) = claim(tm)
    job, talk = admitted(cost, tm, id, occurring=True)
    assert talk == ONE_OF_EACH
    assert [str(row.state) for row in tm.occurrences("tick")] == ["running"]
    assert cost(lambda: recorder.record_success(tm.installation, job, None)) == ONE_OF_EACH
    assert [str(row.state) for row in tm.occurrences("tick")] == ["completed"]


def test_a_chunk_is_let_in_and_recorded_with_two_statements_however_many_it_has(tm: TimeManagement, cost: Cost) -> None:
    handles = defer_many([(tm.app.tasks["effect"].s(n), {"delay": 0.001, "key": str(n)}) for n in range(MANY)])
    assert len(claim(tm)) == MANY
    attempts = [(handle.id, 1) for handle in handles]
    answers: list[tuple[Sequence[Job], Sequence[Any]]] = []
    gating = partial(gate.admit_all, tm.installation, attempts, carrier="chunk", worker="w:1")
    assert cost(lambda: answers.append(gating())) == ONE_OF_EACH
    let_in, refused = answers[0]
    assert (len(let_in), len(refused)) == (MANY, 0)
    done = [(job, n, f"m\x1f{n}") for n, job in enumerate(let_in)]
    assert cost(lambda: recorder.record_all(tm.installation, done)) == ONE_OF_EACH
    assert {tm.job(handle.id).result for handle in handles} == set(range(MANY))
    with tm.installation.database.transaction(write=False) as tx:
        assert {executions.of_job(tx, handle.id)[0].message for handle in handles} == {f"m {n}" for n in range(MANY)}


def test_a_direct_call_is_one_transaction(tm: TimeManagement, cost: Cost) -> None:
    call = Call(id="c", task="effect", args=(1,), kwargs={}, key=None, keep_key=None, max_retries=3, retry=None, options={})
    assert gate.admit_call(tm.installation, call, worker="w:1").verdict is Verdict.RUN
    talk = cost(lambda: gate.admit_call(tm.installation, replace(call, id="d"), worker="w:1"))
    assert talk == Talk(statements=4, round_trips=4, commits=1)  # BEGIN, its row, whether it ran before, COMMIT
    with tm.installation.database.transaction(write=False) as tx:
        assert jobs.find(tx, "d") is not None


def test_leases_are_renewed_by_one_statement_for_all(tm: TimeManagement, cost: Cost) -> None:
    defer_many([(tm.app.tasks["effect"].s(n), {"delay": 0.001}) for n in range(MANY)])
    keeper = LeaseKeeper(tm.installation)
    for id in claim(tm):
        keeper._running[id, 1] = JobContext(admit(tm, id), tm.installation)
    keeper.renew_all()
    assert cost(keeper.renew_all) == Talk(statements=3, round_trips=3, commits=1)  # BEGIN, the statement, COMMIT


def test_a_connection_is_asked_whether_it_lives_only_after_a_pause(
    tm: TimeManagement, cost: Cost, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = defer_many([(tm.app.tasks["effect"].s(n), {"delay": 0.001}) for n in range(2)])
    claim(tm)
    assert cost(lambda: admit(tm, ids[0].id)).round_trips == 1
    monkeypatch.setattr("celery_tm.store.connections.TRUSTED_FOR", -1.0)
    assert cost(lambda: admit(tm, ids[1].id)).round_trips == 2


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "SERIALIZABLE"])
def test_a_single_statement_commits_whatever_the_last_user_of_its_connection_asked_for(
    tm: TimeManagement, level: str
) -> None:
    engine = tm.installation.database.engine
    with engine.connect().execution_options(isolation_level=level) as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    handle = defer(tm.app.tasks["effect"].s(1), delay=0.001)
    engine.dispose()
    assert claim(tm) == [handle.id]
    with engine.connect().execution_options(isolation_level=level) as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    job = admit(tm, handle.id)
    recorder.record_success(tm.installation, job, None)
    engine.dispose()
    assert tm.job(handle.id).state == "SUCCEEDED"


def test_whoever_listens_to_the_engine_sees_every_statement(tm: TimeManagement) -> None:
    handle = defer(tm.app.tasks["effect"].s(1), delay=0.001)
    assert claim(tm) == [handle.id]
    with listening(tm.installation.database) as said:
        recorder.record_success(tm.installation, admit(tm, handle.id), None)
    seen = said.texts
    assert any(one.startswith("UPDATE tm_job") for one in seen)
    assert any("DELETE FROM tm_job" in one for one in seen)
    with tm.installation.database.transaction(write=False) as tx:
        assert jobs.find(tx, handle.id) is None


def test_another_driver_commits_as_ours_does(postgresql_url: str) -> None:
    """psycopg2's `commit()` knows only transactions that it began itself."""
    pytest.importorskip("psycopg2", reason="pip install psycopg2-binary")
    prepare(postgresql_url)
    url = make_url(postgresql_url).set(drivername="postgresql+psycopg2").render_as_string(hide_password=False)
    tm = TimeManagement(make_app({"broker_url": "memory://", "tm_database_url": url}))
    kept, keyed = (defer(tm.app.tasks["effect"].s(1), delay=0.001, key=key) for key in (None, "one"))
    defer_many([tm.app.tasks["effect"].s(n) for n in range(3)], delay="1h")
    tm.installation.database.dispose()  # what was not committed is gone now
    assert set(claim(tm)) == {kept.id, keyed.id}
    for handle in (kept, keyed):
        recorder.record_success(tm.installation, admit(tm, handle.id), {"a": 1})
    tm.installation.database.dispose()
    assert [tm.job(handle.id).state for handle in (kept, keyed)] == ["SUCCEEDED"] * 2
    assert len(tm.jobs()) == 3
    tm.installation.database.dispose()


def test_a_refused_delivery_takes_one_look(tm: TimeManagement, cost: Cost) -> None:
    handle = defer(tm.app.tasks["effect"].s(1), delay=0.001)
    assert claim(tm) == [handle.id]
    job, _ = admitted(cost, tm, handle.id)
    refused = partial(gate.admit_job, tm.installation, handle.id, 1, worker="w:2")
    while_it_runs = cost(refused)
    recorder.record_success(tm.installation, job, None)
    for talk in (while_it_runs, cost(refused)):
        assert (talk.statements, talk.round_trips) == (2, 2)  # the gate's own, and why
