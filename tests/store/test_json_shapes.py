"""What every command prints with `--json` is what its documented shape says, on a database with something of everything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from celery import Celery
from jsonschema import Draft202012Validator, FormatChecker, ValidationError
from sqlalchemy import update
from tmtest.app import make_app
from tmtest.commands import Cli

from celery_tm import TimeManagement, clock, defer
from celery_tm.cli import tm as tm_group
from celery_tm.presentation.shapes import COMPONENTS, SHAPES
from celery_tm.store import nodes, tables
from celery_tm.store.database import Database

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
WITHOUT = {"flower"}  # it runs a server
STEPS = [
    {"name": "fetch", "task": "effect", "args": [1]},
    [{"name": "left", "task": "reports", "args": ["well"]}, {"name": "right", "task": "fails", "max_retries": 0}],
    {"name": "clean", "task": "effect", "cleanup": True},
]
FILE = """
[[calendars]]
name = "holidays"
dates = ["12-25"]

[[definitions]]
name = "loaded"
task = "effect"
schedule = "@daily"
calendars = ["holidays"]
"""


def each_command(group: click.Group = tm_group, before: str = "") -> Iterator[str]:
    """Yield the words of every command that does something."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from each_command(command, f"{name} ")
        else:
            yield f"{before}{name}"


FORMATS = FormatChecker(formats=())


@FORMATS.checks("date-time", raises=ValueError)
def is_instant(value: object) -> bool:
    return not isinstance(value, str) or datetime.fromisoformat(value).tzinfo is not None


def check(shape: Any, answer: Any) -> None:
    Draft202012Validator(shape, format_checker=FORMATS).validate(answer)


class Checked:
    """Runs commands with `--json`, holds each answer to its shape, and remembers which were run."""

    def __init__(self, cli: Cli) -> None:
        self.cli, self.run = cli, set[str]()

    def __call__(self, command: str, *arguments: str, code: int = 0) -> Any:
        answer = json.loads(self.cli.run(*command.split(), *arguments, "--json", code=code).stdout)
        check(SHAPES[command], answer)
        self.run.add(command)
        return answer


@pytest.fixture
def checked(app: Celery, tm: TimeManagement) -> Iterator[Checked]:
    with clock.moved_to(NOON):
        yield Checked(Cli(app))


def test_every_command_prints_what_its_shape_says(
    checked: Checked, tm: TimeManagement, database: Database, tmp_path: Path
) -> None:
    state(checked, tmp_path)
    made = work(checked, tm, database)
    look(checked, *made)
    act(checked, *made)
    take_away(checked, database)
    assert checked.run == set(SHAPES) == set(each_command()) - WITHOUT


def state(checked: Checked, tmp_path: Path) -> None:
    (tmp_path / "definitions.toml").write_text(FILE)
    checked("schema downgrade", "--yes")
    checked("schema upgrade")
    checked("schema check")
    grants(checked)
    checked("definitions load", str(tmp_path / "definitions.toml"))
    sets = [word for value in ("jitter=5s", "max_retries=2", "expires=1h") for word in ("--set", value)]
    checked(
        "definitions add", "nightly", "--task", "fails", "--schedule", "0 * * * *", "--group", "reports", "--args", "[1]",
        "--timezone", "Europe/Warsaw", *sets,
    )  # fmt: skip
    checked("definitions add", "etl", "--schedule", "0 3 * * *", "--steps", json.dumps(STEPS))
    assert "edit_waits_until" in checked("definitions edit", "etl", "--schedule", "0 4 * * *", "--policy", "graceful")
    assert checked("definitions edit", "nightly", "--schedule", "0 3 * * *", "--dry-run")["removed"]
    assert checked("definitions restore", "nightly", "--version", "1")["name"] == "nightly"
    assert checked("definitions preview", "nightly", "--schedule", "@daily")["kept"]
    assert checked("definitions preview", "--schedule", "@daily")[0]["timezone"] == "UTC"
    checked("calendars set", "closed", "2026-12-24", "--reason", "winter")
    assert len(checked("calendars list")) == 2
    checked("calendars show", "holidays")
    for act in ("pause", "resume", "disable", "enable"):
        assert checked(f"definitions {act}", "nightly", "--actor", "ann")["name"] == "nightly"
        assert len(checked(f"definitions {act}", "--group", "reports")) == 1


def grants(checked: Checked) -> None:
    """Ask for the rights of a role, where there are users; nobody is connected to."""
    here = checked.cli
    checked.cli = Cli(make_app({"broker_url": "memory://", "tm_database_url": "postgresql://host/shop"}))
    assert checked("schema grants", "--role", "worker", "--to", "shop_worker")["statements"]
    checked.cli = here


def work(checked: Checked, tm: TimeManagement, database: Database) -> tuple[str, str, str]:
    """Leave jobs, executions, dead letters, runs, log lines and nodes behind; return a run, a dead letter and a job."""
    run = checked("definitions trigger", "etl")["occurrence"]
    checked("definitions trigger", "nightly")
    reports = defer("reports", args=["well"], app=tm.app, key="a", entity_id="7")
    letter, _ = (defer("fails", args=[n], app=tm.app, max_retries=0, scope={"tenant": n}) for n in (2, 3))
    for late in range(4):
        tm.run_due_jobs(now=NOON + late * HOUR)
    database.run(lambda tx: nodes.see(tx, "beat@here", "beat", started_ago=HOUR))
    waiting = defer("effect", app=tm.app, delay="1d", key="b").id
    assert {one["outcome"] for one in checked("history")} >= {"succeeded", "failed"}
    assert checked("log", reports.id)
    assert {one["id"] for one in checked("jobs list")} >= {waiting}
    return run, letter.id, waiting


def look(checked: Checked, run: str, letter: str, job: str) -> None:
    assert checked("status")["nodes"]
    assert checked("doctor", code=3)
    assert {one["name"] for one in checked("definitions list")} >= {"etl", "loaded", "nightly"}
    assert checked("definitions show", "etl")["waiting_edit"] is not None
    assert checked("definitions show", "nightly")["waiting_edit"] is None
    assert len(checked("definitions versions", "nightly")) > 1
    assert checked("definitions export")["definitions"]
    assert {one["name"] for one in checked("occurrences", "nightly")} == {"nightly"}
    assert len({one["name"] for one in checked("occurrences")}) > 1
    assert checked("occurrences", "etl")[0]["steps"]
    assert checked("explain", "nightly")["occurrence"]
    checked("explain", "nightly", "--at", "2026-06-01T00:17")
    assert checked("report", run)["counts"]
    assert checked("effective", "etl", "fetch")["queue"]
    assert set(checked("effective", "etl")) == {"fetch", "left", "right", "clean"}
    assert checked("jobs show", job)["job"]
    assert checked("jobs show", letter)["executions"]
    assert checked("dead-letters list")
    assert checked("dead-letters show", letter)["traceback"]
    assert checked("dead-letters purge", "--all", "--dry-run")["sample"]
    assert checked("dead-letters revive", "--all", "--dry-run", "--error", "nothing says this")["oldest"] is None
    assert {one["actor"] for one in checked("audit")} > {"ann"}
    checked("completion", "bash")


def act(checked: Checked, run: str, letter: str, job: str) -> None:
    checked("replay", run, "--reason", "again")
    assert checked("backfill", "nightly", "--since", "2026-05-31T00:00Z", "--dry-run", "--overlap", "allow")["created"]
    assert checked("backfill", "nightly", "--since", "2026-05-31T22:00Z", "--overlap", "allow", "--again", "--yes")[
        "created"
    ]
    assert checked("jobs cancel", job)["cancelled"] is True
    assert checked("jobs cancel", job, code=1)["cancelled"] is False
    assert checked("dead-letters revive", letter) == {"revived": 1}
    assert checked("dead-letters revive", "--all", "--task", "fails", "--yes")["revived"] == 1
    assert checked("dead-letters purge", "--all", "--yes")["purged"] == 1  # the step's: its run is replayed already
    assert checked("import", "beat", "--dry-run")["source"] == "beat"
    checked("prune")
    checked("run", "--once")


def take_away(checked: Checked, database: Database) -> None:
    with database.transaction() as tx:
        tx.execute(update(tables.execution).values(outcome="vanished"))
    for row in checked("rows list"):
        assert checked("rows remove", row["table"], row["id"])["id"] == row["id"]
    checked("calendars remove", "closed")
    checked("definitions remove", "loaded", "--yes")
    assert checked("take-over", "") == {"before": "", "after": database.app}


def test_an_import_of_entries_fits_its_shape(checked: Checked) -> None:
    checked.cli.app.conf.beat_schedule = {
        "good": {"task": "effect", "schedule": 60.0, "kwargs": {"n": 1}},
        "bad": {"task": "effect", "schedule": -5.0},
    }
    told = checked("import", "beat", "--dry-run", code=1)
    assert {entry["outcome"] for entry in told["entries"]} == {"added", "refused"}


# A shape that anything would fit proves nothing.


@pytest.mark.parametrize("kind", COMPONENTS)
def test_every_component_describes_every_field_and_allows_no_other(kind: str) -> None:
    shape = COMPONENTS[kind]
    Draft202012Validator.check_schema(shape)
    assert shape["additionalProperties"] is False
    assert shape["required"]
    assert [name for name, field in shape["properties"].items() if not field.get("description")] == []


@pytest.mark.parametrize("command", SHAPES)
def test_every_shape_is_a_schema_that_stands_on_its_own(command: str) -> None:
    Draft202012Validator.check_schema(SHAPES[command])
    for wrong in (None, 7, "text", {"unknown": 1}, [{"unknown": 1}]):
        if command == "effective" and isinstance(wrong, dict):
            continue
        with pytest.raises(ValidationError):
            check(SHAPES[command], wrong)


def test_a_field_too_many_too_few_or_of_another_type_is_noticed(checked: Checked) -> None:
    checked("definitions add", "nightly", "--task", "effect", "--schedule", "@daily")
    [row] = checked("definitions list")
    for broken in (
        row | {"surprise": 1},
        {name: value for name, value in row.items() if name != "version"},
        row | {"version": "one"},
        row | {"next_run_at": "soon"},
        row | {"overlap": "sometimes"},
    ):
        with pytest.raises(ValidationError):
            check(SHAPES["definitions list"], [broken])
