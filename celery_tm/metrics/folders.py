"""The folder that the counts of a worker's pool processes go to, and those that workers left behind which were killed.

A worker holds a lock on its folder for as long as one of its processes lives. It is the system's, so that a killed one gives
it back, and it says more than a process id, which another container may not see, or which may be somebody else's by now.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PREFIX, LOCK = "celery_tm-metrics-", "lock"
YOUNG = 60.0  # seconds in which a folder may be one whose worker is about to lock it
_held: list[int] = []  # open as long as this process is, and its forks are


def make_folder() -> str:
    """Make a folder that goes with this process, and remove those of processes that are gone."""
    _remove_left()
    made, owner = tempfile.mkdtemp(prefix=PREFIX), os.getpid()
    lock = os.open(os.path.join(made, LOCK), os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    _held.append(lock)

    @atexit.register
    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(made, ignore_errors=True)

    return made


def _remove_left() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, or another worker is removing it
            if time.time() - folder.stat().st_mtime > YOUNG and _is_left(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    """Say whether no process holds the folder any more."""
    lock = os.open(folder / LOCK, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
