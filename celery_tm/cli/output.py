"""Tables for people and JSON for programs. Colours and widths are a terminal's; a pipe gets plain text.

Where a table does not fit into a terminal, each row becomes a few lines: at three in the morning nobody widens the window.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..presentation import plain

IDS = ("id", "run", "job", "occurrence")  # people copy them, so they stay in one piece
STATES = ("state", "is", "outcome", "level", "change")
PROSE = (
    "reason", "last_error", "error", "message", "progress", "text", "advice", "args", "kwargs", "changed", "why", "dates",
    "used_by", "before", "after", "arguments", "else", "schedule", "value",
)  # fmt: skip
NARROWEST, GAP, INDENT, SHORT, PIPED = 16, 2, 2, 30, 200
BETWEEN = " · "
STYLES: Mapping[str, str] = {
    **dict.fromkeys(("on", "succeeded", "completed", "ok", "added"), "green"),
    **dict.fromkeys(("running", "dispatched", "queued", "note"), "cyan"),
    **dict.fromkeys(("paused", "skipped", "missed", "coalesced", "warning", "expired", "interrupted"), "yellow"),
    **dict.fromkeys(("failed", "timeout", "orphaned", "stale", "error", "removed", "refused"), "bold red"),
    **dict.fromkeys(("disabled", "retired", "cancelled", "deduplicated", "replaced"), "dim"),
}


def console(*, stderr: bool = False) -> Console:
    """Return where to print: no colours unless it is a terminal that wants them, no width unless it has one."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPED
    return Console(stderr=stderr, markup=False, highlight=False, width=width, no_color=_colourless() or None)


def _colourless() -> bool:
    """Say whether `celery --no-color` was asked for."""
    context = click.get_current_context(silent=True)
    return bool(context and getattr(context.obj, "no_color", False))


def show(rows: Sequence[Mapping[str, Any]], *, columns: Sequence[str], json_wanted: bool, empty: str) -> None:
    """Print rows as a table of `columns`, or all of them as JSON."""
    if json_wanted:
        click.echo(json.dumps([plain(row) for row in rows], indent=2))
    elif not rows:
        click.echo(empty)
    else:
        print_table(rows, columns, to=console())


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, to: Console) -> None:
    """Print rows as a table, or where that does not fit as a few lines each."""
    if to.is_terminal:  # a screen has no room for columns that say nothing
        columns = [*columns[:1], *(name for name in columns[1:] if any(row.get(name) is not None for row in rows))]
    cells = [[styled(column, row.get(column)) for column in columns] for row in rows]
    if to.is_terminal and _needed(columns, cells) > to.width:
        for line in cells:
            _print_card(dict(zip(columns, line, strict=True)), to)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold", no_wrap=column in IDS)
    for line in cells:
        table.add_row(*line)
    to.print(table)


def _needed(columns: Sequence[str], cells: Sequence[Sequence[Text]]) -> int:
    """Return the width that a table needs to be readable: only prose may be wrapped, and not to a sliver."""
    total = 0
    for place, column in enumerate(columns):
        widest = max(len(column), *(max(map(cell_len, line[place].plain.splitlines() or [""])) for line in cells))
        total += (min(widest, NARROWEST) if column in PROSE else widest) + GAP
    return total - GAP


def _print_card(row: Mapping[str, Text], to: Console) -> None:
    """Print a row as a few lines: what it is and how it stands, its short values together, each long one by itself."""
    [first, *others] = row
    title = row[first].copy()
    title.stylize("bold")
    for column in others:
        if column in STATES:
            title = Text("  ").join([title, row[column]])
    to.print(title)
    told = [column for column in others if column not in STATES and row[column].plain != "–"]
    long = [column for column in told if column in PROSE and row[column].cell_len > SHORT]
    lines = _packed([_labelled(column, row[column]) for column in told if column not in long], to.width - INDENT)
    for line in [*lines, *(_labelled(column, row[column]) for column in long)]:
        to.print(Padding(line, (0, 0, 0, INDENT)))


def _labelled(column: str, value: Text) -> Text:
    return Text.assemble((f"{column.replace('_', ' ')} ", "dim"), value)


def _packed(parts: Sequence[Text], width: int) -> list[Text]:
    """Return parts on as few lines as they fit on, none of them broken."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + part.cell_len + len(BETWEEN) <= width:
            lines[-1] = Text.assemble(lines[-1], (BETWEEN, "dim"), part)
        else:
            lines.append(part)
    return lines


def show_one(value: Mapping[str, Any], *, json_wanted: bool) -> None:
    """Print one thing, a line per field, or as JSON."""
    if json_wanted:
        click.echo(json.dumps(plain(value), indent=2))
        return
    to = console()
    width = max(map(len, value), default=0)
    for name, item in value.items():
        label = f"{name.replace('_', ' '):<{width}}  "
        if not to.is_terminal:
            click.echo(f"{label}{cell(name, item)}")
            continue
        line = Table.grid(padding=0)
        line.add_column(width=len(label), no_wrap=True, style="dim")
        line.add_column(overflow="fold")
        line.add_row(label, styled(name, item))
        to.print(line)


def styled(column: str, value: Any) -> Text:
    """Return a value as it stands in a table; the words of states have a colour besides."""
    text = Text(cell(column, value))
    if column in STATES and isinstance(value, str):
        text.stylize(style_of(value))
    return text


def style_of(state: str) -> str:
    """Return the colour of a state; of several words the gravest is not guessed, the first counts."""
    return STYLES.get(state.partition(",")[0].lower(), "")


def cell(column: str, value: Any) -> str:
    """Return a value as one text."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and (column.endswith("_at") or column in ("at", "utc", "now")):
        value = _instant(value)
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%SZ")  # every instant we keep is in UTC
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(plain(value))
    return printable(str(value))


def printable(text: str) -> str:
    """Return a text that cannot move the cursor or change the colours of a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def _instant(text: str) -> datetime | str:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


def where_told(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], *also: str) -> list[str]:
    """Return the columns of a table, with those besides that at least one of its rows has something to say in."""
    return [*columns, *(name for name in also if any(row.get(name) is not None for row in rows))]
