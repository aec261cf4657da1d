"""A definition with a million executions: its history, and what else people look at first, opens at once.

The rows are made inside the database. In the usual run on PostgreSQL alone; with `--thorough` on every database.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from tmtest.app import make_app
from tmtest.said import listening

from celery_tm import TimeManagement
from celery_tm.store.dialects import Dialect

MANY, OTHERS, OWED, INSTANTS = 1_000_000, 200_000, 200_000, 100_000
FAILED_EVERY = 100_000  # ten of the million
NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
MOST_SECONDS = 0.5
DATABASES = ("sqlite", "postgresql", "mysql")


@pytest.fixture(scope="module", params=DATABASES)
def big(request: pytest.FixtureRequest) -> Iterator[TimeManagement]:
    """A database with a long past: executions one second apart, the last one just now, and much that is owed."""
    if request.param != "postgresql" and not request.config.getoption("--thorough"):
        pytest.skip("a million rows are made on PostgreSQL only; --thorough makes them on every database")
    url = request.getfixturevalue("fresh_big_url")(request.param)
    tm = TimeManagement(make_app({"broker_url": "memory://", "tm_database_url": url}))
    for name in ("nightly", "hourly"):
        tm.definitions.add(name=name, task="effect", schedule="* * * * *")
    fill(tm)
    yield tm
    tm.installation.database.dispose()
