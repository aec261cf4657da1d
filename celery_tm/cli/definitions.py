"""`celery -A app tm definitions`: recurring definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..domain.definition import Definition
from ..management import TimeManagement
from .common import actor_option, as_json, plain, reason_option, show, show_one, with_tm

COLUMNS = ("name", "task", "schedule", "timezone", "is", "next_run_at", "last_run_at", "version")


@click.group(name="definitions", help="Recurring definitions.")
def command() -> None:
    """Recurring definitions."""


@command.command("list", help="List the definitions, also those that never ran.")
@click.option("--group", help="Only this group.")
@as_json
@with_tm
def list_definitions(tm: TimeManagement, group: str | None, as_json: bool) -> None:
    """List the definitions."""
    rows = [_row(definition) for definition in tm.definitions.list(group=group)]
    show(rows, columns=COLUMNS, json_wanted=as_json, empty="no definitions yet; `tm definitions load FILE` adds some")


def _row(definition: Definition) -> dict[str, Any]:
    state = "disabled" if not definition.enabled else "paused" if definition.paused else "on"
    return {
        **plain_definition(definition),
        "is": state,
        "next_run_at": definition.next_run_at,
        "last_run_at": definition.last_run_at,
    }


def plain_definition(definition: Definition) -> dict[str, Any]:
    """Return a definition's columns as JSON."""
    value: dict[str, Any] = plain(definition)
    return value


@command.command("show", help="Show one definition.")
@click.argument("name")
@as_json
@with_tm
def show_definition(tm: TimeManagement, name: str, as_json: bool) -> None:
    """Show one definition."""
    show_one(plain_definition(tm.definitions.get(name)), json_wanted=as_json)


@command.command(help="Add or change the definitions of a TOML or YAML file. Idempotent; one bad entry changes nothing.")
@click.argument("file", type=click.Path(path_type=Path))
@actor_option
@as_json
@with_tm
def load(tm: TimeManagement, file: Path, actor: str | None, as_json: bool) -> None:
    """Load a file."""
    loaded = tm.definitions.load(file, actor=actor)
    if as_json:
        show_one(plain(loaded), json_wanted=True)
        return
    for name, names in (("added", loaded.added), ("changed", loaded.changed), ("unchanged", loaded.unchanged)):
        click.echo(f"{name}: {len(names)}" + (f" ({', '.join(names)})" if names else ""))


@command.command(help="Run a definition now, once, under its own overlap rule.")
@click.argument("name")
@actor_option
@reason_option
@as_json
@with_tm
def trigger(tm: TimeManagement, name: str, actor: str | None, reason: str | None, as_json: bool) -> None:
    """Run a definition now."""
    occurrence = tm.trigger(name, actor=actor, reason=reason)
    value = {"occurrence": occurrence.id, "state": str(occurrence.state), "reason": occurrence.reason}
    show_one(value, json_wanted=as_json)


def _switch(action: str, about: str) -> None:
    @command.command(action, help=about)
    @click.argument("name")
    @actor_option
    @reason_option
    @as_json
    @with_tm
    def switch(tm: TimeManagement, name: str, actor: str | None, reason: str | None, as_json: bool) -> None:
        definition = getattr(tm, action)(name, actor=actor, reason=reason)
        value = {
            "name": name,
            "enabled": definition.enabled,
            "paused": definition.paused,
            "version": definition.version,
        }
        show_one(value, json_wanted=as_json)


_switch("pause", "Stop a definition for a while; its instants meanwhile are recorded as skipped.")
_switch("resume", "Let a paused definition go on with its next instant.")
_switch("enable", "Switch a definition on.")
_switch("disable", "Switch a definition off.")
