"""Many messages in one round trip, where the broker is Redis.

kombu puts each message on its queue's list with a command of its own, over a client that it makes anew each time. Here the
messages of a batch are collected, and those of one list are put there with one command: all of them or none. That is for
plain messages to a queue; whatever goes another way (an exchange, compression, a queue that expires, another transport) is
published by kombu, one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kombu.entity import maybe_delivery_mode
from kombu.serialization import dumps, registry
from kombu.utils.functional import retry_over_time
from kombu.utils.json import dumps as kombu_json

from ..domain.codec import dumped
from ..domain.job import Job
from .making import Made
from .refusal import is_of_queue

FULL = 4_000_000  # characters after which what is collected is to be pushed, whatever is still to come
PLAIN = frozenset({"exchange", "routing_key", "serializer", "compression", "delivery_mode", "priority", "expiration",
                   "correlation_id", "reply_to"})  # fmt: skip
INTERVALS = ("max_retries", "interval_start", "interval_step", "interval_max")


class Collected:
    """Messages that are made and not yet pushed, by the list they belong on, each with the jobs it carries."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self._lists: dict[str, list[str]] = {}
        self._jobs: dict[str, list[Job]] = {}
        self._size = 0

    def takes(self, made: Made) -> bool:
        """Say whether a message can be collected: one that kombu would simply put on the list of a queue."""
        said = made.properties
        queue_expires = said["routing_key"] in (getattr(self.channel, "_expires", None) or ())
        return not (said["exchange"] or said["compression"] or queue_expires) and PLAIN.issuperset(said)

    def add(self, made: Made, load: Sequence[Job]) -> None:
        """Collect a message, as `Producer.publish` and the channel would put it on its list."""
        channel, said = self.channel, made.properties
        content_type, encoding, body = _encoded(made.body, said["serializer"])
        properties = {name: said[name] for name in ("correlation_id", "reply_to")}
        properties["delivery_mode"] = maybe_delivery_mode(said["delivery_mode"])
        if "expiration" in said:
            properties["expiration"] = str(int(said["expiration"] * 1000))
        message = channel.prepare_message(body, said.get("priority"), content_type, encoding, made.headers, properties)
        channel._inplace_augment_message(message, said["exchange"], said["routing_key"])
        key = channel._q_for_pri(said["routing_key"], channel._get_message_priority(message, reverse=False))
        text = dumped(message)
        self._lists.setdefault(key, []).append(text)
        self._jobs.setdefault(key, []).extend(load)
        self._size += len(text)

    @property
    def is_full(self) -> bool:
        """Say whether this is as much as should travel at once."""
        return self._size >= FULL

    def push(self, connection: Any, policy: Mapping[str, Any]) -> Iterator[tuple[list[Job], Exception | None]]:
        """Put everything where it belongs; yield the jobs of each list, with an error if that list cannot be used.

        What raises leaves the rest collected: it has not reached the broker.
        """
        retries = {name: policy[name] for name in INTERVALS if name in policy} | {"errback": _next_pause}
        with self.channel.conn_or_acquire() as client:
            for key in list(self._lists):
                error = None
                try:
                    retry_over_time(client.lpush, connection.connection_errors, (key, *self._lists[key]), **retries)
                except Exception as refusal:
                    if not is_of_queue(connection, refusal):
                        raise
                    error = refusal
                del self._lists[key]
                yield self._jobs.pop(key), error
        self._size = 0


def _next_pause(error: BaseException, pauses: Iterator[float], _: int) -> float:
    if "Timeout" in type(error).__name__:
        raise error  # the next try would only wait as long again
    return next(pauses)


def _encoded(body: Any, serializer: Any) -> tuple[str, str, Any]:
    """Return a message's body as kombu would write it."""
    encoder = registry._encoders.get(serializer) if isinstance(serializer, str) else None
    if encoder is not None and encoder.encoder is kombu_json:
        return encoder.content_type, encoder.content_encoding, dumped(body)
    written: tuple[str, str, Any] = dumps(body, serializer=serializer)
    return written


def collector_for(channel: Any) -> Collected | None:
    """Return what collects the messages of a channel; None where it is not kombu's own for Redis."""
    try:
        from kombu.transport.redis import Channel
    except ImportError:
        return None
    is_known = isinstance(channel, Channel) and type(channel)._put is Channel._put
    return Collected(channel) if is_known else None
