"""Many at once at one run: threads that end its steps, fail and cancel it, reap it, replace it; and what each leaves.

Whoever changes a run locks it first, then its jobs, then its occurrence. So none meets another coming the other way: no
database finds a deadlock here, and a caller would not hear of one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, func, select

from celery_tm import TimeManagement, cancel, clock, defer, workflow
from celery_tm.domain.execution import Failure
from celery_tm.domain.ids import occurrence_job_id
from celery_tm.domain.job import Job
from celery_tm.errors import LeaseLost
from celery_tm.recovery.reaper import reap
from celery_tm.recovery.sweeper import sweep
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.scheduler.expanding import expand
from celery_tm.store import executions, following, jobs, preemption, tables, workflows
from celery_tm.store.database import Database
from celery_tm.worker import gate, recorder, release

THREADS = 8
PATIENCE = 20.0  # seconds; a lock that nobody gives back is a mistake


@pytest.fixture(autouse=True)
def with_locks(tm: TimeManagement) -> None:
    if not tm.installation.database.dialect.skips_locked:
        pytest.skip("SQLite has one writer at a time: nobody meets another")


@contextmanager
def counting_deadlocks(database: Database) -> Iterator[list[str]]:
    """Note the deadlocks that the database finds, also those that are got over by trying again."""
    found: list[str] = []

    def note(context: Any) -> None:
        error = context.sqlalchemy_exception
        if error is not None and database.dialect.is_transient(error):
            found.append(f"{error.orig}\n{context.statement}")

    event.listen(database.engine, "handle_error", note)
    try:
        yield found
    finally:
        event.remove(database.engine, "handle_error", note)


def start(tm: TimeManagement, steps: list[Any], **common: Any) -> str:
    """Start a run, and return its id."""
    id = defer(workflow(steps, on_complete="effect", **common), entity_id="e", app=tm.installation.app).id
    Dispatcher(tm.installation, "beat").expand(claimed(tm))
    return id


def claimed(tm: TimeManagement) -> list[Job]:
    return [job for job in Dispatcher(tm.installation, "beat").claim(1000)[1] if job.step != "on_complete"]


def running(tm: TimeManagement) -> list[Job]:
    """Admit all steps that are due; what has ended and is only to be reported is reported."""
    found = [gate.admit_job(tm.installation, job.id, job.attempt, worker="w").job for job in claimed(tm)]
    for job in found:
        if job is not None and job.ended is not None:
            tm.installation.database.run(lambda tx, job=job: following.forget(tx, job))  # type: ignore[misc]
    return [job for job in found if job is not None and job.ended is None]


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Do things in as many threads, beginning together; return what came of each, or raise what it raised."""
    together = threading.Barrier(len(works))

    def one(work: Callable[[], Any]) -> Any:
        together.wait(PATIENCE)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result(PATIENCE * 3) for future in [pool.submit(one, work) for work in works]]


def outcome_of(tm: TimeManagement, run: str) -> tuple[str, int]:
    """Return what a run ended as, and how many jobs its hook has."""
    with tm.installation.database.transaction(write=False) as tx:
        state = tx.execute(select(tables.occurrence.c.state).where(tables.occurrence.c.id == run)).scalar_one()
        hook = tables.job.c.id == occurrence_job_id(run, "on_complete")
        hooks = tx.execute(select(func.count()).select_from(tables.job).where(hook)).scalar_one()
        owed = [job.step for job in jobs.of_occurrence(tx, run)]
        ended = executions.of_job(tx, run)
    assert owed == []
    assert len(ended) == 1, "the run ended more than once"
    return state, hooks


def group_of(count: int, **of_the_last: Any) -> list[Any]:
    steps: list[Any] = [{"name": f"s{n}", "task": "effect"} for n in range(count)]
    steps[-1] |= of_the_last
    return [steps, {"name": "after", "task": "effect"}, {"name": "tidy", "task": "effect", "cleanup": True}]


@pytest.mark.parametrize("also", ["", "fail", "cancel", "fail and cancel"])
def test_many_threads_end_the_steps_of_a_group(tm: TimeManagement, also: str) -> None:
    installation = tm.installation
    run = start(tm, group_of(60, failure_strategy="fail_fast"))
    bodies = running(tm)
    assert len(bodies) == 60
    failing = next(body for body in bodies if body.step == "s59")
    parts = [[body for body in bodies[n::THREADS] if "fail" not in also or body is not failing] for n in range(THREADS)]

    def succeed(part: list[Job]) -> None:
        for body in part:
            recorder.record_success(installation, body, 1)

    works: list[Callable[[], Any]] = [lambda part=part: succeed(part) for part in parts]  # type: ignore[misc]
    if "fail" in also:
        works.append(lambda: recorder.record_failure(installation, failing, Failure(error="E")))
    if "cancel" in also:
        works.append(lambda: cancel(id=run, app=installation.app))
    with counting_deadlocks(installation.database) as deadlocks:
        at_once(*works)
        finish(tm)
    ended, hooks = outcome_of(tm, run)
    possible = {"": ["completed"], "fail": ["failed"], "cancel": ["cancelled", "completed"]}
    assert ended in possible.get(also, ["failed", "cancelled"])
    assert (hooks, deadlocks) == (1, [])
    report = tm.report(run)
    assert sum(report["counts"].values()) == 62
    assert next(step["state"] for step in report["steps"] if step["name"] == "tidy") == "succeeded"


def finish(tm: TimeManagement) -> None:
    """Do what is left of a run, one by one."""
    while bodies := running(tm):
        for body in bodies:
            recorder.record_success(tm.installation, body, 1)


@pytest.mark.parametrize("max_parallel", [None, 3])
def test_many_that_do_everything(tm: TimeManagement, max_parallel: int | None) -> None:
    """Each thread is beat and worker at once: it claims, starts the run, sweeps, reaps, lets in, and ends steps."""
    installation, database = tm.installation, tm.installation.database
    more = {} if max_parallel is None else {"max_parallel": max_parallel}
    made = workflow(group_of(40), on_complete="effect", **more)
    run = defer(made, entity_id="e", app=installation.app).id
    started: list[str] = []

    def live() -> None:
        for _ in range(400):
            mine = Dispatcher(installation, "beat").expand(Dispatcher(installation, "beat").claim(4)[1])
            for job in mine:
                body = gate.admit_job(installation, job.id, job.attempt, worker="w").job
                if body is not None:
                    started.append(f"{body.step} {body.attempt}")
                    recorder.record_success(installation, body, 1)
            sweep(database, default=installation.default_policy, limit=10)
            reap(database, limit=10)
            if is_over():
                return
        raise AssertionError("it did not come to its end")

    def is_over() -> bool:
        with database.transaction(write=False) as tx:
            found = workflows.find(tx, run)
        return found is not None and found.is_over

    at_once(*[live] * THREADS)
    steps = [name for name in started if not name.startswith("on_complete")]
    assert len(steps) == len(set(steps)) == 42
    assert tm.report(run)["state"] == "completed"
    assert started.count("on_complete 1") <= 1


def test_whoever_cancels_all_steps_at_once_ends_the_run_once(tm: TimeManagement) -> None:
    run = start(tm, group_of(12))
    ids = [occurrence_job_id(run, f"s{n}") for n in range(12)]
    running(tm)
    works: list[Callable[[], Any]] = [lambda id=id: cancel(id=id, app=tm.installation.app) for id in ids[:4]]  # type: ignore[misc]
    works += [lambda: cancel(entity_id="e", app=tm.installation.app), lambda: cancel(id=run, app=tm.installation.app)]
    with counting_deadlocks(tm.installation.database) as deadlocks:
        at_once(*works)
    assert deadlocks == []
    for id in ids:
        with tm.installation.database.transaction(write=False) as tx:
            body = jobs.find(tx, id)
        if body is not None:
            recorder.record_cancelled(tm.installation, body, message="stopped")
    finish(tm)
    assert outcome_of(tm, run) == ("cancelled", 1)


def test_a_try_that_fails_while_the_run_is_cancelled_is_not_made_again(tm: TimeManagement) -> None:
    run = start(tm, group_of(20))
    bodies = running(tm)

    def fail(part: list[Job]) -> None:
        for body in part:
            recorder.record_failure(tm.installation, body, Failure(error="E"))

    def hand_back(part: list[Job]) -> None:
        release.record_handed_back(tm.installation, [(body.id, body.attempt) for body in part], "stop", workers=["w"])

    works: list[Callable[[], Any]] = [lambda n=n: fail(bodies[n:12:4]) for n in range(4)]  # type: ignore[misc]
    works += [lambda: hand_back(bodies[12:16]), lambda: hand_back(bodies[16:])]
    works.append(lambda: cancel(id=run, app=tm.installation.app))
    with counting_deadlocks(tm.installation.database) as deadlocks:
        at_once(*works)
    assert deadlocks == []
    finish(tm)
    assert outcome_of(tm, run) == ("cancelled", 1)


# Two that meet at a chosen point: one is held there, the other comes, and both must go on.


class Held:
    """Holds one thread before a statement that has these words, until somebody lets it go on."""

    def __init__(self, database: Database, words: str) -> None:
        self.database, self.words = database, words
        self.is_there, self.may_go_on = threading.Event(), threading.Event()
        self.thread: int | None = None

    def __call__(self, conn: Any, cursor: Any, text: str, *_: Any) -> None:
        if threading.get_ident() == self.thread and self.words in text and not self.is_there.is_set():
            self.is_there.set()
            assert self.may_go_on.wait(PATIENCE)

    @contextmanager
    def at_work(self, work: Callable[[], Any]) -> Iterator[Future[Any]]:
        """Do this beside, as far as those words; let it go on at the end of the block."""

        def mine() -> Any:
            self.thread = threading.get_ident()
            return work()

        event.listen(self.database.engine, "before_cursor_execute", self)
        try:
            with ThreadPoolExecutor(1) as pool:
                future = pool.submit(mine)
                assert self.is_there.wait(PATIENCE)
                yield future
                future.result(PATIENCE)
        finally:
            self.may_go_on.set()
            event.remove(self.database.engine, "before_cursor_execute", self)


def test_a_beat_that_reaps_does_not_hold_up_whoever_ends_the_run(tm: TimeManagement) -> None:
    database = tm.installation.database
    run = start(tm, [{"name": "a", "task": "effect"}], execution_timeout="1s")
    [body] = running(tm)
    with database.transaction() as tx:
        late = clock.now().replace(year=2020)
        tx.execute(tables.occurrence.update().values(deadline_at=late))
    held = Held(database, "UPDATE tm_occurrence")  # with the last step the run is over, and it has its lock
    with counting_deadlocks(database) as deadlocks, ThreadPoolExecutor(1) as pool:
        with held.at_work(lambda: recorder.record_success(tm.installation, body, 1)):
            reaping = pool.submit(lambda: reap(database, limit=10))
            assert reaping.result(PATIENCE) == []  # it skips the locked run
            held.may_go_on.set()
        assert reap(database, limit=10) == []
    assert deadlocks == []
    assert outcome_of(tm, run) == ("completed", 1)


def test_a_run_that_begins_while_it_is_replaced_is_replaced(tm: TimeManagement) -> None:
    database = tm.installation.database
    steps = [{"name": "a", "task": "effect", "failure_strategy": "continue"}, {"name": "b", "task": "effect"}]
    tm.definitions.add(name="d", schedule="0 3 * * *", steps=steps, overlap="replace")
    first = tm.trigger("d")
    [root] = claimed(tm)
    held = Held(database, "INSERT INTO tm_workflow")
    with ThreadPoolExecutor(1) as pool:
        with held.at_work(lambda: expand(tm.installation, root)):
            triggering = pool.submit(lambda: tm.trigger("d"))
            with pytest.raises(TimeoutError):
                triggering.result(0.5)  # it waits for the job that stands for the run
            held.may_go_on.set()
        second = triggering.result(PATIENCE)
    with database.transaction(write=False) as tx:
        run = workflows.find(tx, first.id)
    assert run is not None
    assert run.is_stopped
    assert str(second.state) == "pending"


def test_a_run_that_ends_while_it_is_cancelled_has_ended_as_it_was(tm: TimeManagement) -> None:
    database = tm.installation.database
    run = start(tm, [{"name": "a", "task": "effect"}])
    [body] = running(tm)
    held = Held(database, "UPDATE tm_occurrence")  # with the last step the run is over, and it has its lock
    with ThreadPoolExecutor(1) as pool:
        with held.at_work(lambda: recorder.record_success(tm.installation, body, 1)):
            cancelling = pool.submit(lambda: database.run(lambda tx: preemption.make_room(tx, [run], reason="newer")))
            with pytest.raises(TimeoutError):
                cancelling.result(0.5)  # it waits for the run
            held.may_go_on.set()
        cancelling.result(PATIENCE)
    assert outcome_of(tm, run) == ("completed", 1)


def test_two_beats_start_a_run_once(tm: TimeManagement) -> None:
    id = defer(workflow(group_of(5), on_complete="effect"), app=tm.installation.app).id
    [root] = claimed(tm)
    results = at_once(*[lambda: expand(tm.installation, root)] * THREADS)
    assert sorted(results) == [False] * (THREADS - 1) + [True]
    with tm.installation.database.transaction(write=False) as tx:
        assert len(jobs.of_occurrence(tx, id)) == 6


def test_one_attempt_is_ended_by_one_of_many(tm: TimeManagement) -> None:
    run = start(tm, [{"name": "a", "task": "effect"}, {"name": "b", "task": "effect"}])
    [body] = running(tm)

    def end() -> bool:
        try:
            recorder.record_success(tm.installation, body, 1)
        except LeaseLost:
            return False
        return True

    assert sorted(at_once(*[end] * THREADS)) == [False] * (THREADS - 1) + [True]
    finish(tm)
    assert outcome_of(tm, run) == ("completed", 1)
