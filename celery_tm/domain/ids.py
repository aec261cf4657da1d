"""Names for things.

What must come out the same when computed twice (an instant of a definition, an attempt of a job) is a UUIDv5 of what it
is; what is new is a UUIDv7, so that ids sort by time and indexes stay compact.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from uuid import NAMESPACE_URL, uuid5

NAMESPACE = uuid5(NAMESPACE_URL, "celery_tm")
_VARIANT = {f"{n:x}": f"{0b1000 | n & 0b0011:x}" for n in range(16)}  # the first two bits of a digit become 10

FAR_AHEAD = 10_000 * 4096  # ten seconds
_last = 0
_lock = threading.Lock()


def new_id() -> str:
    """Return a new UUIDv7; ids made later in this process sort later, unless the clock is put back by far."""
    return _uuid7(_take(1), os.urandom(8).hex())


def new_ids() -> Iterator[str]:
    """Return new ids without end, made in ever larger numbers at once, which takes half the time."""
    count = 1
    while True:
        first, digits = _take(count), os.urandom(8 * count).hex()
        yield from [_uuid7(first + n, digits[16 * n : 16 * n + 16]) for n in range(count)]
        count = min(2 * count, 1024)


def _take(count: int) -> int:
    """Take that many places in the order of ids, and return the first: the time in 4096ths of a millisecond."""
    global _last
    with _lock:
        ticks = time.time_ns() * 4096 // 1_000_000
        if ticks <= _last < ticks + FAR_AHEAD:  # a burst; a clock that was put back a long way begins anew
            ticks = _last + 1
        _last = ticks + count - 1
    return ticks


def _uuid7(ticks: int, digits: str) -> str:
    # 48 bits of milliseconds, 12 bits of their fraction (RFC 9562, method 3), and 62 random ones.
    stamp = f"{ticks:015x}"
    return f"{stamp[:8]}-{stamp[8:12]}-7{stamp[12:]}-{_VARIANT[digits[0]]}{digits[1:4]}-{digits[4:]}"


def occurrence_id(definition: str, scheduled_at: datetime) -> str:
    """Return the id of one instant of a definition: whoever plans it first wins, the others meet this id."""
    return named_id(f"occurrence/{definition}/{scheduled_at.astimezone(UTC).isoformat()}")


def occurrence_job_id(occurrence: str, step: str | None = None) -> str:
    """Return the id of the job that carries out an occurrence, or one step of it."""
    return named_id(f"job/{occurrence}/{step or ''}")


@lru_cache(maxsize=4096)  # asked several times for each attempt
def execution_id(job: str, attempt: int, call: str | None = None) -> str:
    """Return the id of one attempt's record. `call` tells apart the calls that were made with the same id."""
    return named_id(f"execution/{job}/{attempt}" if call is None else f"execution/{job}/{attempt}/{call}")


def named_id(name: str) -> str:
    """Return `str(uuid5(NAMESPACE, name))`, without the detour over a UUID: a herd of instants needs thousands."""
    text = hashlib.sha1(NAMESPACE.bytes + name.encode(), usedforsecurity=False).hexdigest()
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:32]}"
