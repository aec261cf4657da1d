"""One row that cannot be read, in any table, makes no list, page or command fail: it is named, and can be removed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import func, select, text
from tmtest.commands import Cli
from tmtest.everything import Everything, furnish
from tmtest.flower import Client, serving
from tmtest.ledger import NOON

from celery_tm import TimeManagement
from celery_tm.cli.doctor import FOUND
from celery_tm.domain.job import Job
from celery_tm.errors import DeadLetterNotFound, InvalidValue, RowUnreadable
from celery_tm.management import rows
from celery_tm.recovery.reaper import reap
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import tables
from celery_tm.testing import MovableClock
from celery_tm.worker import gate, recorder

# What a newer release, a person or a damaged disk may leave: an unknown word, a text that is no JSON.
BROKEN = {
    "an unknown state of a job": ("tm_job", "state = 'paused'", "id = :owed"),
    "options of a job that are no JSON": ("tm_job", "options = '{'", "id = :owed"),
    "an unknown source of a dead letter": ("tm_dead_letter", "source = 'moon'", "id = :dead"),
    "a scope of a dead letter that is no JSON": ("tm_dead_letter", "scope = 'no'", "id = :dead"),
    "an unknown outcome": ("tm_execution", "outcome = 'vanished'", "job = :ended"),
    "an unknown state of an occurrence": ("tm_occurrence", "state = 'lost'", "id = :occurrence"),
    "a report that is no JSON": ("tm_occurrence", "report = '{'", "id = :run"),
    "a version that is no JSON": ("tm_version", "stated = '{'", "version = 1"),
    "an audit line that is no JSON": ("tm_audit", "after = '{'", "action = 'trigger'"),
    "an unknown end of a run": ("tm_workflow", "stopped_as = 'lost'", "id = :run"),
    "an unknown state of a step": ("tm_step", "state = 'lost'", "workflow = :run"),
    "joins of a step that are no numbers": ("tm_step", "feeds = 'x'", "workflow = :run"),
    "a kept result that is no JSON": ("tm_key", "result = '{'", "1 = 1"),
}
PAGES = (
    "/tm", "/tm/instants", "/tm/jobs", "/tm/history", "/tm/dead-letters", "/tm/calendar", "/tm/health", "/tm/audit",
    "/tm/definition/some%20works", "/tm/definition/some%20flow",
)  # fmt: skip
LISTS = (
    "status", "doctor", "definitions", "definitions/some%20works", "definitions/some%20works/versions",
    "definitions/some%20works/occurrences", "definitions/some%20works/explain", "definitions/some%20works/history", "jobs",
    "history", "occurrences", "dead-letters", "audit", "forecast", "groups",
)  # fmt: skip
COMMANDS = (
    "status", "doctor", "history", "dead-letters list", "jobs list", "audit", "definitions list", "calendars list",
    "rows list",
)  # fmt: skip


@pytest.fixture
def here(app: Celery, tm: TimeManagement) -> Everything:
    found = furnish(app, tm)
    tm.calendars.set("holidays", ["2026-12-24"])
    return found


@pytest.fixture
def client(app: Celery, here: Everything) -> Iterator[Client]:
    with serving(app) as served:
        yield served.client()


def spoil(tm: TimeManagement, here: Everything, what: str) -> str:
    table, change, which = BROKEN[what]
    known = {name: getattr(here, name) for name in ("owed", "dead", "ended", "occurrence", "run") if f":{name}" in which}
    with tm.installation.database.transaction() as tx:
        statement = text(f"UPDATE {table} SET {change} WHERE {which}")
        changed = tx.connection.execute(statement, known).rowcount
    assert changed or table == "tm_key"
    return table


@pytest.mark.parametrize("what", BROKEN)
def test_one_row_that_cannot_be_read_hides_nothing_else(
    app: Celery, tm: TimeManagement, here: Everything, client: Client, what: str
) -> None:
    table = spoil(tm, here, what)
    for path in PAGES:
        answer = client.open(path)
        assert answer.status == 200, (path, answer.text)
    for path in LISTS:
        answer = client.get(f"/api/tm/{path}")
        assert answer.status == 200, (path, answer.text)
    cli = Cli(app)
    for command in COMMANDS:
        assert cli.run(*command.split(), code=FOUND if command == "doctor" else 0).output
    found = rows.unreadable(tm.installation)
    assert {row.table for row in found} <= {table}
    for row in found:
        assert (row.table in cli.run("doctor", code=FOUND).output, row.error != "") == (True, True)
        assert row.id in cli.json("rows", "list")[0]["id"] or len(found) > 1
        rows.remove(tm.installation, table, row.id.split(), actor="ann")
    assert rows.unreadable(tm.installation) == []
    assert len(tm.audit(action="remove row", actor="ann")) == len(found)


def test_lists_name_the_row_and_go_on_page_by_page(tm: TimeManagement, app: Celery, here: Everything) -> None:
    every = tm.history()
    with tm.installation.database.transaction() as tx:
        tx.connection.execute(text("UPDATE tm_execution SET outcome = 'vanished' WHERE id = :id"), {"id": every[1].id})
    page = tm.history()
    assert [one.id for one in page] == [one.id for one in every if one.id != every[1].id]
    assert [(row.table, row.id) for row in page.unreadable] == [("tm_execution", every[1].id)]
    found, cursor = [], None
    while not found or cursor:
        part = tm.history(before=cursor, limit=1)
        found, cursor = [*found, *part], part.next
    assert [one.id for one in found] == [one.id for one in page]
    done = Cli(app).run("history")
    assert f"unreadable: tm_execution {every[1].id}" in done.output


def test_a_job_that_cannot_be_read_is_cancelled_all_the_same(tm: TimeManagement, app: Celery, here: Everything) -> None:
    spoil(tm, here, "an unknown state of a job")
    with pytest.raises(RowUnreadable, match=f"row '{here.owed}' of tm_job cannot be read .*paused"):
        tm.job(here.owed)
    assert Cli(app).json("jobs", "cancel", here.owed, "--actor", "ann")["cancelled"] is True
    assert here.owed not in {job.id for job in tm.jobs()}
    [line] = tm.audit(object=f"job:{here.owed}", action="cancel")
    assert (line.actor, "paused" in (line.before or {})["unreadable"]) == ("ann", True)


def test_a_dead_letter_that_cannot_be_read_is_purged_all_the_same(tm: TimeManagement, app: Celery, here: Everything) -> None:
    spoil(tm, here, "an unknown source of a dead letter")
    assert Cli(app).json("dead-letters", "purge", here.dead, "--actor", "ann") == {"purged": 1}
    with pytest.raises(DeadLetterNotFound):
        tm.dead_letters.get(here.dead)
    with tm.installation.database.transaction() as tx:
        tx.connection.execute(text("UPDATE tm_dead_letter SET source = 'moon'"))
    count = tm.dead_letters.count()
    assert tm.dead_letters.purge(all=True, expected=count) == count
    with tm.installation.database.transaction() as tx:
        assert tx.execute(select(func.count()).select_from(tables.dead_letter)).scalar() == 0


def test_only_rows_that_cannot_be_read_are_removed(tm: TimeManagement, here: Everything) -> None:
    for table, key, why in (
        ("tm_job", [here.owed], "can be read"), ("tm_job", ["gone"], "not there"),
        ("tm_jobs", ["x"], "did you mean 'tm_job'"), ("tm_key", ["x"], "task, key"),
    ):  # fmt: skip
        with pytest.raises(InvalidValue, match=why):
            rows.remove(tm.installation, table, key)
    assert here.owed in {job.id for job in tm.jobs()}


@pytest.mark.parametrize("table", ["tm_audit", "tm_log", "tm_version"])
@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("abc", "key: 'abc' is not a number"), ("", "key: '' is not a number"), ("1.5", "is not a number"),
        ("9" * 30, "no column holds it|is not there"), ("9" * 5000, "is not a number"), ("-1", "is not there"),
    ],
    ids=["word", "nothing", "fraction", "large", "endless", "negative"],
)  # fmt: skip
def test_a_key_that_no_row_can_have_is_refused_in_one_line(
    tm: TimeManagement, app: Celery, table: str, key: str, why: str
) -> None:
    words = [table, "some", key] if table == "tm_version" else [table, key]
    assert re.search(why, Cli(app).refused("rows", "remove", "--reason", "try", "--", *words))
    assert tm.audit(action="remove row") == []


# Instants that nobody can read


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("tm_definition", "next_run_at"), ("tm_definition", "updated_at"), ("tm_job", "run_at"),
        ("tm_calendar", "updated_at"), ("tm_dead_letter", "buried_at"), ("tm_occurrence", "scheduled_at"),
        ("tm_occurrence", "decided_at"),
        ("tm_execution", "completed_at"), ("tm_node", "seen_at"), ("tm_log", "at"), ("tm_audit", "at"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("instant", ["-infinity", "infinity"])
def test_one_bad_instant_hides_nothing_else(
    tm: TimeManagement, app: Celery, here: Everything, table: str, column: str, instant: str
) -> None:
    if tm.installation.database.dialect.name != "postgresql":
        pytest.skip("only PostgreSQL keeps infinite instants")
    with tm.installation.database.transaction() as tx:
        key = next(iter(tables.metadata.tables[table].primary_key)).name
        which = f"{key} = (SELECT {key} FROM {table} ORDER BY {key} LIMIT 1)"
        changed = tx.connection.execute(text(f"UPDATE {table} SET {column} = '{instant}' WHERE {which}")).rowcount
        if table == "tm_definition":
            tx.connection.execute(text("UPDATE tm_definition SET paused = true"))
    if not changed:
        pytest.skip("there is no such row")
    cli = Cli(app)
    told = cli.run("doctor", code=FOUND).output
    assert ("DataError" in told, "check tm_database_url" in told, table in told) == (True, False, True), told
    for command in ("calendars list", "dead-letters list", "definitions list", "jobs list", "history", "audit", "rows list"):
        cli.run(*command.split())
    cli.run("status")
    assert tm.dead_letters.preview().count >= 1
    if table == "tm_calendar":
        assert "unreadable: tm_calendar holidays" in cli.run("calendars", "list").stderr
        assert "row 'holidays' of tm_calendar cannot be read" in cli.refused("calendars", "show", "holidays")


def test_a_run_whose_occurrence_cannot_be_read_is_named(tm: TimeManagement, app: Celery, here: Everything) -> None:
    with tm.installation.database.transaction() as tx:
        tx.connection.execute(text("UPDATE tm_occurrence SET state = 'lost' WHERE id = :id"), {"id": here.run})
    for ask in (tm.report, tm.replay):
        with pytest.raises(RowUnreadable, match="of tm_occurrence cannot be read"):
            ask(here.run)


# The job of a run, or of a step of it


FLOW = [{"name": "one", "task": "effect"}, {"name": "two", "task": "effect"}]


def begun(tm: TimeManagement, **values: Any) -> tuple[str, Job]:
    """Start a run, let a worker in at its first step, and make the run's own job unreadable."""
    tm.definitions.add(name="flow", schedule="0 3 * * *", **({"steps": FLOW} | values))
    made = tm.trigger("flow").id
    dispatcher = Dispatcher(tm.installation, "beat")
    dispatcher.expand(dispatcher.claim(100)[1])
    [step] = [job for job in dispatcher.claim(100)[1] if job.step == "one"]
    admitted = gate.admit_job(tm.installation, step.id, step.attempt, worker="w:1").job
    assert admitted is not None
    return made, admitted


def break_root(tm: TimeManagement, run: str, source: str = "newword") -> str:
    with tm.installation.database.transaction() as tx:
        tx.connection.execute(text("UPDATE tm_job SET source = :s WHERE id IN (SELECT job FROM tm_workflow WHERE id = :id)"),
                              {"s": source, "id": run})  # fmt: skip
        return str(tx.execute(select(tables.workflow.c.job).where(tables.workflow.c.id == run)).scalar_one())


def state_of(tm: TimeManagement, run: str) -> str:
    with tm.installation.database.transaction(write=False) as tx:
        found: str = tx.execute(select(tables.occurrence.c.state).where(tables.occurrence.c.id == run)).scalar_one()
        return found


def step_states(tm: TimeManagement, run: str) -> list[str]:
    return [step["state"] for step in tm.report(run)["steps"]]


def test_removing_the_job_of_a_run_stops_the_run(tm: TimeManagement) -> None:
    run, step = begun(tm)
    rows.remove(tm.installation, "tm_job", [break_root(tm, run)])
    [running] = tm.jobs()
    assert (running.step, running.cancel_requested, state_of(tm, run)) == ("one", True, "running")
    recorder.record_success(tm.installation, step, result=None, message=None)
    assert (tm.jobs(), state_of(tm, run), step_states(tm, run)) == ([], "cancelled", ["succeeded", "cancelled"])


def test_removing_the_job_of_a_run_cancels_steps_that_wait(tm: TimeManagement) -> None:
    tm.definitions.add(name="flow", schedule="0 3 * * *", steps=FLOW)
    run = tm.trigger("flow").id
    dispatcher = Dispatcher(tm.installation, "beat")
    dispatcher.expand(dispatcher.claim(100)[1])
    rows.cancel(tm.installation, break_root(tm, run))
    assert (tm.jobs(), state_of(tm, run), step_states(tm, run)) == ([], "cancelled", ["cancelled", "cancelled"])


def test_a_step_succeeds_though_the_job_of_its_run_cannot_be_read(tm: TimeManagement) -> None:
    run, step = begun(tm, steps=FLOW[:1])
    root = break_root(tm, run)
    recorder.record_success(tm.installation, step, result=None, message=None)
    [execution] = tm.history()
    assert (str(execution.outcome), state_of(tm, run)) == ("succeeded", "running")
    assert [(row.table, row.id) for row in tm.installation.set_aside.rows()] == [("tm_job", root)]
    rows.remove(tm.installation, "tm_job", [root])
    assert (tm.jobs(), state_of(tm, run), step_states(tm, run)) == ([], "completed", ["succeeded"])


def test_a_run_whose_job_can_be_read_again_ends_at_its_deadline(tm: TimeManagement, tm_clock: MovableClock) -> None:
    tm_clock.move_to(NOON)
    run, step = begun(tm, steps=FLOW[:1], execution_timeout="1h")
    break_root(tm, run)
    recorder.record_success(tm.installation, step, result=None, message=None)
    break_root(tm, run, "manual")
    tm_clock.forward("2h")
    reap(tm.installation.database, limit=10)
    assert (tm.jobs(), state_of(tm, run)) == ([], "completed")


def test_a_run_whose_job_cannot_be_read_is_stopped_at_its_deadline(tm: TimeManagement, tm_clock: MovableClock) -> None:
    tm_clock.move_to(NOON)
    run, step = begun(tm, execution_timeout="1h")
    root = break_root(tm, run)
    tm_clock.forward("2h")
    assert [job.id for job, _, _ in reap(tm.installation.database, limit=10)] == [step.id]
    assert reap(tm.installation.database, limit=10) == []
    rows.remove(tm.installation, "tm_job", [root])
    assert state_of(tm, run) == "stale"


def test_removing_the_job_of_a_step_cancels_the_step(tm: TimeManagement) -> None:
    run, step = begun(tm)
    with tm.installation.database.transaction() as tx:
        tx.connection.execute(text("UPDATE tm_job SET source = 'newword' WHERE id = :id"), {"id": step.id})
    rows.remove(tm.installation, "tm_job", [step.id])
    assert (tm.jobs(), state_of(tm, run), step_states(tm, run)) == ([], "cancelled", ["cancelled", "cancelled"])
