"""How much is tried: a moment's worth in `make test`, more with --thorough; and apps on one database after another."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from celery import Celery
from kombu.transport import memory
from tmtest.app import make_app

from celery_tm.installation import Installation


@pytest.fixture
def examples(thorough: bool) -> int:
    """How many examples a property that needs a database is tried with."""
    return 500 if thorough else 12


@pytest.fixture
def app_on(fresh_url: Callable[[str], str]) -> Iterator[Callable[[str], Celery]]:
    """Return an app on an empty database of a kind; asked again, the same app, and the database is empty again."""
    made: dict[str, Celery] = {}

    def make(kind: str) -> Celery:
        url = fresh_url(kind)
        memory.Channel.queues.clear()
        if kind not in made:
            queue = f"fuzz-{uuid.uuid4().hex}"
            made[kind] = make_app({"broker_url": "memory://", "task_default_queue": queue, "tm_database_url": url})
        return made[kind]

    yield make
    for app in made.values():
        Installation.of(app).database.dispose()
        app.close()
