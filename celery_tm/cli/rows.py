"""`celery -A app tm rows`: rows that this release cannot read, and a way to remove them."""

from __future__ import annotations

import click

from ..management import TimeManagement
from ..management import rows as management
from ..presentation import plain
from . import Group
from .common import actor_option, as_json, example, reason_option, with_tm
from .output import show, show_one

COLUMNS = ("table", "id", "error")


@click.group(name="rows", cls=Group, help="Rows that this release cannot read. Everything else goes on without them.")
def command() -> None:
    """Rows."""


@command.command("list", help="List the rows that cannot be read, in any table.", epilog=example("rows list"))
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=management.LOOKED_AT,
    show_default=True,
    help="Look at so many rows of each table, the latest.",
)
@as_json
@with_tm
def list_rows(tm: TimeManagement, limit: int, as_json: bool) -> None:
    """List the rows that cannot be read."""
    found = [plain(row) for row in management.unreadable(tm.installation, limit=limit)]
    show(found, columns=COLUMNS, json_wanted=as_json, empty="every row can be read")


@command.command(
    "remove",
    help="Delete a row that cannot be read, for good; the audit says so. A row that can be read is refused.",
    epilog=example("rows remove tm_job 0197a1f0-3c1e-7d52-9b0e-2f6c1a7e4d11 --reason 'written by hand'"),
)
@click.argument("table")
@click.argument("key", nargs=-1, required=True)
@actor_option
@reason_option
@as_json
@with_tm
def remove(
    tm: TimeManagement, table: str, key: tuple[str, ...], actor: str | None, reason: str | None, as_json: bool
) -> None:
    """Remove a row."""
    gone = management.remove(tm.installation, table, key, actor=actor, reason=reason)
    show_one(plain(gone), json_wanted=as_json)
