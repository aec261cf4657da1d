"""Acknowledges the messages of jobs many at a time, where each would cost a round trip to Redis.

kombu keeps a list of unacknowledged messages in Redis, and takes each message off it by itself: a quarter of what a worker's
main process does. For a job nobody relies on that list: its row knows where it stands, and should a worker die before it has
acknowledged, the message comes again and the gate refuses it. So these may wait for each other for a moment. Direct calls,
and messages of brokers where it costs little, are acknowledged at once.
"""

from __future__ import annotations

import logging
import threading
import time
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
        self._since = 0.0
        _all.add(self)

    def of(self, message: Any) -> Callable[[Any, Any], None] | None:
        """Return how to acknowledge a message together with others; None where that is of no use."""
        if not hasattr(message.channel, "unacked_key") or threading.current_thread() is not threading.main_thread():
            return None
        return lambda *_: self._hub.call_soon(self._add, message)

    def _add(self, message: Any) -> None:
        channel, tag = message.channel, message.delivery_tag
        virtual.QoS.ack(channel.qos, tag)  # there is room for the next one now
        if not self._waiting:
            self._since = time.monotonic()
            self._hub.call_later(LONGEST, self.send)
        waiting = self._waiting.setdefault(channel, [])
        waiting.append(tag)
        # By the clock too: a loop that is set up anew after an outage may have forgotten what it was to do.
        if len(waiting) >= MOST or time.monotonic() - self._since >= LONGEST:
            self.send()

    def send(self) -> None:
        """Acknowledge what was gathered. If the broker is away, these messages come again, and are refused."""
        waiting, self._waiting = self._waiting, {}
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
