"""Finds PostgreSQL, MySQL/MariaDB, Redis and RabbitMQ: from environment URLs, else on their usual local ports.

Tests use databases, key prefixes and virtual hosts of their own on those servers, and remove them afterwards.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import kombu
import redis
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from celery_tm.store.dialects import with_driver

RUN = f"tm_test_{uuid.uuid4().hex[:10]}"


@dataclass(frozen=True)
class Kind:
    """A service the tests can use, and how to get it."""

    name: str
    variable: str
    usual: tuple[str, ...]
    how: str


KINDS = {
    "postgresql": Kind(
        "postgresql",
        "TM_TEST_POSTGRESQL",
        (
            f"postgresql://{getpass.getuser()}@127.0.0.1:5432/postgres",
            "postgresql://postgres@127.0.0.1:5432/postgres",
            "postgresql://postgres:postgres@127.0.0.1:5432/postgres",
        ),
        "apt-get install postgresql, or set TM_TEST_POSTGRESQL=postgresql://user:password@host/database",
    ),
    "mysql": Kind(
        "mysql",
        "TM_TEST_MYSQL",
        ("mysql://root@127.0.0.1:3306/mysql", "mysql://root:root@127.0.0.1:3306/mysql"),
        "apt-get install mariadb-server, or set TM_TEST_MYSQL=mysql://user:password@host/database",
    ),
    "redis": Kind(
        "redis",
        "TM_TEST_REDIS",
        ("redis://127.0.0.1:6379/0",),
        "apt-get install redis-server, or set TM_TEST_REDIS=redis://host:6379/0",
    ),
    "rabbitmq": Kind(
        "rabbitmq",
        "TM_TEST_RABBITMQ",
        ("amqp://guest:guest@127.0.0.1:5672//",),
        "apt-get install rabbitmq-server, or set TM_TEST_RABBITMQ=amqp://guest:guest@host//",
    ),
    "chromium": Kind(
        "chromium",
        "TM_TEST_CHROMIUM",
        ("chromium", "chromium-browser", "google-chrome"),
        "apt-get install chromium chromium-driver, or set TM_TEST_CHROMIUM=/path/to/chromium",
    ),
}


@lru_cache
def find(name: str) -> str | None:
    """Return the URL of a service that answers, or None."""
    kind = KINDS[name]
    given = os.environ.get(kind.variable)
    return next((url for url in ((given,) if given else kind.usual) if _answers(name, url)), None)


def why_missing(name: str) -> str:
    """Say how to get a service that was not found."""
    return f"{name} was not found: {KINDS[name].how}"


def _answers(name: str, url: str) -> bool:
    checks: dict[str, Callable[[str], None]] = {
        "postgresql": _ask_database,
        "mysql": _ask_database,
        "redis": lambda u: redis.Redis.from_url(u, socket_connect_timeout=2).close() or redis.Redis.from_url(u).ping(),
        "rabbitmq": _ask_broker,
        "chromium": _look_for_browser,
    }
    try:
        checks[name](url)
    except (SQLAlchemyError, redis.RedisError, OSError, ImportError, kombu.exceptions.KombuError):
        return False
    return True


def _look_for_browser(name: str) -> None:
    if not shutil.which(name) or not shutil.which("chromedriver"):
        raise FileNotFoundError(name)


def _ask_database(url: str) -> None:
    engine = create_engine(with_driver(make_url(url)), connect_args={"connect_timeout": 2})
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    finally:
        engine.dispose()


def _ask_broker(url: str) -> None:
    with kombu.Connection(url, connect_timeout=2) as connection:
        connection.ensure_connection(max_retries=1, timeout=2)


@contextmanager
def own_database(name: str, *, suffix: str = "") -> Iterator[str]:
    """Create a database of our own on a server, yield its URL, and drop it."""
    own = RUN + suffix
    url = make_url(find(name) or "")
    engine = create_engine(with_driver(url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {own}"))
        if name == "postgresql":  # it need not outlive the machine, so nobody waits for the disk
            connection.execute(text(f"ALTER DATABASE {own} SET synchronous_commit = off"))
    try:
        yield url.set(database=own).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.execute(text(f"DROP DATABASE {own}" + (" WITH (FORCE)" if name == "postgresql" else "")))
        engine.dispose()


@contextmanager
def own_redis() -> Iterator[tuple[str, str]]:
    """Yield a Redis URL and a key prefix of our own, and delete its keys afterwards."""
    url = find("redis") or ""
    prefix = f"{RUN}:"
    yield url, prefix
    client = redis.Redis.from_url(url)
    for key in client.scan_iter(match=f"{prefix}*", count=1000):
        client.delete(key)
    client.close()


@contextmanager
def own_rabbitmq() -> Iterator[str]:
    """Yield the URL of a virtual host of our own, or of the given one where we may not make any."""
    url = find("rabbitmq") or ""
    control = shutil.which("rabbitmqctl")
    made = bool(control) and "127.0.0.1" in url and _control("add_vhost", RUN)
    if not made:
        yield url
        return
    _control("set_permissions", "-p", RUN, make_url(url).username or "guest", ".*", ".*", ".*")
    try:
        yield url.rsplit("/", 1)[0].rstrip("/") + f"/{RUN}"
    finally:
        _control("delete_vhost", RUN)


def _control(*arguments: str) -> bool:
    done = subprocess.run(["rabbitmqctl", "-q", *arguments], capture_output=True, timeout=60, check=False)
    return done.returncode == 0
