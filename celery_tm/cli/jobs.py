"""`celery -A app tm jobs`: what is still owed, and one job's story."""

from __future__ import annotations

from typing import Any

import click

from ..domain.job import Job, JobState
from ..management import TimeManagement
from ..producer import cancel as cancel_job
from . import Group
from .common import (
    actor_option,
    as_json,
    example,
    limit_option,
    plain,
    reason_option,
    show,
    show_one,
    where_told,
    with_tm,
)

COLUMNS = ("id", "task", "state", "attempt", "run_at", "dedupe_key", "claimed_by", "progress", "last_error")


@click.group(name="jobs", cls=Group, help="Jobs that are still owed.")
def command() -> None:
    """Jobs that are still owed."""


@command.command(
    "list", help="List jobs that are still owed, those due first in front.", epilog=example("jobs list --state pending")
)
@click.option("--state", type=click.Choice([str(state) for state in JobState]), help="Only in this state.")
@click.option("--task", help="Only of this task.")
@limit_option
@as_json
@with_tm
def list_jobs(tm: TimeManagement, state: str | None, task: str | None, limit: int, as_json: bool) -> None:
    """List jobs."""
    rows = [_row(job) for job in tm.jobs(state=state, task=task, limit=limit)]
    show(rows, columns=where_told(COLUMNS, rows, "step", "run"), json_wanted=as_json, empty="nothing is owed")


def _row(job: Job) -> dict[str, Any]:
    return plain(job) | {"run_at": job.run_at, "run": job.run}


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
    story = plain(tm.job(id))
    attempts = story["executions"]
    if as_json:
        show_one(story, json_wanted=True)
        return
    hidden = ("job", "executions", *(name for name in ("step", "run") if story[name] is None))
    show_one({name: story[name] for name in story if name not in hidden}, json_wanted=False)
    show(
        attempts,
        columns=("attempt", "outcome", "started_at", "completed_at", "worker", "error"),
        json_wanted=False,
        empty="",
    )


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
    done = cancel_job(id=id, app=tm.app, actor=actor, reason=reason)
    show_one({"job": id, "cancelled": done}, json_wanted=as_json)
    if not done:
        raise click.ClickException(f"no job {id} is owed")
