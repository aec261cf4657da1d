"""Makes a message of the arguments of `Celery.send_task`, of the same parts of Celery: its router, its protocol, its queues.

What does not change within a batch is asked once: looking up a setting costs Celery as much as a statement costs a database.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from celery import Celery
from celery.app.routes import Router
from celery.utils.functional import maybe_list
from celery.utils.nodenames import anon_nodename
from celery.utils.saferepr import saferepr
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.common import Broadcast

from .. import clock
from .contents import HEADER

# What a message is made of, by the names that `create_task_message` knows; the other options say how it is published.
OF_MESSAGES = ("group_id", "group_index", "retries", "chord", "time_limit", "soft_time_limit", "root_id", "parent_id",
               "shadow", "chain", "ignore_result", "argsrepr", "kwargsrepr", "replaced_task_nesting", "origin")  # fmt: skip
OF_THE_CALL = frozenset({*OF_MESSAGES, "task_id", "args", "kwargs", "headers", "expires", "link", "link_error", "reply_to",
                         "add_to_parent", "route_name", "result_cls", "task_type"})  # fmt: skip
CELERYS_WAY = re.compile(r"""[\\"(]""")  # quotes and escapes, which Celery shows otherwise, and whatever is not plain


class Address(NamedTuple):
    """Where and how messages are published: the properties that say so, what must be there, and what is shown of it."""

    properties: dict[str, Any]
    declare: Sequence[Any]
    shown: dict[str, Any]


class Made(NamedTuple):
    """A message, how to publish it, and the event that tells of it."""

    body: Any
    headers: dict[str, Any]
    properties: dict[str, Any]
    declare: Sequence[Any]
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
        self._known: dict[frozenset[Any], Address] = {}

    def make(self, name: str, said: dict[str, Any]) -> Made:
        """Return the message that `send_task(name, **said)` would send."""
        options = {option: value for option, value in said.items() if value is not None and option not in OF_THE_CALL}
        call = {option: said[option] for option in OF_MESSAGES if option in said}
        args, kwargs, expires = said["args"], said["kwargs"], said.get("expires")
        address = self._address(options, name, args, kwargs)
        message = self.creates(
            said["task_id"], name, args, kwargs,
            expires=expires,
            callbacks=maybe_list(said.get("link")),
            errbacks=maybe_list(said.get("link_error")),
            reply_to=said.get("reply_to") or self._thread,
            create_sent_event=self.tells,
            **{"origin": self._origin, "argsrepr": self._shown(args or (), self.amqp.argsrepr_maxsize),
               "kwargsrepr": self._shown(kwargs or {}, self.amqp.kwargsrepr_maxsize), **call},
            **options,
        )  # fmt: skip
        message.headers.update(said["headers"])
        properties = message.properties | address.properties
        if expires is not None and (said["headers"].get(HEADER) or {}).get("expires_at") is None:
            # A row's own expiry is judged at the gate, by the database's clock; this machine's may be ahead.
            properties["expiration"] = self._seconds_until(expires)
        event = message.sent_event and {**message.sent_event, **address.shown}
        return Made(body=message.body, headers=message.headers, properties=properties, declare=address.declare, event=event)

    def _shown(self, value: Any, most: int) -> str:
        """Return arguments as Celery shows them; what is short and plain Python shows alike, and much sooner."""
        text = repr(value)
        is_plain = text.isprintable() and not CELERYS_WAY.search(text) and text.count("[") + text.count("{") <= 2
        if not value or (is_plain and len(text) < most):
            return text
        return str(saferepr(value, most, maxlevels=self._levels))

    def _seconds_until(self, expires: Any) -> float:
        instant = maybe_iso8601(expires) if isinstance(expires, str) else expires
        if not isinstance(instant, datetime):
            return float(instant)
        return max((maybe_make_aware(instant, self.app.timezone) - clock.now()).total_seconds(), 0.0)

    def _address(self, options: dict[str, Any], name: str, args: Any, kwargs: Any) -> Address:
        """Return where a message goes: what the router says, unless it looks at nothing but what is known of another one."""
        if self.router.routes or type(self.router) is not Router:
            return self._addressed(self.router.route(dict(options), name, args, kwargs, self.tasks.get(name)))
        try:
            shape = frozenset(options.items())
            found = self._known.get(shape)
        except TypeError:  # something that cannot be compared at once
            return self._addressed(self.router.route(dict(options), name, args, kwargs, self.tasks.get(name)))
        if found is None:
            routed = self.router.route(dict(options), name, args, kwargs, self.tasks.get(name))
            found = self._known[shape] = self._addressed(routed)
        return found

    def _addressed(self, options: dict[str, Any]) -> Address:
        """Return how to publish: the queue turned into an exchange and a routing key, as Celery does."""
        for stamp in [*(options.pop("stamped_headers", None) or ())]:
            options.pop(stamp)
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
        declare = said.pop("declare", [queue] if queue is not None and not isinstance(queue, Broadcast) else [])
        exchange = getattr(said["exchange"], "name", said["exchange"])
        shown = {"queue": queue and queue.name, "exchange": exchange, "routing_key": said["routing_key"]}
        return Address(properties=said, declare=declare, shown=shown)
