"""Databases and brokers of the benchmarks' own, removed afterwards however a run ends.

PostgreSQL and Redis are found as the tests find them (TM_TEST_POSTGRESQL, TM_TEST_REDIS, else the usual local ports). What a
killed run left behind is removed by the next one: a run that lives holds a connection to each of its databases.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import redis
from celery import Celery
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import SQLAlchemyError

import celery_tm
from celery_tm.installation import Installation
from celery_tm.settings import read_settings
from celery_tm.store import schema
from celery_tm.store.database import Database
from celery_tm.store.dialects import with_driver
from tests.tmtest.services import find, why_missing

PREFIX = "tm_bench_"
OURS = re.compile(PREFIX + "[0-9a-f]{12}")
TASK = "bench"


@contextmanager
def own_database(*, tables: bool = True) -> Iterator[str]:
    """Create a database, with our tables or for a peer's, yield its URL, and drop it."""
    url, name = _server(), f"{PREFIX}{uuid.uuid4().hex[:12]}"
    server = create_engine(url, isolation_level="AUTOCOMMIT")
    own = create_engine(url.set(database=name))
    _drop_left_behind(server)
    try:
        _say(server, f"CREATE DATABASE {name} TEMPLATE template0")
        with own.connect():
            address = own.url.render_as_string(hide_password=False)
            if tables:
                _upgrade(address)
            yield address
    finally:
        own.dispose()
        _say(server, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        server.dispose()


def _server() -> URL:
    found = find("postgresql")
    if not found:
        raise SystemExit(why_missing("postgresql"))
    return with_driver(make_url(found))


def _drop_left_behind(server: Engine) -> None:
    with server.connect() as connection:
        names = connection.execute(text("SELECT datname FROM pg_database")).scalars().all()
    for name in filter(OURS.fullmatch, names):
        with suppress(SQLAlchemyError):  # somebody is connected: another run, which is alive
            _say(server, f"DROP DATABASE {name}")


def _say(server: Engine, statement: str) -> None:
    with server.connect() as connection:
        connection.execute(text(statement))


def _upgrade(url: str) -> None:
    database = Database(read_settings({"tm_database_url": url}, {}))
    schema.upgrade(database)
    database.dispose()


@contextmanager
def own_broker() -> Iterator[dict[str, Any]]:
    """Yield the settings of a broker with keys of our own, on Redis."""
    url, prefix = find("redis"), f"{PREFIX}{uuid.uuid4().hex[:12]}:"
    if url is None:
        raise SystemExit(why_missing("redis"))
    try:
        yield {"broker_url": url, "broker_transport_options": {"global_keyprefix": prefix}}
    finally:
        client = redis.Redis.from_url(url)
        for key in client.scan_iter(match=f"{prefix}*", count=1000):
            client.delete(key)
        client.close()


@contextmanager
def own_app(broker: dict[str, Any], database_url: str) -> Iterator[Celery]:
    """Yield an app with one task of ours, on a queue of its own."""
    app = plain_app(broker, base=celery_tm.Task)
    app.conf.update(tm_database_url=database_url)
    try:
        yield app
    finally:
        Installation.of(app).database.dispose()
        app.close()


def plain_app(broker: dict[str, Any], base: type | None = None) -> Celery:
    """Return an app with one task, on a queue of its own: Celery's alone, unless a base class is given."""
    app = Celery(PREFIX, set_as_current=False)
    queue = f"{PREFIX}{uuid.uuid4().hex[:12]}"  # brokers in memory are one per process
    app.conf.update(task_default_queue=queue, task_ignore_result=True, **broker)

    @app.task(name=TASK, shared=False, **({"base": base} if base else {}))
    def bench(number: int = 0) -> None:
        """Never runs: no worker is started."""

    return app


def libpq_url(url: str) -> str:
    """Return a database's URL as drivers other than SQLAlchemy's read it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def empty_queue(app: Celery) -> None:
    """Throw away what was sent, so that the broker does not grow."""
    with app.connection_for_write() as connection:
        connection.default_channel.queue_purge(app.conf.task_default_queue)
