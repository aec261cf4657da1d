"""What the commands share: the app, errors as one line, tables for people and JSON for programs."""

from __future__ import annotations

import functools
import getpass
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click
from rich.console import Console
from rich.table import Table

from ..clock import as_utc
from ..domain.job import checked_text
from ..domain.paging import MAX_PAGE
from ..errors import AppMissing, InvalidValue, TmError, shown
from ..management import TimeManagement

MAX_ACTOR = 255
IDS = ("id", "run", "job")  # people copy them, so they stay in one piece

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
limit_option = click.option(
    "--limit", type=click.IntRange(1, MAX_PAGE), default=50, show_default=True, help="At most so many."
)


def _you() -> str | None:
    """Return who runs the command; a container may have no name for its user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


actor_option = click.option("--actor", default=_you, help="Who does this, for the audit; default: you.")
reason_option = click.option("--reason", help="Why, for the audit.")


def example(line: str) -> str:
    """Return the last words of a command's help: how it is called."""
    return f"\b\nExample:\n  celery -A app tm {line}"


def with_tm(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hand the command its `TimeManagement`; what goes wrong on purpose becomes one line and exit code 1."""

    @click.pass_context
    @functools.wraps(function)
    def run(ctx: click.Context, *args: Any, **kwargs: Any) -> Any:
        _refuse_half_characters(ctx)
        try:
            if kwargs.get("actor"):
                checked_text(kwargs["actor"], field="actor", limit=MAX_ACTOR)
            return function(_tm(ctx), *args, **kwargs)
        except TmError as error:
            raise click.ClickException(one_line(str(error))) from None

    return run


def _refuse_half_characters(ctx: click.Context) -> None:
    """Refuse arguments that are not UTF-8: Python hands them on as text that no database takes."""
    for name, value in ctx.params.items():
        if any("\ud800" <= c <= "\udfff" for text in _texts(value) for c in text):
            raise click.UsageError(f"{name.replace('_', '-')} is not UTF-8; check the terminal's encoding", ctx)


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, tuple) else (value,)
    return [str(item) for item in values if isinstance(item, (str, Path))]


def one_line(text: str) -> str:
    """Return a message without line breaks, so that logs and `grep` keep it whole."""
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


def _tm(ctx: click.Context) -> TimeManagement:
    app = getattr(ctx.obj, "app", None)
    if app is None or app.main == "default":  # Celery's own stand-in, when -A was left out
        raise AppMissing("celery tm")
    return TimeManagement(app)


def where_told(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], *also: str) -> list[str]:
    """Return the columns of a table, with those besides that at least one of its rows has something to say in."""
    return [*columns, *(name for name in also if any(row.get(name) is not None for row in rows))]


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
        table.add_column(column.replace("_", " "), overflow="fold", no_wrap=column in IDS)
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 200).print(table)


def read_instant(text: str | None, *, field: str, zone: str | None = None) -> datetime | None:
    """Return the instant that ISO 8601 text means; without an offset it is local time in `zone`, or refused."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidValue(
            field,
            f"{shown(text)} is not a date and time",
            "use ISO 8601, e.g. '2026-12-24T18:00' or '2026-12-24T18:00+01:00'",
        ) from None
    return as_utc(moment if moment.tzinfo or zone is None else moment.replace(tzinfo=ZoneInfo(zone)), field=field)


def both_times(instant: datetime, zone: str) -> dict[str, Any]:
    """Return an instant in UTC and on the clocks of a time zone."""
    return {"utc": instant, "local": instant.astimezone(ZoneInfo(zone)).isoformat(sep=" "), "timezone": zone}


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
        return value.strftime("%Y-%m-%d %H:%M:%SZ")  # every instant we keep is in UTC
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(plain(value))
    text = str(value)
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)
