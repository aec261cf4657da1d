"""A worker of a peer, with an empty body: `python -m benchmarks.peer_worker pgqueuer URL`.

PgQueuer fetches in large batches over asyncpg. Procrastinate runs on its asynchronous connector, several bodies at a time,
and deletes what has succeeded; to keep it, which is its default, was as fast when tried side by side.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

import asyncpg
import procrastinate
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job

from .peers import procrastinate_app
from .services import TASK, libpq_url

BATCH = 200  # of 10 (its default), 100, 500 and 2,000, ten was half as fast and the others alike
CONCURRENCY = 10  # one at a time was slower side by side; 4 and 30 were no faster in single tries


async def run_pgqueuer(url: str) -> None:
    """Work until told to stop."""
    connection = await asyncpg.connect(libpq_url(url))
    queue = PgQueuer(AsyncpgDriver(connection))

    @queue.entrypoint(TASK)
    async def bench(job: Job) -> None:
        """Do nothing."""

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queue.shutdown.set)
    await queue.run(batch_size=BATCH)
    await connection.close()


async def run_procrastinate(url: str) -> None:
    """Work until told to stop."""
    pool = {"min_size": CONCURRENCY, "max_size": CONCURRENCY + 2}
    app = procrastinate_app(procrastinate.PsycopgConnector(conninfo=libpq_url(url), **pool))
    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY, delete_jobs="successful", shutdown_graceful_timeout=1)


WORKERS = {"pgqueuer": run_pgqueuer, "procrastinate": run_procrastinate}

if __name__ == "__main__":
    logging.disable(logging.WARNING)
    asyncio.run(WORKERS[sys.argv[1]](sys.argv[2]))
