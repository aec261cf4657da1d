"""`celery -A app tm history`: the latest executions."""

from __future__ import annotations

import click

from ..management import TimeManagement
from .common import as_json, example, limit_option, plain, show, with_tm

COLUMNS = ("completed_at", "task", "attempt", "outcome", "source", "message", "error", "worker", "job")


@click.command(
    name="history",
    help="Show the latest executions: all, of a definition (NAME), or of a task.",
    epilog=example("history nightly --limit 10"),
)
@click.argument("name", required=False)
@click.option("--task", help="Only of this task.")
@limit_option
@as_json
@with_tm
def command(tm: TimeManagement, name: str | None, task: str | None, limit: int, as_json: bool) -> None:
    """Show the latest executions."""
    rows = [
        plain(execution) | {"completed_at": execution.completed_at} for execution in tm.history(name, task=task, limit=limit)
    ]
    show(rows, columns=COLUMNS, json_wanted=as_json, empty="nothing was executed yet")
