"""Workflows on every database: steps in order and at once, failures by strategy, reports, timeouts, cancelling."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery

from celery_tm import Task, TimeManagement, cancel, defer, workflow
from celery_tm.domain.execution import Failure
from celery_tm.domain.job import Job
from celery_tm.domain.retry import Bury
from celery_tm.domain.workflow import TASK
from celery_tm.errors import InvalidValue, LeaseLost, OccurrenceNotFound, UnknownStep
from celery_tm.recovery.reaper import reap
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.scheduler.planner import Planner
from celery_tm.store import keys, workflows
from celery_tm.testing import MovableClock
from celery_tm.worker import gate, recorder

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def etl(tm: TimeManagement, **values: Any) -> Any:
    steps = [
        {"name": "fetch", "task": "effect", "args": [1]},
        {"name": "break", "task": "fails", "args": [2]},
        {"name": "load", "task": "effect", "args": [3]},
        {"name": "clean", "task": "effect", "args": [4], "failure_strategy": "continue"},
    ]
    given = {"name": "etl", "schedule": "0 3 * * *", "failure_strategy": "fail_fast", "max_retries": 0, "steps": steps}
    return tm.definitions.add(**(given | values))


def run(tm: TimeManagement, clock: MovableClock, rounds: int = 30) -> None:
    for _ in range(rounds):
        tm.run_due_jobs(now=clock.now)
        clock.forward("1s")


def states(report: Any) -> dict[str, str]:
    return {step["name"]: step["state"] for step in report["steps"]}


def test_the_steps_of_a_definition(tm: TimeManagement, noon: MovableClock) -> None:
    etl(tm)
    made = tm.trigger("etl", actor="someone", reason="try it")
    run(tm, noon)
    [ended] = tm.occurrences("etl")
    assert ended.id == made.id
    assert (ended.state, ended.reason) == ("failed", "step 'break' failed: ValueError: no 2")
    report = tm.report(made.id)
    assert states(report) == {"fetch": "succeeded", "break": "failed", "load": "cancelled", "clean": "succeeded"}
    assert report["counts"] == {"succeeded": 2, "failed": 1, "cancelled": 1}
    assert tm.jobs() == []
    [letter] = tm.dead_letters.list(task="fails")
    assert letter.job.step == "break"


def test_a_deferred_workflow(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    effect = app.tasks["effect"]
    steps = [effect.s(1), [effect.s(2), effect.s(3)], effect.s(4)]
    handle = defer(workflow(steps), delay="10s", key="all")
    again = defer(workflow(steps), delay="10s", key="all")
    assert (handle.created, again.created, again.id == handle.id, handle.state) == (True, False, True, "SCHEDULED")
    noon.forward("10s")
    run(tm, noon, 5)
    assert handle.state == "SUCCEEDED"
    assert states(tm.report(handle.id)) == dict.fromkeys(("effect", "effect-2", "effect-3", "effect-4"), "succeeded")
    assert handle.result == {"effect": 1, "effect-2": 2, "effect-3": 3, "effect-4": 4}
    assert defer(workflow(steps), key="all").created is False


def test_later_steps_read_earlier_results(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    @app.task(base=Task, bind=True, shared=False)
    def total(self: Task) -> int:
        results = self.job.results
        assert list(results) == ["a", "b"]
        return results["a"] + results["b"]

    effect = app.tasks["effect"]
    steps = [[(effect.s(1), {"name": "a"}), (effect.s(2), {"name": "b"})], (total.s(), {"name": "sum"})]
    handle = defer(workflow(steps))
    run(tm, noon, 4)
    with tm.installation.database.transaction(write=False) as tx:
        assert workflows.results_of(tx, handle.id)["sum"] == ("succeeded", "3")


def test_cancelling_a_run(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    effect = app.tasks["effect"]
    handle = defer(workflow([effect.s(1), (effect.s(2), {"cleanup": True, "name": "clean"})]), delay="1m", key="k")
    assert cancel(key="k", app=app)
    assert handle.state == "CANCELED"


def owed(tm: TimeManagement) -> dict[str, str]:
    return {job.step or "": str(job.state) for job in tm.jobs()}


def start(tm: TimeManagement) -> None:
    """Claim what is due and start the runs among it, as beat does, without running anything."""
    dispatcher = Dispatcher(tm.installation, "beat")
    dispatcher.expand(dispatcher.claim(100)[1])


def admitted(tm: TimeManagement, step: str) -> Job:
    """Let a worker in that holds a step, and leave it there."""
    [job] = [job for job in tm.jobs() if job.step == step]
    found = gate.admit_job(tm.installation, job.id, job.attempt, worker="w:1").job
    assert found is not None
    return found


def test_cancelling_a_run_that_has_begun(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    effect = app.tasks["effect"]
    steps = [[(effect.s(1), {"name": "a"}), (effect.s(2), {"name": "b"})], (effect.s(3), {"name": "c"})]
    handle = defer(workflow([*steps, (effect.s(4), {"name": "clean", "cleanup": True})]), entity_id="7")
    start(tm)
    running = admitted(tm, "a")
    assert handle.state == "RUNNING"
    assert cancel(id=handle.id, app=app, reason="not wanted any more")
    assert {job.step: job.cancel_requested for job in tm.jobs() if job.step} == {"a": True}
    recorder.record_cancelled(tm.installation, running)
    run(tm, noon, 2)
    assert handle.state == "CANCELED"
    report = tm.report(handle.id)
    assert states(report) == {"a": "cancelled", "b": "cancelled", "c": "cancelled", "clean": "succeeded"}
    assert {step.get("cancelled_by") for step in report["steps"]} == {"not wanted any more", None}
    assert (report["state"], report["reason"]) == ("cancelled", "not wanted any more")


def test_cancelling_one_step_stops_its_run(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    effect = app.tasks["effect"]
    handle = defer(workflow([(effect.s(1), {"name": "a"}), (effect.s(2), {"name": "b"})]), entity_id="7")
    start(tm)
    [job] = [job for job in tm.jobs() if job.step == "a"]
    assert cancel(id=job.id, app=app)
    assert (handle.state, states(tm.report(handle.id))) == ("CANCELED", {"a": "cancelled", "b": "cancelled"})
    again = defer(workflow([(effect.s(1), {"name": "a"}), (effect.s(2), {"name": "b"})]), entity_id="8")
    start(tm)
    assert cancel(entity_id="8", app=app)  # the run and its steps have it
    assert (again.state, tm.jobs()) == ("CANCELED", [])


def test_a_run_that_takes_too_long_is_stale_and_cleans_up(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    effect = app.tasks["effect"]
    steps = [(effect.s(1), {"name": "a"}), (effect.s(2), {"name": "b"}), (effect.s(3), {"name": "clean", "cleanup": True})]
    handle = defer(workflow(steps, execution_timeout="1h"))
    start(tm)
    lost = admitted(tm, "a")
    noon.forward("1h")
    assert [job.step for job, _, _ in reap(tm.installation.database, limit=10)] == ["a"]
    with pytest.raises(LeaseLost):
        recorder.record_success(tm.installation, lost, 1)
    run(tm, noon, 2)
    report = tm.report(handle.id)
    assert (report["state"], report["reason"]) == ("stale", "stale: it did not end within 1h")
    assert states(report) == {"a": "failed", "b": "cancelled", "clean": "succeeded"}
    [a, b, _] = report["steps"]
    assert (a["outcome"], a["error"]) == ("timeout", "ExecutionTimeout: it did not end within 1h")
    assert b["cancelled_by"] == "stale: it did not end within 1h"
    assert handle.state == "FAILED"


def test_a_clean_up_that_takes_too_long_ends_too(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    effect = app.tasks["effect"]
    steps = [(effect.s(1), {"name": "a"}), (effect.s(3), {"name": "clean", "cleanup": True})]
    handle = defer(workflow(steps, execution_timeout="1h"))
    start(tm)
    noon.forward("1h")
    assert reap(tm.installation.database, limit=10) == []  # it was not running, only waiting for a worker
    assert owed(tm) == {"": "running", "clean": "pending"}
    admitted(tm, "clean")
    noon.forward("1h")
    assert [job.step for job, _, _ in reap(tm.installation.database, limit=10)] == ["clean"]
    assert handle.state == "FAILED"
    assert states(tm.report(handle.id)) == {"a": "cancelled", "clean": "failed"}


def test_replaying_all_of_it_one_step_or_the_rest(tm: TimeManagement, noon: MovableClock) -> None:
    etl(tm)
    first = tm.trigger("etl")
    run(tm, noon, 5)
    rest = tm.replay(first.id, from_step="load", actor="kim", reason="load it all the same")
    run(tm, noon, 5)
    report = tm.report(rest.id)
    assert (report["state"], rest.replay_of) == ("completed", first.id)
    assert {step["name"]: step.get("kept_from") for step in report["steps"]} == {
        "fetch": first.id, "break": first.id, "load": None, "clean": None,
    }  # fmt: skip
    one = tm.replay(first.id, step="break", reason="once more")
    run(tm, noon, 5)
    assert tm.report(one.id)["state"] == "failed"
    assert [step["name"] for step in tm.report(one.id)["steps"] if "kept_from" not in step] == ["break"]
    whole = tm.replay(first.id, reason="all of it")
    run(tm, noon, 5)
    assert states(tm.report(whole.id)) == states(tm.report(first.id))
    assert all("kept_from" not in step for step in tm.report(whole.id)["steps"])
    with pytest.raises(UnknownStep, match="did you mean 'fetch'"):
        tm.replay(first.id, step="fetsh")
    with pytest.raises(InvalidValue, match="two replays"):
        tm.replay(first.id, step="fetch", from_step="fetch")


def test_replaying_a_deferred_run(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    effect = app.tasks["effect"]
    handle = defer(workflow([(effect.s(1), {"name": "a"}), (effect.s(2), {"name": "b"})]))
    with pytest.raises(OccurrenceNotFound):
        tm.replay(handle.id)
    start(tm)
    with pytest.raises(InvalidValue, match="is still running"):
        tm.replay(handle.id)
    run(tm, noon, 3)
    again = tm.replay(handle.id, from_step="b", reason="once more")
    run(tm, noon, 3)
    assert [step.get("kept_from") for step in tm.report(again.id)["steps"]] == [handle.id, None]
    whole = tm.replay(again.id, reason="all")
    run(tm, noon, 3)
    assert tm.report(whole.id)["counts"] == {"succeeded": 2}
    assert [step.get("kept_from") for step in tm.report(whole.id)["steps"]] == [None, None]


def test_reviving_a_step_goes_on_with_its_run(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    steps = [
        {"name": "fetch", "task": "effect"},
        {"name": "break", "task": "flaky", "args": [1, 0]},
        {"name": "load", "task": "effect"},
    ]
    etl(tm, steps=steps, max_retries=None, failure_strategy=None)
    first = tm.trigger("etl")
    start(tm)
    tm.run_due_jobs(now=noon.now, limit=1)
    start(tm)
    recorder.record_failure(tm.installation, admitted(tm, "break"), Failure(error="no"), then=Bury("enough"))
    assert tm.report(first.id)["state"] == "failed"
    [letter] = tm.dead_letters.list()
    revived = tm.dead_letters.revive(letter.id, actor="kim")
    assert revived.task == TASK
    run(tm, noon, 3)
    assert tm.dead_letters.list() == []
    latest, _ = tm.occurrences("etl")
    assert (latest.state, latest.replay_of) == ("completed", first.id)
    assert [step.get("kept_from") for step in tm.report(latest.id)["steps"]] == [first.id, None, None]


def test_a_step_whose_key_has_succeeded_is_done(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    effect = app.tasks["effect"]
    defer(effect.s(9), key="day:2026-06-01")
    run(tm, noon, 1)
    waiting = defer(effect.s(8), key="other", delay="1d")
    steps = [
        (effect.s(1), {"name": "a", "key": "day:{date}"}),
        (effect.s(2), {"name": "b", "key": "other"}),
        (effect.s(3), {"name": "c", "key": "run:{run}"}),
    ]
    handle = defer(workflow(steps))
    run(tm, noon, 3)
    report = tm.report(handle.id)
    assert [step["outcome"] for step in report["steps"]] == ["deduplicated", "deduplicated", "succeeded"]
    assert (handle.state, waiting.state) == ("SUCCEEDED", "SCHEDULED")
    with tm.installation.database.transaction(write=False) as tx:
        assert {name: text for name, (_, text) in workflows.results_of(tx, handle.id).items()} == {
            "a": "9",
            "b": None,
            "c": "3",
        }


def test_a_key_that_succeeds_while_a_step_waits_gives_its_result(
    app: Celery, tm: TimeManagement, noon: MovableClock
) -> None:
    effect = app.tasks["effect"]
    handle = defer(workflow([(effect.s(1), {"name": "a", "key": "k"})]))
    start(tm)
    with tm.installation.database.transaction() as tx:
        keys.keep(tx, task="effect", key_text="k", job="other", execution="other", result="7", keep=timedelta(hours=1))
    run(tm, noon, 2)
    [step] = tm.report(handle.id)["steps"]
    assert (handle.state, step["outcome"]) == ("SUCCEEDED", "deduplicated")
    with tm.installation.database.transaction(write=False) as tx:
        assert workflows.results_of(tx, handle.id)["a"] == ("succeeded", "7")


def test_no_more_steps_at_once_than_allowed(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    effect = app.tasks["effect"]
    handle = defer(workflow([[effect.s(n) for n in range(10)]], max_parallel=3))
    start(tm)
    most = 0
    for _ in range(20):
        _, live = Dispatcher(tm.installation, "beat").claim(100)
        most = max(most, len([job for job in tm.jobs() if job.step and job.state == "dispatched"]))
        for job in live:
            found = gate.admit_job(tm.installation, job.id, job.attempt, worker="w:1").job
            assert found is not None
            recorder.record_success(tm.installation, found, None)
    assert (most, handle.state) == (3, "SUCCEEDED")


def test_hooks_are_told_once(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    told: list[tuple[str, str, str]] = []

    @tm.hook
    def begun(occurrence: Any, report: Any) -> None:
        told.append(("begun", occurrence["id"], report["state"]))

    @tm.hook("over")
    def ended(occurrence: Any, report: Any) -> None:
        told.append(("over", occurrence["id"], report["state"]))

    etl(tm, on_start="hook:begun", on_complete="hook:over")
    made = tm.trigger("etl")
    run(tm, noon, 6)
    assert told == [("begun", made.id, "running"), ("over", made.id, "failed")]


def test_one_task_with_hooks(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    @app.task(base=Task, shared=False, name="tell")
    def tell(occurrence: Any, report: Any) -> Any:
        told.append((occurrence["state"], states(report)))

    told: list[Any] = []
    tm.definitions.add(name="plain", task="effect", args=[5], schedule="* * * * *", on_complete="tell")
    noon.forward("1m")
    run(tm, noon, 3)
    assert told == [("completed", {"main": "succeeded"})]


@pytest.mark.parametrize(
    ("overlap", "then"), [("skip", "skipped"), ("queue", "pending"), ("allow", "running"), ("replace", "pending")]
)
def test_a_run_holds_up_the_next_one_as_its_definition_says(
    tm: TimeManagement, noon: MovableClock, overlap: str, then: str
) -> None:
    etl(tm, schedule="* * * * *", overlap=overlap)
    noon.forward("1m")
    tm.run_due_jobs(now=noon.now, limit=1)  # plans, claims the run and starts it
    admitted(tm, "fetch")
    noon.forward("1m")
    Planner(tm.installation).plan_due()
    start(tm)
    later, first = tm.occurrences("etl")
    assert str(later.state) == then
    if overlap == "replace":
        assert {job.step: job.cancel_requested for job in tm.jobs() if job.occurrence == first.id and job.step} == {
            "fetch": True
        }


def test_the_last_failure_pauses_a_failing_definition(tm: TimeManagement, noon: MovableClock) -> None:
    etl(tm, pause_after=2)
    for _ in range(2):
        tm.trigger("etl")
        run(tm, noon, 5)
    assert tm.definitions.get("etl").paused


def test_a_workflow_is_run_at_once_where_celery_is_told_to(app: Celery, tm: TimeManagement) -> None:
    app.conf.task_always_eager = True
    effect, fails = app.tasks["effect"], app.tasks["fails"]

    @app.task(base=Task, bind=True, shared=False, name="sums")
    def sums(self: Task) -> int:
        return sum(self.job.results.values())

    good = defer(workflow([[effect.s(1), effect.s(2)], sums.s()]))
    assert (good.state, good.result) == ("SUCCEEDED", {"effect": 1, "effect-2": 2, "sums": 3})
    bad = defer(workflow([fails.s(1), effect.s(2)]))
    assert bad.state == "FAILED"


def test_one_in_flight_is_enough_for_a_run(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    tm.installation.settings = replace(tm.settings, tm_max_in_flight=1)
    effect = app.tasks["effect"]
    handle = defer(workflow([[effect.s(1), effect.s(2)], effect.s(3)]))
    run(tm, noon, 8)
    assert handle.state == "SUCCEEDED"


def test_a_step_is_not_replaced_by_a_call_with_its_key(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    effect = app.tasks["effect"]
    handle = defer(workflow([(effect.s(1), {"name": "a", "key": "k"}), effect.s(2)]))
    start(tm)
    other = defer(effect.s(7), key="k", on_duplicate="replace")
    assert (other.created, tm.job(other.id).job.args) == (False, "[1]")  # type: ignore[union-attr]
    run(tm, noon, 3)
    assert handle.state == "SUCCEEDED"


def test_a_run_whose_definition_is_gone_runs_as_it_was_decided(tm: TimeManagement, noon: MovableClock) -> None:
    etl(tm)
    made = tm.trigger("etl")
    tm.definitions.remove("etl")
    run(tm, noon, 5)
    assert tm.report(made.id)["counts"] == {"succeeded": 2, "failed": 1, "cancelled": 1}


def test_a_run_that_has_not_begun_has_no_report(app: Celery, tm: TimeManagement) -> None:
    etl(tm)
    effect = app.tasks["effect"]
    for id in (tm.trigger("etl").id, defer(workflow([effect.s(1)]), delay="1h").id):
        with pytest.raises(InvalidValue, match="has not begun"):
            tm.report(id)
    tm.definitions.add(name="plain", task="effect", schedule="* * * * *")
    made = tm.trigger("plain")
    tm.run_due_jobs()
    with pytest.raises(InvalidValue, match="is no run of a workflow"):
        tm.report(made.id)
    with pytest.raises(OccurrenceNotFound):
        tm.report(defer(effect.s(1), delay="1h").id)
