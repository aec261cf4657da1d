"""Everything that is written is told once, after its commit: each row of the ledger has one event, however it came to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import select
from sqlalchemy.orm import Session
from tmtest.app import make_app
from tmtest.ledger import NOON, add, claim, plan, start

from celery_tm import TimeManagement, cancel, defer, defer_many, events, workflow
from celery_tm.domain.execution import Failure
from celery_tm.errors import LeaseLost
from celery_tm.publisher import hand_over
from celery_tm.recovery.reaper import reap
from celery_tm.recovery.sweeper import sweep
from celery_tm.store import jobs, tables
from celery_tm.testing import MovableClock
from celery_tm.worker import recorder, release

ENDS = ("execution_completed", "execution_failed", "execution_given_back", "job_cancelled")


class Heard(list[tuple[str, dict[str, Any]]]):
    """What was told, in order."""

    def of(self, *names: str) -> list[dict[str, Any]]:
        return [values for name, values in self if name in names]

    def ends(self) -> Counter[tuple[str, str]]:
        return Counter((one["execution"], one.get("outcome", "succeeded")) for one in self.of(*ENDS))


@pytest.fixture
def heard() -> Iterator[Heard]:
    found = Heard()

    def hear(signal: Any, sender: Any, **values: Any) -> None:
        found.append((signal.name, values))

    for signal in events.SIGNALS.values():
        signal.connect(hear, weak=False, dispatch_uid="heard")
    yield found
    for signal in events.SIGNALS.values():
        signal.disconnect(dispatch_uid="heard")


@pytest.fixture(autouse=True)
def at_noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def recorded(tm: TimeManagement) -> Counter[tuple[str, str]]:
    execution = tables.execution
    with tm.installation.database.transaction(write=False) as tx:
        return Counter((row.id, row.outcome) for row in tx.execute(select(execution.c.id, execution.c.outcome)))


def named(app: Celery, name: str) -> Any:
    return app.tasks[name]


def test_every_execution_is_told_once_however_it_ended(
    tm: TimeManagement, app: Celery, at_noon: MovableClock, heard: Heard
) -> None:
    effect, fails = named(app, "effect"), named(app, "fails")
    add(tm, name="each minute", max_runs=1)
    done, failed, vanished, stopped, taken_back, late, given_back = (
        defer(task.s(n), delay="1m", **options).id
        for n, (task, options) in enumerate(
            [(effect, {}), (fails, {}), (effect, {}), (effect, {}), (effect, {}), (effect, {"expires": "2m"}), (effect, {})]
        )
    )
    plain = defer(named(app, "plain").s(), delay="1m").id
    defer_many([named(app, "chunked").s(n) for n in range(3)], delay="1m")
    defer(workflow([{"task": "effect", "name": "a"}, {"task": "fails", "name": "b", "max_retries": 0}]), delay="1m", app=app)
    cancel(id=taken_back, app=app)
    at_noon.forward("1m")
    tm.run_due_jobs(limit=2)  # some of them as a worker would
    plan(tm)
    claim(tm)
    with tm.installation.database.transaction(write=False) as tx:
        hand_over(tm.installation, [job for job in [jobs.find(tx, plain)] if job])
    for id, end in {
        done: lambda job: recorder.record_success(tm.installation, job, 1),
        failed: lambda job: recorder.record_failure(tm.installation, job, Failure(error="E")),
        vanished: lambda job: at_noon.forward("5m"),
        stopped: lambda job: recorder.record_cancelled(tm.installation, job),
        given_back: lambda job: release.record_handed_back(tm.installation, [(job.id, 1)], "it stops", workers={"worker"}),
    }.items():
        job = start(tm, id)
        if job is not None:  # else it has run above
            end(job)
    start(tm, late)  # refused: it has expired by now
    sweep(tm.installation.database, default=tm.installation.default_policy, limit=100)
    for _ in range(8):
        at_noon.forward("3h")
        tm.run_due_jobs()
    assert tm.jobs() == []
    assert heard.ends() == recorded(tm)
    assert set(heard.ends().values()) == {1}
    outcomes = {outcome for _, outcome in heard.ends()}
    assert outcomes == {"succeeded", "failed", "orphaned", "cancelled", "expired", "interrupted"}
    assert len(heard.of("job_buried")) == len(tm.dead_letters.list())
    assert {one["definition"] for one in heard.of("execution_completed")} == {None, "each minute"}
    assert {one["step"] for one in heard.of("execution_completed", "execution_failed")} == {None, "a", "b"}
    assert [one["state"] for one in heard.of("run_ended")] == ["failed"]
    assert len(heard.of("run_started")) == 1


def test_what_is_rolled_back_is_not_told(tm: TimeManagement, app: Celery, at_noon: MovableClock, heard: Heard) -> None:
    id = defer(named(app, "effect").s(1), delay="1m").id
    at_noon.forward("1m")
    claim(tm)
    job = start(tm, id)
    at_noon.forward("1h")
    sweep(tm.installation.database, default=tm.installation.default_policy, limit=10)
    heard.clear()
    with pytest.raises(LeaseLost):
        recorder.record_success(tm.installation, job, 1)
    assert heard == []


def test_what_is_deferred_in_a_callers_transaction_is_told_when_that_commits(
    tm: TimeManagement, app: Celery, heard: Heard
) -> None:
    with Session(tm.installation.database.engine) as session:
        defer(named(app, "effect").s(1), delay="1m", session=session)
        session.rollback()
        handle = defer(named(app, "effect").s(2), delay="1m", session=session)
        assert heard.of("jobs_deferred") == []
        session.commit()
    assert heard.of("jobs_deferred") == [{"task": "effect", "count": 1, "job": handle.id}]


def test_many_deferred_at_once_are_one_event_for_each_task(tm: TimeManagement, app: Celery, heard: Heard) -> None:
    defer_many([named(app, "effect").s(1), named(app, "fails").s(1), named(app, "effect").s(2)], delay="1m")
    counts = {one["task"]: (one["count"], one["job"]) for one in heard.of("jobs_deferred")}
    assert counts == {"effect": (2, None), "fails": (1, None)}


def test_an_attempt_that_starts_says_how_long_it_has_waited(
    tm: TimeManagement, app: Celery, at_noon: MovableClock, heard: Heard
) -> None:
    id = defer(named(app, "effect").s(1), delay="1m").id
    at_noon.forward("90s")
    claim(tm)
    start(tm, id)
    [started] = heard.of("execution_started")
    assert (started["job"], started["attempt"], started["waited"]) == (id, 1, 30.0)


def test_instants_that_do_not_run_are_told_by_definition_and_state(
    tm: TimeManagement, at_noon: MovableClock, heard: Heard
) -> None:
    add(tm, name="missed", recovery="skip")
    add(tm, name="paused")
    tm.pause("paused")
    at_noon.forward("10m")
    plan(tm)
    ended = Counter()
    for one in heard.of("occurrence_ended"):
        ended[one["definition"], one["state"]] += one["count"]
    assert ended == {("missed", "missed"): 9, ("paused", "skipped"): 10}


def test_a_recovered_run_says_so_when_it_ends(tm: TimeManagement, at_noon: MovableClock, heard: Heard) -> None:
    add(tm, name="caught up", recovery="last")
    at_noon.forward("9m 30s")
    tm.run_due_jobs()
    ended = Counter((one["state"], one["is_recovery"]) for one in heard.of("occurrence_ended") for _ in range(one["count"]))
    assert ended[("coalesced", False)] == 8
    assert ended[("completed", True)] == 1


def test_an_occurrence_that_ran_too_long_is_told_as_stale(tm: TimeManagement, at_noon: MovableClock, heard: Heard) -> None:
    add(tm, name="slow", execution_timeout="5m", max_runs=1)
    at_noon.forward("1m")
    plan(tm)
    [id] = claim(tm)
    start(tm, id)
    at_noon.forward("10m")
    reap(tm.installation.database, limit=10)
    assert [one["outcome"] for one in heard.of("execution_failed")] == ["timeout"]
    assert [(one["definition"], one["state"]) for one in heard.of("occurrence_ended")] == [("slow", "stale")]


def test_changes_that_people_make_are_told_with_who_and_why(tm: TimeManagement, app: Celery, heard: Heard) -> None:
    add(tm, actor="kim")
    tm.definitions.update("tick", version=1, schedule="*/5 * * * *", actor="lou", reason="too often")
    tm.pause("tick", actor="kim")
    tm.definitions.remove("tick")
    changes = [(one["name"], one["action"], one["version"], one["actor"]) for one in heard.of("definition_changed")]
    assert changes[0] == ("tick", "add", None, "kim")
    assert changes[1] == ("tick", "edit", 2, "lou")
    assert [change[1] for change in changes[2:]] == ["pause", "remove"]
    assert heard.of("definition_changed")[1]["reason"] == "too often"


def test_dead_letters_that_are_revived_and_purged_are_told(
    tm: TimeManagement, app: Celery, at_noon: MovableClock, heard: Heard
) -> None:
    ids = [defer(named(app, "fails").s(n), delay="1m", max_retries=0).id for n in range(4)]
    at_noon.forward("1m")
    tm.run_due_jobs()
    tm.dead_letters.revive(ids[0], actor="kim", reason="again")
    tm.dead_letters.purge(ids[1], actor="kim")
    tm.dead_letters.purge(all=True)
    assert heard.of("letter_revived") == [{"job": ids[0], "actor": "kim", "reason": "again"}]
    assert [(one["count"], one["job"]) for one in heard.of("letters_purged")] == [(1, ids[1]), (2, None)]


@pytest.mark.parametrize(("verbose", "level"), [(True, "INFO"), (False, "DEBUG")])
def test_with_tm_verbose_every_event_is_a_line_at_info(
    database_url: str, at_noon: MovableClock, caplog: pytest.LogCaptureFixture, verbose: bool, level: str
) -> None:
    app = make_app({"broker_url": "memory://", "tm_database_url": database_url, "tm_verbose": verbose})
    tm = TimeManagement(app)
    add(tm, task="effect")
    with caplog.at_level("DEBUG", logger="celery_tm"):
        at_noon.forward("1m")
        plan(tm)
        tm.run_due_jobs()
    tm.installation.database.dispose()
    told = {line.message.partition(" ")[0]: line.levelname for line in caplog.records if line.name == "celery_tm"}
    wanted = ("InstantsPlanned", "ExecutionStarted", "ExecutionCompleted", "OccurrenceEnded")
    assert {name: told.get(name) for name in wanted} == dict.fromkeys(wanted, level)
