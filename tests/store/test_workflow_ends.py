"""What a run that is stopped leaves: turns that others get, tries that are told, clean-ups that run, rows to be pruned."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select

from celery_tm import TimeManagement, cancel, defer, workflow
from celery_tm.domain.execution import Failure
from celery_tm.domain.ids import occurrence_job_id
from celery_tm.domain.job import Job
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import jobs, preemption, settlement, tables, workflows
from celery_tm.testing import MovableClock
from celery_tm.worker import gate, recorder


@pytest.fixture(autouse=True)
def at_noon(noon: MovableClock) -> MovableClock:
    return noon


def start(tm: TimeManagement, steps: list[Any], **common: Any) -> str:
    """Start a run, and return its id."""
    id = defer(workflow(steps, **common), entity_id="e", app=tm.installation.app).id
    dispatcher = Dispatcher(tm.installation, "beat")
    dispatcher.expand(dispatcher.claim(100)[1])
    return id


def claim(tm: TimeManagement) -> list[Job]:
    return sorted(Dispatcher(tm.installation, "beat").claim(100)[1], key=lambda job: job.step or "")


def let_in(tm: TimeManagement, job: Job) -> Job:
    admitted = gate.admit_job(tm.installation, job.id, job.attempt, worker="w").job
    assert admitted is not None
    return admitted


def states(tm: TimeManagement, run: str) -> dict[str, str]:
    return {step["name"]: step["state"] for step in tm.report(run)["steps"]}


def steps(*names: str, **of_the_last: Any) -> list[Any]:
    made: list[dict[str, Any]] = [{"name": name, "task": "effect"} for name in names]
    made[-1] |= of_the_last
    return made


def test_a_step_that_waits_for_a_slot_gets_the_turn_of_one_that_was_taken_back(
    tm: TimeManagement, noon: MovableClock
) -> None:
    made: list[Any] = [
        {"name": "a", "task": "effect", "concurrency_key": "lane"},
        {"name": "b", "task": "effect", "concurrency_key": "lane"},
        {"name": "c", "task": "effect"},
        {"name": "d", "task": "effect", "concurrency_key": "lane", "after": ["c"], "cleanup": True},
    ]
    run = start(tm, made, mode="parallel")
    first, other = (let_in(tm, job) for job in claim(tm))  # a or b, and c
    noon.forward("1s")
    recorder.record_success(tm.installation, other, 1)
    assert claim(tm) == []  # d finds no slot, and waits behind the other of a and b
    recorder.record_success(tm.installation, first, 1)
    cancel(id=run, app=tm.installation.app)
    assert [job.step for job in claim(tm)] == ["d"]


def test_a_step_that_waits_for_a_slot_gets_that_of_one_that_was_to_be_tried_again(
    tm: TimeManagement, noon: MovableClock
) -> None:
    made: list[Any] = [
        {"name": "a", "task": "effect", "concurrency_key": "lane"},
        {"name": "b", "task": "effect", "concurrency_key": "lane", "after": ["c"], "cleanup": True},
        {"name": "c", "task": "effect"},
    ]
    run = start(tm, made, mode="parallel")
    first, other = (let_in(tm, job) for job in claim(tm))
    recorder.record_failure(tm.installation, first, Failure(error="E"))  # it keeps its slot until its next try
    recorder.record_success(tm.installation, other, 1)
    assert claim(tm) == []  # b finds none
    cancel(id=run, app=tm.installation.app)
    noon.forward("1h")
    assert [job.step for job in claim(tm)] == ["b"]


def test_tries_of_a_step_that_was_taken_back_are_told(tm: TimeManagement) -> None:
    run = start(tm, steps("a", "b"), mode="parallel")
    first, _ = (let_in(tm, job) for job in claim(tm))
    recorder.record_failure(tm.installation, first, Failure(error="E"))
    cancel(id=run, app=tm.installation.app)
    told = tm.report(run)["steps"][0]
    assert (told["state"], told["attempts"]) == ("cancelled", 1)
    assert [(one["attempt"], one["outcome"]) for one in told["tries"]] == [(1, "failed"), (2, "cancelled")]


@pytest.mark.parametrize("how", ["cancel", "fail"])
def test_a_clean_up_waits_for_steps_that_are_still_at_work(tm: TimeManagement, how: str) -> None:
    """What is between them will not run, but that is no reason to tidy up under the hands of whoever is at it."""
    run = start(tm, [steps("a", "b"), *steps("c"), *steps("tidy", cleanup=True)], failure_strategy="fail_fast")
    first, second = (let_in(tm, job) for job in claim(tm))
    if how == "cancel":
        cancel(id=run, app=tm.installation.app)
        recorder.record_cancelled(tm.installation, first, message="stopped")
    else:
        recorder.record_failure(tm.installation, first, Failure(error="E"))
    assert tm.report(run)["stopped_by"]
    assert claim(tm) == []
    recorder.record_success(tm.installation, second, 1)
    assert [job.step for job in claim(tm)] == ["tidy"]
    assert states(tm, run)["c"] == "cancelled"


def test_to_cancel_an_entity_is_to_cancel_its_run_as_a_whole(tm: TimeManagement) -> None:
    """Its steps belong to the entity too: they are not cancelled one by one, with the clean-ups among them."""
    run = start(tm, [[*steps("a", "b", cleanup=True)], *steps("c"), *steps("tidy", cleanup=True)])
    assert cancel(entity_id="e", app=tm.installation.app, reason="it is over")
    assert states(tm, run) == {"a": "cancelled", "b": "owed", "c": "waiting", "tidy": "waiting"}
    assert tm.report(run)["stopped_by"] == "it is over"
    for _ in range(2):
        [job] = claim(tm)
        recorder.record_success(tm.installation, let_in(tm, job), 1)
    assert states(tm, run) == {"a": "cancelled", "b": "succeeded", "c": "cancelled", "tidy": "succeeded"}
    assert tm.report(run)["state"] == "cancelled"
    assert cancel(entity_id="e", app=tm.installation.app) is False


def test_to_cancel_an_entity_ends_a_run_whose_steps_all_wait(tm: TimeManagement) -> None:
    run = start(tm, steps("a", "b", "c"), mode="parallel")
    assert cancel(entity_id="e", app=tm.installation.app)
    assert tm.report(run)["state"] == "cancelled"
    assert tm.jobs() == []


def test_to_stop_a_run_that_is_over_changes_nothing(tm: TimeManagement) -> None:
    run = start(tm, steps("a"))
    recorder.record_success(tm.installation, let_in(tm, claim(tm)[0]), 1)
    before = tm.report(run)
    with tm.installation.database.transaction() as tx:
        found = workflows.lock(tx, run)
        assert found is not None
        assert settlement.stop_run(tx, found, by="too late") is False
        preemption.make_room(tx, [run], reason="too late")
    with tm.installation.database.transaction(write=False) as tx:
        assert workflows.find(tx, run) == found
    assert tm.report(run) == before


def test_a_run_is_pruned_with_its_occurrence(tm: TimeManagement, noon: MovableClock) -> None:
    run = start(tm, steps("a", "b"))
    for _ in range(2):
        recorder.record_success(tm.installation, let_in(tm, claim(tm)[0]), 1)
    noon.forward("3650d")
    going_on = start(tm, steps("a"))
    noon.forward("3650d")
    tm.prune()
    with tm.installation.database.transaction(write=False) as tx:
        assert list(tx.execute(select(tables.workflow.c.id)).scalars()) == [going_on]
        left = tx.execute(select(func.count()).select_from(tables.step).where(tables.step.c.workflow == run)).scalar_one()
        assert left == 0
        assert jobs.find(tx, occurrence_job_id(going_on, "a")) is not None
