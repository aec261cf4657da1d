"""Fills a database with sqlalchemy-celery-beat's own models: `python -m tmtest.peers.fill_sqlalchemy_celery_beat URL`."""

from __future__ import annotations

import json
import sys
import warnings
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import time_machine

from tmtest.peers import NOW, ZONE
from tmtest.peers.samples import NOT_ASKED, SAMPLES


def fill(session_factory: Any) -> None:
    """Make the entries."""
    from sqlalchemy_celery_beat import models

    with session_factory() as session:
        for sample in SAMPLES:
            kind = getattr(models, f"{sample['kind'].title()}Schedule")
            schedule = kind(**sample["schedule"])
            session.add(schedule)
            session.flush()
            task = models.PeriodicTask(**sample["fields"])
            task.schedule_model = schedule
            session.add(task)
            session.flush()
        session.commit()


def next_runs(scheduler: Any) -> dict[str, Any]:
    """Let the scheduler read its entries, add its own, and say when it would run each."""
    from sqlalchemy_celery_beat.models import PeriodicTask
    from sqlalchemy_celery_beat.schedulers import ModelEntry

    scheduler.install_default_entries({})
    with scheduler.Session() as session:
        asked = session.query(PeriodicTask).filter(PeriodicTask.name.not_in(NOT_ASKED)).all()
        return {model.name: due(ModelEntry(model, app=scheduler.app, Session=scheduler.Session)) for model in asked}


def due(entry: Any) -> Any:
    """Return "due", or the instant of the next run."""
    is_due, seconds = entry.is_due()
    if is_due:
        return "due"
    if entry.model.start_time:
        return (NOW + timedelta(seconds=seconds)).isoformat()
    return (NOW + entry.schedule.remaining_estimate(entry.last_run_at)).isoformat()


def main() -> None:
    """Fill the database and say what is in it."""
    warnings.simplefilter("ignore")
    from celery import Celery
    from sqlalchemy_celery_beat.schedulers import DatabaseScheduler

    app = Celery("tmtest", broker="memory://", backend="db+sqlite://", set_as_current=True)
    app.conf.timezone = ZONE
    schema = sys.argv[2] if len(sys.argv) > 2 else None
    with time_machine.travel(NOW, tick=False):
        scheduler = DatabaseScheduler(app=app, lazy=True, dburi=sys.argv[1], schema=schema)
        fill(scheduler.Session)
        said = {"versions": {"sqlalchemy-celery-beat": version("sqlalchemy-celery-beat")}, "next": next_runs(scheduler)}
        scheduler._finalize.cancel()
    print(json.dumps(said))


if __name__ == "__main__":
    main()
