"""Something of everything that can be shown: definitions, runs, jobs, dead letters, log lines, nodes, audit lines."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from celery import Celery
from sqlalchemy import update

from celery_tm import Task, TimeManagement, defer
from celery_tm.store import nodes, tables

EVIL = "<script>alert('x')</script>\"'&"


@dataclass(frozen=True)
class Everything:
    """Where it is found."""

    definition: str  # its last run succeeded
    failing: str  # its last run ended as a dead letter
    workflow: str  # one step of its last run failed
    group: str
    occurrence: str  # of the definition, completed
    run: str  # of the workflow, failed
    ended: str  # a job that succeeded
    owed: str  # a job that waits
    running: str  # a job that runs, with progress
    dead: str  # a dead letter


def furnish(app: Celery, tm: TimeManagement, said: str = "some") -> Everything:
    """Write something of everything, with `said` wherever people and bodies may write."""
    _add_tasks(app, said)
    who = {"actor": said, "reason": said}
    common = {"schedule": "30 2 * * *", "timezone": "Europe/Warsaw", "group": f"{said} group"}
    arguments = {"args": [said], "kwargs": {"secret": said}}
    tm.definitions.add(name=f"{said} works", task=f"{said} works", **common, **arguments, **who)
    tm.definitions.add(name=f"{said} falls", task=f"{said} falls", max_retries=0, **common, **arguments, **who)
    steps = [{"name": "first", "task": f"{said} works", "args": [said]}, {"name": "second", "task": f"{said} falls"}]
    tm.definitions.add(name=f"{said} flow", steps=steps, schedule="every 1h", max_retries=0, **who)
    tm.definitions.update(f"{said} works", queue=said, **who)
    tm.definitions.update(f"{said} works", queue=None, **who)
    made = {name: tm.trigger(f"{said} {name}", **who).id for name in ("works", "falls", "flow")}
    tm.run_due_jobs()
    [dead] = tm.dead_letters.list(definition=f"{said} falls")
    waiting = {"delay": timedelta(hours=1), "key": f"{said} waits", "entity_id": said, "app": app}
    owed = defer(f"{said} works", args=[said], kwargs={"secret": said}, **waiting)
    running = defer(f"{said} works", args=[said], delay=timedelta(hours=2), app=app)
    _start(tm, running.id, said)
    tm.pause(f"{said} falls", **who)
    with tm.installation.database.transaction() as tx:
        nodes.see(tx, f"beat@{said}", "beat", started_ago=timedelta(hours=1))
    ended = tm.history(f"{said} works", limit=1)[0].job
    return Everything(
        definition=f"{said} works", failing=f"{said} falls", workflow=f"{said} flow", group=f"{said} group",
        occurrence=made["works"], run=made["flow"], ended=ended, owed=owed.id, running=running.id, dead=dead.id,
    )  # fmt: skip


def _add_tasks(app: Celery, said: str) -> None:
    task = partial(app.task, base=Task, bind=True, shared=False)

    @task(name=f"{said} works")
    def works(self: Task, n: object = None, secret: object = None) -> object:
        self.job.report_progress(said)
        self.job.log(said, level="warning")
        self.job.report_success(said)
        return n

    @task(name=f"{said} falls", max_retries=0)
    def falls(self: Task, n: object = None, secret: object = None) -> None:
        self.job.log(said, level="error")
        raise ValueError(said)


def _start(tm: TimeManagement, id: str, said: str) -> None:
    """Let a job look as if a worker ran it."""
    job = tables.job
    with tm.installation.database.transaction() as tx:
        now = tx.read_now()
        values = {"state": "running", "progress": said, "claimed_by": f"worker@{said}", "claimed_at": now}
        tx.execute(update(job).where(job.c.id == id).values(lease_until=now + timedelta(hours=1), **values))
