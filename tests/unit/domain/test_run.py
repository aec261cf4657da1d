"""A run and its steps: the jobs they become, what the run ends as, what is told of it, and what a replay begins with."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_tm.domain.codec import decode
from celery_tm.domain.effective import Setting
from celery_tm.domain.execution import Execution, Outcome
from celery_tm.domain.ids import occurrence_job_id
from celery_tm.domain.job import Job, Slot, Source
from celery_tm.domain.occurrence import OccurrenceState
from celery_tm.domain.replaying import begun_again, chosen_steps
from celery_tm.domain.run import (
    HOOK_TASK,
    Ending,
    Run,
    RunStep,
    ending_of,
    hook_job,
    passed_over,
    report_of,
    settings_of,
    step_job,
    steps_of,
)
from celery_tm.domain.workflow import Mode, Step, StepState
from celery_tm.errors import InvalidValue, UnknownStep

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
SETTINGS = {"source": "scheduled", "original_delay": "1h", "scheduled_at": NOON.isoformat()}


def run_of(**values: Any) -> Run:
    settings = SETTINGS | values.pop("settings", {})
    given = {"id": "run", "job": "root", "attempt": 1, "remaining": [1], "created_at": NOON, "settings": settings}
    return Run(**(given | values))


def step_of(name: str = "a", **values: Any) -> RunStep:
    given: dict[str, Any] = {
        "workflow": "run", "name": name, "number": 1, "task": "t", "args": "[1]", "kwargs": "{}", "settings": {},
        "regardless": False, "waits_for": None, "feeds": [0], "state": StepState.WAITING, "job": f"job-{name}",
    }  # fmt: skip
    return RunStep(**(given | values))


def failed(name: str, number: int, seconds: int, error: str = "E: no") -> RunStep:
    return step_of(name, number=number, state=StepState.FAILED, ended_at=NOON + SECOND * seconds, error=error)


# What it ends as


def test_a_run_without_failures_is_completed() -> None:
    assert ending_of(run_of(), []) == Ending(OccurrenceState.COMPLETED, Outcome.SUCCEEDED, None)


def test_a_failed_step_fails_the_run_and_is_named() -> None:
    ending = ending_of(run_of(), [failed("load", 3, 5)])
    assert ending == Ending(OccurrenceState.FAILED, Outcome.FAILED, "step 'load' failed: E: no")


def test_the_step_that_failed_first_is_named_and_the_others_counted() -> None:
    ending = ending_of(run_of(), [failed("late", 1, 9), failed("second", 3, 5, "E: b"), failed("first", 2, 5, "E: a")])
    assert ending.reason == "step 'first' failed (and 2 more): E: a"


def test_a_run_that_a_step_stopped_has_failed() -> None:
    run = run_of(stopped_by="step 'a' failed", stopped_as=OccurrenceState.FAILED)
    assert ending_of(run, [failed("a", 1, 1)]).state is OccurrenceState.FAILED


@pytest.mark.parametrize(
    ("state", "outcome"),
    [(OccurrenceState.CANCELLED, Outcome.CANCELLED), (OccurrenceState.STALE, Outcome.TIMEOUT)],
)
@pytest.mark.parametrize("steps", [[], [failed("a", 1, 1)]])
def test_who_stopped_it_says_what_it_ends_as_whatever_failed(
    state: OccurrenceState, outcome: Outcome, steps: list[RunStep]
) -> None:
    assert ending_of(run_of(stopped_by="somebody", stopped_as=state), steps) == Ending(state, outcome, "somebody")


def test_a_run_is_stopped_and_over_by_what_its_row_says() -> None:
    assert (run_of().is_stopped, run_of(stopped_by="x").is_stopped) == (False, True)
    assert (run_of(remaining=[2, 0]).is_over, run_of(remaining=[0, 0]).is_over) == (False, True)


@pytest.mark.parametrize(("strategy", "stops"), [("fail_fast", True), ("continue", False), (None, True)])
def test_a_step_stops_the_run_unless_it_says_continue(strategy: str | None, stops: bool) -> None:
    assert step_of(settings={"failure_strategy": strategy} if strategy else {}).stops_run is stops


# What is passed over


def chain(*regardless: bool) -> list[RunStep]:
    """Return steps that wait for each other one by one, the first for the join 1."""
    last = len(regardless)
    return [
        step_of(f"s{n}", number=n, waits_for=n, feeds=[0, n + 1] if n < last else [0], regardless=one)
        for n, one in enumerate(regardless, start=1)
    ]


def test_the_steps_of_a_stopped_run_end_in_turn_up_to_one_that_runs_regardless() -> None:
    run = run_of(remaining=[4, 0, 1, 1, 1], stopped_by="x")
    after, refused, ready = passed_over(run, [1], chain(False, False, True, False))
    assert ([one.name for one in refused], [one.name for one in ready]) == (["s1", "s2"], ["s3"])
    assert after == replace(run, remaining=[2, 0, 0, 0, 1])


def test_a_step_that_also_waits_for_others_is_not_passed_over_before_them() -> None:
    steps = [step_of("a", waits_for=1, feeds=[0, 2]), step_of("tidy", waits_for=2, regardless=True)]
    run = run_of(remaining=[3, 0, 2], stopped_by="x")  # one that still runs feeds the join 2 as well
    after, refused, ready = passed_over(run, [1], steps)
    assert ([one.name for one in refused], list(ready), after.remaining) == (["a"], [], [2, 0, 1])


def test_a_stopped_run_of_which_nothing_is_left_is_over() -> None:
    after, refused, ready = passed_over(run_of(remaining=[3, 0, 1, 1], stopped_by="x"), [1], chain(False, False, False))
    assert (len(refused), list(ready), after.is_over) == (3, [], True)


# The jobs of its steps


def test_the_job_of_a_step_is_due_now_and_tells_of_its_run() -> None:
    settings = {"covers_from": NOON.isoformat(), "covers_until": (NOON + MINUTE).isoformat(), "entity_id": "e", "actor": "p"}
    job = step_job(run_of(settings=settings | {"scope": {"x": 1}}), step_of(), NOON + SECOND)
    assert (job.id, job.task, job.args, job.kwargs) == ("job-a", "t", "[1]", "{}")
    assert (job.run_at, job.created_at, job.scheduled_at) == (NOON + SECOND, NOON + SECOND, NOON)
    assert (job.covers_from, job.covers_until, job.original_delay) == (NOON, NOON + MINUTE, timedelta(hours=1))
    assert (job.occurrence, job.step, job.is_step, job.source) == ("run", "a", True, Source.SCHEDULED)
    assert (job.entity_id, job.actor, job.scope) == ("e", "p", {"x": 1})
    assert (job.concurrency_key, job.concurrency, job.slot, job.dedupe_key, job.timeout) == (None, None, None, None, None)


def test_the_job_of_a_step_has_its_settings() -> None:
    own = {"max_retries": 2, "retry": {"kind": "never"}, "queue": "q", "priority": 4, "options": {"headers": {}}}
    job = step_job(run_of(), step_of(settings=own), NOON)
    assert {name: getattr(job, name) for name in own} == own


@pytest.mark.parametrize(
    ("own", "whole", "timeout"),
    [(None, None, None), ("2m", None, 2), (None, "5m", 5), ("2m", "5m", 2), ("9m", "5m", 5)],
)
def test_an_attempt_never_takes_longer_than_its_run_may(own: str | None, whole: str | None, timeout: int | None) -> None:
    run = run_of(settings={"execution_timeout": whole} if whole else {})
    job = step_job(run, step_of(settings={"task_timeout": own} if own else {}), NOON)
    assert job.timeout == (None if timeout is None else MINUTE * timeout)


def test_steps_of_which_only_some_run_at_a_time_share_a_lane() -> None:
    run = run_of(settings={"max_parallel": 3})
    job = step_job(run, step_of(), NOON)
    assert (job.concurrency_key, job.concurrency, job.slot) == ("workflow:run", 3, Slot.OPEN)


def test_a_step_that_has_a_lane_of_its_own_stays_there() -> None:
    run = run_of(settings={"max_parallel": 3})
    job = step_job(run, step_of(settings={"concurrency_key": "api", "concurrency": 1}), NOON)
    assert (job.concurrency_key, job.concurrency, job.slot) == ("api", 1, Slot.OPEN)


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        ("always", "always"),
        ("load:{run}", "load:run"),
        ("load:{date}", "load:2026-06-01"),
        ("{scheduled_at}/{run}/{date}", "2026-06-01T12:00:00+00:00/run/2026-06-01"),
        ("{other}", "{other}"),
    ],
)
def test_what_stands_in_braces_in_a_key_is_the_runs(rule: str, key: str) -> None:
    assert step_job(run_of(), step_of(settings={"key": rule}), NOON).dedupe_key == key


def test_a_hook_is_a_job_of_its_own_that_ends_no_occurrence() -> None:
    run = run_of(settings={"entity_id": "e", "scope": {"x": 1}})
    job = hook_job(run, "on_complete", "shop.tell", [{"id": "run"}, {"steps": []}], NOON)
    assert (job.id, job.task) == (occurrence_job_id("run", "on_complete"), "shop.tell")
    assert decode(job.args) == [{"id": "run"}, {"steps": []}]
    assert (job.occurrence, job.is_step, job.step, job.entity_id) == (None, False, "on_complete", None)
    assert job.scope == {"x": 1, "run": "run"}


def test_a_hook_that_is_a_callable_runs_by_a_task_of_ours() -> None:
    job = hook_job(run_of(), "on_start", "hook:tell", [1], NOON)
    assert (job.task, decode(job.args)) == (HOOK_TASK, ["tell", 1])


def test_a_run_keeps_what_its_job_says_as_plain_values() -> None:
    root = Job(
        id="root", task="w", args="[]", kwargs="{}", run_at=NOON, created_at=NOON, original_delay=MINUTE,
        execution_timeout=2 * MINUTE, source=Source.DEFERRED,
    )  # fmt: skip
    kept = settings_of(root, {"mode": "parallel", "max_parallel": 2})
    assert kept == {
        "mode": "parallel", "max_parallel": 2, "scheduled_at": NOON.isoformat(), "original_delay": "1m",
        "execution_timeout": "2m", "source": "deferred",
    }  # fmt: skip
    assert settings_of(replace(root, scheduled_at=NOON - MINUTE), {})["scheduled_at"] == (NOON - MINUTE).isoformat()


def test_the_steps_of_a_run_wait_as_they_were_woven() -> None:
    stages = [[Step(name="a", task="t")], [Step(name="b", task="u", cleanup=True), Step(name="c", task="t")]]
    settings = {name: {"queue": Setting("q", "step"), "retry": Setting(None, "default")} for name in "abc"}
    steps, left = steps_of("run", stages, Mode.SEQUENTIAL, settings)
    assert [(one.name, one.number, one.waits_for, one.regardless) for one in steps] == [
        ("a", 1, None, False), ("b", 2, 1, True), ("c", 3, 1, False),
    ]  # fmt: skip
    assert [list(one.feeds) for one in steps] == [[0, 1], [0], [0]]
    assert left == [3, 1]
    assert all(one.settings == {"queue": "q"} and one.state is StepState.WAITING for one in steps)
    assert [one.job for one in steps] == [occurrence_job_id("run", name) for name in "abc"]


# What is told


def attempt(job: str, number: int, outcome: Outcome, error: str | None = None) -> Execution:
    return Execution(
        id=f"{job}/{number}", job=job, task="t", source=Source.SCHEDULED, attempt=number, outcome=outcome, worker="w",
        started_at=NOON, completed_at=NOON + SECOND * number, error=error,
    )  # fmt: skip


def test_the_report_of_a_run_that_has_ended() -> None:
    steps = [
        step_of("b", number=2, state=StepState.CANCELLED, outcome="cancelled", cancelled_by="step 'a' failed"),
        failed("a", 1, 3),
    ]
    steps[1] = replace(steps[1], attempts=2, started_at=NOON, outcome="failed", settings={"failure_strategy": "fail_fast"})
    attempts = [
        attempt("job-a", 2, Outcome.FAILED, "E: no"),
        replace(attempt("job-a", 1, Outcome.ORPHANED), next_delay=MINUTE),
        attempt("root", 1, Outcome.FAILED),
    ]
    run = run_of(stopped_by="step 'a' failed", settings={"failure_strategy": "fail_fast", "mode": "parallel"})
    ending = Ending(OccurrenceState.FAILED, Outcome.FAILED, "step 'a' failed: E: no")
    report = report_of(run, steps, attempts, ending=ending, now=NOON + 10 * SECOND)
    assert {name: report[name] for name in report if name != "steps"} == {
        "run": "run", "state": "failed", "reason": "step 'a' failed: E: no", "strategy": "fail_fast", "mode": "parallel",
        "stopped_by": "step 'a' failed", "started_at": NOON.isoformat(), "ended_at": (NOON + 10 * SECOND).isoformat(),
        "seconds": 10.0, "counts": {"failed": 1, "cancelled": 1},
    }  # fmt: skip
    first, second = report["steps"]
    assert (first["name"], first["attempts"], first["seconds"], first["error"]) == ("a", 2, 3.0, "E: no")
    assert [(one["attempt"], one["outcome"], one["seconds"], one["next_delay"]) for one in first["tries"]] == [
        (1, "orphaned", 1.0, 60.0),
        (2, "failed", 2.0, None),
    ]
    assert first["tries"][0]["started_at"] == NOON.isoformat()
    assert first["tries"][0]["ended_at"] == (NOON + SECOND).isoformat()
    assert second == {
        "name": "b", "task": "t", "state": "cancelled", "outcome": "cancelled", "attempts": 0, "job": "job-b",
        "cancelled_by": "step 'a' failed", "tries": [],
    }  # fmt: skip


def test_the_report_of_a_run_that_goes_on_has_no_end() -> None:
    report = report_of(run_of(), [step_of(state=StepState.OWED)], [], ending=None, now=NOON + MINUTE)
    assert (report["state"], report["ended_at"], report["seconds"]) == ("running", None, 60.0)
    assert (report["strategy"], report["mode"], report["counts"]) == ("retry_on_failure", "sequential", {"owed": 1})


def test_a_run_that_was_stopped_and_goes_on_says_why() -> None:
    report = report_of(run_of(stopped_by="somebody"), [step_of()], [], ending=None, now=NOON)
    assert (report["state"], report["reason"], report["stopped_by"]) == ("running", "somebody", "somebody")


# Replays


ORIGINAL = [
    step_of("a", number=1, feeds=[0, 1], state=StepState.SUCCEEDED, attempts=1, result="7", outcome="succeeded"),
    step_of("b", number=2, waits_for=1, feeds=[0, 2], state=StepState.FAILED, attempts=3, error="E", ended_at=NOON),
    step_of("c", number=3, waits_for=1, feeds=[0, 2], state=StepState.SUCCEEDED, attempts=1),
    step_of("d", number=4, waits_for=2, feeds=[0], state=StepState.CANCELLED, cancelled_by="step 'b' failed"),
]


@pytest.mark.parametrize(
    ("wanted", "again"),
    [
        ({}, {"a", "b", "c", "d"}),
        ({"step": "b"}, {"b"}),
        ({"from_step": "b"}, {"b", "d"}),
        ({"from_step": "a"}, {"a", "b", "c", "d"}),
        ({"from_step": "d"}, {"d"}),
    ],
)
def test_a_replay_runs_a_step_or_all_that_follow_it_or_all(wanted: dict[str, str], again: set[str]) -> None:
    assert chosen_steps(ORIGINAL, **wanted) == again


def test_one_replay_is_not_two() -> None:
    with pytest.raises(InvalidValue, match="two replays"):
        chosen_steps(ORIGINAL, step="a", from_step="b")


@pytest.mark.parametrize("which", ["step", "from_step"])
def test_a_step_that_the_run_does_not_have_is_refused(which: str) -> None:
    steps = [step_of("fetch")]
    with pytest.raises(UnknownStep) as error:
        chosen_steps(steps, **{which: "fetsh"})
    assert error.value.suggestion == "fetch"


def test_what_is_not_run_again_is_as_the_original_left_it() -> None:
    made, left = begun_again(ORIGINAL, "again", {"b", "d"})
    by_name = {one.name: one for one in made}
    assert by_name["a"] == replace(ORIGINAL[0], workflow="again", kept_from="run")
    assert by_name["c"].kept_from == "run"
    fresh = by_name["b"]
    assert (fresh.state, fresh.attempts, fresh.error, fresh.ended_at, fresh.kept_from) == (
        StepState.WAITING,
        0,
        None,
        None,
        None,
    )
    assert (fresh.job, fresh.waits_for, list(fresh.feeds), fresh.number) == (occurrence_job_id("again", "b"), 1, [0, 2], 2)
    assert by_name["d"].cancelled_by is None
    assert left == [4, 1, 2]


def test_what_was_kept_once_is_kept_from_the_run_that_did_it() -> None:
    made, _ = begun_again(ORIGINAL, "second", {"b", "d"})
    again, _ = begun_again(made, "third", {"d"})
    assert {one.name: one.kept_from for one in again} == {"a": "run", "b": "second", "c": "run", "d": None}


@pytest.mark.parametrize("state", [StepState.WAITING, StepState.OWED])
def test_a_step_that_had_not_ended_and_is_not_run_again_counts_as_cancelled(state: StepState) -> None:
    made, _ = begun_again([replace(ORIGINAL[0], state=state), *ORIGINAL[1:]], "again", {"d"})
    assert (made[0].state, made[0].kept_from) == (StepState.CANCELLED, "run")
    assert made[0].cancelled_by


def test_a_replay_of_thousands_of_steps_begins_at_once() -> None:
    """The transaction that begins it holds its job: counting each join by looking at every step took seconds."""
    steps = [step_of(f"s{n}", number=n, waits_for=n or None, feeds=[0, n + 1]) for n in range(5000)]
    began = time.process_time()
    _, left = begun_again(steps, "again", {"s1"})
    assert left == [5000, *[1] * 5000]
    assert time.process_time() - began < 1
