"""Counts what really goes over the wire to PostgreSQL: a relay between a client and the server that reads along.

Whatever a library says it does, each Sync or simple query is a round trip, each Execute a statement, and each time the server
says that it is idle a transaction has ended.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.engine import make_url

STARTUP = 196608  # the protocol's version 3.0, in the one message that has no type


@dataclass
class Spent:
    """What was said since the last `reset`."""

    kinds: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def round_trips(self) -> int:
        return self.kinds["S"] + self.kinds["Q"]

    @property
    def statements(self) -> int:
        return self.kinds["E"] + self.kinds["Q"]

    @property
    def transactions(self) -> int:
        return self.kinds["idle"]

    def note(self, kind: str) -> None:
        with self.lock:
            self.kinds[kind] += 1

    def reset(self) -> None:
        with self.lock:
            self.kinds.clear()


@contextmanager
def relayed(url: str) -> Iterator[tuple[str, Spent]]:
    """Return a URL that leads to the same database, and what is spent over it."""
    target = make_url(url)
    spent = Spent()
    listener = socket.create_server(("127.0.0.1", 0))
    open_ones: list[socket.socket] = [listener]

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection((target.host or "127.0.0.1", target.port or 5432))
                open_ones.extend((client, server))
                for source, sink, read in ((client, server, _Client(spent)), (server, client, _Server(spent))):
                    threading.Thread(target=_pump, args=(source, sink, read), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    port = listener.getsockname()[1]
    try:
        yield (
            target.set(host="127.0.0.1", port=port).update_query_dict({"sslmode": "disable"}).render_as_string(False),
            spent,
        )
    finally:
        for one in open_ones:
            with suppress(OSError):
                one.close()


def _pump(source: socket.socket, sink: socket.socket, reader: Any) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            reader.feed(data)
            sink.sendall(data)
    with suppress(OSError):
        sink.close()


class _Reader:
    """Splits one direction of a conversation into messages."""

    def __init__(self, spent: Spent) -> None:
        self.spent = spent
        self.buffer = b""

    def feed(self, data: bytes) -> None:
        self.buffer += data
        while len(self.buffer) >= 5:
            length = int.from_bytes(self.buffer[1:5]) + 1
            if len(self.buffer) < length:
                return
            message, self.buffer = self.buffer[:length], self.buffer[length:]
            self.read(chr(message[0]), message[5:])

    def read(self, kind: str, content: bytes) -> None:
        raise NotImplementedError


class _Client(_Reader):
    has_begun = False

    def feed(self, data: bytes) -> None:
        if not self.has_begun:
            length = int.from_bytes(data[:4])
            assert int.from_bytes(data[4:8]) == STARTUP
            self.has_begun, data = True, data[length:]
        super().feed(data)

    def read(self, kind: str, content: bytes) -> None:
        self.spent.note(kind)


class _Server(_Reader):
    def read(self, kind: str, content: bytes) -> None:
        if kind == "Z" and content == b"I":
            self.spent.note("idle")
