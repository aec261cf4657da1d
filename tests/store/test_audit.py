"""Who changed what, on every database: background work as SYSTEM, people by name, in the transaction of the change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from celery import Celery

from celery_tm import TimeManagement, cancel, clock, defer, workflow
from celery_tm.recovery.reaper import reap
from celery_tm.recovery.sweeper import sweep
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import admission, audit
from celery_tm.store.database import Database
from celery_tm.testing import MovableClock

HOUR = timedelta(hours=1)


def lines(database: Database, id: str, kind: str = "job") -> list[tuple[str, str]]:
    with database.transaction(write=False) as tx:
        return [(line["action"], line["actor"]) for line in audit.lines(tx, f"{kind}:{id}")]


def test_background_work_is_audited_as_system(app: Celery, tm: TimeManagement, database: Database) -> None:
    handle = defer(app.tasks["effect"].s(1), max_retries=0)
    with database.transaction() as tx:
        assert admission.admit(tx, handle.id, 1, worker="w", lease=HOUR)
    with clock.moved_to(datetime.now(UTC) + 2 * HOUR):
        sweep(database, default=tm.installation.default_policy, limit=10)
    assert lines(database, handle.id) == [("sweep", "SYSTEM"), ("bury", "SYSTEM")]


def test_people_are_audited_by_name(app: Celery, tm: TimeManagement, database: Database) -> None:
    handle = defer(app.tasks["fails"].s(1), delay=0.001, max_retries=0)
    now = datetime.now(UTC) + HOUR
    tm.run_due_jobs(now=now)
    tm.dead_letters.revive(handle.id, actor="ann", reason="mended")
    cancel(id=handle.id, app=app, actor="bob")
    assert lines(database, handle.id) == [("cancel", "bob"), ("revive", "ann"), ("bury", "SYSTEM")]
    gone = defer(app.tasks["fails"].s(2), delay=0.001, max_retries=0)
    tm.run_due_jobs(now=now)
    assert tm.dead_letters.purge(gone.id, actor="cy") == 1
    assert lines(database, gone.id)[0] == ("purge", "cy")


def test_a_dead_letter_whose_key_was_taken_stays(app: Celery, tm: TimeManagement) -> None:
    import pytest

    from celery_tm.errors import DuplicateKey

    buried = defer(app.tasks["fails"].s(1), delay=0.001, max_retries=0, key="k")
    tm.run_due_jobs(now=datetime.now(UTC) + HOUR)
    assert defer(app.tasks["fails"].s(1), delay=HOUR, key="k").created
    with pytest.raises(DuplicateKey):
        tm.dead_letters.revive(buried.id)
    assert [letter.id for letter in tm.dead_letters.list()] == [buried.id]
    assert tm.dead_letters.revive_all() == 0


def test_what_is_done_to_runs_is_audited(app: Celery, tm: TimeManagement, database: Database, noon: MovableClock) -> None:
    steps = [{"name": "a", "task": "effect"}, {"name": "b", "task": "fails", "max_retries": 0}]
    tm.definitions.add(name="etl", schedule="@daily", steps=steps, execution_timeout="1h", overlap="allow", actor="ann")
    run = tm.trigger("etl", actor="ann", reason="try it")
    tm.run_due_jobs()
    [letter] = tm.dead_letters.list()
    assert lines(database, letter.id) == [("bury", "SYSTEM")]  # by a worker that no person stands behind
    tm.replay(run.id, step="a", actor="bob", reason="again")
    assert lines(database, run.id, "occurrence") == [("replay", "bob")]
    tm.dead_letters.revive(letter.id, actor="cy")
    assert lines(database, letter.id) == [("revive", "cy"), ("bury", "SYSTEM")]
    assert lines(database, run.id, "occurrence") == [("replay", "cy"), ("replay", "bob")]
    late = tm.trigger("etl")
    dispatcher = Dispatcher(tm.installation, "beat")
    dispatcher.expand(dispatcher.claim(10)[1])
    noon.forward("2h")
    reap(database, limit=10)
    assert ("reap", "SYSTEM") in lines(database, late.id, "occurrence")
    other = defer(workflow(steps), app=app, delay="1h")
    cancel(id=other.id, app=app, actor="bob")
    assert lines(database, other.id) == [("cancel", "bob")]
    assert lines(database, "etl", "definition") == [("trigger", "SYSTEM"), ("trigger", "ann"), ("add", "ann")]
