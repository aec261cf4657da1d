"""A pytest plugin for Celery's own suites: makes another class the base of every task, and writes down how each test ended.

It is given with `-p`, so no file of Celery's is touched. What it injects it also checks: after each test, every task of
the test's app must be an instance of that class. The environment tells it what to do:

* `SUITES_BASE`: the class, e.g. `celery_tm:Task`; empty: plain Celery, only the outcomes are written down
* `SUITES_REPORT`: where the outcomes go, as JSON
* `SUITES_DATABASE`: a SQLite file to copy for each test; empty: all tests share the one that `TM_DATABASE_URL` names
* `SUITES_SETTINGS`: settings for every app, as JSON
* `SUITES_SHARD`: which part of the tests to run, as in `2/4`; empty: all of them
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celery
import pytest
from celery.contrib.testing import app as testing
from kombu.utils.imports import symbol_by_name

from celery_tm.worker import lease

BASE = os.environ.get("SUITES_BASE", "")
TEMPLATE = os.environ.get("SUITES_DATABASE", "")

# Now, and not in a hook: conftest.py imports the suite's tasks before pytest is configured.
testing.DEFAULT_TEST_CONFIG.update(json.loads(os.environ.get("SUITES_SETTINGS") or "{}"))
if BASE:
    celery.Celery.task_cls = BASE
    celery.Task = symbol_by_name(BASE)  # for `from celery import Task` in the suites' own base classes
if BASE and TEMPLATE:
    # The unit suite fails a test that leaves a thread behind; its bodies end before a lease would be renewed.
    lease.LeaseKeeper._keep = lambda keeper: None

outcomes: dict[str, str] = {}
seconds: dict[str, float] = {}
reasons: dict[str, str] = {}
seen: Counter[str] = Counter()
foreign: set[str] = set()


@pytest.fixture(autouse=True)
def suites_check(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the test a database of its own, and see afterwards whose tasks it had."""
    copy = tmp_path / "jobs.db"
    if TEMPLATE:
        shutil.copy(TEMPLATE, copy)
        monkeypatch.setenv("TM_DATABASE_URL", f"sqlite:///{copy}")
    names = [name for name in ("celery_app", "celery_session_app") if name in request.fixturenames]
    apps = [request.getfixturevalue(name) for name in names]
    yield
    if BASE:
        for app in apps:
            look_at_tasks(app)
        if TEMPLATE:
            seen["recorded"] += count_executions(copy)


def look_at_tasks(app: Any) -> None:
    """Count the app's tasks that are ours, and remember the others."""
    base = symbol_by_name(BASE)
    for task in app._tasks.values():
        if isinstance(task, base):
            seen["built-in" if task.name.startswith("celery") else "ours"] += 1
        else:
            foreign.add(f"{task.name} ({type(task).__mro__[1].__name__})")


def count_executions(path: Path) -> int:
    """Return how many attempts a database has records of."""
    with sqlite3.connect(path) as connection:
        return int(connection.execute("SELECT count(*) FROM tm_execution").fetchone()[0])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests of other shards out; neighbours, which often take alike long, go to different ones."""
    number, _, count = os.environ.get("SUITES_SHARD", "").partition("/")
    if count:
        others = [item for place, item in enumerate(items) if place % int(count) != int(number) - 1]
        items[:] = [item for place, item in enumerate(items) if place % int(count) == int(number) - 1]
        config.hook.pytest_deselected(items=others)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the worst of set-up, call and tear-down; a failed part of a test fails the test."""
    seconds[report.nodeid] = round(seconds.get(report.nodeid, 0.0) + report.duration, 2)
    if report.failed:
        outcomes[report.nodeid] = "failed"
        reasons.setdefault(report.nodeid, _reason(report))
    elif report.when == "call" or report.skipped:
        result = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        outcomes.setdefault(report.nodeid, result)


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr)[:600]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the report."""
    found = {"outcomes": outcomes, "reasons": reasons, "seen": dict(seen), "foreign": sorted(foreign), "seconds": seconds}
    Path(os.environ["SUITES_REPORT"]).write_text(json.dumps(found))
