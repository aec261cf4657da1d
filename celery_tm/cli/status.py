"""`celery -A app tm status`: how everything stands, in one screen."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..clock import format_duration
from ..domain.status import Node, Status
from ..errors import OUT_OF_REACH
from ..management import TimeManagement
from ..presentation import Rows
from .common import as_json, example, with_tm
from .output import cell, console, printable, show_one, style_of

SECOND = timedelta(seconds=1)
LATE = 60.0  # seconds of lag that are worth a colour


@click.command(
    name="status",
    help="Show how everything stands: definitions, jobs, lag, dead letters, the last hour and day, nodes.",
    epilog=example("status --watch 5"),
)
@click.option(
    "--watch",
    is_flag=False,
    flag_value=2.0,
    default=None,
    type=click.FloatRange(min=0.1),
    metavar="[SECONDS]",
    help="Go on showing it, every so many seconds (2), until Ctrl-C; with --json one object to a line.",
)
@as_json
@with_tm
def command(tm: TimeManagement, watch: float | None, as_json: bool) -> None:
    """Show how everything stands."""
    if watch is None:
        status = tm.status()
        if as_json:
            show_one(Rows(tm).status(status), json_wanted=True)
        else:
            console().print(screen(status))
        return
    with suppress(KeyboardInterrupt):
        _stream(tm, watch) if as_json else _watch(tm, watch)


def _stream(tm: TimeManagement, every: float) -> None:
    """Print one object to a line, for programs that read along."""
    show_rows = Rows(tm)
    while True:
        click.echo(json.dumps(show_rows.status(tm.status())))
        time.sleep(every)


def _watch(tm: TimeManagement, every: float) -> None:
    """Keep one screen up to date; a database that is away for a while is said there."""
    to = console()
    if not to.is_terminal:
        while True:
            to.print(_now(tm.status), "")
            time.sleep(every)
    with Live(_now(tm.status), console=to, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_now(tm.status), refresh=True)
            time.sleep(every)


def _now(ask: Callable[[], Status]) -> RenderableType:
    try:
        return screen(ask())
    except OUT_OF_REACH as error:
        return Text(printable(str(error)), style="bold red")


def screen(status: Status) -> RenderableType:
    """Return the screen: what may need somebody is coloured, and says so in words too."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, told in _lines(status).items():
        grid.add_row(name, told)
    return Group(_header(status), "", grid, "", *_nodes(status))


def _header(status: Status) -> Text:
    text = Text.assemble((cell("now", status.now), "bold"), (f"   schema {status.schema}", "dim"))
    if status.next_run_at is not None:
        ahead = status.next_run_at - status.now
        when = f"in {_told(ahead)}" if ahead > timedelta(0) else f"{_told(-ahead)} ago"
        text.append(f"   next run {cell('at', status.next_run_at)} ({when})")
    return text


def _lines(status: Status) -> dict[str, Text]:
    limit = "" if status.max_in_flight is None else f" of {status.max_in_flight:,}"
    jobs = {name.replace("_", " "): count for name, count in status.jobs.items()}
    lines = {
        "definitions": _counts(status.definitions, empty="none"),
        "jobs": _counts(jobs, empty="none"),
        "lag": _lag(status),
        "in flight": Text(f"{status.in_flight:,}{limit}"),
        "expired leases": _bad(status.expired_leases, "yellow"),
        "dead letters": _bad(status.dead_letters, "bold red"),
        "last hour": _counts(status.recent, empty="nothing was executed"),
        "last day": _counts(status.occurrences_recent, empty="no instant was decided"),
    }
    if status.capped:
        lines[""] = Text(f"counts end at {status.cap:,}: there may be more {', '.join(status.capped)}", style="dim")
    return lines


def _counts(counts: Mapping[str, int], *, empty: str) -> Text:
    told = [Text(f"{count:,} {word}", style=style_of(word)) for word, count in counts.items() if count]
    return Text(" · ").join(told) if told else Text(empty, style="dim")


def _bad(count: int, style: str) -> Text:
    return Text(f"{count:,}", style=style if count else "")


def _lag(status: Status) -> Text:
    oldest = status.oldest_due
    if oldest is None:
        return Text("nothing due waits")
    lag = (_told(timedelta(seconds=status.lag)), "bold red" if status.lag > LATE else "")
    return Text.assemble(lag, f"   oldest: {printable(oldest.task)} {oldest.id}")


def _nodes(status: Status) -> list[RenderableType]:
    if not status.nodes:
        return [Text("no beat and no worker was seen; `celery -A app tm doctor` says more", style="bold red")]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("node", "kind", "seen", "up", "version"):
        table.add_column(column, overflow="fold")
    for node in status.nodes:
        table.add_row(*_node(node, status.now))
    return [table]


def _node(node: Node, now: datetime) -> tuple[Any, ...]:
    seen = f"{_told(now - node.seen_at)} ago" + (", silent" if node.is_silent else "")
    style = "bold red" if node.is_silent else ""
    return printable(node.name), node.kind, Text(seen, style=style), _told(now - node.started_at), node.version


def _told(duration: timedelta) -> str:
    """Return a duration in two units at most."""
    whole = timedelta(seconds=round(max(duration, timedelta(0)).total_seconds()))
    return " ".join(format_duration(whole).split()[:2])
