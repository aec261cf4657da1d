"""`celery -A app tm history`: the latest executions."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from ..domain.execution import Outcome
from ..domain.job import Source
from ..domain.scope import read_refs
from ..management import TimeManagement
from ..presentation import Rows
from .common import (
    Word,
    as_json,
    before_option,
    example,
    hint,
    limit_option,
    many,
    since_option,
    since_until,
    task_option,
    tell_next,
    until_option,
    with_tm,
)
from .completing import definition_argument
from .output import show, where_told

COLUMNS = ("completed_at", "task", "attempt", "outcome", "source", "message", "error", "worker", "job")


@click.command(
    name="history",
    help="Show the latest executions: all, of a definition (NAME), of a task, or what else they have in common.",
    epilog=example("history nightly --outcome failed --since 2026-05-01T00:00+02:00"),
)
@definition_argument(required=False)
@task_option
@click.option("--outcome", type=Word(Outcome), metavar="OUTCOME", help=f"Only those that ended so: {', '.join(Outcome)}.")
@click.option("--source", type=Word(Source), metavar="SOURCE", help=f"Only of jobs from there: {', '.join(Source)}.")
@click.option("--entity-id", metavar="ID", help="Only about this entity.")
@click.option(
    "--scope", multiple=True, metavar="NAME=VALUE", help="Only of jobs with this reference in their scope; repeatable."
)
@click.option("--worker", help="Only of this worker.")
@since_option
@until_option
@before_option
@limit_option
@as_json
@with_tm
def command(tm: TimeManagement, name: str | None, limit: int, before: str | None, as_json: bool, **options: Any) -> None:
    """Show the latest executions."""
    options["scope"] = read_refs(options["scope"]) or None
    found = many(partial(tm.history, name, **since_until(options)), limit=limit, before=before)
    rows = Rows(tm).executions(tm, found)
    filtered = name is not None or before is not None or any(value is not None for value in options.values())
    empty = "nothing was executed yet" if not filtered else "no execution is like that" + _hint(tm, options)
    show(rows, columns=where_told(COLUMNS, rows, "step"), json_wanted=as_json, empty=empty)
    tell_next(found, "--before")


def _hint(tm: TimeManagement, options: dict[str, Any]) -> str:
    return hint(options["task"], tm.app.tasks, "task")
