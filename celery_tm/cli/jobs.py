"""`celery -A app tm jobs`: what is still owed, and one job's story."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

import click

from ..domain.job import JobState
from ..management import TimeManagement
from ..management.rows import cancel as cancel_job
from ..presentation import Rows
from . import Group
from .common import (
    Word,
    actor_option,
    after_option,
    as_json,
    example,
    hint,
    limit_option,
    many,
    reason_option,
    task_option,
    tell_next,
    with_tm,
)
from .completing import complete_definitions
from .output import show, show_one, where_told

COLUMNS = ("id", "task", "state", "attempt", "run_at", "dedupe_key", "claimed_by", "progress", "last_error")
ATTEMPTS = ("attempt", "outcome", "started_at", "took", "next_delay", "worker", "error")
HIDDEN = ("job", "executions")


@click.group(name="jobs", cls=Group, help="Jobs that are still owed.")
def command() -> None:
    """Jobs that are still owed."""


@command.command(
    "list", help="List jobs that are still owed, those due first in front.", epilog=example("jobs list --state pending")
)
@click.option("--state", type=Word(JobState), metavar="STATE", help=f"Only in this state: {', '.join(JobState)}.")
@task_option
@click.option("--definition", metavar="NAME", shell_complete=complete_definitions, help="Only of this definition.")
@click.option("--entity-id", metavar="ID", help="Only about this entity.")
@click.option("--key", help="Only with this key.")
@after_option
@limit_option
@as_json
@with_tm
def list_jobs(tm: TimeManagement, limit: int, after: str | None, as_json: bool, **options: Any) -> None:
    """List jobs."""
    found = many(partial(tm.jobs, **options), limit=limit, after=after)
    show_rows = Rows(tm)
    rows = [show_rows.job(job) for job in found]
    filtered = any(value is not None for value in options.values())
    empty = "nothing like that is owed" + hint(options["task"], tm.app.tasks, "task") if filtered else "nothing is owed"
    show(rows, columns=where_told(COLUMNS, rows, "step", "run"), json_wanted=as_json, empty=empty)
    tell_next(found, "--after")


@command.command(
    "show",
    help="Show one job's story, also after its row is gone.",
    epilog=example("jobs show 0197a1f0-3c1e-7d52-9b0e-2f6c1a7e4d11"),
)
@click.argument("id")
@as_json
@with_tm
def show_job(tm: TimeManagement, id: str, as_json: bool) -> None:
    """Show one job."""
    story = Rows(tm).story(tm.job(id))
    if as_json:
        show_one(story, json_wanted=True)
        return
    told = {name: item for name, item in story.items() if name not in HIDDEN and item is not None}
    job = story["job"] or {}
    told |= {name: job[name] for name in ("args", "kwargs", "dedupe_key", "entity_id") if job.get(name) is not None}
    show_one(told, json_wanted=False)
    if story["executions"]:
        click.echo()
        show([_attempt(one) for one in story["executions"]], columns=ATTEMPTS, json_wanted=False, empty="")


def _attempt(execution: dict[str, Any]) -> dict[str, Any]:
    """Return an attempt as the table has it: with how long it took, in seconds."""
    started, ended = (execution[name] and datetime.fromisoformat(execution[name]) for name in ("started_at", "completed_at"))
    return execution | {"took": round((ended - started).total_seconds(), 3) if started else None}


@command.command(
    help="Cancel a job: one that waits is deleted and recorded, one that runs is asked to stop.",
    epilog=example("jobs cancel 0197a1f0-3c1e-7d52-9b0e-2f6c1a7e4d11 --reason refunded"),
)
@click.argument("id")
@actor_option
@reason_option
@as_json
@with_tm
def cancel(tm: TimeManagement, id: str, actor: str | None, reason: str | None, as_json: bool) -> None:
    """Cancel a job."""
    done = cancel_job(tm.installation, id, actor=actor, reason=reason)
    show_one({"job": id, "cancelled": done}, json_wanted=as_json)
    if not done:
        raise click.ClickException(f"no job {id} is owed")
