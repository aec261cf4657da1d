"""A database server that vanishes without a word is noticed by the kernel, in half a minute and not in hours."""

from __future__ import annotations

import socket

import pytest

from celery_tm.store.database import Database
from celery_tm.store.dialect_base import NOTICING


def test_every_connection_asks_whether_the_server_is_still_there(database: Database) -> None:
    if not database.dialect.is_server:
        pytest.skip("an embedded database cannot vanish")
    with database.engine.connect() as connection:
        driver = connection.connection.dbapi_connection
        number = driver.pgconn.socket if database.dialect.name == "postgresql" else driver._sock.fileno()
        with socket.socket(fileno=socket.dup(number)) as seen:
            assert seen.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert {option: seen.getsockopt(socket.IPPROTO_TCP, option) for option in NOTICING} == NOTICING
