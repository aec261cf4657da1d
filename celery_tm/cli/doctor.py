"""`celery -A app tm doctor`: what is wrong, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.table import Table
from rich.text import Text

from ..domain.findings import TO_ACT_ON, Finding, Level
from ..management import TimeManagement
from ..presentation import Rows
from .common import as_json, example, with_tm
from .output import console, printable, show, style_of
from .waiting import working

FOUND = 3  # the exit code where there is something to act on


@click.command(
    name="doctor",
    help="Look for what is wrong: schema, clocks, broker, nodes, stuck work, unknown tasks, leases, dead letters, settings; "
    "and say what to do. Exit code 3 if there is a warning or an error.",
    epilog=example("doctor"),
)
@click.option("--all", "every", is_flag=True, help="Also say what is well, check by check.")
@as_json
@with_tm
def command(tm: TimeManagement, every: bool, as_json: bool) -> None:
    """Look for what is wrong."""
    with working("looking"):
        found = tm.doctor()
    if as_json:
        show_rows = Rows(tm)
        show([show_rows.finding(one) for one in found], columns=(), json_wanted=True, empty="")
    else:
        _print(found, every=every)
    if any(one.level in TO_ACT_ON for one in found):
        raise SystemExit(FOUND)


def _print(found: Sequence[Finding], *, every: bool) -> None:
    """Print what was found, the worst first, each with what to do; what is well takes one line."""
    to = console()
    well = [one for one in found if one.level is Level.OK]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for one in found if every else found[: len(found) - len(well)]:
        grid.add_row(Text(one.level, style=style_of(one.level)), _told(one))
    if well and not every:
        grid.add_row(Text("ok", style=style_of("ok")), ", ".join(one.check for one in well))
    to.print(grid)
    bad = sum(one.level in TO_ACT_ON for one in found)
    to.print(f"\n{bad} to act on, {len(found) - bad - len(well)} to note, {len(well)} ok")


def _told(one: Finding) -> Text:
    text = Text.assemble((f"{one.check}: ", "bold"), printable(one.text))
    if one.advice:
        text.append(f"\n→ {printable(one.advice)}")
    if one.objects:
        text.append(f"\n{printable(', '.join(one.objects))}", style="dim")
    return text
