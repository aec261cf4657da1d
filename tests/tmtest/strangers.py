"""Transactions of others that have locked rows, and work that must not wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from celery_tm.store import tables
from celery_tm.store.database import Database


def skip_embedded(database: Database) -> None:
    """Skip where a single row cannot be locked."""
    if not database.dialect.skips_locked:
        pytest.skip("one writer locks all of SQLite")


@contextmanager
def locked(database: Database, id: str) -> Iterator[None]:
    """Have an open transaction of a stranger that has a job's row."""
    skip_embedded(database)
    with Session(database.engine) as session:
        session.execute(update(tables.job).where(tables.job.c.id == id).values(last_error="locked"))
        yield


def at_once(work: Callable[[], Any]) -> Any:
    """Return what comes of `work`, which must not wait for the transaction that is open."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for another transaction"
    return found[0]
