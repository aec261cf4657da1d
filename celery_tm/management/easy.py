"""One call: a Celery app with broker, database and base class from the environment, or embedded where it names none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery

from ..embedded import register
from ..installation import Installation

BROKERS = ("TM_BROKER_URL", "CELERY_BROKER_URL", "BROKER_URL", "REDIS_URL")
DATABASES = ("TM_DATABASE_URL", "DATABASE_URL")
BACKENDS = ("TM_RESULT_BACKEND", "CELERY_RESULT_BACKEND")


def easy_app(name: str, *, folder: str | Path = ".celery_tm", **conf: Any) -> Celery:
    """Return an app whose tasks are durable; without a broker in the environment, messages are files in `folder`."""
    app = Celery(name, task_cls="celery_tm:Task")
    broker = _first(BROKERS)
    app.conf.update({"broker_url": broker} if broker else embedded_broker(Path(folder)))
    if database := _first(DATABASES):
        app.conf.tm_database_url = database
    backend = _first(BACKENDS)
    if backend:
        app.conf.result_backend = backend
    # As Celery has it by itself; said, for whoever may write to the broker could run anything with another serializer.
    app.conf.update(accept_content=["json"], task_serializer="json", result_serializer="json")
    app.conf.broker_connection_retry_on_startup = True
    app.conf.update(conf)
    Installation.of(app)  # a typo in a setting must not start
    return app


def embedded_broker(folder: Path) -> dict[str, Any]:
    """Return the settings of Celery's file broker: nothing to install, polled often enough to feel immediate."""
    folder = folder.resolve()
    places: Mapping[str, Path] = {
        "data_folder_in": folder / "messages",
        "data_folder_out": folder / "messages",
        "processed_folder": folder / "processed",
        "control_folder": folder / "control",
    }
    results = folder / "results"
    for place in (*places.values(), results):
        place.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {name: str(place) for name, place in places.items()}
    options |= {"polling_interval": 0.05, "store_processed": False}
    return {
        "broker_url": register(),
        "broker_transport_options": options,
        "result_backend": f"file://{results}",
    }


def _first(names: tuple[str, ...]) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
