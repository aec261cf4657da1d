"""Old rows go, what is owed stays, by the built-in recurring job, on every database."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import create_engine, delete, func, select, text
from tmtest.ledger import NOON, add, plan, rows
from tmtest.said import listening

from celery_tm import TimeManagement, defer, workflow
from celery_tm.domain.occurrence import Occurrence, OccurrenceState
from celery_tm.errors import DatabaseBusy
from celery_tm.installation import Installation
from celery_tm.recovery import pruner
from celery_tm.recovery.pruner import Pruned, prune
from celery_tm.scheduler.seeding import PRUNE, Seeder
from celery_tm.settings import Settings
from celery_tm.store import logs, occurrences, retention, tables
from celery_tm.store.retention import remove_old
from celery_tm.testing import MovableClock


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


@pytest.fixture(autouse=True)
def keeps_none(request: pytest.FixtureRequest, app: Celery) -> None:
    """Only tests that are about the newest of each kind keep them."""
    if "newest_of_each" not in request.node.name:
        object.__setattr__(Installation.of(app).settings, "tm_keep_last", 0)


def count(tm: TimeManagement, table: str) -> int:
    with tm.installation.database.transaction(write=False) as tx:
        return int(tx.execute(select(func.count()).select_from(tables.metadata.tables[table])).scalar_one())


def a_past(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    """Leave rows of every kind behind."""
    add(tm, overlap="allow")
    for _ in range(3):
        noon.forward("1m")
        tm.run_due_jobs()
    defer(app.tasks["reports"].s("success"), key="k", concurrency_key="lane")
    defer(app.tasks["fails"].s(1), max_retries=0)
    tm.run_due_jobs()
    tm.definitions.remove("tick")


def test_what_is_older_than_its_retention_goes(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    a_past(tm, app, noon)
    assert count(tm, "tm_execution") == 5
    noon.forward("29d")
    pruned = tm.prune()
    assert (pruned.keys, pruned.lanes, pruned.executions, pruned.logs) == (1, 1, 0, 0)
    noon.forward("2d")
    assert tm.prune().logs == 1
    noon.forward("90d")
    pruned = tm.prune()
    assert (pruned.executions, pruned.occurrences, pruned.audit) == (5, 3, 0)
    noon.forward("365d")
    assert tm.prune().audit > 0
    assert {table: count(tm, table) for table in ("tm_execution", "tm_occurrence", "tm_log", "tm_key", "tm_lane")} == {
        "tm_execution": 0,
        "tm_occurrence": 0,
        "tm_log": 0,
        "tm_key": 0,
        "tm_lane": 0,
    }
    assert count(tm, "tm_dead_letter") == 1


def test_what_is_still_owed_is_never_pruned(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    add(tm, schedule="0 0 * * *", recovery="last")
    job = defer(app.tasks["fails"].s(1), max_retries=5)
    tm.run_due_jobs()
    noon.forward("12h")
    plan(tm)
    owed_before = count(tm, "tm_job")
    noon.forward("400d")
    tm.prune()
    assert count(tm, "tm_job") == owed_before
    assert tm.job(job.id).attempt_count == 1
    assert [str(row.state) for row in rows(tm)] == ["pending"]


def test_pruning_goes_in_small_steps_and_stops_when_its_time_is_over(
    tm: TimeManagement, app: Celery, noon: MovableClock
) -> None:
    a_past(tm, app, noon)
    noon.forward("200d")
    database, settings = tm.installation.database, tm.settings
    assert prune(database, settings, seconds=0).finished is False
    assert count(tm, "tm_execution") == 5
    pruned = prune(database, settings, batch=2)
    assert (pruned.executions, pruned.finished) == (5, True)


def test_a_pruned_ledger_decides_nothing_again(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule="0 */6 * * *", recovery="skip")
    noon.forward("25h")
    plan(tm)
    noon.forward("100d")
    plan(tm)
    tm.prune()
    before = rows(tm)
    plan(tm)
    assert rows(tm) == before
    assert before[0].scheduled_at > NOON + timedelta(days=9)


def test_the_built_in_job_prunes_daily(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    a_past(tm, app, noon)
    app.conf.result_expires = None
    Seeder(tm.installation).seed_once()
    noon.forward("100d")
    while tm.run_due_jobs().succeeded:
        pass
    assert count(tm, "tm_key") == 0
    [run] = tm.history(PRUNE)
    assert str(run.outcome) == "succeeded"


# Beside locks of others


@contextmanager
def locking(tm: TimeManagement, statement: str) -> Iterator[None]:
    """Hold locks as a stranger for the time of a block."""
    database = tm.installation.database
    if not database.dialect.skips_locked:
        pytest.skip("this database has no locks of rows")
    engine = create_engine(database.url)
    with engine.connect() as other, other.begin():
        other.execute(text(statement)).close()
        yield
    engine.dispose()


KEPT = {  # what a lock on the rows of a table keeps from being pruned
    "tm_execution": {"executions": 1},
    "tm_occurrence": {"occurrences": 1},
    "tm_step": {"steps": 1, "runs": 1},
    "tm_workflow": {"steps": 3, "runs": 1},
    "tm_key": {"keys": 1},
    "tm_lane": {"lanes": 1},
    "tm_log": {"logs": 1},
    "tm_audit": {"audit": 1},
}


@pytest.mark.parametrize("table", KEPT)
def test_a_row_that_somebody_has_locked_holds_up_no_other(
    tm: TimeManagement, app: Celery, noon: MovableClock, table: str
) -> None:
    a_past(tm, app, noon)
    defer(workflow(STEPS), app=app)
    tm.run_due_jobs()
    with tm.installation.database.transaction() as tx:
        tx.execute(delete(tables.occurrence).where(tables.occurrence.c.definition == "deferred"))
    noon.forward("1000d")
    everything = Pruned(executions=9, occurrences=3, steps=3, runs=1, logs=1, keys=1, lanes=1, audit=count(tm, "tm_audit"))
    tm.installation.database.limit_waiting(1)
    left = KEPT[table]
    with locking(tm, f"SELECT * FROM {table} LIMIT 1 FOR UPDATE"):
        begun = time.monotonic()
        pruned = prune(tm.installation.database, tm.settings, batch=2)
        assert time.monotonic() - begun < 10
    assert pruned == replace(everything, **{kind: getattr(everything, kind) - some for kind, some in left.items()})
    later = tm.prune()
    assert {kind: getattr(later, kind) for kind in left} == left


def test_a_kind_of_row_that_cannot_be_pruned_holds_up_no_other_and_is_reported(
    tm: TimeManagement, app: Celery, noon: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_past(tm, app, noon)
    noon.forward("1000d")

    def fail(_: Any) -> Any:
        raise DatabaseBusy("somewhere", "lock timeout")

    with monkeypatch.context() as patch:
        patch.setitem(retention._OLD, "executions", fail)  # type: ignore[index]
        with pytest.raises(DatabaseBusy, match="lock timeout"):
            tm.prune()
    tables_left = {table: count(tm, table) for table in ("tm_execution", "tm_occurrence", "tm_log", "tm_key", "tm_audit")}
    assert tables_left == {"tm_execution": 5, "tm_occurrence": 0, "tm_log": 0, "tm_key": 0, "tm_audit": 0}


# By number


def keeping(tm: TimeManagement, **rows: int) -> Settings:
    return replace(tm.settings, tm_keep_rows=rows)


def test_the_built_in_job_goes_on_while_there_is_more(
    tm: TimeManagement, app: Celery, noon: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    defer(app.tasks["effect"].s(1))
    tm.run_due_jobs()
    noon.forward(tm.settings.tm_keep_executions + timedelta(days=1))
    defer("celery_tm.prune", app=app)
    with monkeypatch.context() as patch:
        patch.setattr(pruner, "PASS", 0.0)
        tm.run_due_jobs()
        assert [job.task for job in tm.jobs()] == ["celery_tm.prune"], "another pass follows"
    assert "effect" in recorded(tm)
    tm.run_due_jobs()
    assert "effect" not in recorded(tm)
    assert tm.jobs() == []


def recorded(tm: TimeManagement) -> set[str]:
    with tm.installation.database.transaction(write=False) as tx:
        return set(tx.execute(select(tables.execution.c.task)).scalars())


def test_the_newest_so_many_are_kept(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, overlap="allow")
    for _ in range(10):
        noon.forward("1m")
        tm.run_due_jobs()
    database = tm.installation.database
    before = [one.id for one in tm.history("tick")]
    pruned = prune(database, keeping(tm, executions=4, occurrences=3, audit=100, logs=5), batch=2)
    assert (pruned.executions, pruned.occurrences, pruned.audit, pruned.finished) == (6, 7, 0, True)
    assert pruned.by_count == {"executions": 6, "occurrences": 7}
    assert [one.id for one in tm.history("tick")] == before[:4]
    assert [row.scheduled_at for row in rows(tm)] == [NOON + timedelta(minutes=n) for n in (8, 9, 10)]
    assert prune(database, keeping(tm, executions=4, occurrences=3)).by_count == {}
    noon.forward("91d")
    pruned = prune(database, keeping(tm, executions=2))
    assert (pruned.executions, pruned.by_count) == (4, {}), "too old comes before too many"


def test_lines_are_kept_by_number_too(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm)
    for n in range(5):
        noon.forward("1s")
        tm.pause("tick", reason=str(n))
        tm.resume("tick", reason=str(n))
        with tm.installation.database.transaction() as tx:
            logs.write(tx, "execution", "INFO", str(n))
    pruned = prune(tm.installation.database, keeping(tm, audit=3, logs=2))
    assert pruned.by_count == {"audit": 7, "logs": 3}, "what is of the same instant as the last one stays"
    assert [line.reason for line in tm.audit()] == ["4", "4", "3", "3"]
    assert [line.message for line in tm.log("execution")] == ["3", "4"]


def test_what_is_owed_or_has_a_dead_letter_is_kept_whatever_the_number(
    tm: TimeManagement, app: Celery, noon: MovableClock
) -> None:
    add(tm, task="fails", max_retries=0, overlap="allow", schedule="0 0 1 1 *")
    tm.trigger("tick")
    owed = defer(app.tasks["fails"].s(1), delay="1s", max_retries=5, retry={"kind": "fixed", "delay": "1h"})
    noon.forward("1s")
    tm.run_due_jobs()
    for n in range(3):
        defer(app.tasks["effect"].s(n), delay="1s")
        noon.forward("1s")
        tm.run_due_jobs(limit=1)
    add(tm, name="later", overlap="allow", schedule="0 0 1 1 *")
    for _ in range(3):
        noon.forward("1s")
        tm.trigger("later")
        tm.run_due_jobs()
    pruned = prune(tm.installation.database, keeping(tm, executions=1, occurrences=1))
    assert (pruned.occurrences, len(rows(tm, "later"))) == (2, 1), "those between the kept one and the newest"
    assert (len(tm.dead_letters.list()), len(rows(tm))) == (1, 1)
    assert tm.job(owed.id).attempt_count == 1
    noon.forward("200d")
    assert (prune(tm.installation.database, tm.settings).occurrences, len(rows(tm))) == (1, 1), "nor for its age"


def test_runs_go_with_their_occurrences_by_number_too(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    for _ in range(4):
        noon.forward("1m")
        defer(workflow(STEPS), app=app)
        noon.forward("1m")
        tm.run_due_jobs()
    pruned = prune(tm.installation.database, keeping(tm, occurrences=1), batch=2)
    assert pruned.by_count == {"occurrences": 3, "steps": 9, "runs": 3}
    assert counts(tm) == (1, 3, 1)


# Runs of workflows

STEPS = [{"name": "a", "task": "effect"}, [{"name": "b", "task": "effect"}, {"name": "c", "task": "effect"}]]
RUNS = ("tm_workflow", "tm_step", "tm_occurrence")


def counts(tm: TimeManagement) -> tuple[int, ...]:
    return tuple(count(tm, table) for table in RUNS)


def test_runs_go_with_their_occurrences(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    tm.definitions.add(name="etl", schedule="0 3 * * *", steps=STEPS)
    tm.trigger("etl")
    defer(workflow(STEPS, on_complete="effect"), app=app, key="k")  # its occurrence has no definition
    tm.run_due_jobs()
    assert counts(tm) == (2, 6, 2)
    noon.forward("89d")
    assert (tm.prune().runs, *counts(tm)) == (0, 2, 6, 2)
    noon.forward("2d")
    pruned = tm.prune()
    assert (pruned.occurrences, pruned.steps, pruned.runs) == (2, 6, 2)
    assert (count(tm, "tm_workflow"), count(tm, "tm_step")) == (0, 0)


def test_runs_go_in_small_steps(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    for _ in range(3):
        defer(workflow(STEPS), app=app)
    tm.run_due_jobs()
    noon.forward("91d")
    database, settings = tm.installation.database, tm.settings
    assert database.run(lambda tx: remove_old(tx, "steps", settings.tm_keep_executions, limit=100)) == 0  # not before
    assert database.run(lambda tx: remove_old(tx, "occurrences", settings.tm_keep_executions, limit=2)) == 2
    assert database.run(lambda tx: remove_old(tx, "runs", settings.tm_keep_executions, limit=100)) == 0  # steps are left
    assert database.run(lambda tx: remove_old(tx, "steps", settings.tm_keep_executions, limit=4)) == 4
    assert database.run(lambda tx: remove_old(tx, "runs", settings.tm_keep_executions, limit=100)) == 1
    assert counts(tm) == (2, 5, 1)
    pruned = prune(database, settings, batch=2)
    assert (pruned.occurrences, pruned.steps, pruned.runs, counts(tm)) == (1, 5, 2, (0, 0, 0))


def test_a_run_that_is_going_on_or_has_a_dead_letter_is_kept(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    broken = [{"name": "a", "task": "effect"}, {"name": "b", "task": "fails", "max_retries": 0}]
    slow = [{"name": "a", "task": "effect"}, {"name": "b", "task": "fails", "max_retries": 5}]
    failed, running = (defer(workflow(steps), app=app) for steps in (broken, slow))
    defer(workflow(STEPS), app=app)
    tm.run_due_jobs()
    noon.forward("400d")
    pruned = tm.prune()
    assert (pruned.occurrences, pruned.steps, pruned.runs) == (1, 3, 1)
    assert [step["state"] for step in tm.report(running.id)["steps"]] == ["succeeded", "owed"]
    [letter] = tm.dead_letters.list()
    tm.dead_letters.revive(letter.id)  # which needs the steps of its run
    tm.run_due_jobs()
    assert counts(tm) == (3, 6, 3)
    assert tm.report(failed.id)["state"] == "failed"


def test_a_replay_of_a_run_that_was_pruned_meanwhile_is_a_dead_letter_that_says_so(
    tm: TimeManagement, app: Celery, noon: MovableClock
) -> None:
    run = defer(workflow(STEPS), app=app)
    tm.run_due_jobs()
    noon.forward("91d")
    tm.replay(run.id, step="b", reason="again")
    database, age = tm.installation.database, tm.settings.tm_keep_executions
    database.run(lambda tx: remove_old(tx, "occurrences", age, limit=100))
    database.run(lambda tx: remove_old(tx, "steps", age, limit=1))
    for _ in range(5):
        tm.run_due_jobs()
        noon.forward("1d")
    [letter] = tm.dead_letters.list()
    assert f"the run {run.id} was pruned" in str(letter.last_error)


# The newest of each kind


def write(tm: TimeManagement, count: int, *, task: str, definition: str | None = None, days: float, source: str) -> None:
    """Record executions, one a minute, the last one so many days ago."""
    last = NOON - timedelta(days=days)
    base = {"task": task, "definition": definition, "source": source, "attempt": 1, "outcome": "succeeded"}
    made = [
        {"id": str(uuid.uuid4()), "job": str(uuid.uuid4()), "completed_at": last - timedelta(minutes=n), **base}
        for n in range(count)
    ]
    with tm.installation.database.transaction() as tx:
        tx.insert_all(tables.execution, made)


def left(tm: TimeManagement, **by: str) -> int:
    wanted = [tables.execution.c[name] == value for name, value in by.items()]
    with tm.installation.database.transaction(write=False) as tx:
        return int(tx.execute(select(func.count()).select_from(tables.execution).where(*wanted)).scalar_one())


def test_the_newest_of_each_task_and_definition_are_kept_however_old_they_are(tm: TimeManagement) -> None:
    write(tm, 120, task="shop.expire_payment", days=400, source="deferred")
    write(tm, 70, task="shop.pay", days=200, source="direct")
    write(tm, 60, task="report", definition="yearly", days=800, source="scheduled")
    write(tm, 200, task="report", definition="hourly", days=100, source="scheduled")
    write(tm, 3, task="rare", days=3000, source="deferred")
    write(tm, 10, task="shop.pay", days=1, source="direct")
    pruned = prune(tm.installation.database, tm.settings, batch=7)
    kinds = {"shop.expire_payment": 50, "shop.pay": 50, "rare": 3, "report": 100}
    assert {task: left(tm, task=task) for task in kinds} == kinds
    assert (left(tm, definition="yearly"), left(tm, definition="hourly")) == (50, 50)
    assert (pruned.executions, pruned.finished) == (120 + 80 + 260 + 3 - sum(kinds.values()), True)
    found = tm.history(task="shop.expire_payment", limit=50)
    assert len(found) == 50
    assert found[0].completed_at == NOON - timedelta(days=400), "the newest ones"
    assert prune(tm.installation.database, tm.settings, batch=7).executions == 0


def test_how_many_of_the_newest_of_each_are_kept_is_a_setting_and_a_limit_of_rows_goes_before(tm: TimeManagement) -> None:
    write(tm, 30, task="a", days=400, source="deferred")
    write(tm, 30, task="b", days=100, source="deferred")
    assert prune(tm.installation.database, replace(tm.settings, tm_keep_last=20)).executions == 20
    assert (left(tm, task="a"), left(tm, task="b")) == (20, 20)
    pruned = prune(tm.installation.database, replace(tm.settings, tm_keep_last=20, tm_keep_rows={"executions": 25}))
    assert pruned.by_count == {"executions": 15}
    assert (left(tm, task="a"), left(tm, task="b")) == (5, 20)
    assert prune(tm.installation.database, replace(tm.settings, tm_keep_last=0)).executions == 25


def test_what_is_kept_as_the_newest_of_each_is_passed_once_and_found_by_index(tm: TimeManagement) -> None:
    for n in range(20):
        write(tm, 60, task=f"task{n}", days=300 + n, source="deferred")
    write(tm, 3000, task="busy", days=91, source="deferred")
    write(tm, 60, task="busy", days=0, source="deferred")
    database = tm.installation.database
    with database.engine.begin() as connection:
        connection.execute(text(f"ANALYZE {'TABLE ' if database.dialect.name == 'mysql' else ''}tm_execution"))
    with listening(database) as said:
        pruned = prune(database, tm.settings, batch=500)
    assert pruned.executions == 20 * 10 + 3000
    asked = [one for one in said.statements if one[0].startswith("SELECT") and "tm_execution" in one[0]]
    edges = [one for one in asked if "tm_execution.task = " in one[0]]
    assert len(edges) == 21, "one look for each task"
    walked = [one for one in asked if "NOT (EXISTS" in one[0]]
    assert len(walked) == (20 * 60 + 3000) // 500 + 1, "each old row is looked at once"
    for scans in (edges[0], walked[-1]):
        assert [told for _, told in whole_scans(tm, [scans]) if "tm_execution" in told] == []


RECENT = 5_000


def crowd(tm: TimeManagement) -> None:
    """Write many recent runs, and tell the database how many there are."""
    database = tm.installation.database
    with database.transaction() as tx:
        now = tx.read_now()
        ids = [str(uuid.uuid4()) for _ in range(RECENT)]
        base = Occurrence(id="", definition="deferred", version=0, scheduled_at=now, state=OccurrenceState.RUNNING)
        occurrences.insert_many(tx, [replace(base, id=id) for id in ids])
        run = {"attempt": 1, "remaining": [1], "settings": {}, "created_at": now}
        tx.insert_all(tables.workflow, [{"id": id, "job": id, **run} for id in ids])
        step = {"name": "a", "number": 1, "task": "effect", "args": "[]", "kwargs": "{}", "settings": {}, "feeds": "0"}
        step |= {"regardless": False, "state": "owed", "attempts": 0}
        tx.insert_all(tables.step, [{"workflow": id, "job": id, **step} for id in ids])
    with database.engine.begin() as connection:
        for table in RUNS:
            connection.execute(text(f"ANALYZE {'TABLE ' if database.dialect.name == 'mysql' else ''}{table}"))


def test_old_runs_are_found_by_index(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    for _ in range(2):
        defer(workflow(STEPS), app=app)
    tm.run_due_jobs()
    noon.forward("91d")
    crowd(tm)
    with listening(tm.installation.database) as said:
        pruned = tm.prune()
    assert (pruned.occurrences, pruned.steps, pruned.runs) == (2, 6, 2)
    asked = [one for one in said.statements if "tm_workflow" in one[0] or "tm_step" in one[0]]
    assert len(asked) == 5  # two questions, one deletion of steps for each run, one of runs
    assert whole_scans(tm, asked) == []
    assert whole_scans(tm, [("SELECT * FROM tm_workflow WHERE stopped_by = 'x'", ())]) != []  # one would be seen


def whole_scans(tm: TimeManagement, asked: list[tuple[str, Any]]) -> list[Any]:
    """Return where the database would look at every run, or at every step."""
    name = tm.installation.database.dialect.name
    found = []
    with tm.installation.database.engine.connect() as connection:
        for statement, parameters in asked:
            plan = "EXPLAIN QUERY PLAN" if name == "sqlite" else "EXPLAIN"
            for row in connection.exec_driver_sql(f"{plan} {statement}", parameters).mappings():
                told = " ".join(map(str, row.values()))
                whole = row["type"] == "ALL" if name == "mysql" else "Seq Scan on tm_" in told
                if whole or ("SCAN tm_" in told and "INDEX" not in told):
                    found.append((statement, told))
    return found


def test_the_newest_of_each_definition_s_occurrences_are_kept_however_old_they_are(
    tm: TimeManagement, noon: MovableClock
) -> None:
    settings = replace(tm.settings, tm_keep_last=2)
    add(tm, name="quarterly", schedule="0 0 1 */3 *")
    add(tm, name="ahead", schedule="0 0 1 */3 *", plan_ahead="1000d")
    add(tm, name="gone", schedule="0 0 1 */3 *")
    for _ in range(5):
        noon.forward("92d")
        tm.run_due_jobs()
    kept = {
        name: [one.id for one in tm.occurrences(name) if one.state == "completed"][:2] for name in ("quarterly", "ahead")
    }
    tm.definitions.remove("gone")
    noon.forward("91d")
    assert prune(tm.installation.database, settings, batch=2).finished
    found = {name: [one.id for one in tm.occurrences(name) if one.state == "completed"] for name in kept}
    assert (found, kept) == (kept, found)
    with tm.installation.database.transaction(write=False) as tx:
        known = select(tables.definition.c.id)
        left = select(func.count()).where(tables.occurrence.c.definition.not_in(known))
        assert tx.execute(left).scalar_one() == 0, "of a definition that is gone nothing is read"
    assert prune(tm.installation.database, settings, batch=2).occurrences == 0
    assert prune(tm.installation.database, replace(settings, tm_keep_last=0)).occurrences == 4


def test_the_newest_of_each_are_what_last_run_at_and_pause_after_go_by(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, name="failing", task="fails", args=[1], schedule="0 0 1 */3 *", pause_after=3, max_retries=0)
    add(tm, name="running", schedule="0 0 1 */3 *")
    for _ in range(3):
        noon.forward("92d")
        prune(tm.installation.database, tm.settings)
        tm.run_due_jobs()
    assert tm.definitions.get("failing").paused
    noon.forward("92d")
    prune(tm.installation.database, tm.settings)
    tm.run_due_jobs()
    last = tm.occurrences("running")[0]
    with tm.installation.database.transaction(write=False) as tx:
        assert occurrences.last_success(tx, last) is not None
