"""Fills a database with django-celery-beat's own models: `python -m tmtest.peers.fill_django_celery_beat URL`."""

from __future__ import annotations

import json
import sys
import warnings
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import time_machine
from sqlalchemy.engine import make_url

from tmtest.peers import NOW, ZONE
from tmtest.peers.samples import NOT_ASKED, SAMPLES

ENGINES = {"sqlite": "sqlite3", "postgresql": "postgresql", "mysql": "mysql"}


def configure(text: str) -> None:
    """Set Django up on a database."""
    import django
    from django.conf import settings

    url = make_url(text)
    if url.get_backend_name() == "mysql":
        import pymysql

        pymysql.version_info = (2, 2, 1, "final", 0)  # so that Django takes it for its own driver
        pymysql.install_as_MySQLdb()
    parts = {"NAME": url.database, "USER": url.username, "PASSWORD": url.password, "HOST": url.host, "PORT": url.port}
    engine = f"django.db.backends.{ENGINES[url.get_backend_name()]}"
    settings.configure(
        DATABASES={"default": {"ENGINE": engine, **{name: str(value or "") for name, value in parts.items()}}},
        INSTALLED_APPS=["django_celery_beat"], USE_TZ=True, TIME_ZONE="UTC", CELERY_TIMEZONE=ZONE,
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    )  # fmt: skip
    django.setup()


def fill() -> None:
    """Make the tables and the entries."""
    from django.core.management import call_command
    from django_celery_beat import models

    call_command("migrate", verbosity=0)
    models.PeriodicTask.objects.all().delete()
    for sample in SAMPLES:
        kind = getattr(models, f"{sample['kind'].title()}Schedule")
        schedule = kind.objects.create(**sample["schedule"])
        models.PeriodicTask.objects.create(**sample["fields"], **{sample["kind"]: schedule})


def next_runs() -> dict[str, Any]:
    """Let the scheduler read its entries, add its own, and say when it would run each."""
    from celery import Celery
    from django_celery_beat.models import PeriodicTask
    from django_celery_beat.schedulers import DatabaseScheduler, ModelEntry

    app = Celery("tmtest", broker="memory://", backend="db+sqlite://", set_as_current=True)
    app.conf.timezone = ZONE
    scheduler = DatabaseScheduler(app=app, lazy=True)
    scheduler.install_default_entries({})
    asked = PeriodicTask.objects.exclude(name__in=NOT_ASKED)
    return {model.name: due(ModelEntry(model, app=app)) for model in asked}


def due(entry: Any) -> Any:
    """Return "due", or the instant of the next run."""
    is_due, seconds = entry.is_due()
    if is_due:
        return "due"
    if not entry.model.enabled or (entry.model.total_run_count == 1 and entry.model.one_off):
        return None

    start = entry.model.start_time
    if start and start > NOW:
        return (NOW + timedelta(seconds=seconds)).isoformat()
    return (NOW + entry.schedule.remaining_estimate(entry.last_run_at)).isoformat()


def main() -> None:
    """Fill the database and say what is in it."""
    warnings.simplefilter("ignore")
    configure(sys.argv[1])
    with time_machine.travel(NOW, tick=False):
        fill()
        said = {"versions": {name: version(name) for name in ("django-celery-beat", "Django")}, "next": next_runs()}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
