"""Steps that end at the same time: each is counted once, on every database; on PostgreSQL most ends are one statement."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
from tmtest import wire
from tmtest.ledger import claim
from tmtest.wire import Talk

from celery_tm import TimeManagement, defer, workflow
from celery_tm.domain.job import Job
from celery_tm.errors import LeaseLost
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import executions, keys, workflows
from celery_tm.worker import gate, recorder

WIDE = 40


@pytest.fixture(autouse=True)
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_tm.store.connections.TRUSTED_FOR", 600)  # or a slow machine asks whether it lives


def begin(tm: TimeManagement, width: int, key: str | None = None) -> tuple[str, list[Job]]:
    """Start a run of a group and a join, and let the steps of the group in; a key gets the step's number."""
    effect = tm.app.tasks["effect"]
    group = [(effect.s(n), {"name": f"part {n}", "key": key and f"{key}{n}"}) for n in range(width)]
    run = defer(workflow([group, (effect.s(), {"name": "join"})]), app=tm.app).id
    dispatcher = Dispatcher(tm.installation, "beat")
    assert dispatcher.expand(dispatcher.claim(1)[1]) == []
    admitted = [gate.admit_job(tm.installation, id, 1, worker=f"w:{n}").job for n, id in enumerate(claim(tm, limit=width))]
    assert len(admitted) == width
    return run, [job for job in admitted if job is not None]


def remaining(tm: TimeManagement, run: str) -> list[int]:
    with tm.installation.database.transaction(write=False) as tx:
        found = workflows.find(tx, run)
    assert found is not None
    return list(found.remaining)


def test_steps_that_end_at_once_are_each_counted_once(tm: TimeManagement) -> None:
    run, running = begin(tm, WIDE)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda job: recorder.record_success(tm.installation, job, job.step), running))

    assert remaining(tm, run) == [1, 0]
    [joined] = claim(tm)
    last = gate.admit_job(tm.installation, joined, 1, worker="w:1").job
    assert last is not None
    assert last.step == "join"
    recorder.record_success(tm.installation, last, None)
    report = tm.report(run)
    assert (report["state"], report["counts"]) == ("completed", {"succeeded": WIDE + 1})
    with tm.installation.database.transaction(write=False) as tx:
        known = workflows.results_of(tx, run)
    assert {name: text for name, (_, text) in known.items() if text != "null"} == {
        f"part {n}": f'"part {n}"' for n in range(WIDE)
    }


@pytest.mark.parametrize("key", [None, "{run}:"])
def test_what_is_written_of_a_step_is_the_same_whichever_way(tm: TimeManagement, key: str | None) -> None:
    run, ended = begin(tm, 2, key)
    for job in ended:  # of the first the other one is awaited still; of the second the join comes to zero
        recorder.record_success(tm.installation, job, {"a": 1}, message="done")

    steps = {step["name"]: step for step in tm.report(run)["steps"]}
    for job in ended:
        step = steps[job.step or ""]
        assert (step["state"], step["outcome"], step["attempts"]) == ("succeeded", "succeeded", 1)
        assert [(one["outcome"], one["worker"]) for one in step["tries"]] == [("succeeded", job.claimed_by)]
        assert datetime.fromisoformat(step["started_at"]) == job.claimed_at
        with tm.installation.database.transaction(write=False) as tx:
            assert [one.message for one in executions.of_job(tx, job.id)] == ["done"]
            assert workflows.results_of(tx, run)[job.step or ""] == ("succeeded", '{"a": 1}')
            kept = keys.find_all_kept(tx, [("effect", job.dedupe_key or "")])
            assert [one.result for one in kept.values()] == (['{"a": 1}'] if key else [])


def test_a_step_whose_lease_was_lost_counts_nothing(tm: TimeManagement) -> None:
    run, (job, _) = begin(tm, 2)
    recorder.record_success(tm.installation, job, None)
    before = remaining(tm, run)
    with pytest.raises(LeaseLost):
        recorder.record_success(tm.installation, job, None)
    assert remaining(tm, run) == before == [2, 1]


def test_the_end_of_a_step_that_others_of_its_group_outlast_is_one_round_trip(tm: TimeManagement) -> None:
    database = tm.installation.database
    if database.dialect.name != "postgresql":
        pytest.skip("the wire of PostgreSQL is listened to")
    _, (first, last) = begin(tm, 2)
    one = wire.listen(database, lambda: recorder.record_success(tm.installation, first, 1))
    assert one == Talk(statements=1, round_trips=1, commits=1)
    assert wire.listen(database, lambda: recorder.record_success(tm.installation, last, 1)).statements > 1
