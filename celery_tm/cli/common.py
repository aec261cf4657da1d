"""What the commands share: the app, errors as one line, tables for people and JSON for programs."""

from __future__ import annotations

import functools
import getpass
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from ..errors import AppMissing, TmError
from ..management import TimeManagement

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
limit_option = click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many."
)
actor_option = click.option("--actor", default=getpass.getuser, help="Who does this, for the audit; default: you.")
reason_option = click.option("--reason", help="Why, for the audit.")


def with_tm(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hand the command its `TimeManagement`; what goes wrong on purpose becomes one line and exit code 1."""

    @click.pass_context
    @functools.wraps(function)
    def run(ctx: click.Context, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(_tm(ctx), *args, **kwargs)
        except TmError as error:
            raise click.ClickException(str(error)) from None

    return run


def _tm(ctx: click.Context) -> TimeManagement:
    app = getattr(ctx.obj, "app", None)
    if app is None or app.main == "default":  # Celery's own stand-in, when -A was left out
        raise AppMissing("celery tm")
    return TimeManagement(app)


def show(rows: Sequence[Mapping[str, Any]], *, columns: Sequence[str], json_wanted: bool, empty: str) -> None:
    """Print rows as a table of `columns`, or all of them as JSON."""
    if json_wanted:
        click.echo(json.dumps([plain(row) for row in rows], indent=2))
        return
    if not rows:
        click.echo(empty)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 200).print(table)


def show_one(value: Mapping[str, Any], *, json_wanted: bool) -> None:
    """Print one thing, a line per field, or as JSON."""
    if json_wanted:
        click.echo(json.dumps(plain(value), indent=2))
        return
    width = max(map(len, value), default=0)
    for name, item in value.items():
        click.echo(f"{name.replace('_', ' '):<{width}}  {_cell(item)}")


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(plain(value))
    text = str(value)
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)
