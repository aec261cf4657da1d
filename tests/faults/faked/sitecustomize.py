"""Loaded first by every process whose clock is shifted: there libfaketime spoils the system call behind `time.sleep`."""

import _thread
import time
from math import isnan


def sleep(seconds: float) -> None:
    """Sleep, by waiting for a lock that nobody opens: locks go by the clock that is not faked."""
    if seconds < 0 or isnan(seconds):
        raise ValueError("sleep length must be non-negative")
    lock = _thread.allocate_lock()
    lock.acquire()
    lock.acquire(timeout=min(seconds, _thread.TIMEOUT_MAX))


time.sleep = sleep
