"""Runs of workflows against a model, whatever beats, workers and people do, and wherever they die.

A state machine makes a small workflow, and then beats claim it, start it twice, sweep and reap; workers let messages in
twice, end, fail, die, stop and finish late; people cancel the run, a step of it or all of its entity; and any of them may
die at any statement. After each of these the tables say what the model says (`tmtest.run_model`), and in the end the run
is over.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import delete, event, select
from sqlalchemy.exc import IntegrityError
from tmtest.run_model import ENDED, SECOND, RunModel, can_end, names, needs_of

from celery_tm import TimeManagement, cancel, clock, defer, workflow
from celery_tm.domain import ids
from celery_tm.domain.execution import Failure
from celery_tm.domain.ids import occurrence_job_id
from celery_tm.domain.job import Job
from celery_tm.domain.run import Run
from celery_tm.errors import InvalidValue, LeaseLost, TmError
from celery_tm.recovery.reaper import reap
from celery_tm.recovery.sweeper import sweep
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import following, jobs, keys, progress, settlement, tables, workflows
from celery_tm.worker import gate, recorder, release

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
STRATEGIES = st.sampled_from(["fail_fast", "continue", "retry_on_failure"])
CRASH = st.one_of(st.none(), st.integers(1, 16))
LATE = st.integers(0, 5)
NOT_DONE = object()  # whoever was at it died first


@st.composite
def workflows_of_few(draw: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the steps of a small workflow, and what they have in common."""
    mode = draw(st.sampled_from(["sequential", "parallel"]))
    known = [f"s{n}" for n in range(draw(st.integers(2, 7)))]
    steps: list[Any] = []
    left = [draw(steps_called(name, known)) for name in known]
    while left:
        size = draw(st.integers(1, 3)) if mode == "sequential" else 1
        some, left = left[:size], left[size:]
        steps.append(some if len(some) > 1 else some[0])
    common: dict[str, Any] = {"mode": mode, **draw(some_of(failure_strategy=STRATEGIES, max_retries=st.integers(0, 1)))}
    common |= draw(some_of(max_parallel=st.integers(1, 2), execution_timeout=st.just("10m"), on_start=st.just("effect")))
    return steps, {**common, "on_complete": "effect"}


@st.composite
def steps_called(draw: Any, name: str, known: list[str]) -> dict[str, Any]:
    """Return a step; one in three says what it waits for, mostly steps that come before it."""
    step: dict[str, Any] = {"name": name, "task": "effect"}
    step |= draw(some_of(failure_strategy=STRATEGIES, max_retries=st.integers(0, 1), cleanup=st.just(True)))
    if draw(st.integers(0, 2)) == 0:
        others = known if draw(st.integers(0, 5)) == 0 else known[: known.index(name)]
        step["after"] = draw(st.lists(st.sampled_from(others), unique=True, max_size=3)) if others else []
    special = draw(st.integers(0, 7))
    if special == 0:
        step["key"] = "a-key"
    elif special == 1:
        step |= {"concurrency_key": "a-lane", "concurrency": 1}
    return step


def some_of(**choices: Any) -> Any:
    """Return a mapping of some of these: each is there one time in three."""
    maybe = {name: st.one_of(st.none(), st.none(), values) for name, values in choices.items()}
    return st.fixed_dictionaries(maybe).map(lambda made: {name: value for name, value in made.items() if value is not None})


@pytest.fixture(autouse=True)
def same_ids_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Number new ids, for who gets a slot goes by them, and Hypothesis wants the same to happen once more."""
    monkeypatch.setattr(ids, "_uuid7", lambda *_: f"00000000-0000-7000-8000-{next(RunLife.numbers):012}")


class Crash(BaseException):
    """The process dies here: nobody gets over it."""


class RunLife(RuleBasedStateMachine):
    """One run, from the job that stands for it to its end."""

    tm: TimeManagement
    numbers: Iterator[int] = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        RunLife.numbers = itertools.count()
        self.messages: list[tuple[Job, str | None]] = []  # every one that was ever sent, and its step
        self.claimed: list[Job] = []  # the job that stands for the run, as often as it was claimed
        self.bodies: list[Job] = []  # every attempt that was ever let in
        self.starts: list[tuple[str, int]] = []
        self.now = NOON
        self.is_wrong = False

    @initialize(stated=workflows_of_few(), by_definition=st.booleans(), is_started=st.sampled_from([True, True, False]))
    def begin(self, stated: tuple[list[Any], dict[str, Any]], by_definition: bool, is_started: bool) -> None:
        steps, common = stated
        if not can_end(needs_of(steps, common["mode"])):
            with pytest.raises(InvalidValue, match="wait for each other"):
                workflow(steps, **common)
            assume(False)
        with self.database.transaction() as tx:
            for table in tables.metadata.sorted_tables:
                tx.execute(delete(table))
        with clock.moved_to(self.now):
            if by_definition:
                self.tm.definitions.add(name="d", schedule="* * * * *", steps=steps, **common)
                made = self.tm.trigger("d")
                self.run, self.root = made.id, occurrence_job_id(made.id)
            else:
                self.root = self.run = defer(workflow(steps, **common), entity_id="e", app=self.tm.installation.app).id
        self.model = RunModel(steps, common, now=self.now, backoff=6 * SECOND if by_definition else SECOND)
        self.by_definition = by_definition
        self.step_of = {occurrence_job_id(self.run, name): name for name in names(steps)}
        self.hook_of = {occurrence_job_id(self.run, hook): hook for hook in ("on_start", "on_complete")}
        if is_started:  # else that is up to chance too
            self.all_goes_well_for_a_while([])

    @property
    def database(self) -> Any:
        return self.tm.installation.database

    def perform(self, work: Callable[[], Any], crash: int | None = None, *, again: bool = True) -> Any:
        """Do something a second later; with `crash`, die at that statement of it and then, perhaps, do it once more."""
        self.now += SECOND
        with clock.moved_to(self.now):
            if crash is None:
                return work()
            try:
                with self.dying_at(crash):
                    return work()
            except Crash:
                return work() if again else NOT_DONE

    @contextmanager
    def dying_at(self, statement: int) -> Iterator[None]:
        """Die before that statement; a commit is one too."""
        seen = [0]

        def count() -> None:
            seen[0] += 1
            if seen[0] == statement:
                raise Crash

        def on_statement(conn: Any, cursor: Any, text: str, *_: Any) -> None:
            if not text.startswith("BEGIN"):  # before that there is nothing to roll back
                count()

        def on_commit(conn: Any) -> None:
            count()

        engine = self.database.engine
        event.listen(engine, "before_cursor_execute", on_statement)
        event.listen(engine, "commit", on_commit)
        try:
            yield
        finally:
            event.remove(engine, "before_cursor_execute", on_statement)
            event.remove(engine, "commit", on_commit)

    # Beats

    @rule(crash=CRASH, again=st.booleans())
    def a_beat_claims(self, crash: int | None, again: bool) -> None:
        taken = self.perform(lambda: Dispatcher(self.tm.installation, "beat").claim(100)[1], crash, again=again)
        if taken is NOT_DONE:
            return
        self.claimed += [job for job in taken if job.id == self.root]
        self.messages += [(job, self.step_of.get(job.id)) for job in taken if job.id in self.step_of]
        told = {self.step_of.get(job.id, "root") for job in taken if job.ended is None and job.id not in self.hook_of}
        self.model.claim(told, self.now)

    @precondition(lambda self: self.claimed)
    @rule(which=LATE, crash=CRASH, again=st.booleans())
    def a_beat_starts_the_run_it_claimed(self, which: int, crash: int | None, again: bool) -> None:
        job = self.claimed[-1 - which % len(self.claimed)]
        left = self.perform(lambda: Dispatcher(self.tm.installation, "beat").expand([job]), crash, again=again)
        if left is not NOT_DONE:
            self.model.expand(self.now)

    @rule(crash=CRASH)
    def a_beat_sweeps(self, crash: int | None) -> None:
        self.perform(lambda: sweep(self.database, default=self.tm.installation.default_policy, limit=100), crash)
        self.model.sweep(self.now)

    @precondition(lambda self: self.model.deadline is None or self.now + SECOND >= self.model.deadline)
    @rule(crash=CRASH)
    def a_beat_reaps(self, crash: int | None) -> None:
        self.perform(lambda: reap(self.database, limit=100), crash)
        self.model.reap(self.now)

    @rule(ends=st.lists(st.booleans(), max_size=3))
    def all_goes_well_for_a_while(self, ends: list[bool]) -> None:
        self.a_beat_claims(None, True)
        if self.claimed:
            self.a_beat_starts_the_run_it_claimed(0, None, True)
            self.a_beat_claims(None, True)
        for message in self.messages[-8:]:
            self.deliver(message, None, True)
        for succeeds in ends:
            if self.running:
                self.end(self.running[0], "succeed" if succeeds else "fail", None, True)

    # Workers

    @precondition(lambda self: self.messages)
    @rule(which=LATE, crash=CRASH, again=st.booleans())
    def a_message_arrives(self, which: int, crash: int | None, again: bool) -> None:
        self.deliver(self.messages[-1 - which % len(self.messages)], crash, again)

    def deliver(self, message: tuple[Job, str | None], crash: int | None, again: bool) -> None:
        job, name = message
        worker = f"worker-{len(self.starts)}"
        ask = lambda: gate.admit_job(self.tm.installation, job.id, job.attempt, worker=worker).job  # noqa: E731
        admitted = self.perform(ask, crash, again=again)
        if admitted is NOT_DONE:
            return
        if job.ended is not None:  # whoever waits for this step is told that it has failed
            if admitted is not None:
                self.database.run(lambda tx: following.forget(tx, admitted))
            return
        assert self.model.deliver(name or "", job.attempt, self.now) == (admitted is not None)
        if admitted is not None:
            self.starts.append((name or "", job.attempt))
            self.bodies.append(admitted)

    @precondition(lambda self: self.running)
    @rule(which=LATE, how=st.sampled_from(["succeed", "succeed", "fail", "stop"]), crash=CRASH, again=st.booleans())
    def a_body_that_runs_ends(self, which: int, how: str, crash: int | None, again: bool) -> None:
        self.end(self.running[which % len(self.running)], how, crash, again)

    @property
    def running(self) -> list[Job]:
        return [body for body in self.bodies if self.model.holds(self.step_of[body.id], body.attempt)]

    @precondition(lambda self: self.bodies)
    @rule(which=LATE, how=st.sampled_from(["succeed", "succeed", "fail", "stop"]), crash=CRASH, again=st.booleans())
    def a_body_ends_that_may_have_lost_its_lease(self, which: int, how: str, crash: int | None, again: bool) -> None:
        self.end(self.bodies[-1 - which % len(self.bodies)], how, crash, again)

    def end(self, body: Job, how: str, crash: int | None, again: bool) -> None:
        installation, name = self.tm.installation, self.step_of[body.id]
        held = self.model.holds(name, body.attempt)
        if how == "stop" and held and not self.model.steps[name].asked:
            return  # nobody asked it to
        works: dict[str, Callable[[], Any]] = {
            "succeed": lambda: recorder.record_success(installation, body, name),
            "fail": lambda: recorder.record_failure(installation, body, Failure(error=f"E: {name}")),
            "stop": lambda: recorder.record_cancelled(installation, body, message="stopped because it was cancelled"),
        }
        try:
            done = self.perform(works[how], crash, again=again)
        except LeaseLost:
            assert not held, f"{name} was running, and its worker was told that it had lost it"
            return
        if done is NOT_DONE:
            return
        assert held, f"a worker that had lost {name} could write how it ended"
        model = self.model
        {"succeed": model.succeed, "fail": model.fail, "stop": model.notice}[how](name, self.now)

    @precondition(lambda self: self.bodies)
    @rule(which=LATE, crash=CRASH, again=st.booleans())
    def a_worker_stops_and_hands_back(self, which: int, crash: int | None, again: bool) -> None:
        body = self.bodies[-1 - which % len(self.bodies)]
        given = self.perform(
            lambda: release.record_handed_back(
                self.tm.installation, [(body.id, body.attempt)], "shutdown", workers=[body.claimed_by]
            ),
            crash,
            again=again,
        )
        if given is not NOT_DONE:
            name = self.step_of[body.id]
            assert bool(given) == self.model.holds(name, body.attempt)
            if given:
                self.model.hand_back(name, self.now)

    @precondition(lambda self: any(step.key for step in self.model.steps.values()) and not self.model.done_keys)
    @rule()
    def another_job_does_the_work_of_the_key(self) -> None:
        self.perform(
            lambda: self.database.run(
                lambda tx: keys.keep(
                    tx, task="effect", key_text="a-key", job="another", execution="e", result="1", keep=timedelta(days=7)
                )
            )
        )
        self.model.done_keys.add("a-key")

    # People and time

    @rule(crash=CRASH, again=st.booleans())
    def somebody_cancels_the_run(self, crash: int | None, again: bool) -> None:
        self.cancel({"id": self.root}, self.model.cancel_run, crash, again)

    @rule(which=LATE, crash=CRASH, again=st.booleans())
    def somebody_cancels_a_step(self, which: int, crash: int | None, again: bool) -> None:
        id, name = list(self.step_of.items())[which % len(self.step_of)]
        self.cancel({"id": id}, lambda now: self.model.cancel_step(name, now), crash, again)

    @precondition(lambda self: not self.by_definition)
    @rule(crash=CRASH, again=st.booleans())
    def somebody_cancels_all_of_the_entity(self, crash: int | None, again: bool) -> None:
        self.cancel({"entity_id": "e"}, self.model.cancel_entity, crash, again)

    def cancel(self, which: dict[str, str], then: Callable[[datetime], bool], crash: int | None, again: bool) -> None:
        done = self.perform(lambda: cancel(**which, app=self.tm.installation.app), crash, again=again)
        if done is not NOT_DONE:
            assert done == then(self.now)

    @rule(wait=st.sampled_from([10, 31, 61, 130, 601]))
    def time_passes(self, wait: int) -> None:
        self.now += wait * SECOND

    # What must hold

    @invariant()
    def the_tables_say_what_the_model_says(self) -> None:
        if not hasattr(self, "hook_of"):
            return
        self.is_wrong = True  # until all of this is seen to hold
        model = self.model
        with self.database.transaction(write=False) as tx:
            owed = jobs.select_jobs(tx, limit=1000)
            rows = workflows.steps_of(tx, self.run)
            run = workflows.find(tx, self.run)
            attempts = tx.execute(select(tables.execution)).all()
            letters = set(tx.execute(select(tables.dead_letter.c.id)).scalars())
            state = tx.execute(select(tables.occurrence.c.state).where(tables.occurrence.c.id == self.run)).scalar()
        self.jobs_are_as_owed(owed)
        steps = {step.name: step for step in model.steps.values()}
        if model.started_at is not None:
            assert run is not None
            assert {row.name: str(row.state) for row in rows} == {name: step.state for name, step in steps.items()}
            assert run.remaining[0] == sum(step.state not in ENDED for step in steps.values())
            assert run.is_stopped == (model.stopped is not None)
            assert state == (model.ended or "running")
        else:
            assert (run, rows) == (None, [])
        assert letters == {id for id, name in self.step_of.items() if steps[name].is_buried}
        recorded = [((self.step_of.get(row.job, "root"), row.attempt), row.outcome) for row in attempts
                    if row.job not in self.hook_of]  # fmt: skip
        expected = [((name, n), how) for name, step in steps.items() for n, how in step.records.items()]
        expected += [(("root", 1), model.root_outcome)] if model.root_outcome else []
        assert sorted(recorded) == sorted(expected)
        self.is_wrong = False

    def jobs_are_as_owed(self, owed: list[Job]) -> None:
        model = self.model
        assert {self.hook_of[job.id] for job in owed if job.id in self.hook_of} == model.hooks
        found = {self.step_of.get(job.id, "root"): (str(job.state), job.attempt, job.cancel_requested)
                 for job in owed if job.id not in self.hook_of}  # fmt: skip
        expected = {step.name: (step.job, step.attempt, step.asked) for step in model.steps.values() if step.job}
        expected |= {"root": (model.root, 1, False)} if model.root else {}
        assert found == expected

    @precondition(lambda self: self.model.started_at is not None)
    @rule()
    def somebody_reads_the_report(self) -> None:
        with clock.moved_to(self.now):
            report = self.tm.report(self.run)
        model = self.model
        assert report["state"] == (model.ended or "running")
        assert ("stopped_by" in report and report["stopped_by"] is not None) == (model.stopped is not None)
        assert len(report["steps"]) == len(model.steps)
        for told in report["steps"]:
            step = model.steps[told["name"]]
            assert (told["state"], told.get("outcome")) == (step.state, step.outcome)
            assert told["attempts"] == step.attempts
            assert {one["attempt"]: one["outcome"] for one in told["tries"]} == step.records
            assert ("error" in told) == (step.state == "failed")
            assert ("cancelled_by" in told) == (step.state == "cancelled")
        if model.ended == "failed":
            assert report["reason"].startswith(f"step {model.first_failure()!r} failed")

    def teardown(self) -> None:
        if not hasattr(self, "hook_of") or self.is_wrong:
            return
        model = self.model
        for _ in range(12 * len(model.steps)):  # each may be tried four times, and waits for its turn
            if model.ended:
                break
            self.now += 601 * SECOND if model.common.get("execution_timeout") is None else 61 * SECOND
            self.a_beat_sweeps(None)
            self.all_goes_well_for_a_while([True] * 7)
            self.the_tables_say_what_the_model_says()
        assert model.ended, "the run did not come to its end"
        assert len(self.starts) == len(set(self.starts)), "one attempt was let in twice"
        assert model.told.count("on_complete") == (1 if model.started_at else 0)
        assert not any(step.job for step in model.steps.values())
        if model.started_at is not None:
            self.somebody_reads_the_report()
        for body in self.bodies:
            self.end(body, "succeed", None, True)  # all of them are late by now
        self.the_tables_say_what_the_model_says()


def machine_of(tm: TimeManagement) -> Any:
    return type("RunLifeHere", (RunLife,), {"tm": tm})


def budget(examples: int, **more: Any) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        **more,
    )


@pytest.mark.timeout(1800)  # of the thorough
def test_runs_are_as_the_model_says_whatever_happens(tm: TimeManagement, thorough: bool) -> None:
    examples = {"sqlite": 25, "postgresql": 10, "mysql": 6}[tm.installation.database.dialect.name]
    run_state_machine_as_test(machine_of(tm), settings=budget(examples * (20 if thorough else 1)))


# A test that cannot fail proves nothing: here is what each of these must be found out by.


def forgets_a_join(patch: pytest.MonkeyPatch) -> None:
    honest = progress.count_down
    patch.setattr(progress, "count_down", lambda left, ended: honest(left, [feeds[:2] for feeds in ended]))


def starts_steps_of_a_run_that_is_stopped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Run, "is_stopped", property(lambda run: False))


def starts_steps_one_too_early(patch: pytest.MonkeyPatch) -> None:
    honest = progress.count_down

    def hasty(left: Any, ended: Any) -> Any:
        after, reached = honest(left, ended)
        return after, reached + [join for join, count in enumerate(after) if join and count == 1 and left[join] > 1]

    patch.setattr(progress, "count_down", hasty)


def lets_running_steps_go_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(progress.jobs, "request_cancel", lambda *_: True)


def believes_whoever_says_that_a_step_has_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settlement, "_finish", lambda tx, job, ended: jobs.remove_running(tx, job))


def cancels_clean_ups_too(patch: pytest.MonkeyPatch) -> None:
    honest = workflows.in_state
    patch.setattr(workflows, "in_state", lambda *args: [replace(step, regardless=False) for step in honest(*args)])


def writes_in_two_transactions(patch: pytest.MonkeyPatch) -> None:
    honest = progress.end_step

    def divided(tx: Any, *args: Any) -> Any:
        tx.connection.connection.commit()
        if tx.dialect.name == "sqlite":
            tx.connection.connection.execute("BEGIN IMMEDIATE")
        return honest(tx, *args)

    patch.setattr(progress, "end_step", divided)


def calls_the_hook_at_every_step(patch: pytest.MonkeyPatch) -> None:
    honest = progress.end_step

    def talkative(tx: Any, run: Run, *args: Any) -> Run:
        progress.call_hook(tx, replace(run, settings={**run.settings, "on_start": "effect"}), "on_start", [])
        return honest(tx, run, *args)

    patch.setattr(progress, "end_step", talkative)


@pytest.mark.parametrize(
    "broken",
    [
        forgets_a_join,
        starts_steps_of_a_run_that_is_stopped,
        starts_steps_one_too_early,
        lets_running_steps_go_on,
        believes_whoever_says_that_a_step_has_ended,
        cancels_clean_ups_too,
        writes_in_two_transactions,
        calls_the_hook_at_every_step,
    ],
)
def test_the_model_notices_an_engine_that(tm: TimeManagement, monkeypatch: pytest.MonkeyPatch, broken: Any) -> None:
    if tm.installation.database.dialect.is_server:
        pytest.skip("once is enough, on SQLite")
    broken(monkeypatch)
    with pytest.raises((AssertionError, TmError, IntegrityError)):
        run_state_machine_as_test(
            machine_of(tm), settings=budget(1000, phases=[Phase.generate], derandomize=True)
        )  # found is enough
