"""The peers as a producer uses them: Procrastinate and PgQueuer, each in its best documented way.

Procrastinate is called through its synchronous connector, which defers one job faster than the asynchronous one and many
as fast; PgQueuer through asyncpg, the driver it recommends, in one event loop that lives as long as the connection. Both
keep the server's `synchronous_commit`, and PgQueuer's tables are all logged (its default, "durable").
"""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from typing import Any

import asyncpg
import procrastinate
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from .services import TASK, libpq_url

HOUR = timedelta(hours=1)
AT_ONCE = timedelta(0)


class Procrastinate:
    """Defers jobs with Procrastinate, over a pool that keeps its connection."""

    def __init__(self, url: str) -> None:
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        connector = procrastinate.SyncPsycopgConnector(conninfo=libpq_url(url), min_size=1, max_size=2)
        self.app = procrastinate_app(connector)
        self.app.open()
        self.app.schema_manager.apply_schema()

    def defer(self, number: int, *, delay: timedelta = HOUR) -> None:
        """Defer one job."""
        self._deferrer(delay).defer(number=number)

    def defer_many(self, count: int, *, delay: timedelta = HOUR) -> None:
        """Defer jobs in one call."""
        self._deferrer(delay).batch_defer(*({"number": number} for number in range(count)))

    def _deferrer(self, delay: timedelta) -> Any:
        when = {"schedule_in": {"seconds": delay.total_seconds()}} if delay else {}
        return self.app.tasks[TASK].configure(**when)

    def forget(self) -> None:
        """Delete what was deferred."""
        self.app.connector.execute_query("TRUNCATE procrastinate_jobs CASCADE")

    def is_done(self) -> bool:
        """Say whether nothing is left to do."""
        left = "SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing')) AS any"
        return not self.app.connector.execute_query_one(left)["any"]

    def close(self) -> None:
        """Give the connections back."""
        self.app.close()


def procrastinate_app(connector: Any) -> procrastinate.App:
    """Return an app of theirs with one empty task."""
    app = procrastinate.App(connector=connector)

    @app.task(name=TASK)
    async def bench(number: int) -> None:
        """Do nothing."""

    return app


class PgQueuer:
    """Enqueues jobs with PgQueuer, over one connection and one event loop."""

    def __init__(self, url: str) -> None:
        logging.getLogger("pgqueuer").setLevel(logging.ERROR)
        self._runner = asyncio.Runner()
        self._connection = self._runner.run(_connect(url))
        self._queries = Queries(AsyncpgDriver(self._connection))
        self._runner.run(self._queries.install())

    def defer_all(self, count: int) -> None:
        """Enqueue jobs one after the other."""
        self._runner.run(self._one_by_one(count))

    async def _one_by_one(self, count: int) -> None:
        for number in range(count):
            await self._queries.enqueue(TASK, _payload(number), 0, HOUR)

    def defer_many(self, count: int, *, delay: timedelta = HOUR) -> None:
        """Enqueue jobs in one call."""
        payloads = [_payload(number) for number in range(count)]
        self._runner.run(self._queries.enqueue([TASK] * count, payloads, [0] * count, [delay] * count))

    def forget(self) -> None:
        """Delete what was enqueued."""
        self._runner.run(self._connection.execute("TRUNCATE pgqueuer, pgqueuer_log"))

    def is_done(self) -> bool:
        """Say whether nothing is left to do: what is done is deleted from the queue."""
        return not self._runner.run(self._connection.fetchval("SELECT EXISTS (SELECT FROM pgqueuer)"))

    def close(self) -> None:
        """Close the connection and its loop."""
        self._runner.run(self._connection.close())
        self._runner.close()


async def _connect(url: str) -> asyncpg.Connection:
    return await asyncpg.connect(libpq_url(url))


def _payload(number: int) -> bytes:
    return json.dumps([number]).encode()
