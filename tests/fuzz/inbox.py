"""A worker in miniature that takes raw messages in by Celery's own consumer: handler, strategy, request, pool, tracer."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from celery import Celery, _state
from celery.concurrency.solo import TaskPool
from celery.worker import state
from celery.worker.consumer import Consumer
from kombu.serialization import prepare_accept_content
from kombu.transport.virtual import Message

Raw = dict[str, Any]


class Patience:
    """A timer that keeps what is to be done later, and never does it."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def call_at(self, _: float, fun: Any, args: Any = (), **__: Any) -> None:
        """Keep a call."""
        self.kept.append((fun, args))


class Inbox:
    """Takes messages in as a worker with the solo pool does; what its consumer does not catch, it does not catch either."""

    def __init__(self, app: Celery, hostname: str = "inbox@test") -> None:
        self.app = app
        self.pool = TaskPool(1, app=app)
        self.pool.start()
        self.consumer = Consumer(
            self._run,
            app=app,
            hostname=hostname,
            pool=self.pool,
            timer=Patience(),
            controller=SimpleNamespace(state=state, use_eventloop=False),
        )
        self.consumer.event_dispatcher = None
        self.consumer.qos = SimpleNamespace(increment_eventually=lambda: None, decrement_eventually=lambda: None)
        self.consumer.update_strategies()
        self.handle = self.consumer.create_task_handler()

    def _run(self, request: Any) -> None:
        request.execute_using_pool(self.pool)

    def take(self, raw: Raw) -> None:
        """Take one message in, and do what it says."""
        waiting = len(self.consumer.timer.kept)
        with self.app.connection_for_read() as connection:
            channel = connection.default_channel
            message = Message(
                json.loads(json.dumps(raw)), channel=channel, accept=prepare_accept_content(self.app.conf.accept_content)
            )
            channel.qos.append(message, message.delivery_tag)
            with as_current(self.app):
                self.handle(message)
                self.consumer.perform_pending_operations()
            assert message.acknowledged or len(self.consumer.timer.kept) > waiting, "the message was left lying"


@contextmanager
def as_current(app: Celery) -> Iterator[None]:
    """Let an app be the current one, as it is in the processes of its workers."""
    before = _state.default_app, getattr(_state._tls, "current_app", None)
    app.set_current()
    try:
        yield
    finally:
        _state.default_app, _state._tls.current_app = before


def collect(app: Celery) -> list[Raw]:
    """Take all messages out of the app's queue, as the broker keeps them."""
    found = []
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        queue = app.conf.task_default_queue
        app.amqp.queues[queue](channel).declare()
        while channel._size(queue):
            found.append(channel._get(queue))
    return found


class Complaints(logging.Handler):
    """Keeps the exceptions that are logged, save those with which Celery's consumer refuses a message."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        of_consumer = record.name == "celery.worker.consumer.consumer"  # says of a message why it is refused
        if record.exc_info and record.exc_info[1] is not None and not of_consumer:
            self.errors.append(record.exc_info[1])


@contextmanager
def complaints() -> Iterator[list[BaseException]]:
    """Collect the exceptions that are logged meanwhile."""
    handler = Complaints()
    logging.getLogger().addHandler(handler)
    logging.getLogger("celery").addHandler(handler)
    try:
        yield handler.errors
    finally:
        logging.getLogger().removeHandler(handler)
        logging.getLogger("celery").removeHandler(handler)
