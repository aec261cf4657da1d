"""`celery -A app tm backfill`: run the instants of a past range that did not run."""

from __future__ import annotations

import sys
from typing import Any

import click

from ..domain.backfill import Backfilled
from ..domain.run_explanation import stamp as moment
from ..management import TimeManagement
from ..presentation import Rows
from ..presentation.rows import both_times
from .common import actor_option, as_json, example, read_instant, reason_option, with_tm
from .completing import definition_argument
from .output import show, show_one
from .stating import override_options, read_overrides
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
@click.option("--yes", is_flag=True, help="Do not ask.")
@override_options
@actor_option
@reason_option
@as_json
@with_tm
def command(
    tm: TimeManagement, name: str, since: str, until: str | None, yes: bool, dry_run: bool, as_json: bool, **options: Any
) -> None:
    """Run what did not run, after asking."""
    options |= read_overrides(options)
    start, end = read_instant(since, field="since"), read_instant(until, field="until")
    assert start is not None
    if not yes and not dry_run:
        with working(f"looking what {name} has not run"):
            would = tm.backfill(name, since=start, until=end, dry_run=True, **options)
        end = would.range.until  # what comes while somebody thinks is not meant
        _ask(would)
    with working(f"backfilling {name}"):
        made = tm.backfill(name, since=start, until=end, dry_run=dry_run, **options)
    if as_json:
        show_one(Rows(tm).backfilled(made), json_wanted=True)
        return
    click.echo(str(made))
    _show(made, tm.definitions.get(name).timezone)


def _ask(would: Backfilled) -> None:
    """Ask before anything runs; a script cannot be asked, so it has to say --yes."""
    count = len(would.created)
    if not count:
        return
    first, last = would.instants[0], would.instants[-1]
    told = f"{count:,} {'run' if count == 1 else 'runs'} from {moment(first)} to {moment(last)}."
    if not sys.stdin.isatty():
        raise click.ClickException(f"{told} Pass --yes to start them, or --dry-run to see them: there is nobody to ask")
    click.confirm(f"{told} Continue?", abort=True, err=True)


def _show(made: Backfilled, zone: str) -> None:
    """Print the first runs, for people."""
    pairs = list(zip(made.instants, made.created, strict=True))[:SHOWN]
    rows = [{**both_times(at, zone), "state": one.state, "replay_of": one.replay_of, "id": one.id} for at, one in pairs]
    if rows:
        show(rows, columns=COLUMNS, json_wanted=False, empty="")
    if len(made.created) > SHOWN:
        click.echo(f"… and {len(made.created) - SHOWN:,} more; --json lists them all")
