"""Writes `recorded/`: what the real schedulers write and when they would run it. They must be installed.

`python -m tmtest.peers.record REDIS_URL`, in the folder `tests`, with
`pip install django-celery-beat sqlalchemy-celery-beat celery-redbeat` and a Redis server.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

import redis

from tmtest.peers import RECORDED, fill


def tables_of(path: Path) -> dict[str, Any]:
    """Return the schedulers' tables: their columns as declared, and their rows."""
    found: dict[str, Any] = {}
    with sqlite3.connect(path) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        for name in names:
            if name.endswith(("schedule", "periodictask")):
                columns = [(row[1], row[2].upper()) for row in connection.execute(f"PRAGMA table_info({name})")]
                rows = [list(row) for row in connection.execute(f"SELECT * FROM {name} ORDER BY id")]
                found[name] = {"columns": columns, "rows": rows}
    connection.close()
    return found


def record_tables(source: str, folder: Path) -> None:
    """Record one of the schedulers that keep tables."""
    path = folder / f"{source}.db"
    said = fill(source, f"sqlite:///{path}")
    write(source, said | {"tables": tables_of(path)})


def record_redbeat(url: str) -> None:
    """Record RedBeat."""
    prefix = f"record-{uuid.uuid4().hex}:"
    write("redbeat", fill("redbeat", url, prefix))
    client = redis.Redis.from_url(url)
    for key in client.scan_iter(match=f"{prefix}*"):
        client.delete(key)


def write(source: str, said: dict[str, Any]) -> None:
    """Keep what a scheduler said."""
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / f"{source}.json").write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for source in ("django-celery-beat", "sqlalchemy-celery-beat"):
            record_tables(source, Path(folder))
    record_redbeat(sys.argv[1])
