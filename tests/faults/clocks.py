"""Clocks of single processes, put forwards and backwards while they run, by libfaketime.

Only the time of day is faked: what is measured, as the timeouts of locks, and the times in the records, stays true.
"""

from __future__ import annotations

import glob
import os
from functools import lru_cache
from pathlib import Path

FAKED = Path(__file__).parent / "faked"  # what such a process loads first


@lru_cache
def library() -> str | None:
    """Return where libfaketime is, or None: then no clock is shifted."""
    return next(iter(sorted(glob.glob("/usr/lib/*/faketime/libfaketime.so.1"))), None)


class Shifted:
    """The clock of one process: a file that says how wrong it is, which the process looks at about once a second."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.shift("+0")

    def shift(self, by: str) -> None:
        """Be wrong by so much from now on, e.g. "+37m" or "-2h"."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text(by + "\n")
        fresh.replace(self.file)

    def environment(self, paths: str) -> dict[str, str]:
        """Return what a process has to be started with, which looks for modules in `paths`."""
        return {
            "PYTHONPATH": os.pathsep.join([str(FAKED), paths]),
            "LD_PRELOAD": library() or "",
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_CACHE_DURATION": "0",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }
