"""A call whose key has succeeded does not run, whenever the success commits, and gets no other result than its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import update
from tmtest.courier import Courier, owed

from celery_tm import Task, TimeManagement
from celery_tm.domain.codec import MAX_BYTES
from celery_tm.domain.job import Job
from celery_tm.store import jobs, keys, tables
from celery_tm.store.database import Database
from celery_tm.worker import gate, recorder
from celery_tm.worker.decision import Refusal
from celery_tm.worker.gate import Call


def call(id: str, **options: Any) -> Call:
    return Call(
        id=id, task="effect", args=[1], kwargs={}, key="k", keep_key=None, max_retries=3, retry=None, options=options
    )  # fmt: skip


def test_a_success_that_commits_while_a_waiting_call_asks_for_the_key_is_seen(
    app: Celery, tm: TimeManagement, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not database.dialect.is_server:
        pytest.skip("SQLite has one writer at a time")
    first = gate.admit_call(tm.installation, call("first"), worker="w:1").job
    assert first is not None
    assert gate.admit_call(tm.installation, call("second", group_id="g"), worker="w:2").job is None
    with database.transaction() as tx:
        tx.execute(update(tables.job).where(tables.job.c.id == "second").values(run_at=tx.now))
    ask = jobs.find_by_key
    succeeded: list[Job] = []

    def ask_after_the_success(*args: Any) -> Any:
        if not succeeded:
            succeeded.append(first)
            recorder.record_success(tm.installation, first, "its result")
        return ask(*args)

    monkeypatch.setattr(jobs, "find_by_key", ask_after_the_success)
    decision = gate.admit_job(tm.installation, "second", 1, worker="w:2", task="effect")
    assert succeeded == [first]
    assert decision.job is None
    with database.transaction(write=False) as tx:
        kept = keys.find_kept(tx, "effect", "k")
    assert kept is not None
    assert kept.job == "first"
    Courier(tm).deliver_all()
    assert owed(database) == []


def test_a_copy_of_a_call_that_became_a_dead_letter_is_not_answered_with_its_keys_result(
    app: Celery, tm: TimeManagement, database: Database
) -> None:
    first = gate.admit_call(tm.installation, call("first"), worker="w:1").job
    assert first is not None
    cannot_wait = replace(call("second", group_id="g"), args=["x" * (MAX_BYTES + 1)])
    assert gate.admit_call(tm.installation, cannot_wait, worker="w:2").refusal is Refusal.INVALID
    recorder.record_success(tm.installation, first, "its result")

    again = gate.admit_call(tm.installation, cannot_wait, worker="w:2")
    assert (again.refusal, again.done) == (Refusal.SETTLED, None)
    new = gate.admit_call(tm.installation, replace(cannot_wait, id="third"), worker="w:2")
    assert (new.refusal, new.done.job if new.done else None) == (Refusal.KEY, "first")


@pytest.mark.parametrize("linked", [True, False])
def test_a_call_whose_key_has_a_result_that_is_not_kept_fails_instead_of_returning_another(
    app: Celery, tm: TimeManagement, database: Database, linked: bool
) -> None:
    app.conf.result_backend = "cache+memory://"
    lengths: list[int] = []

    @app.task(base=Task, name="long_result", key="long", shared=False)
    def long_result() -> list[int]:
        return list(range(200_000))

    @app.task(base=Task, name="length", shared=False)
    def length(values: list[int]) -> None:
        lengths.append(len(values))

    courier = Courier(tm)
    results = []
    for _ in range(2):
        results.append(long_result.apply_async(link=length.s() if linked else None))
        courier.deliver_all()
    assert [app.AsyncResult(one.id).state for one in results] == ["SUCCESS", "FAILURE"]
    assert "ResultNotKept" in str(app.AsyncResult(results[1].id).result)
    assert lengths == ([200_000] if linked else [])
    assert owed(database) == []
