"""Names for things.

What must come out the same when computed twice (an instant of a definition, an attempt of a job) is a UUIDv5 of what it
is; what is new is a UUIDv7, so that ids sort by time and indexes stay compact.
"""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime
from functools import lru_cache
from uuid import NAMESPACE_URL, uuid5

NAMESPACE = uuid5(NAMESPACE_URL, "celery_tm")

FAR_AHEAD = 10_000 * 4096  # ten seconds
_last = 0
_lock = threading.Lock()


def new_id() -> str:
    """Return a new UUIDv7; ids made later in this process sort later, unless the clock is put back by far."""
    global _last
    with _lock:
        # 48 bits of milliseconds and 12 bits of their fraction (RFC 9562, method 3).
        ticks = time.time_ns() * 4096 // 1_000_000
        if ticks <= _last < ticks + FAR_AHEAD:  # a burst; a clock that was put back a long way begins anew
            ticks = _last + 1
        _last = ticks
    time_part = (ticks >> 12) << 16 | 0x7 << 12 | ticks & 0xFFF
    digits = f"{time_part:016x}{0b10 << 62 | int.from_bytes(os.urandom(8)) >> 2:016x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def occurrence_id(definition: str, scheduled_at: datetime) -> str:
    """Return the id of one instant of a definition: whoever plans it first wins, the others meet this id."""
    return str(uuid5(NAMESPACE, f"occurrence/{definition}/{scheduled_at.astimezone(UTC).isoformat()}"))


def occurrence_job_id(occurrence: str, step: str | None = None) -> str:
    """Return the id of the job that carries out an occurrence, or one step of it."""
    return str(uuid5(NAMESPACE, f"job/{occurrence}/{step or ''}"))


@lru_cache(maxsize=4096)  # asked several times for each attempt
def execution_id(job: str, attempt: int) -> str:
    """Return the id of one attempt's record."""
    return str(uuid5(NAMESPACE, f"execution/{job}/{attempt}"))
