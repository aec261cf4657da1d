"""The shop's door to its database, for what runs outside tasks: requests and webhooks. Bodies use `job.session`."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.orm import Session

from .models import Base

DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}


@cache
def engine() -> Engine:
    """Return the engine of the database that the jobs are in."""
    url = make_url(os.environ.get("TM_DATABASE_URL") or "sqlite:///celery_tm.db")
    made = create_engine(url.set(drivername=DRIVERS.get(url.drivername, url.drivername)))
    if url.get_backend_name() == "sqlite":
        event.listen(made, "connect", _leave_transactions_to_us)
        event.listen(made, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return made


def _leave_transactions_to_us(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # else the driver begins too late: two requests could read before either writes
    connection.execute("PRAGMA busy_timeout = 30000")


def open_session() -> Session:
    """Return a session; `with open_session() as session, session.begin(): …`."""
    return Session(engine())


def create() -> None:
    """Create what is missing of the shop's tables."""
    Base.metadata.create_all(engine())
