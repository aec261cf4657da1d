"""Entries made by the real schedulers that definitions are imported from.

Each module is a script that fills a database or a Redis server with the scheduler's own code, at `NOW`, and prints as JSON
what it wrote and when the scheduler itself would run each entry next. `record.py` keeps that in `recorded/`, so that the
tests need none of the schedulers; where one is installed, they ask it again.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)  # a Monday
ZONE = "Europe/Warsaw"  # the app's
RECORDED = Path(__file__).parent / "recorded"
PACKAGES = {
    "django-celery-beat": "django_celery_beat",
    "sqlalchemy-celery-beat": "sqlalchemy_celery_beat",
    "redbeat": "redbeat",
}


def is_installed(source: str) -> bool:
    """Say whether the real scheduler can be asked."""
    return importlib.util.find_spec(PACKAGES[source]) is not None


def fill(source: str, url: str, *arguments: str) -> dict[str, Any]:
    """Let the real scheduler write its entries, and return what its script says."""
    command = [sys.executable, "-m", f"tmtest.peers.fill_{PACKAGES[source]}", url, *arguments]
    place = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def recorded(source: str) -> dict[str, Any]:
    """Return what the real scheduler once wrote; its release is in there."""
    said: dict[str, Any] = json.loads((RECORDED / f"{source}.json").read_text())
    return said
