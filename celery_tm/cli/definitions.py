"""`celery -A app tm definitions`: reading recurring definitions. Stating, switching and files are modules of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from ..domain.definition import Definition, stated
from ..management import TimeManagement
from ..store.versions import Version
from ..presentation import plain
from ..presentation.rows import both_times
from . import Group
from .common import as_json, example, limit_option, with_tm
from .output import show, show_one
from .defining import add, edit, preview
from .files import export, load
from .steps import number_of, show_steps
from .switching import disable, enable, pause, remove, resume, standing, trigger

COLUMNS = ("name", "task", "schedule", "timezone", "is", "next_run_at", "last_run_at", "version")
COMING = 3
MOST_VERSIONS = 10_000


@click.group(name="definitions", cls=Group, help="Recurring definitions.")
def command() -> None:
    """Recurring definitions."""


@command.command(
    "list",
    help="List the definitions, also those that never ran and those that are off or retired.",
    epilog=example("definitions list --group reports"),
)
@click.option("--group", help="Only this group.")
@as_json
@with_tm
def list_definitions(tm: TimeManagement, group: str | None, as_json: bool) -> None:
    """List the definitions."""
    rows = [_row(definition) for definition in tm.definitions.list(group=group)]
    if not as_json:
        rows = [row | {"task": row["task"] or number_of(row["steps"])} for row in rows]
    empty = (
        f"no definition is in group {group!r}" if group else "no definitions yet; `tm definitions add` or `load` adds some"
    )
    show(rows, columns=COLUMNS, json_wanted=as_json, empty=empty)


def _row(definition: Definition) -> dict[str, Any]:
    times = {"next_run_at": definition.next_run_at, "last_run_at": definition.last_run_at}
    task = None if definition.steps else definition.task  # else each step has its own
    return {**plain(definition), "task": task, "is": standing(definition), **times}


@command.command(
    "show",
    help="Show what is stated about a definition, what it means, and what comes next.",
    epilog=example("definitions show nightly"),
)
@click.argument("name")
@as_json
@with_tm
def show_definition(tm: TimeManagement, name: str, as_json: bool) -> None:
    """Show one definition."""
    definition = tm.definitions.get(name)
    versions = len(tm.definitions.versions(name, limit=MOST_VERSIONS))
    coming = [both_times(instant, definition.timezone) for instant in _coming(definition)]
    if as_json:
        told = {"stated": stated(definition), "meaning": definition.rule.describe(), "coming": coming, "versions": versions}
        show_one({**_row(definition), **told, "waiting_edit": definition.waiting_edit}, json_wanted=True)
        return
    show_one(_for_people(definition, versions), json_wanted=False)
    show_steps(definition)
    if coming:
        click.echo("coming:")
    for one in coming:
        click.echo(f"  {one['utc']:%Y-%m-%d %H:%M:%S} UTC   {one['local']} {one['timezone']}")


def _coming(definition: Definition) -> list[datetime]:
    instants: list[datetime] = []
    instant = definition.following
    while instant is not None and len(instants) < COMING:
        instants.append(instant)
        instant = definition.next_after(instant)
    return instants


def _for_people(definition: Definition, versions: int) -> dict[str, Any]:
    values = {"name": definition.name, **stated(definition)}
    if definition.steps:
        values["steps"] = number_of(definition.steps)
    values |= {"meaning": definition.rule.describe(), "is": standing(definition)}
    values |= {"next_run_at": definition.next_run_at, "last_run_at": definition.last_run_at, "runs": definition.runs}
    values |= {"version": f"{definition.version}, {versions} kept", "updated_at": definition.updated_at}
    values |= {"updated_by": definition.updated_by}
    edit = definition.waiting_edit
    if edit is not None:
        by = f", by {edit.actor}" if edit.actor else ""
        values["waiting_edit"] = f"after {edit.after:%Y-%m-%d %H:%M:%S} UTC: {_said(edit.values)}{by}"
    return values


def _said(values: Mapping[str, Any]) -> str:
    told = {field: number_of(value) if field == "steps" and value else value for field, value in values.items()}
    return ", ".join(f"{field}={value}" for field, value in told.items())


@command.command(
    help="List the versions of a definition, the latest first, and what each one changed.",
    epilog=example("definitions versions nightly"),
)
@click.argument("name")
@limit_option
@as_json
@with_tm
def versions(tm: TimeManagement, name: str, limit: int, as_json: bool) -> None:
    """List the versions."""
    found = tm.definitions.versions(name, limit=limit + 1)  # one more, to compare the last one shown with
    rows = [{**plain(one), "at": one.at, "changed": _changed(found, place)} for place, one in enumerate(found[:limit])]
    show(
        rows,
        columns=("version", "at", "actor", "action", "reason", "changed"),
        json_wanted=as_json,
        empty="no versions were kept",
    )


def _changed(found: Sequence[Version], place: int) -> dict[str, Any]:
    """Return the fields that a version states otherwise than the one before it."""
    new = found[place].stated
    old = found[place + 1].stated if place + 1 < len(found) else {}
    return {field: new.get(field) for field in {**old, **new} if old.get(field) != new.get(field)}


for part in (add, edit, preview, load, export, trigger, pause, resume, enable, disable, remove):
    command.add_command(part)
