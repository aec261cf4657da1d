"""`celery -A app tm dead-letters`: what will not be tried again by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from ..management import TimeManagement
from ..presentation import Rows
from . import Group
from .common import (
    actor_option,
    as_json,
    before_option,
    example,
    hint,
    limit_option,
    many,
    reason_option,
    since_option,
    since_until,
    task_option,
    tell_next,
    until_option,
    with_tm,
)
from .completing import complete_definitions
from .output import console, print_table, show, show_one, where_told
from .waiting import working

COLUMNS = ("id", "task", "attempts", "buried_at", "reason", "last_error")
FILTERS = (
    until_option,
    since_option,
    click.option("--error", metavar="TEXT", help="Only with this text in the last error or the reason."),
    click.option("--definition", metavar="NAME", shell_complete=complete_definitions, help="Only of this definition."),
    task_option,
)


def filters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which dead letters are meant."""
    for option in FILTERS:
        function = option(function)
    return function


@click.group(name="dead-letters", cls=Group, help="Jobs that will not be tried again by themselves.")
def command() -> None:
    """Dead letters."""


@command.command(
    "list", help="List the dead letters, the latest first.", epilog=example("dead-letters list --task shop.report")
)
@filters
@before_option
@limit_option
@as_json
@with_tm
def list_letters(tm: TimeManagement, limit: int, before: str | None, as_json: bool, **wanted: Any) -> None:
    """List the dead letters."""
    found = many(partial(tm.dead_letters.list, **since_until(wanted)), limit=limit, before=before)
    show_rows = Rows(tm)
    rows = [show_rows.letter(letter) for letter in found]
    show(rows, columns=where_told(COLUMNS, rows, "step", "run"), json_wanted=as_json, empty=_none(tm, wanted))
    tell_next(found, "--before")


def _none(tm: TimeManagement, wanted: dict[str, Any]) -> str:
    if all(value is None for value in wanted.values()):
        return "no dead letters"
    return "no dead letter is like that" + hint(wanted["task"], tm.app.tasks, "task")


@command.command(
    "show",
    help="Show one dead letter with its traceback.",
    epilog=example("dead-letters show 0197a1f0-3c1e-7d52-9b0e-2f6c1a7e4d11"),
)
@click.argument("id")
@as_json
@with_tm
def show_letter(tm: TimeManagement, id: str, as_json: bool) -> None:
    """Show one dead letter."""
    row = Rows(tm).letter_in_full(tm.dead_letters.get(id))
    hidden = () if as_json else ("state", *(name for name, item in row.items() if item is None or item == {}))
    show_one({name: item for name, item in row.items() if name not in hidden}, json_wanted=as_json)


@command.command(
    help="Give a dead letter, or with --all every one that the options mean, all its tries again.",
    epilog=example("dead-letters revive --all --task shop.report --yes"),
)
@click.argument("id", required=False)
@click.option("--all", "every", is_flag=True, help="Revive all, or those that the other options mean.")
@filters
@click.option("--dry-run", is_flag=True, help="Only show what would be revived.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@actor_option
@reason_option
@as_json
@with_tm
def revive(tm: TimeManagement, id: str | None, every: bool, as_json: bool, **options: Any) -> None:
    """Revive dead letters."""
    if _is_one(id, every, options):
        tm.dead_letters.revive(id or "", **_who(options))
        show_one({"revived": 1}, json_wanted=as_json)
        return
    _act(tm, "Revive", "revived", tm.dead_letters.revive_all, options, json_wanted=as_json)


@command.command(
    help="Delete a dead letter, or with --all every one that the options mean, for good.",
    epilog=example("dead-letters purge --all --error ConnectionError --until 2026-01-01T00:00Z"),
)
@click.argument("id", required=False)
@click.option("--all", "every", is_flag=True, help="Purge all, or those that the other options mean.")
@filters
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@actor_option
@reason_option
@as_json
@with_tm
def purge(tm: TimeManagement, id: str | None, every: bool, as_json: bool, **options: Any) -> None:
    """Purge dead letters."""
    if _is_one(id, every, options):
        show_one({"purged": int(tm.dead_letters.purge(id, **_who(options)))}, json_wanted=as_json)
        return
    _act(tm, "Delete for good", "purged", partial(tm.dead_letters.purge, all=True), options, json_wanted=as_json)


def _is_one(id: str | None, every: bool, options: dict[str, Any]) -> bool:
    """Say whether one is meant; a filter alone means none, so that a forgotten ID is not taken for all of them."""
    filtered = [name for name in ("task", "definition", "error", "since", "until") if options[name] is not None]
    if (id is None) != every:
        raise click.UsageError("name one ID, or pass --all")
    if id is not None and (filtered or options["dry_run"]):
        raise click.UsageError(f"--{(filtered or ['dry-run'])[0]} goes with --all, not with an ID")
    return id is not None


def _who(options: dict[str, Any]) -> dict[str, Any]:
    return {"actor": options["actor"], "reason": options["reason"]}


def _act(
    tm: TimeManagement, verb: str, done: str, act: Callable[..., int], options: dict[str, Any], *, json_wanted: bool
) -> None:
    """Show what is meant, ask, and do it to just those that were shown."""
    wanted = since_until({name: options[name] for name in ("task", "definition", "error", "since", "until")})
    affected = tm.dead_letters.preview(**wanted)
    told = Rows(tm).affected(affected)
    if options["dry_run"]:
        show_one(told, json_wanted=True) if json_wanted else _show_affected(told, stderr=False)
        return
    if not affected.count:
        show_one({done: 0}, json_wanted=True) if json_wanted else click.echo(_none(tm, wanted))
        return
    if not options["yes"]:
        _show_affected(told, stderr=True)
        click.confirm(f"{verb}: {affected.count:,} dead letters?", abort=True, err=True)
    with working(f"{affected.count:,} dead letters"):
        count = act(**wanted, expected=affected.count, **_who(options))
    show_one({done: count}, json_wanted=json_wanted)
    if count < affected.count:
        click.echo(f"{affected.count - count:,} stayed; try one by its ID to be told why", err=True)


def _show_affected(told: dict[str, Any], *, stderr: bool) -> None:
    """Print how many of which tasks, from when, and some of them."""
    to = console(stderr=stderr)
    if not told["count"]:
        to.print("no dead letter is like that")
        return
    by_task = ", ".join(f"{task}: {count:,}" for task, count in told["by_task"].items())
    to.print(f"{told['count']:,} dead letters ({by_task}), buried from {told['oldest']} to {told['newest']}")
    print_table(told["sample"], ("id", "task", "buried_at", "last_error"), to=to)
    if told["count"] > len(told["sample"]):
        to.print(f"… and {told['count'] - len(told['sample']):,} more")
