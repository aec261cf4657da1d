"""`celery -A app tm occurrences`: the instants of a definition and what was decided about each."""

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
    help="List the instants of a definition, the latest first, with what was decided and how it ended.",
    epilog=example("occurrences nightly --state missed"),
)
@definition_argument()
@click.option(
    "--state", type=Word(OccurrenceState), metavar="STATE", help=f"Only in this state: {', '.join(OccurrenceState)}."
)
@since_option
@until_option
@before_option
@limit_option
@as_json
@with_tm
def command(tm: TimeManagement, name: str, limit: int, before: str | None, as_json: bool, **options: Any) -> None:
    """List the occurrences."""
    found = many(partial(tm.occurrences, name, **since_until(options)), limit=limit, before=before)
    show_rows = Rows(tm)
    rows = [show_rows.occurrence(occurrence) for occurrence in found]
    filtered = any(value is not None for value in options.values())
    empty = "no instant is like that" if filtered else "nothing was decided yet"
    show(rows, columns=where_told(COLUMNS, rows, "steps", "id"), json_wanted=as_json, empty=empty)
    tell_next(found, "--before")
