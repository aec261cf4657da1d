"""Loading a file or seeding from code never silently reverts a person's edit, on every database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import text
from tmtest.commands import Cli
from tmtest.ledger import NOON

from celery_tm import TimeManagement, events
from celery_tm.domain.declared import Conflict
from celery_tm.errors import InvalidValue
from celery_tm.scheduler.seeding import Seeder
from celery_tm.store.database import Database
from celery_tm.testing import MovableClock

FILE = """\
[[calendars]]
name = "holidays"
dates = ["2026-12-25"]

[[definitions]]
name = "nightly"
task = "effect"
args = [1]
schedule = "30 2 * * *"
queue = "slow"
max_retries = 3
calendars = ["holidays"]
"""


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "definitions.toml"
    path.write_text(FILE)
    return path


def seed(app: Celery, **entry: Any) -> None:
    app.conf.beat_schedule = {"job": {"task": "effect", "schedule": 60, **entry}}
    app.conf.result_expires = None
    Seeder(TimeManagement(app).installation).seed_once()


def heard(signal: Any) -> list[tuple[str, str, list[str]]]:
    found: list[tuple[str, str, list[str]]] = []

    def hear(name: str, source: str, fields: list[str], **_: Any) -> None:
        found.append((name, source, fields))

    signal.connect(hear, weak=False)
    return found


def forget_sources(database: Database) -> None:
    """Make rows look as an earlier release has left them."""
    with database.transaction() as tx:
        tx.execute(text("UPDATE tm_definition SET declared = NULL"))
        tx.execute(text("UPDATE tm_calendar SET declared = NULL"))


def test_two_administrators_who_change_different_fields_both_get_their_way(tm: TimeManagement, file: Path) -> None:
    tm.definitions.load(file, actor="deploy")
    tm.definitions.update("nightly", schedule="0 4 * * *", max_retries=9, actor="ann")
    file.write_text(FILE.replace('"slow"', '"fast"'))
    loaded = tm.definitions.load(file, actor="bob")
    assert (loaded.changed, loaded.conflicts) == (["nightly"], [])
    found = tm.definitions.get("nightly")
    assert (found.schedule, found.max_retries, found.queue) == ("0 4 * * *", 9, "fast")
    assert tm.definitions.load(file).unchanged == ["nightly"]
    assert tm.definitions.get("nightly").schedule == "0 4 * * *"


def test_of_two_who_change_the_same_field_the_database_stays_and_it_is_reported(tm: TimeManagement, file: Path) -> None:
    told = heard(events.definition_conflict)
    tm.definitions.load(file, actor="deploy")
    tm.definitions.update("nightly", queue="hers", actor="ann")
    file.write_text(FILE.replace('"slow"', '"fast"').replace("= 3", "= 5"))
    loaded = tm.definitions.load(file, actor="bob")
    conflict = Conflict(name="nightly", field="queue", file="fast", database="hers", task="effect")
    assert (loaded.changed, loaded.conflicts) == (["nightly"], [conflict])
    found = tm.definitions.get("nightly")
    assert (found.queue, found.max_retries) == ("hers", 5)
    assert told == [("nightly", "file", ["queue"])]
    again = tm.definitions.load(file)
    assert (again.unchanged, again.conflicts) == (["nightly"], [conflict]), "it is reported until somebody decides"
    [finding] = [one for one in tm.doctor() if one.check == "edits"]
    assert (finding.level, finding.objects) == ("warning", ["nightly"])
    assert tm.definitions.load(file, force=True).changed == ["nightly"]
    assert tm.definitions.get("nightly").queue == "fast"
    assert [one.level for one in tm.doctor() if one.check == "edits"] == ["ok"]
    assert tm.definitions.load(file).conflicts == []


def test_a_graceful_edit_that_waits_is_not_taken_back_by_a_load(tm: TimeManagement, file: Path) -> None:
    tm.definitions.load(file)
    tm.definitions.update("nightly", queue="hers", policy="graceful", actor="ann")
    tm.definitions.load(file)
    waiting = tm.definitions.get("nightly").waiting_edit
    assert waiting is not None
    assert waiting.values == {"queue": "hers"}


def test_a_forced_load_that_takes_a_waiting_edit_back_reports_the_change(
    tm: TimeManagement, file: Path, app: Celery
) -> None:
    tm.definitions.load(file)
    tm.definitions.update("nightly", queue="hers", policy="graceful", actor="ann")
    loaded = Cli(app).json("definitions", "load", str(file), "--force", "--actor", "deploy")
    assert (loaded["changed"], loaded["unchanged"]) == (["nightly"], [])
    assert tm.definitions.get("nightly").waiting_edit is None
    [taken, _] = tm.audit(object="definition:nightly", action="edit later")
    assert (taken.actor, taken.after) == ("deploy", {"taken back": ["queue"]})
    assert tm.definitions.load(file, force=True).unchanged == ["nightly"]


def test_a_retired_definition_that_a_file_brings_back_is_brought_back_by_the_one_who_loads_it(
    tm: TimeManagement, app: Celery, file: Path
) -> None:
    app.conf.beat_schedule = {"nightly": {"task": "effect", "schedule": 3600.0}}
    Seeder(tm.installation).seed_once()
    app.conf.beat_schedule = {}
    Seeder(tm.installation).seed_once()
    assert tm.definitions.get("nightly").retired_at is not None
    tm.definitions.load(file, actor="deploy")
    [back] = tm.audit(object="definition:nightly", action="bring back")
    assert (back.actor, back.reason) == ("deploy", "loaded from a file again")
    assert [one.actor for one in tm.definitions.versions("nightly") if one.action == "bring back"] == ["deploy"]


def test_only_what_is_missing_is_added(tm: TimeManagement, file: Path) -> None:
    tm.definitions.load(file)
    more = '\n[[definitions]]\nname = "often"\ntask = "effect"\nargs = [1]\nschedule = "every 10s"\n'
    file.write_text(FILE.replace('"slow"', '"fast"').replace("12-25", "12-24") + more)
    loaded = tm.definitions.load(file, only_new=True)
    assert (loaded.added, loaded.changed, loaded.unchanged, loaded.calendars) == (["often"], [], ["nightly"], [])
    assert tm.definitions.get("nightly").queue == "slow"
    with pytest.raises(InvalidValue, match="only_new"):
        tm.definitions.load(file, only_new=True, force=True)


def test_a_calendar_that_a_person_changed_is_not_reverted(tm: TimeManagement, file: Path) -> None:
    tm.definitions.load(file)
    tm.calendars.set("holidays", ["2026-12-25", "2026-12-26"], actor="ann")
    assert tm.definitions.load(file).calendars == []
    assert tm.calendars.get("holidays").entries == ("2026-12-25", "2026-12-26")
    file.write_text(FILE.replace("12-25", "12-24"))
    loaded = tm.definitions.load(file)
    assert [(one.name, one.field) for one in loaded.conflicts] == [("holidays", "dates")]
    assert tm.definitions.load(file, force=True).calendars == ["holidays"]
    file.write_text(FILE.replace("12-25", "12-23"))
    assert tm.definitions.load(file).calendars == ["holidays"], "nobody has changed it since"
    tm.calendars.set("by hand", ["2026-01-01"])
    file.write_text('definitions = []\n[[calendars]]\nname = "by hand"\ndates = ["2026-01-06"]\n')
    assert [one.name for one in tm.definitions.load(file).conflicts] == ["by hand"]


def test_a_definition_of_an_earlier_release_keeps_what_a_person_changed(
    tm: TimeManagement, database: Database, file: Path
) -> None:
    tm.definitions.load(file, actor="deploy")
    tm.definitions.update("nightly", queue="hers", actor="ann")
    tm.pause("nightly", actor="ann")
    forget_sources(database)
    assert tm.definitions.load(file).unchanged == ["nightly"], "the file has not changed"
    forget_sources(database)
    file.write_text(FILE.replace('"slow"', '"fast"').replace("= 3", "= 5"))
    loaded = tm.definitions.load(file)
    assert [one.field for one in loaded.conflicts] == ["queue"]
    found = tm.definitions.get("nightly")
    assert (found.queue, found.max_retries, found.paused) == ("hers", 5, True)


def test_of_an_earlier_release_without_versions_a_person_s_last_word_stays(
    tm: TimeManagement, database: Database, file: Path
) -> None:
    tm.definitions.load(file)
    tm.definitions.update("nightly", queue="hers", actor="ann")
    forget_sources(database)
    with database.transaction() as tx:
        tx.execute(text("DELETE FROM tm_version WHERE version = 1"))
    assert [one.field for one in tm.definitions.load(file).conflicts] == ["queue"]
    forget_sources(database)
    with database.transaction() as tx:
        tx.execute(text("DELETE FROM tm_version"))
    assert tm.definitions.load(file).changed == ["nightly"]


def test_seeding_leaves_a_person_s_edit_and_reports_a_conflict_at_every_start(tm: TimeManagement, app: Celery) -> None:
    told = heard(events.definition_conflict)
    seed(app, options={"queue": "slow"})
    tm.definitions.update("job", queue="hers", schedule="every 5m", actor="ann")
    seed(app, options={"queue": "slow"})
    assert (tm.definitions.get("job").queue, told) == ("hers", [])
    for _ in range(2):
        seed(app, task="plain", options={"queue": "fast"})
    found = tm.definitions.get("job")
    assert (found.queue, found.schedule, found.task) == ("hers", "every 5m", "plain")
    assert told == [("job", f"beat_schedule:{app.main}", ["queue"])] * 2
    [finding] = [one for one in tm.doctor() if one.check == "edits"]
    assert "job: queue" in finding.text


def test_an_option_that_a_person_set_is_not_taken_out_with_the_code_s(tm: TimeManagement, app: Celery) -> None:
    seed(app, options={"queue": "slow"})
    tm.definitions.update("job", priority=7, actor="ann")
    seed(app, options={"queue": "slow"}, schedule=120)  # a version that the code wrote, with her priority in it
    seed(app, schedule=120)
    found = tm.definitions.get("job")
    assert (found.queue, found.priority, found.schedule) == (None, 7, "every 2m")
    seed(app, schedule=120, options={"queue": "slow"})
    assert tm.definitions.get("job").queue == "slow"


def test_a_conflict_is_a_line_of_the_table_and_with_strict_an_exit_code(tm: TimeManagement, app: Celery, file: Path) -> None:
    tm.definitions.load(file)
    tm.definitions.update("nightly", queue="hers", actor="ann")
    file.write_text(FILE.replace('"slow"', '"fast"'))
    load = ("definitions", "load", str(file))
    output = Cli(app).run(*load).stdout
    assert output.split("conflicts: 1")[1].splitlines()[2].split() == ["nightly", "queue", "fast", "hers"]
    Cli(app).run(*load, "--strict", code=1)
    assert json.loads(Cli(app).run(*load, "--strict", "--json", code=1).stdout)["conflicts"][0]["field"] == "queue"
    assert "exclude each other" in Cli(app).misused(*load, "--force", "--only-new")
    assert tm.definitions.get("nightly").queue == "hers"
    Cli(app).run(*load, "--force", "--strict")
    assert tm.definitions.get("nightly").queue == "fast"


def test_a_file_that_names_an_unknown_task_is_refused_also_where_it_conflicts(tm: TimeManagement, file: Path) -> None:
    tm.definitions.add(name="etl", schedule="@daily", steps=[{"name": "a", "task": "effect", "args": [1]}])
    file.write_text('[[definitions]]\nname = "etl"\nschedule = "@daily"\nsteps = [{ name = "b", task = "efect" }]\n')
    with pytest.raises(InvalidValue, match="unknown task 'efect'"):
        tm.definitions.load(file)


# An entry that moves from the code to a file, or back


MOVED = '[[definitions]]\nname = "job"\ntask = "effect"\nargs = [1]\nschedule = "every 2m"\n'


def seed_nothing(app: Celery) -> None:
    app.conf.beat_schedule, app.conf.result_expires = {}, None
    Seeder(TimeManagement(app).installation).seed_once()


@pytest.mark.parametrize("beat_is_first", [False, True])
def test_an_entry_that_moves_from_the_code_to_a_file_is_not_retired(
    tm: TimeManagement, app: Celery, file: Path, beat_is_first: bool
) -> None:
    seed(app, options={"queue": "slow"})
    file.write_text(MOVED)
    if beat_is_first:
        seed_nothing(app)
        assert tm.definitions.get("job").standing == "retired"
    assert tm.definitions.load(file, actor="deploy").changed == ["job"]
    seed_nothing(app)
    found = tm.definitions.get("job")
    assert (found.standing, found.origin, found.schedule, found.queue) == ("on", None, "every 2m", "slow")
    assert found.next_run_at is not None
    for _ in range(2):
        assert tm.definitions.load(file, actor="deploy").unchanged == ["job"]
        seed_nothing(app)
    assert tm.definitions.get("job").version == found.version


def test_what_the_code_wanted_of_an_entry_that_it_no_longer_has_is_no_open_conflict(
    tm: TimeManagement, app: Celery, file: Path
) -> None:
    seed(app, options={"queue": "slow"})
    tm.definitions.update("job", queue="hers", actor="ann")
    seed(app, options={"queue": "fast"})
    assert [one.level for one in tm.doctor() if one.check == "edits"] == ["warning"]
    file.write_text(MOVED)
    tm.definitions.load(file)
    seed_nothing(app)
    assert [one.level for one in tm.doctor() if one.check == "edits"] == ["ok"]
    file.write_text(MOVED + 'queue = "quick"\n')
    assert [one.field for one in tm.definitions.load(file).conflicts] == ["queue"], "the edit of a person still stays"
    [line] = [one for one in tm.audit(object="definition:job") if one.action == "release"]
    assert (line.before, line.after) == ({"origin": f"beat_schedule:{app.main}"}, {"origin": None})


def test_an_entry_that_returns_to_the_code_is_seeded_again(tm: TimeManagement, app: Celery, file: Path) -> None:
    seed(app)
    file.write_text(MOVED)
    tm.definitions.load(file)
    seed_nothing(app)
    seed(app, schedule=300)
    assert (tm.definitions.get("job").schedule, tm.definitions.get("job").standing) == ("every 5m", "on")
    assert tm.definitions.load(file).unchanged == ["job"]


# What a file no longer says, and what contradicts it


def toml(name: str, *lines: str) -> str:
    return "\n".join(["[[definitions]]", f'name = "{name}"', 'schedule = "0 8 * * *"', *lines, ""])


TASK, STEPS = 'task = "effect"\nargs = [1]', 'steps = [{ name = "a", task = "effect", args = [1] }]'
BOTH_WAYS = [
    ('overlap = "queue"', 'concurrency_key = "k"'),
    ('recovery = { policy = "bounded", count = 10 }', 'recovery = "last"'),
    ("ends_at = 2027-01-01T00:00:00Z", "starts_at = 2027-02-01T00:00:00Z"),
]


@pytest.mark.parametrize(("one", "other"), [*((f"{TASK}\n{a}", f"{TASK}\n{b}") for a, b in BOTH_WAYS), (TASK, STEPS)])
@pytest.mark.parametrize("is_back", [False, True])
def test_a_file_that_no_longer_says_what_contradicts_it_is_loaded(
    tm: TimeManagement, file: Path, one: str, other: str, is_back: bool
) -> None:
    then, now = (other, one) if is_back else (one, other)
    file.write_text(toml("job", then) + toml("second", TASK))
    tm.definitions.load(file)
    file.write_text(toml("job", now) + toml("second", TASK, "priority = 3"))
    loaded = tm.definitions.load(file)
    assert (loaded.changed, loaded.conflicts) == (["job", "second"], [])
    file.write_text(toml("fresh", now))
    tm.definitions.load(file)
    found = {one["name"]: one for one in tm.definitions.export()["definitions"]}
    assert {**found["job"], "name": "fresh"} == found["fresh"]


def test_an_edit_that_contradicts_a_file_holds_up_no_other_entry(tm: TimeManagement, file: Path) -> None:
    file.write_text(toml("job", TASK) + toml("etl", TASK) + toml("second", TASK))
    tm.definitions.load(file)
    tm.definitions.update("job", overlap="queue", actor="ann")
    tm.definitions.update("etl", args=[], steps=[{"name": "a", "task": "effect", "args": [1]}], actor="ann")
    changed = TASK.replace("1", "2")
    file.write_text(toml("job", TASK, 'concurrency_key = "k"') + toml("etl", changed) + toml("second", changed))
    loaded = tm.definitions.load(file)
    assert (loaded.changed, loaded.unchanged) == (["second"], ["job", "etl"])
    assert [(one.name, one.field) for one in loaded.conflicts] == [
        ("job", "concurrency_key"),
        ("job", "concurrency"),
        ("etl", "args"),
    ]
    loaded = tm.definitions.load(file, force=True)
    assert (loaded.changed, loaded.conflicts) == (["job", "etl"], [])
    job, etl = tm.definitions.get("job"), tm.definitions.get("etl")
    assert (job.overlap, job.concurrency_key, etl.steps, etl.args) == ("skip", "k", None, "[2]")
    assert tm.definitions.load(file).unchanged == ["job", "etl", "second"]
