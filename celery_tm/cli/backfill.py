"""`celery -A app tm backfill`: run the instants of a past range that did not run."""

from __future__ import annotations

from typing import Any

import click

from ..domain.backfill import Backfilled
from ..management import TimeManagement
from ..presentation import Rows
from ..presentation.rows import both_times
from .common import actor_option, as_json, example, read_instant, reason_option, with_tm
from .completing import definition_argument
from .output import show, show_one
from .waiting import working

SHOWN = 20
COLUMNS = ("utc", "local", "state", "replay_of", "id")


@click.command(
    name="backfill",
    help="Run the instants of a definition in a past range that did not run, one after the other: those that are not on "
    "record, and those that were skipped, missed, coalesced or cancelled.",
    epilog=example('backfill nightly --since 2026-05-01T00:00+02:00 --until 2026-06-01T00:00+02:00 --reason "new report"'),
)
@definition_argument()
@click.option("--since", metavar="ISO", required=True, help="From this instant on; ISO 8601 with an offset.")
@click.option("--until", metavar="ISO", help="Up to this instant, itself not included. Default: now.")
@click.option("--overlap", metavar="[queue|allow]", help="One at a time, or all at once. Default: as the definition says.")
@click.option("--again", is_flag=True, help="Also run what completed, failed or became stale.")
@click.option("--dry-run", is_flag=True, help="Only say what would run.")
@actor_option
@reason_option
@as_json
@with_tm
def command(tm: TimeManagement, name: str, since: str, until: str | None, as_json: bool, **options: Any) -> None:
    """Run what did not run."""
    start, end = read_instant(since, field="since"), read_instant(until, field="until")
    assert start is not None
    with working(f"backfilling {name}"):
        made = tm.backfill(name, since=start, until=end, **options)
    if as_json:
        show_one(Rows(tm).backfilled(made), json_wanted=True)
        return
    click.echo(str(made))
    _show(made, tm.definitions.get(name).timezone)


def _show(made: Backfilled, zone: str) -> None:
    """Print the first runs, for people."""
    pairs = list(zip(made.instants, made.created, strict=True))[:SHOWN]
    rows = [{**both_times(at, zone), "state": one.state, "replay_of": one.replay_of, "id": one.id} for at, one in pairs]
    if rows:
        show(rows, columns=COLUMNS, json_wanted=False, empty="")
    if len(made.created) > SHOWN:
        click.echo(f"… and {len(made.created) - SHOWN:,} more; --json lists them all")
