"""`celery -A app tm history`: the latest executions."""

from __future__ import annotations

import click

from ..management import TimeManagement
from .common import as_json, example, limit_option, plain, show, where_told, with_tm

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
    found = tm.history(name, task=task, limit=limit)
    steps = tm.step_names(found)
    rows = [plain(one) | {"completed_at": one.completed_at, "step": steps.get(one.job)} for one in found]
    show(rows, columns=where_told(COLUMNS, rows, "step"), json_wanted=as_json, empty="nothing was executed yet")
