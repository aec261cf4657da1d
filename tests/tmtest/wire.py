"""What a connection of PostgreSQL says to its server, as libpq itself writes it down."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from psycopg.pq import Trace

from celery_tm.store.database import Database


@dataclass(frozen=True, slots=True)
class Talk:
    """What went over the wire."""

    statements: int  # executed, BEGIN and COMMIT among them
    round_trips: int  # how often the client waited for the server
    commits: int  # how often a transaction ended


def listen(database: Database, action: Callable[[], object]) -> Talk:
    """Do something, and return what the one idle connection of a pool said while it did."""
    with database.engine.connect() as connection:
        driver = connection.connection.driver_connection
    assert driver is not None
    with tempfile.TemporaryFile("w+") as file:
        driver.pgconn.trace(file.fileno())
        driver.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        try:
            action()
        finally:
            driver.pgconn.untrace()
        file.seek(0)
        # The text of a statement may go on over several lines.
        lines = [line.rstrip("\n").split("\t") for line in file if line.startswith(("F\t", "B\t"))]
    sent = [name for who, _, name, *_ in lines if who == "F"]
    ends = [rest for who, _, name, *rest in lines if who == "B" and name == "ReadyForQuery" and "I" in "".join(rest)]
    return Talk(
        statements=sum(name in ("Execute", "Query") for name in sent),
        round_trips=sum(name in ("Sync", "Query") for name in sent),
        commits=len(ends),
    )
