"""The record of a run: lines of JSON, each written by one write, so that many processes can share a file."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

ASKED, EFFECTS, FAULTS, PROCESSES = "asked.jsonl", "effects.jsonl", "faults.jsonl", "processes.jsonl"
_open: dict[tuple[int, str], int] = {}


def write(folder: str | Path, name: str, *lines: dict[str, Any]) -> None:
    """Append lines to a file of a run, with the system-wide time at which they were written."""
    at = time.monotonic_ns()
    text = "".join(json.dumps({"at": at} | line, default=str) + "\n" for line in lines)
    os.write(_descriptor(Path(folder) / name), text.encode())


def _descriptor(path: Path) -> int:
    kept = (os.getpid(), str(path))  # a fork shares what its parent opened, which is as good, but need not have it
    if kept not in _open:
        _open[kept] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    return _open[kept]
