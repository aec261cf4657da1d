"""The command line as people use it: real processes, exit codes, JSON, and one line for each mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from celery_tm.store.schema import LATEST

PROJECT = Path(__file__).parent.parent.parent

APP = """
from celery_tm import TimeManagement, easy_app
app = easy_app("shop")
tm = TimeManagement(app)

@app.task(name="hello")
def hello(n=0):
    return n

@app.task(name="fails", max_retries=0)
def fails(n=0):
    raise ValueError(f"no {n}")
"""
DEFINITIONS = '[[definitions]]\nname = "nightly"\ntask = "hello"\nschedule = "30 2 * * *"\n'


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "definitions.toml").write_text(DEFINITIONS)
    return tmp_path


def celery(folder: Path, *arguments: str, code: int = 0) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TM_", "CELERY_"))}
    argv = [sys.executable, "-m", "celery", *arguments]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, f"{arguments}: {done.stdout}\n{done.stderr}"
    return done.stdout if code == 0 else done.stderr


def tm(folder: Path, *arguments: str, code: int = 0) -> str:
    return celery(folder, "-A", "shop", "tm", *arguments, code=code)


def tm_json(folder: Path, *arguments: str) -> Any:
    return json.loads(tm(folder, *arguments, "--json"))


def python(folder: Path, code: str) -> None:
    subprocess.run([sys.executable, "-c", code], cwd=folder, timeout=60, check=True)


@pytest.mark.thorough
def test_a_walk_through_the_commands(shop: Path) -> None:
    assert "run `celery -A app tm schema upgrade`" in tm(shop, "schema", "check", code=1)
    assert tm_json(shop, "schema", "upgrade")["after"] == LATEST
    assert tm_json(shop, "schema", "check")["current"] is True
    assert tm_json(shop, "definitions", "load", "definitions.toml")["added"] == ["nightly"]
    assert "unchanged: 1 (nightly)" in tm(shop, "definitions", "load", "definitions.toml")
    [definition] = tm_json(shop, "definitions", "list")
    assert (definition["name"], definition["is"], definition["last_run_at"]) == ("nightly", "on", None)
    assert tm_json(shop, "definitions", "pause", "nightly", "--actor", "ann", "--reason", "holiday")["paused"] is True
    assert tm_json(shop, "definitions", "trigger", "nightly")["state"] == "pending"
    python(shop, "from shop import *; from celery_tm import defer; defer(hello.s(1), delay='1h'); tm.run_due_jobs()")
    [waiting] = tm_json(shop, "jobs", "list", "--state", "pending")
    assert tm_json(shop, "jobs", "show", waiting["id"])["state"] == "SCHEDULED"
    assert tm_json(shop, "jobs", "cancel", waiting["id"]) == {"job": waiting["id"], "cancelled": True}
    assert "is owed" in tm(shop, "jobs", "cancel", waiting["id"], code=1)
    assert [run["outcome"] for run in tm_json(shop, "history", "nightly")] == ["succeeded"]
    assert "nightly" in tm(shop, "definitions", "list")


@pytest.mark.thorough
def test_a_definition_is_stated_exported_and_explained_by_commands_alone(shop: Path) -> None:
    rule = '{"kind": "window", "every": "2h", "from": "08:00", "until": "18:00"}'
    tm(shop, "definitions", "add", "żółć", "--task", "hello", "--schedule", rule, "--set", "max_retries=5")
    exported = tm(shop, "definitions", "export")
    assert 'name = "żółć"' in exported
    (shop / "exported.toml").write_text(exported, encoding="utf-8")
    assert tm_json(shop, "definitions", "load", "exported.toml")["unchanged"] == ["żółć"]
    assert "had nothing to run" in tm(shop, "explain", "żółć")
    assert tm(shop, "definitions", "edit", "żółć", "--set", "max_retrys=1", code=1) == (
        "Error: unknown option 'max_retrys', did you mean 'max_retries'?\n"
    )


@pytest.mark.thorough
def test_dead_letters_are_seen_and_revived(shop: Path) -> None:
    python(
        shop,
        "from shop import *; from celery_tm import defer; import time\n"
        "defer(fails.s(7), delay=0.001); time.sleep(.05); tm.run_due_jobs()",
    )
    [letter] = tm_json(shop, "dead-letters", "list")
    assert (letter["task"], letter["last_error"]) == ("fails", "ValueError: no 7")
    assert "raise ValueError" in tm(shop, "dead-letters", "show", letter["id"])
    assert tm_json(shop, "dead-letters", "revive", letter["id"]) == {"revived": 1}
    assert tm_json(shop, "dead-letters", "list") == []
    python(shop, "from shop import *; tm.run_due_jobs()")
    assert tm_json(shop, "dead-letters", "revive", "--all", "--task", "fails") == {"revived": 1}
    python(shop, "from shop import *; tm.run_due_jobs()")
    assert tm_json(shop, "dead-letters", "purge", "--all", "--yes") == {"purged": 1}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tm", "jobs", "list"], "needs a Celery app"),
        (["-A", "shop", "tm", "job", "list"], "did you mean 'jobs'"),
        (["-A", "shop", "tm", "definitions", "load", "none.toml"], "cannot be read"),
    ],
)
def test_a_mistake_is_one_clear_message(shop: Path, arguments: list[str], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "celery", *arguments], cwd=shop, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
def test_the_sample_node_loads_and_runs(tmp_path: Path) -> None:
    import shutil

    node = tmp_path / "beat"
    shutil.copytree(PROJECT / "beat", node, ignore=shutil.ignore_patterns(".celery_tm", "*.db*", "__pycache__"))
    python(node, "import runpy, sys; sys.argv[1:] = ['create']; runpy.run_module('shop', run_name='__main__')")
    loaded = json.loads(celery(node, "-A", "app", "tm", "definitions", "load", "definitions.toml", "--json"))
    assert len(loaded["added"]) == 5
    for _ in range(2):  # `make run` may be stopped and started again
        python(node, "import runpy; runpy.run_module('samples', run_name='__main__')")
    tasks = Counter(job["task"] for job in json.loads(celery(node, "-A", "app", "tm", "jobs", "list", "--json")))
    assert tasks["shop.renew"] == 3
