"""`celery -A app tm occurrences`: the instants of a definition, or of all, and what was decided about each."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from ..domain.occurrence import OccurrenceState
from ..management import TimeManagement
from ..presentation import Rows
from .common import (
    Word,
    as_json,
    before_option,
    example,
    limit_option,
    many,
    since_option,
    since_until,
    tell_next,
    until_option,
    with_tm,
)
from .completing import definition_argument
from .output import show, where_told

COLUMNS = ("scheduled_at", "state", "reason", "started_at", "ended_at")


@click.command(
    name="occurrences",
    help="List the instants of a definition, or of all, the latest first, with what was decided and how it ended.",
    epilog=example("occurrences --troubled --since 2026-03-29T00:00+00:00"),
)
@definition_argument(required=False)
@click.option(
    "--state", type=Word(OccurrenceState), metavar="STATE", help=f"Only in this state: {', '.join(OccurrenceState)}."
)
@click.option("--troubled", is_flag=True, help="Only those that failed, are stale, or were missed, skipped or cancelled.")
@since_option
@until_option
@before_option
@limit_option
@as_json
@with_tm
def command(tm: TimeManagement, name: str | None, limit: int, before: str | None, as_json: bool, **options: Any) -> None:
    """List the occurrences."""
    found = many(partial(tm.occurrences, name, **since_until(options)), limit=limit, before=before)
    rows = Rows(tm).occurrences(found)
    filtered = any(options.values())
    empty = "no instant is like that" if filtered else "nothing was decided yet"
    columns = COLUMNS if name is not None else ("name", *COLUMNS)
    show(rows, columns=where_told(columns, rows, "steps", "id"), json_wanted=as_json, empty=empty)
    tell_next(found, "--before")
