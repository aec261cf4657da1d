"""Makes a message of the arguments of `Celery.send_task`, of the same parts of Celery: its router, its protocol, its queues.

What does not change within a batch is asked once: looking up a setting costs Celery as much as a statement costs a database.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery import Celery
from celery.app.routes import Router
from celery.utils.functional import maybe_list
from celery.utils.nodenames import anon_nodename
from celery.utils.saferepr import saferepr
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu import Queue
from kombu.common import Broadcast

from .. import clock

# What a message is made of; the other options say how it is published.
OF_THE_CALL = ("group_id", "group_index", "retries", "chord", "time_limit", "soft_time_limit", "root_id", "parent_id",
               "shadow", "chain", "ignore_result", "argsrepr", "kwargsrepr", "replaced_task_nesting")  # fmt: skip
OF_SEND_TASK = ("add_to_parent", "route_name", "result_cls", "task_type")  # its arguments that no message carries

CELERYS_WAY = re.compile(r"""[\\"(]""")  # quotes and escapes, which Celery shows otherwise, and whatever is not plain


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """A message, how to publish it, and the event that tells of it."""

    body: Any
    publishing: dict[str, Any]
    event: dict[str, Any] | None = None


class Maker:
    """Makes the messages of one batch."""

    def __init__(self, app: Celery) -> None:
        self.app, self.amqp, self.tasks = app, app.amqp, app.tasks
        self.router, conf = app.amqp.router, app.conf
        self.creates = app.amqp.create_task_message
        self.tells = bool(conf.task_send_sent_event)
        self._levels = getattr(conf, "task_repr_maxlevels", 3)
        self._origin, self._thread = anon_nodename(), app.thread_oid
        self._defaults = {"serializer": conf.task_serializer, "compression": conf.task_compression}
        self._delivery_mode = conf.task_default_delivery_mode
        self._default_queue = conf.task_default_queue
        self._queues: dict[str, Queue] = {}

    def make(self, name: str, said: dict[str, Any]) -> Made:
        """Return the message that `send_task(name, **said)` would send."""
        said = dict(said)
        task_id, args, kwargs = said.pop("task_id"), said.pop("args"), said.pop("kwargs")
        headers, expires = said.pop("headers"), said.pop("expires", None)
        links = {"callbacks": maybe_list(said.pop("link", None)), "errbacks": maybe_list(said.pop("link_error", None))}
        reply_to = said.pop("reply_to", None) or self._thread
        call = {option: said.pop(option) for option in OF_THE_CALL if option in said}
        call.setdefault("argsrepr", self._shown(args or (), self.amqp.argsrepr_maxsize))
        call.setdefault("kwargsrepr", self._shown(kwargs or {}, self.amqp.kwargsrepr_maxsize))
        for option in OF_SEND_TASK:
            said.pop(option, None)
        options = self._routed(said, name, args, kwargs)
        if expires is not None:
            options["expiration"] = self._seconds_until(expires)
        message = self.creates(
            task_id, name, args, kwargs, expires=expires, reply_to=reply_to, create_sent_event=self.tells,
            **links, **call, **{"origin": self._origin, **options},
        )  # fmt: skip
        for stamp in options.pop("stamped_headers", None) or ():
            options.pop(stamp)
        message.headers.update(headers)
        queue, address = self._addressed(options)
        publishing = message.properties | address | {"headers": message.headers}
        return Made(body=message.body, publishing=publishing, event=_event(message.sent_event, queue, address))

    def _shown(self, value: Any, most: int) -> str:
        """Return arguments as Celery shows them; what is short and plain Python shows alike, and much sooner."""
        text = repr(value)
        is_plain = text.isprintable() and not CELERYS_WAY.search(text) and text.count("[") + text.count("{") <= 2
        if not value or (is_plain and len(text) < most):
            return text
        return str(saferepr(value, most, maxlevels=self._levels))

    def _routed(self, options: dict[str, Any], name: str, args: Any, kwargs: Any) -> dict[str, Any]:
        """Ask the router, unless it has no routes: then a queue's name is all it looks at."""
        if self.router.routes or type(self.router) is not Router:
            routed: dict[str, Any] = self.router.route(options, name, args, kwargs, self.tasks.get(name))
            return routed
        queue = options.get("queue") or self._default_queue
        if isinstance(queue, str):
            found = self._queues.get(queue)
            if found is None:
                found = self._queues[queue] = self.router.expand_destination(queue)["queue"]
            options["queue"] = found
        return options

    def _seconds_until(self, expires: Any) -> float:
        instant = maybe_iso8601(expires) if isinstance(expires, str) else expires
        if not isinstance(instant, datetime):
            return float(instant)
        return max((maybe_make_aware(instant, self.app.timezone) - clock.now()).total_seconds(), 0.0)

    def _addressed(self, options: dict[str, Any]) -> tuple[Queue | None, dict[str, Any]]:
        """Return how to publish: the queue turned into an exchange and a routing key, as Celery does."""
        said = self._defaults | {option: value for option, value in options.items() if value is not None}
        queue = said.pop("queue", None)
        if queue is None and "exchange" not in said:
            queue = self.amqp.default_queue
        known = queue.exchange if queue is not None else None
        kind = said.pop("exchange_type", None) or getattr(known, "type", "direct")
        said.setdefault("delivery_mode", getattr(known, "delivery_mode", None) or self._delivery_mode)
        if kind == "direct" and not (said.get("exchange") and said.get("routing_key")):
            said |= {"exchange": "", "routing_key": queue.name if queue is not None else None}
        elif "exchange" not in said:
            said["exchange"] = getattr(known, "name", None) or self.amqp.default_exchange
            said["routing_key"] = said.get("routing_key") or queue.routing_key or self.app.conf.task_default_routing_key
        if queue is not None and not isinstance(queue, Broadcast):
            said.setdefault("declare", [queue])
        return queue, said


def _event(event: dict[str, Any] | None, queue: Queue | None, address: dict[str, Any]) -> dict[str, Any] | None:
    """Return what is told of a sent message, if anything is."""
    if event is None:
        return None
    exchange = address["exchange"]
    where = {"exchange": getattr(exchange, "name", exchange), "routing_key": address["routing_key"]}
    return {**event, "queue": queue.name if queue is not None else None, **where}
