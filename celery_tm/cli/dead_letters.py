"""`celery -A app tm dead-letters`: what will not be tried again by itself."""

from __future__ import annotations

import click

from ..management import TimeManagement
from ..store.dead_letters import DeadLetter
from ..presentation import plain
from . import Group
from .common import actor_option, as_json, example, limit_option, reason_option, with_tm
from .output import show, show_one, where_told

COLUMNS = ("id", "task", "attempts", "buried_at", "reason", "last_error")


@click.group(name="dead-letters", cls=Group, help="Jobs that will not be tried again by themselves.")
def command() -> None:
    """Dead letters."""


@command.command(
    "list", help="List the dead letters, the latest first.", epilog=example("dead-letters list --task shop.report")
)
@click.option("--task", help="Only of this task.")
@limit_option
@as_json
@with_tm
def list_letters(tm: TimeManagement, task: str | None, limit: int, as_json: bool) -> None:
    """List the dead letters."""
    rows = [_row(letter) for letter in tm.dead_letters.list(task=task, limit=limit)]
    show(rows, columns=where_told(COLUMNS, rows, "step", "run"), json_wanted=as_json, empty="no dead letters")


def _row(letter: DeadLetter) -> dict[str, object]:
    job = plain(letter.job)
    told = {"attempts": letter.attempts, "buried_at": letter.buried_at, "reason": letter.reason}
    return {**job, **told, "run": letter.job.run}


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
    letter = tm.dead_letters.get(id)
    show_one({**_row(letter), "traceback": letter.traceback}, json_wanted=as_json)


@command.command(
    help="Give a dead letter, or with --all every one, all its tries again.",
    epilog=example("dead-letters revive --all --task shop.report"),
)
@click.argument("id", required=False)
@click.option("--all", "every", is_flag=True, help="Revive all (of --task).")
@click.option("--task", help="With --all: only of this task.")
@actor_option
@reason_option
@as_json
@with_tm
def revive(
    tm: TimeManagement,
    id: str | None,
    every: bool,
    task: str | None,
    actor: str | None,
    reason: str | None,
    as_json: bool,
) -> None:
    """Revive dead letters."""
    if (id is None) != every:
        raise click.UsageError("name one ID, or pass --all")
    if id is not None:
        tm.dead_letters.revive(id, actor=actor, reason=reason)
    count = 1 if id is not None else tm.dead_letters.revive_all(task=task, actor=actor, reason=reason)
    show_one({"revived": count}, json_wanted=as_json)


@command.command(
    help="Delete a dead letter, or with --all every one, for good.",
    epilog=example("dead-letters purge --all --task shop.report --yes"),
)
@click.argument("id", required=False)
@click.option("--all", "every", is_flag=True, help="Purge all (of --task).")
@click.option("--task", help="With --all: only of this task.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@actor_option
@reason_option
@as_json
@with_tm
def purge(
    tm: TimeManagement,
    id: str | None,
    every: bool,
    task: str | None,
    yes: bool,
    actor: str | None,
    reason: str | None,
    as_json: bool,
) -> None:
    """Purge dead letters."""
    if (id is None) != every:
        raise click.UsageError("name one ID, or pass --all")
    if every and not yes:
        click.confirm("Delete them for good?", abort=True)
    show_one({"purged": tm.dead_letters.purge(id, task=task, actor=actor, reason=reason)}, json_wanted=as_json)
