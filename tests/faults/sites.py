"""The servers of a run, and the ways in which each can be hurt."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import kombu
import psycopg
import pymysql
import redis
from tmtest.servers import OwnMariaDB, OwnPostgreSQL, OwnRabbitMQ, OwnRedis

CONNECTIONS = 70  # that the database allows: enough for a storm, few enough to be used up
TABLES = (
    "CREATE TABLE chaos_effect (label VARCHAR(100), job VARCHAR(255), attempt INTEGER)",
    "CREATE TABLE chaos_order (ask VARCHAR(100), job VARCHAR(255))",
)
Undo = Callable[[], None]


class PostgreSQLSite:
    """A PostgreSQL server of the run's own; the app is not its superuser, so that we get in where it does not."""

    name = "postgresql"

    def __init__(self, folder: Path) -> None:
        # What is committed is with the kernel, which no fault of ours takes down: nobody has to wait for the disk.
        self.server = OwnPostgreSQL(folder, settings=f"fsync=off\nmax_connections={CONNECTIONS}\nlog_min_messages=fatal\n")

    def open(self) -> None:
        """Start it, and let the app in."""
        self.server.start()
        with self.admin("postgres") as connection:
            connection.execute("CREATE ROLE app LOGIN")
            connection.execute("CREATE DATABASE chaos OWNER app")

    @property
    def port(self) -> int:
        return self.server.port

    def url(self, port: int | None = None) -> str:
        """Return where the app finds it, itself or through a proxy."""
        return f"postgresql://app@127.0.0.1:{port or self.port}/chaos"

    def admin(self, database: str = "chaos") -> psycopg.Connection[Any]:
        """Return a connection of the superuser, each statement for itself."""
        return psycopg.connect(f"postgresql://tester@127.0.0.1:{self.port}/{database}", autocommit=True, connect_timeout=3)

    def make_tables(self) -> None:
        """Make the application's own tables."""
        with psycopg.connect(self.url()) as connection:
            for statement in TABLES:
                connection.execute(statement)

    def crash(self) -> Undo:
        """Stop it as a crash does."""
        self.server.stop(mode="immediate")
        return self.server.start

    def end_sessions(self, chance: Random, share: float) -> int:
        """End some of the app's sessions, and return how many."""
        with self.admin() as connection:
            mine = "SELECT pid FROM pg_stat_activity WHERE usename = 'app' ORDER BY pid"
            pids = [row[0] for row in connection.execute(mine) if chance.random() < share]
            for pid in pids:
                connection.execute("SELECT pg_terminate_backend(%s)", [pid])
        return len(pids)

    def lock_rows(self, chance: Random) -> Undo:
        """Lock rows in a transaction that does nothing more."""
        connection = psycopg.connect(f"postgresql://tester@127.0.0.1:{self.port}/chaos", connect_timeout=3)
        connection.execute("SET lock_timeout = '2s'")
        with suppress(psycopg.errors.LockNotAvailable):
            connection.execute(_chosen(chance))
        return connection.close

    def fill(self, chance: Random) -> Undo:
        """Use up all connections, and end some that the app has, so that it needs new ones."""
        held: list[psycopg.Connection[Any]] = []

        def more() -> None:
            with suppress(psycopg.OperationalError):
                while len(held) < 2 * CONNECTIONS:  # until it refuses
                    held.append(psycopg.connect(self.url(), autocommit=True, connect_timeout=3))

        more()
        self.end_sessions(chance, 0.4)
        more()
        return lambda: [connection.close() for connection in held] and None

    def close(self) -> None:
        """End it."""
        self.server.stop(mode="immediate")


class MariaDBSite:
    """A MariaDB server of the run's own."""

    name = "mysql"

    def __init__(self, folder: Path) -> None:
        self.server = OwnMariaDB(folder, settings=[f"--max-connections={CONNECTIONS}"])

    def open(self) -> None:
        """Start it, and let the app in."""
        self.server.start()
        with self.admin("mysql") as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE chaos")
            cursor.execute("CREATE USER app@'%'")
            cursor.execute("GRANT ALL ON chaos.* TO app@'%'")

    @property
    def port(self) -> int:
        return self.server.port

    def url(self, port: int | None = None) -> str:
        """Return where the app finds it, itself or through a proxy."""
        return f"mysql://app@127.0.0.1:{port or self.port}/chaos"

    def admin(self, database: str = "chaos", *, user: str = "root") -> pymysql.Connection[Any]:
        """Return a connection, of the superuser if not stated otherwise."""
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user=user, database=database, autocommit=True, connect_timeout=3
        )  # fmt: skip

    def make_tables(self) -> None:
        """Make the application's own tables."""
        with self.admin() as connection, connection.cursor() as cursor:
            for statement in TABLES:
                cursor.execute(statement)

    def crash(self) -> Undo:
        """Kill it."""
        self.server.stop()
        return self.server.start

    def end_sessions(self, chance: Random, share: float) -> int:
        """End some of the app's sessions, and return how many."""
        with self.admin() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE user = 'app' ORDER BY id")
            ids = [row[0] for row in cursor.fetchall() if chance.random() < share]
            for id in ids:
                with suppress(pymysql.err.OperationalError):  # it has ended by itself
                    cursor.execute(f"KILL {int(id)}")
        return len(ids)

    def lock_rows(self, chance: Random) -> Undo:
        """Lock rows in a transaction that does nothing more."""
        connection = self.admin()
        with connection.cursor() as cursor:
            cursor.execute("SET innodb_lock_wait_timeout = 2")
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor.execute("BEGIN")
            with suppress(pymysql.err.OperationalError):
                cursor.execute(_chosen(chance))
        return connection.close

    def fill(self, chance: Random) -> Undo:
        """Use up all connections, and end some that the app has, so that it needs new ones."""
        held: list[pymysql.Connection[Any]] = []

        def more() -> None:
            with suppress(pymysql.err.OperationalError):
                while len(held) < 2 * CONNECTIONS:  # until it refuses
                    held.append(self.admin(user="app"))

        more()
        self.end_sessions(chance, 0.4)
        more()
        return lambda: [connection.close() for connection in held] and None

    def close(self) -> None:
        """End it."""
        self.server.stop()


def _chosen(chance: Random) -> str:
    if chance.random() < 0.4:
        return f"SELECT id FROM tm_definition ORDER BY name LIMIT {chance.randint(1, 3)} FOR UPDATE"
    order = chance.choice(["id", "run_at"])
    return f"SELECT id FROM tm_job ORDER BY {order} LIMIT {chance.randint(1, 20)} FOR UPDATE SKIP LOCKED"


class RedisSite:
    """A Redis server of the run's own, which keeps nothing on disk."""

    name = "redis"

    def __init__(self, folder: Path) -> None:
        self.server = OwnRedis(folder)

    def open(self) -> None:
        """Start it."""
        self.server.start()

    @property
    def port(self) -> int:
        return self.server.port

    def url(self, port: int | None = None) -> str:
        """Return where the app finds it, itself or through a proxy."""
        return f"redis://127.0.0.1:{port or self.port}/0"

    def crash(self) -> Undo:
        """Kill it with all its messages."""
        self.server.stop()
        return self.server.start

    def lose_messages(self) -> None:
        """Let it forget all it has."""
        with redis.Redis.from_url(self.url(), socket_timeout=3) as client:
            client.flushall()

    def pause(self) -> Undo:
        """Let it stand still."""
        return paused(self.server.pid)

    def close(self) -> None:
        """End it."""
        self.server.stop()


class RabbitMQSite:
    """A RabbitMQ node of the run's own."""

    name = "rabbitmq"

    def __init__(self, folder: Path) -> None:
        self.server = OwnRabbitMQ(folder)

    def open(self) -> None:
        """Start it."""
        self.server.start()

    @property
    def port(self) -> int:
        return self.server.port

    def url(self, port: int | None = None) -> str:
        """Return where the app finds it, itself or through a proxy."""
        return f"amqp://guest:guest@127.0.0.1:{port or self.port}//"

    def crash(self) -> Undo:
        """Kill the node."""
        self.server.stop()
        return self.server.start

    def lose_messages(self) -> None:
        """Throw away what waits in the queue."""
        with kombu.Connection(self.url(), connect_timeout=3) as connection, suppress(connection.channel_errors):
            connection.default_channel.queue_purge("celery")

    def pause(self) -> Undo:
        """Let it stand still."""
        return paused(self.server.pid)

    def close(self) -> None:
        """End it."""
        self.server.close()


def paused(pid: int) -> Undo:
    """Stop a process, and return what lets it go on."""
    os.kill(pid, signal.SIGSTOP)

    def go_on() -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    return go_on


PAIRS: dict[str, tuple[Any, Any]] = {
    "postgresql+redis": (PostgreSQLSite, RedisSite),
    "mysql+rabbitmq": (MariaDBSite, RabbitMQSite),
}
