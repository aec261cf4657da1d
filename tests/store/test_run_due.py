"""`run_due_jobs()` runs what is due now, also what was deferred without a delay, and nothing twice."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from sqlalchemy import create_engine, text, update
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session
from tmtest.ledger import add, claim

from celery_tm import Task, TimeManagement, cancel, defer, defer_many
from celery_tm.domain.job import Status
from celery_tm.management.inline import RunSummary
from celery_tm.store import tables
from celery_tm.store.dialects import with_driver
from celery_tm.testing import MovableClock
from celery_tm.worker import gate
from celery_tm.worker.lease import keeper_of


def test_what_is_deferred_without_a_delay_runs(app: Celery, tm: TimeManagement, effects: Path) -> None:
    handle = defer(app.tasks["effect"].s(1))
    assert [job.state for job in tm.jobs()] == ["dispatched"]
    assert tm.run_due_jobs().succeeded == 1
    assert effects.read_text().split() == ["effect", "1", handle.id, "1"]
    assert tm.run_due_jobs().claimed == 0


def test_one_round_does_all_that_beats_and_workers_would_and_counts_it(
    app: Celery, tm: TimeManagement, noon: MovableClock, effects: Path
) -> None:
    effect, fails, much_later = app.tasks["effect"], app.tasks["fails"], {"kind": "fixed", "delay": "5h"}
    add(tm, name="slow", task="fails", args=["slow"], schedule="0 0 1 1 *", execution_timeout="1h", retry=much_later)
    tm.trigger("slow")
    assert tm.run_due_jobs().retried == 1
    orphan = defer(effect.s("orphan"), delay="1s", retry=much_later)
    noon.forward("1s")
    assert claim(tm) == [orphan.id]
    assert gate.admit_job(tm.installation, orphan.id, 1, worker="worker:1").job is not None

    add(tm, args=["instant"], schedule="0 14 * * *")
    due = defer(effect.s("due"), delay="1h", key="due")
    defer(effect.s("later"), delay="3h")
    defer(effect.s("gone"), delay="1h", key="gone")
    defer(effect.s("too late"), delay="1h", expires="90m")
    defer(fails.s("again"), delay="1h", retry=much_later)
    defer(fails.s("over"), delay="1h", max_retries=0)
    assert cancel(key="gone", task=effect)
    noon.forward("2h")
    effects.write_text("")

    done = tm.run_due_jobs()
    told_of = 1  # that the instant has run for too long is told by a message of its own, which fails
    assert (done.planned, done.swept, done.claimed, done.expired) == (1, 2, 5 + told_of, 1)
    assert (done.succeeded, done.retried, done.failed, done.skipped) == (2, 1, 1 + told_of, 0)
    assert {line.split()[1] for line in effects.read_text().splitlines()} == {"again", "due", "instant", "over"}
    assert (due.state, due.result, tm.job(orphan.id).state) == (Status.SUCCEEDED, "due", Status.RETRY_SCHEDULED)
    assert [str(one.state) for one in tm.occurrences("slow")] == ["stale"]
    assert [str(one.state) for one in tm.occurrences("tick")] == ["completed"]
    assert tm.run_due_jobs() == RunSummary(), "all of it is done"


def test_the_message_that_was_published_for_it_is_refused_afterwards(app: Celery, tm: TimeManagement, effects: Path) -> None:
    handle = defer(app.tasks["effect"].s(1))
    tm.run_due_jobs()
    assert gate.admit_job(tm.installation, handle.id, 1, worker="worker:1").job is None
    assert len(effects.read_text().splitlines()) == 1


def test_what_a_worker_has_begun_is_left_to_it(app: Celery, tm: TimeManagement, effects: Path) -> None:
    handle = defer(app.tasks["effect"].s(1))
    assert gate.admit_job(tm.installation, handle.id, 1, worker="worker:1").job is not None
    assert tm.run_due_jobs().claimed == 0
    assert effects.read_text() == ""


def test_a_plain_task_that_was_published_is_not_run_here_too(app: Celery, tm: TimeManagement, effects: Path) -> None:
    defer(app.tasks["plain"].s(1))
    assert tm.run_due_jobs().claimed == 0
    assert effects.read_text() == ""


def test_no_more_than_the_limit_is_taken(app: Celery, tm: TimeManagement, effects: Path) -> None:
    defer_many([app.tasks["effect"].s(n) for n in range(5)])
    assert [tm.run_due_jobs(limit=2).succeeded for _ in range(4)] == [2, 2, 1, 0]
    assert len(set(effects.read_text().splitlines())) == 5


def test_what_commits_with_a_caller_s_session_runs(
    app: Celery, tm: TimeManagement, effects: Path, database_url: Any
) -> None:
    engine = create_engine(with_driver(make_url(database_url)))
    with Session(engine) as session:
        defer(app.tasks["effect"].s(1), session=session)
        session.commit()
    engine.dispose()
    assert tm.run_due_jobs().succeeded == 1
    assert len(effects.read_text().splitlines()) == 1


def test_a_server_that_was_just_started_gives_workers_the_time_of_a_lease(app: Celery, tm: TimeManagement) -> None:
    database = tm.installation.database
    up_for = database.up_for()
    handle = defer(app.tasks["effect"].s(1))
    assert gate.admit_job(tm.installation, handle.id, 1, worker="worker:1").job is not None
    ended = update(tables.job).values(lease_until=datetime.now(UTC) - timedelta(minutes=1))
    database.run(lambda tx: tx.execute(ended))
    if up_for is not None:
        usual = tm.settings
        tm.installation.settings = replace(usual, tm_lease=timedelta(seconds=up_for + 3600))
        assert tm.run_due_jobs().swept == 0
        assert [job.state for job in tm.jobs()] == ["running"]
        tm.installation.settings = usual
    assert tm.run_due_jobs().swept == 1


@pytest.mark.parametrize(
    "damage",
    ["args = '{'", "args = '7'", "kwargs = '[1]'", """options = '{"headers": 7}'"""],
    ids=["args that are no JSON", "args that are a number", "kwargs that are a list", "headers that are a number"],
)
def test_one_job_that_cannot_be_run_stops_no_other_and_counts_as_failed(
    app: Celery, tm: TimeManagement, effects: Path, damage: str
) -> None:
    handles = [defer(app.tasks["effect"].s(n), delay=1) for n in range(4)]
    broken = text(f"UPDATE tm_job SET {damage.replace(':', chr(92) + ':')} WHERE id = '{handles[1].id}'")
    tm.installation.database.run(lambda tx: tx.execute(broken))
    done = tm.run_due_jobs(now=datetime.now(UTC) + timedelta(seconds=5))
    assert (done.claimed, done.succeeded, done.failed + done.retried) == (4, 3, 1)
    assert sorted(line.split()[1] for line in effects.read_text().splitlines()) == ["0", "2", "3"]
    assert [job.id for job in tm.jobs() if job.state == "dispatched"] == []


def test_what_was_claimed_and_not_reached_waits_again(app: Celery, tm: TimeManagement, effects: Path) -> None:
    @app.task(name=f"leaves {uuid4()}", base=Task)
    def leaves() -> None:
        raise KeyboardInterrupt

    defer(leaves.s(), delay=1)
    handles = [defer(app.tasks["effect"].s(n), delay=2) for n in range(2)]
    with pytest.raises(KeyboardInterrupt):
        tm.run_due_jobs(now=datetime.now(UTC) + timedelta(seconds=5))
    assert {job.id: job.state for job in tm.jobs() if job.task == "effect"} == {one.id: "pending" for one in handles}


def test_the_lease_of_a_plain_task_is_renewed_while_it_runs(app: Celery, tm: TimeManagement) -> None:
    held: list[Any] = []

    @app.task(name="slow.plain", shared=False)
    def slow() -> None:
        held.extend(keeper_of(tm.installation)._running)

    handle = defer(slow.s(), delay=timedelta(milliseconds=1))
    time.sleep(0.01)
    assert tm.run_due_jobs().succeeded == 1
    assert held == [(handle.id, 1)]
    assert keeper_of(tm.installation)._running == {}


def test_what_a_caller_of_another_app_published_is_not_run_here(app: Celery, tm: TimeManagement) -> None:
    handle = defer(app.tasks["effect"].s(1))
    with tm.installation.database.transaction() as tx:
        tx.execute(update(tables.job).where(tables.job.c.id == handle.id).values(app="another"))
    assert tm.run_due_jobs().claimed == 0
