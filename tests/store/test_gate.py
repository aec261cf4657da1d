"""The gate on every database: deliveries of jobs and direct calls, one after the other and at the same moment."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from celery_tm import TimeManagement, defer
from celery_tm.domain.execution import Outcome
from celery_tm.domain.job import Status
from celery_tm.installation import Installation
from celery_tm.store import jobs, keys, settlement, tables
from celery_tm.store.database import Database, Transaction
from celery_tm.worker import gate
from celery_tm.worker.decision import Call, Decision, Verdict

HOUR = timedelta(hours=1)


def call(id: str = "call-1", key: str | None = None, **changes: Any) -> Call:
    values: dict[str, Any] = {
        "id": id, "task": "effect", "args": [1], "kwargs": {}, "key": key, "keep_key": None, "max_retries": 3,
        "retry": None, "options": {},
    }  # fmt: skip
    return Call(**(values | changes))


def admit(app: Celery, one: Call) -> Decision:
    return gate.admit_call(Installation.of(app), one, worker="w:1")


def succeed(database: Database, decision: Decision) -> None:
    job = decision.job
    assert job is not None
    database.run(lambda tx: settlement.succeed(tx, job, result="1", message=None, keep_key=HOUR))


def test_a_direct_call_is_let_in_once_and_never_after_its_execution(app: Celery, database: Database) -> None:
    first = admit(app, call())
    assert first.verdict is Verdict.RUN
    assert admit(app, call()).verdict is Verdict.SKIP
    succeed(database, first)
    again = admit(app, call())
    assert (again.verdict, again.reason) == (Verdict.SKIP, "an attempt of it is recorded already")
    with database.transaction(write=False) as tx:
        assert jobs.select_jobs(tx) == []


def test_a_direct_call_whose_key_has_succeeded_is_refused(app: Celery, database: Database) -> None:
    succeed(database, admit(app, call("a", key="k")))
    refused = admit(app, call("b", key="k"))
    assert (refused.verdict, refused.reason) == (Verdict.SKIP, "its key has succeeded already")


def test_a_direct_call_whose_key_is_owed_by_another_job_is_refused(app: Celery) -> None:
    defer(app.tasks["effect"].s(1), delay=HOUR, key="k")
    assert admit(app, call("b", key="k")).verdict is Verdict.SKIP


@pytest.mark.parametrize("key", [None, "k"], ids=["same id", "same key"])
def test_a_delivery_that_waits_for_the_first_one_s_success_is_refused(
    app: Celery, database: Database, key: str | None
) -> None:
    """The second insert waits for the first transaction; when that commits, the row is gone but the work is done."""
    first = admit(app, call("a", key=key))
    second = call("a" if key is None else "b", key=key)
    answers: list[Decision] = []
    waiting = threading.Thread(target=lambda: answers.append(admit(app, second)))
    with database.transaction() as tx:
        assert first.job is not None
        settlement.succeed(tx, first.job, result="1", message=None, keep_key=HOUR)
        waiting.start()
        time.sleep(0.3)  # long enough for the other one to meet the lock
    waiting.join(20)
    assert [answer.verdict for answer in answers] == [Verdict.SKIP]


@pytest.mark.parametrize("same", ["id", "key"])
def test_of_many_deliveries_at_once_one_gets_in(app: Celery, same: str) -> None:
    answers: list[Decision] = []
    start = threading.Barrier(8)

    def deliver(n: int) -> None:
        one = call("same") if same == "id" else call(f"call-{n}", key="same")
        start.wait()
        answers.append(admit(app, one))

    threads = [threading.Thread(target=deliver, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.verdict.name for answer in answers) == ["RUN"] + ["SKIP"] * 7


def test_arguments_that_are_not_json_run_but_are_buried_if_they_fail(app: Celery, tm: TimeManagement) -> None:
    decision = admit(app, call(args=[object()]))
    assert decision.job is not None
    assert decision.job.args is None
    from celery_tm.domain.execution import Failure
    from celery_tm.worker import recorder

    recorder.record_failure(Installation.of(app), decision.job, Failure(error="E: no"))
    [letter] = tm.dead_letters.list()
    assert "not JSON" in letter.reason
    from celery_tm.errors import InvalidValue

    with pytest.raises(InvalidValue, match="not kept"):
        tm.dead_letters.revive(letter.id)


def test_a_job_whose_key_succeeded_elsewhere_is_settled_at_the_gate(
    app: Celery, tm: TimeManagement, database: Database
) -> None:
    handle = defer(app.tasks["effect"].s(1), key="k")

    def elsewhere(tx: Transaction) -> None:
        keys.keep(tx, task="effect", key_text="k", job="other", execution="e", result="7", keep=HOUR)

    database.run(elsewhere)
    decision = gate.admit_job(Installation.of(app), handle.id, 1, worker="w:1")
    assert decision.verdict is Verdict.SKIP
    story = tm.job(handle.id)
    assert (story.state, story.executions[0].outcome) == (Status.SUCCEEDED, Outcome.DEDUPLICATED)
    with database.transaction(write=False) as tx:
        assert tx.execute(tables.job.select()).all() == []


@pytest.mark.parametrize(("attempt", "reason"), [(2, "attempt 1 is the present one"), (1, "it runs on w:1")])
def test_a_refusal_says_why(app: Celery, attempt: int, reason: str) -> None:
    handle = defer(app.tasks["effect"].s(1))
    installation = Installation.of(app)
    assert gate.admit_job(installation, handle.id, 1, worker="w:1").verdict is Verdict.RUN
    assert gate.admit_job(installation, handle.id, attempt, worker="w:2").reason == reason


def test_a_job_nobody_knows_is_refused(app: Celery) -> None:
    assert gate.admit_job(Installation.of(app), "nobody", 1, worker="w").reason == "it is settled already"
