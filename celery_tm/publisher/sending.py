"""Sends one message after the other, each as `Celery.send_task` would.

Where somebody listens to Celery's signals of publishing, or has wrapped or replaced its way to send, Celery sends, and
everybody is asked as ever. Where nobody does, or all were asked where the call was made, the message is made and published
without them (`making`), and may be collected with others (`bulk`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from celery.signals import after_task_publish, before_task_publish, task_sent

from ..domain.job import Job
from ..installation import Installation
from .bulk import Collected
from .contents import HEADER, Contents, is_announced
from .making import Made, Maker
from .refusal import limit_wait

SIGNALS = (before_task_publish, after_task_publish, task_sent)


class Sender:
    """Sends the messages of one batch over one producer."""

    def __init__(self, installation: Installation, producer: Any, policy: Mapping[str, Any], *, replies: bool) -> None:
        """With `replies` this process may wait for the results, and the result backend is told of each call."""
        self.app, self.producer, self.replies = installation.app, producer, replies
        self.contents, self.maker = Contents(installation), Maker(installation.app)
        self.policy = dict(policy)
        self._retries = {"retry": True, "retry_policy": self.policy}
        self._celery_sends = has_own_way(self.app) or self.app.current_worker_task is not None
        self._is_heard = is_heard()
        self._declared: set[str] = set()
        transport = producer.connection.transport
        confirms = producer.connection.transport_options.get("confirm_publish")
        # Whether the broker says later that something was wrong with a message.
        self.answers_late = transport.driver_type == "amqp" and not confirms
        self._seen: Any = None

    def connect(self, how: Mapping[str, Any]) -> None:
        """Make sure that there is a connection, and that nothing that is said over it takes for ever."""
        self.producer.connection.ensure_connection(**how)
        limit_wait(self.producer.connection)
        self._seen = self.producer.connection._connection

    def reopen(self) -> None:
        """Begin anew: a broker closes the channel, or the connection, over which something went wrong."""
        connection = self.producer.connection
        if connection.transport.driver_type == "amqp":
            connection.collect()
        self.connect({"max_retries": 1, "interval_start": 0, "interval_step": 0})
        self.producer.revive(connection.default_channel)

    @property
    def was_revived(self) -> bool:
        """Say whether kombu has connected anew meanwhile."""
        return self.producer.connection._connection is not self._seen

    def wait_for_answer(self) -> None:
        """Let the broker answer something: what it does not like of what was sent before, it says first."""
        if self.answers_late:
            self.producer.channel.basic_qos(0, 0, False)

    def send(self, load: Sequence[Job], collected: Collected | None) -> bool:
        """Send jobs that travel together, or have their message collected: then True."""
        name, message = load[0].task, self.contents.of(load)
        if self._celery_sends or (self._is_heard and not is_announced(load)):
            insisting = _Insisting(self.producer, message["headers"])
            self.app.send_task(name, producer=insisting, **self._retries, **message)
            return False
        made = self.maker.make(name, message)
        if self.replies and not message.get("ignore_result"):
            self.app.backend.on_task_call(self.producer, message["task_id"])
        if collected is None or made.event is not None or not collected.takes(made):
            self._publish(made)
            return False
        self._declare(made)
        collected.add(made, load)
        return True

    def _publish(self, made: Made) -> None:
        declare = list(made.declare)
        self.producer.publish(made.body, headers=made.headers, declare=declare, **made.properties, **self._retries)
        if made.event is not None:
            self.app.amqp._event_dispatcher.publish("task-sent", made.event, self.producer, **self._retries)

    def _declare(self, made: Made) -> None:
        for queue in made.declare:
            if queue.name not in self._declared:  # once in a batch is enough
                self.producer.maybe_declare(queue, retry=True, **self.policy)
                self._declared.add(queue.name)


def is_heard() -> bool:
    """Say whether anybody wants to know of each message: a receiver of a signal, or a tracer that wraps Celery's way."""
    return any(signal.receivers for signal in SIGNALS) or hasattr(Celery.send_task, "__wrapped__")


def has_own_way(app: Any) -> bool:
    """Say whether an app replaces how Celery sends."""
    amqp = type(app.amqp)
    return (
        type(app).send_task is not Celery.send_task
        or "send_task" in vars(app)
        or amqp._create_task_sender is not AMQP._create_task_sender
        or amqp.send_task_message is not AMQP.send_task_message
    )


class _Insisting:
    """A producer whose messages carry the headers that their job was created with, whatever is added on the way."""

    def __init__(self, producer: Any, headers: Mapping[str, Any]) -> None:
        self._producer, self._headers = producer, headers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **properties: Any) -> Any:
        """Publish."""
        headers = {**(properties.get("headers") or {}), **self._headers}
        if "headers" in headers and "headers" not in self._headers:  # one level deeper, where some tracers look
            own = {name: value for name, value in self._headers.items() if name != HEADER}
            headers["headers"] = {**headers["headers"], **own}
        properties["headers"] = headers
        if (self._headers.get(HEADER) or {}).get("expires_at") is not None:
            properties.pop("expiration", None)  # the gate judges it, by the database's clock
        return self._producer.publish(body, **properties)
