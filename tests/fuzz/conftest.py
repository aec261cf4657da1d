"""How much is tried: a moment's worth in `make test`, the same each time; more with --thorough, other each time; and apps on
one database after another."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kombu.transport import memory
from tmtest.app import make_app

from celery_tm.installation import Installation


@pytest.fixture
def examples(thorough: bool) -> int:
    """How many examples a property that needs a database is tried with."""
    return 500 if thorough else 12


@pytest.fixture
def few(thorough: bool) -> int:
    """How many examples each of many commands or requests is tried with."""
    return 40 if thorough else 5


@pytest.fixture
def tried(examples: int, thorough: bool) -> Callable[..., Any]:
    """Return how to try a property, with so many times the examples of one that needs a database."""

    def with_(times: int = 1, *, most: int | None = None, **strategies: st.SearchStrategy[Any]) -> Callable[..., Any]:
        limits = settings(
            max_examples=most or examples * times,
            derandomize=not thorough,
            suppress_health_check=list(HealthCheck),
            database=None,
            phases=[Phase.explicit, Phase.generate, Phase.shrink],  # to explain a failure, every line would be traced
        )
        return lambda check: limits(given(**strategies)(check))()

    return with_


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
