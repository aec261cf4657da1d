"""Tells a queue that cannot be used from a broker that is away, and bounds how long a broker may take to answer.

A queue that may not be declared, or a key of another type in its place, concerns the jobs of that queue only: they wait, a
little longer each time. Everything else that a broker or its connection raises stops the batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kombu.exceptions import OperationalError

from ..domain.job import Job

PATIENCE = 10.0  # seconds that a broker may take to take or to answer anything
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds until a queue that cannot be used is tried again
OF_REDIS_KEYS = ("WRONGTYPE", "NOPERM", "No permission")  # what Redis says about one key; the rest concerns the server
PUBLISH = (60, 40)  # AMQP's basic.publish, which is answered only if something is wrong, and later
Route = tuple[str | None, ...]


def cause_of(error: BaseException) -> BaseException:
    """Return the transport's own error, which kombu may have wrapped."""
    while isinstance(error, OperationalError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def is_of_queue(connection: Any, error: BaseException) -> bool:
    """Say whether an error concerns one queue only, as opposed to the broker or the connection to it."""
    cause = cause_of(error)
    if type(cause).__module__.partition(".")[0] == "redis":
        return isinstance(cause, connection.channel_errors) and any(words in str(cause) for words in OF_REDIS_KEYS)
    return isinstance(cause, connection.channel_errors) and not isinstance(cause, (OSError, *connection.connection_errors))


def is_outage(connection: Any, error: BaseException) -> bool:
    """Say whether an error means that the broker takes no messages at present, whatever their queue."""
    away = (OSError, OperationalError, *connection.connection_errors, *connection.channel_errors)
    return isinstance(error, away) and not is_of_queue(connection, error)


def route_of(job: Job) -> Route:
    """Return what decides where a job's message goes."""
    return job.task, job.queue, *(str(job.options.get(name)) for name in ("queue", "exchange", "routing_key"))


@dataclass(slots=True)
class _Block:
    error: str
    pause: float
    until: float


class BlockedRoutes:
    """The routes that cannot be used at present, as seen by one process, each with its error and its pause."""

    def __init__(self) -> None:
        self._blocks: dict[Route, _Block] = {}

    def error_of(self, route: Route) -> str | None:
        """Return why a route is left alone at present; None: try it."""
        block = self._blocks.get(route)
        return block.error if block is not None and block.until > time.monotonic() else None

    def add(self, route: Route, error: str) -> None:
        """Leave a route alone for a while; each time for twice as long."""
        before = self._blocks.get(route)
        pause = FIRST_PAUSE if before is None else min(before.pause * 2, LONGEST_PAUSE)
        self._blocks[route] = _Block(error, pause, time.monotonic() + pause)

    def pause_of(self, route: Route) -> float:
        """Return the seconds until a route is to be tried again."""
        block = self._blocks.get(route)
        return FIRST_PAUSE if block is None else max(block.until - time.monotonic(), 0.0)

    def discard(self, route: Route) -> None:
        """Note that a route can be used."""
        self._blocks.pop(route, None)


@contextmanager
def bounded(connection: Any) -> Iterator[Mapping[str, Any]]:
    """Let nothing that is said over a connection take longer than `PATIENCE`; yields what a retry policy needs for that.

    A broker that is short of memory stops reading, and whoever publishes would wait for it without end.
    """
    _prepare(connection)

    def stop(error: BaseException, _: float = 0.0) -> None:
        if isinstance(error, TimeoutError) or type(cause_of(error)).__name__ == "TimeoutError":  # redis has one of its own
            raise error  # the next try would only wait as long again

    try:
        yield {"errback": stop, "on_revive": lambda _: _limit(connection, PATIENCE)}
    finally:
        _limit(connection, None)


def _prepare(connection: Any) -> None:
    if connection.transport.driver_type == "redis" and connection.transport_options.get("socket_timeout") is None:
        connection.transport_options = {**connection.transport_options, "socket_timeout": PATIENCE}


def limit_wait(connection: Any) -> None:
    """Bound what is said over a connection that has just been made."""
    _limit(connection, PATIENCE)


def _limit(connection: Any, seconds: float | None) -> None:
    transport = getattr(connection._connection, "transport", None)  # of py-amqp
    sock = getattr(transport, "sock", None)
    if sock is not None and hasattr(sock, "settimeout"):
        sock.settimeout(seconds)
