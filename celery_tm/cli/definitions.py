"""`celery -A app tm definitions`: reading recurring definitions. Stating, switching and files are modules of their own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click

from ..domain.definition import Definition, Standing
from ..errors import nearest
from ..management import TimeManagement
from ..presentation import Rows
from . import Group
from .common import Word, as_json, example, hint, limit_option, task_option, with_tm
from .completing import definition_argument, group_option
from .defining import add, edit, preview, restore
from .files import export, load
from .output import show, show_one
from .steps import number_of, show_steps
from .switching import disable, enable, pause, remove, resume, trigger

COLUMNS = ("name", "task", "schedule", "timezone", "is", "next_run_at", "last_run_at", "version")
MOST_VERSIONS = 10_000


@click.group(name="definitions", cls=Group, help="Recurring definitions.")
def command() -> None:
    """Recurring definitions."""


@command.command(
    "list",
    help="List the definitions, also those that never ran and those that are off or retired.",
    epilog=example("definitions list --group reports --standing paused"),
)
@group_option
@click.option("--search", metavar="TEXT", help="Only with this text in the name or the task.")
@click.option("--standing", type=Word(Standing), metavar="STANDING", help=f"Only those that are {', '.join(Standing)}.")
@task_option
@as_json
@with_tm
def list_definitions(tm: TimeManagement, group: str | None, as_json: bool, **options: Any) -> None:
    """List the definitions."""
    show_rows = Rows(tm)
    rows = [show_rows.definition(definition) for definition in tm.definitions.list(group=group, **options)]
    if not as_json:
        rows = [row | {"task": row["task"] or number_of(row["steps"])} for row in rows]
    show(rows, columns=COLUMNS, json_wanted=as_json, empty="" if rows else _none(tm, group, options))


def _none(tm: TimeManagement, group: str | None, options: dict[str, Any]) -> str:
    if group is not None and (known := tm.definitions.groups()).get(group) is None:
        near = nearest(group, known)
        return f"no definition is in group {group!r}" + (f", did you mean {near!r}?" if near else "")
    if group is None and all(value is None for value in options.values()):
        return "no definitions yet; `tm definitions add` or `load` adds some"
    return "no definition is like that" + hint(options["task"], tm.app.tasks, "task")


@command.command(
    "show",
    help="Show what is stated about a definition, what it means, and what comes next.",
    epilog=example("definitions show nightly"),
)
@definition_argument()
@as_json
@with_tm
def show_definition(tm: TimeManagement, name: str, as_json: bool) -> None:
    """Show one definition."""
    definition = tm.definitions.get(name)
    versions = len(tm.definitions.versions(name, limit=MOST_VERSIONS))
    row = Rows(tm).definition_in_full(definition, versions=versions)
    if as_json:
        show_one(row, json_wanted=True)
        return
    show_one(_for_people(definition, row), json_wanted=False)
    show_steps(row["steps"], definition.mode)
    if row["coming"]:
        click.echo("coming:")
    for one in row["coming"]:
        by = f"   by {one['rule']}" if one["rule"] else ""
        click.echo(f"  {datetime.fromisoformat(one['utc']):%Y-%m-%d %H:%M:%S} UTC   {one['local']} {one['timezone']}{by}")


def _for_people(definition: Definition, row: dict[str, Any]) -> dict[str, Any]:
    values = {"name": definition.name, **row["stated"]}
    if definition.steps:
        values["steps"] = number_of(definition.steps)
    values |= {name: row[name] for name in ("meaning", "is", "next_run_at", "last_run_at", "runs")}
    values |= {"version": f"{definition.version}, {row['versions']} kept"}
    values |= {name: row[name] for name in ("updated_at", "updated_by")}
    edit = row["waiting_edit"]
    if edit is not None:
        by = f", by {edit['actor']}" if edit["actor"] else ""
        when, moment = ("at", edit["at"]) if edit["at"] else ("after", edit["after"])
        told = f"{when} {datetime.fromisoformat(moment):%Y-%m-%d %H:%M:%S} UTC"
        values["waiting_edit"] = f"{told}: {_said(edit['values'])}{by}"
    return values


def _said(values: Mapping[str, Any]) -> str:
    told = {field: number_of(value) if field == "steps" and value else value for field, value in values.items()}
    return ", ".join(f"{field}={value}" for field, value in told.items())


@command.command(
    help="List the versions of a definition, the latest first, and what each one changed.",
    epilog=example("definitions versions nightly"),
)
@definition_argument()
@limit_option
@as_json
@with_tm
def versions(tm: TimeManagement, name: str, limit: int, as_json: bool) -> None:
    """List the versions."""
    found = tm.definitions.versions(name, limit=limit + 1)  # one more, to compare the last one shown with
    show(
        Rows(tm).versions(found, limit),
        columns=("version", "at", "actor", "action", "reason", "changed"),
        json_wanted=as_json,
        empty="no versions were kept",
    )


for part in (add, edit, restore, preview, load, export, trigger, pause, resume, enable, disable, remove):
    command.add_command(part)
