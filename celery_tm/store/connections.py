"""Connections of one process: how many there may be, how each begins, and how long its statements wait for others.

Beats and workers wait for nobody's locks: their connections have a lock timeout and a statement timeout of their own, which
the transaction of a body has not. On a direct connection both are set once; through a pooler that gives each transaction
another session they go with every BEGIN.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import create_engine, event, util
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool, StaticPool

from .dialect_base import Dialect, Manner

TRUSTED_FOR = 0.1  # seconds for which a connection that was just used is taken to be alive; no restart is as short
USED, LENT = "tm_used_at", "tm_lent_to_body"
KEPT = 5  # connections that stay open when nobody uses them
DEFAULT_ROOM = 15  # connections that a process may have open at once
SPARE = 5  # and beside one for each body: gates, reports and records need one for a moment
_urgent = threading.local()


class Pool(QueuePool):
    """A pool whose limit does not hold for a thread that others depend on."""

    def _do_get(self) -> ConnectionPoolEntry:
        if not getattr(_urgent, "now", False) or self._pool.qsize() > 0 or self._max_overflow < 0:
            return super()._do_get()
        with self._overflow_lock:
            self._overflow += 1
        try:
            return self._create_connection()
        except BaseException:
            with util.safe_reraise():
                self._dec_overflow()
            raise


@contextmanager
def urgent() -> Iterator[None]:
    """Let this thread have a connection in this block even if the pool is used up."""
    _urgent.now = True
    try:
        yield
    finally:
        _urgent.now = False


def make_engine(url: URL, dialect: Dialect, manner: Manner, *, room: int) -> Engine:
    """Return an engine with room for so many connections."""
    memory = url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")
    kept = min(KEPT, room)
    # The last one used comes first: it is known to live, and has prepared what we say most often.
    pool: dict[str, Any] = {"poolclass": Pool, "pool_use_lifo": True, "pool_size": kept, "max_overflow": room - kept}
    if memory:
        pool = {"poolclass": StaticPool}
    if dialect.isolation is not None:
        pool["isolation_level"] = dialect.isolation
    arguments = dialect.connect_args() | ({"check_same_thread": False} if memory else {})
    engine = create_engine(url, connect_args=arguments, hide_parameters=True, **pool)
    _get_ready(engine, dialect, manner)
    return engine


def _get_ready(engine: Engine, dialect: Dialect, manner: Manner) -> None:
    """Let connections begin the way the database needs it, and ask one that was idle whether it still lives.

    A connection whose last user asked for an isolation level of its own comes back with the driver's defaults, and a single
    statement would then be rolled back: so each gets ready each time.
    """

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _: Any) -> None:
        dialect.prepare(connection, manner)

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        is_body = options.get("tm_body", False)
        if is_body:
            connection.info[LENT] = True
        dialect.begin(connection, manner, write=options.get("tm_write", True), is_body=is_body)

    @event.listens_for(engine, "checkin")
    def on_checkin(_: Any, record: Any) -> None:
        record.info[USED] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def on_checkout(connection: Any, record: Any, _: Any) -> None:
        if dialect.is_server and time.monotonic() - record.info.get(USED, math.inf) > TRUSTED_FOR:
            _ping(engine, connection)
        if record.info.pop(LENT, False):
            dialect.take_back(connection, manner)
        dialect.make_single(connection)


def _ping(engine: Engine, connection: Any) -> None:
    try:
        engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error as error:
        raise InvalidatePoolError from error  # the pool throws away all that are as old, and connects anew
