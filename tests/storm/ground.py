"""The ground that a stage stands on: a database, a broker and a result backend of its own, and ways to hurt them."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import kombu
import redis
from faults.sites import TABLES, MariaDBSite, PostgreSQLSite
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import make_url
from tmtest import services

from celery_tm.management.easy import embedded_broker
from celery_tm.store.dialects import with_driver
from storm.bodies import LOCKED
from storm.dimensions import OWN_SERVER
from storm.plan import Case

LEASE, DISPATCH_LEASE = 6, 15
CONF: dict[str, Any] = {
    "tm_lease": LEASE,
    "tm_dispatch_lease": DISPATCH_LEASE,
    "tm_poll_interval": 0.5,
    "tm_capture_eta_after": 2,
    "beat_max_loop_interval": 2,
    "worker_prefetch_multiplier": 1,
    "result_chord_retry_interval": 0.2,
    "result_extended": True,
}
BEHIND = 8  # entries that nobody has planned for a day
SITES = {"postgresql": PostgreSQLSite, "mysql": MariaDBSite}
Undo = Callable[[], None]


class Ground:
    """What a stage needs, opened for it and removed afterwards."""

    def __init__(self, stage: str, folder: Path, closing: ExitStack) -> None:
        self.database, self.broker, self.trouble = stage.split()
        self.folder, self._closing = folder, closing
        self.site: Any = None
        self.url = self._open_database()
        self.queue = f"storm-{uuid.uuid4().hex[:10]}"
        self.redis_url, self.prefix = closing.enter_context(services.own_redis())
        self.conf = self._conf()
        patience = {"connect_args": {"timeout": 60}} if self.database == "sqlite" else {}  # there is one writer at a time
        self.engine: Engine = create_engine(
            with_driver(make_url(self.url)), pool_pre_ping=True, pool_size=20, max_overflow=60, **patience
        )
        closing.callback(self.engine.dispose)

    @property
    def refused_queue(self) -> str:
        return f"{self.queue}-refused"

    def _open_database(self) -> str:
        if self.database == "sqlite":
            return f"sqlite:///{self.folder}/storm.db"
        if self.trouble in OWN_SERVER:
            place = Path(tempfile.mkdtemp(prefix="storm-server-"))
            self._closing.callback(shutil.rmtree, place, ignore_errors=True)
            self.site = SITES[self.database](place)
            self._closing.callback(self.site.close)
            self.site.open()
            return str(self.site.url())
        url = self._closing.enter_context(services.own_database(self.database, suffix=f"_{uuid.uuid4().hex[:6]}"))
        if self.trouble == "snapshots":
            name = make_url(url).database
            engine = create_engine(with_driver(make_url(url)), isolation_level="AUTOCOMMIT")
            with engine.connect() as connection:
                connection.execute(text(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'"))
            engine.dispose()
        return url

    def _conf(self) -> dict[str, Any]:
        conf = CONF | {"tm_database_url": self.url, "task_default_queue": self.queue}
        if self.trouble == "behind":
            entry = {"task": "storm.periodic", "schedule": 10.0, "options": {"queue": f"{self.queue}-prefork"}}
            conf["beat_schedule"] = {f"behind-{n}": entry for n in range(BEHIND)}
        conf |= {"result_backend": self.redis_url, "result_backend_transport_options": {"global_keyprefix": self.prefix}}
        if self.broker == "files":
            return conf | embedded_broker(self.folder / "broker") | {"task_default_queue": self.queue}
        if self.broker == "rabbitmq":
            return conf | {"broker_url": self._closing.enter_context(services.own_rabbitmq())}
        options = {"global_keyprefix": self.prefix, "visibility_timeout": 20 if self.trouble == "kill" else 3600}
        return conf | {"broker_url": self.redis_url, "broker_transport_options": options}

    def make_tables(self, cases: list[Case]) -> None:
        """Make the application's own tables, with two rows for each case that fights for them."""
        with self.engine.begin() as connection:
            for statement in TABLES:
                connection.execute(text(statement))
            connection.execute(text(f"CREATE TABLE {LOCKED} (id VARCHAR(100) PRIMARY KEY, n INTEGER)"))
            rows = [{"id": f"{case.name}-{end}"} for case in cases if case.body == "swallows" for end in "ab"]
            if rows:
                connection.execute(text(f"INSERT INTO {LOCKED} VALUES (:id, 0)"), rows)

    # Queues that cannot be declared

    def refuse_queue(self) -> None:
        """Take the name of the refused queue for something else."""
        if self.broker == "redis":
            with redis.Redis.from_url(self.redis_url) as client:
                client.set(self.prefix + self.refused_queue, "no list")
        elif self.broker == "rabbitmq":
            with kombu.Connection(self.conf["broker_url"]) as connection:
                connection.default_channel.queue_declare(self.refused_queue, durable=False, auto_delete=False)

    def heal_queue(self) -> None:
        """Give the name free."""
        if self.broker == "redis":
            with redis.Redis.from_url(self.redis_url) as client:
                client.delete(self.prefix + self.refused_queue)
        elif self.broker == "rabbitmq":
            with kombu.Connection(self.conf["broker_url"]) as connection, suppress(connection.channel_errors):
                connection.default_channel.queue_delete(self.refused_queue)

    # What happens to the database

    def crash(self) -> Undo:
        """Stop the database as a crash does."""
        undo: Undo = self.site.crash()
        return undo

    def go_read_only(self) -> Undo:
        """Refuse all writes for a moment, as a server does that is about to hand over."""
        self._read_only(True)
        return lambda: self._read_only(False)

    def _read_only(self, on: bool) -> None:
        if self.database == "mysql":
            with self.site.admin("mysql") as connection, connection.cursor() as cursor:
                cursor.execute(f"SET GLOBAL read_only = {int(on)}")
            return
        with self.site.admin("postgres") as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {'on' if on else 'off'}")
            connection.execute("SELECT pg_reload_conf()")

    def lock_row(self, table: str, where: str) -> Undo:
        """Lock a row in a transaction that does nothing more."""
        connection = self.engine.connect()
        connection.execute(text(f"SELECT 1 FROM {table} WHERE {where} FOR UPDATE"))

        def let_go() -> None:
            connection.rollback()
            connection.close()

        return let_go

    def idle_transactions(self) -> int:
        """Count sessions that have a transaction open and do nothing; only PostgreSQL says so."""
        if self.database != "postgresql":
            return 0
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
        with self.engine.connect() as connection:
            return int(connection.execute(text(query)).scalar_one())
