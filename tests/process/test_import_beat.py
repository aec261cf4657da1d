"""`tm import beat` sees the entries that task modules add when the app is finalized, as beat itself does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

APP = """
from celery import Celery
from celery_tm import Task

app = Celery("late", broker="memory://", include=["late_tasks_of_shop"])
app.conf.tm_database_url = "sqlite:///shop.db"


@app.on_after_configure.connect
def first(sender, **kwargs):
    sender.add_periodic_task(10.0, sender.signature("shop.work"), name="configured")
"""
TASKS = """
from late_shop import app


@app.task(name="shop.work")
def work():
    pass


@app.on_after_finalize.connect
def later(sender, **kwargs):
    sender.add_periodic_task(20.0, work.s(), name="finalized")
"""


def test_entries_of_task_modules_are_imported(tmp_path: Path) -> None:
    (tmp_path / "late_shop.py").write_text(APP)
    (tmp_path / "late_tasks_of_shop.py").write_text(TASKS)

    def tm(*arguments: str) -> str:
        command = [sys.executable, "-m", "celery", "-A", "late_shop", "tm", *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=120).stdout

    tm("schema", "upgrade")
    found = json.loads(tm("import", "beat", "--dry-run", "--json"))
    assert {entry["name"] for entry in found["entries"]} >= {"configured", "finalized"}
