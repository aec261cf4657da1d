"""Many messages in one round trip, where the broker is Redis.

kombu puts each message on its queue's list with a command of its own, over a client that it makes anew each time. Within
`collecting()` the channel only collects them, and `Collected.push` puts those of one list there with one command: all of
them or none. Every other transport, and every other way to publish (fanout, queues that expire), is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kombu.utils.functional import retry_over_time

from ..domain.codec import dumped
from ..domain.job import Job

FULL = 4_000_000  # characters after which what is collected is to be pushed, whatever is still to come
INTERVALS = ("max_retries", "interval_start", "interval_step", "interval_max")


class Collected:
    """Messages that are made and not yet pushed, by the list they belong on, each with the jobs it carries."""

    def __init__(self, channel: Any) -> None:
        self._channel, self._put = channel, channel._put
        self._lists: dict[str, list[str]] = {}
        self._jobs: dict[str, list[Job]] = {}
        self._load: Sequence[Job] = ()
        self._size = 0

    @contextmanager
    def messages_of(self, load: Sequence[Job]) -> Iterator[None]:
        """Collect what is published in the block, for these jobs; outside of such a block it goes out at once."""
        self._load = load
        try:
            yield
        finally:
            self._load = ()

    def put(self, queue: str, message: Mapping[str, Any], **options: Any) -> None:
        """Stand in for the channel's own way to put a message on a queue."""
        channel = self._channel
        if not self._load or queue in (getattr(channel, "_expires", None) or ()):
            self._put(queue, message, **options)
            return
        key = channel._q_for_pri(queue, channel._get_message_priority(message, reverse=False))
        text = dumped(message)
        self._lists.setdefault(key, []).append(text)
        self._jobs.setdefault(key, []).extend(self._load)
        self._size += len(text)

    def push(self, away: tuple[type[BaseException], ...], policy: Mapping[str, Any]) -> None:
        """Put everything where it belongs; what raises leaves the rest collected, see `waiting`."""
        retries = {name: policy[name] for name in INTERVALS if name in policy}
        with self._channel.conn_or_acquire() as client:
            for key in list(self._lists):
                retry_over_time(client.lpush, away, (key, *self._lists[key]), **retries)
                del self._lists[key], self._jobs[key]
        self._size = 0

    @property
    def is_full(self) -> bool:
        """Say whether this is as much as should travel at once."""
        return self._size >= FULL

    @property
    def waiting(self) -> set[str]:
        """Return the ids of jobs that are not known to have reached the broker."""
        return {job.id for jobs in self._jobs.values() for job in jobs}


@contextmanager
def collecting(channel: Any) -> Iterator[Collected | None]:
    """Let a channel collect what is published in the block; None where it cannot. The channel must be nobody else's."""
    if not _can_collect(channel):
        yield None
        return
    collected = Collected(channel)
    channel._put = collected.put
    try:
        yield collected
    finally:
        del channel._put


def _can_collect(channel: Any) -> bool:
    """Say whether a channel is kombu's own for Redis; one that puts messages otherwise is not to be guessed at."""
    try:
        from kombu.transport.redis import Channel
    except ImportError:
        return False
    return isinstance(channel, Channel) and type(channel)._put is Channel._put
