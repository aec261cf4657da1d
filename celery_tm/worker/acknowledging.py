"""Acknowledges the messages of jobs many at a time, where each would cost a round trip to Redis.

kombu keeps a list of unacknowledged messages in Redis, and takes each message off it by itself: a quarter of what a worker's
main process does. For a job nobody relies on that list: its row knows where it stands, and should a worker die before it has
acknowledged, the message comes again and the gate refuses it. So these may wait for each other for a moment. Direct calls,
and messages of brokers where it costs little, are acknowledged at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from celery.signals import worker_shutdown
from kombu.transport import virtual

logger = logging.getLogger(__name__)

MOST = 100  # how many wait for each other
LONGEST = 0.1  # seconds that one waits


class Acknowledgements:
    """Gathers what one worker has to acknowledge. Everything happens in the thread of its event loop."""

    def __init__(self, hub: Any) -> None:
        self._hub = hub
        self._waiting: dict[Any, list[str]] = {}
        self._is_due = False
        _all.add(self)

    def of(self, message: Any) -> Callable[[Any, Any], None] | None:
        """Return how to acknowledge a message together with others; None where that is of no use."""
        if not hasattr(message.channel, "unacked_key") or threading.current_thread() is not threading.main_thread():
            return None
        return lambda *_: self._hub.call_soon(self._add, message)

    def _add(self, message: Any) -> None:
        channel, tag = message.channel, message.delivery_tag
        virtual.QoS.ack(channel.qos, tag)  # there is room for the next one now
        waiting = self._waiting.setdefault(channel, [])
        waiting.append(tag)
        if len(waiting) >= MOST:
            self.send()
        elif not self._is_due:
            self._is_due = True
            self._hub.call_later(LONGEST, self.send)

    def send(self) -> None:
        """Acknowledge what was gathered. If the broker is away, these messages come again, and are refused."""
        waiting, self._waiting, self._is_due = self._waiting, {}, False
        for channel, tags in waiting.items():
            try:
                with channel.conn_or_acquire() as client, client.pipeline() as pipe:
                    pipe.zrem(channel.unacked_index_key, *tags).hdel(channel.unacked_key, *tags).execute()
            except Exception as error:  # whatever the transport raises
                logger.info("%d messages of jobs are not acknowledged: %s", len(tags), error)


_all: WeakSet[Acknowledgements] = WeakSet()


@worker_shutdown.connect(weak=False)
def _send_the_rest(**_: Any) -> None:
    for one in list(_all):
        one.send()
