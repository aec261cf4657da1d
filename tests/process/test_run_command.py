"""`tm run`: plan, dispatch and execute in one process. The broker that the app names is not there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from conftest import prepare
from tmtest.stand import Process, Stand

from celery_tm import defer, defer_many, workflow
from celery_tm.store import tables

NO_BROKER = {"broker_url": "redis://127.0.0.1:1/0", "tm_publish_retry": {"max_retries": 0}}


@pytest.fixture(params=["sqlite", "postgresql", pytest.param("mysql", marks=pytest.mark.thorough)])
def stand(request: pytest.FixtureRequest, tmp_path: Path, effects: Path) -> Iterator[Stand]:
    """A database, and no broker."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    prepare(url)
    stand = Stand(NO_BROKER | {"tm_database_url": url}, tmp_path, effects, pair=request.param)
    yield stand
    stand.close()


def run(stand: Stand, *options: str) -> Process:
    process = stand._start(f"run{len(stand.processes)}", ["tm", "run", *options])
    stand.wait_for_text(process, "running jobs of")
    return process


def run_once(stand: Stand, *, code: int = 0, **env: str) -> dict[str, int]:
    argv = [sys.executable, "-m", "celery", "-A", "tmtest.main", "tm", "run", "--once", "--json", "-l", "ERROR"]
    paths = os.pathsep.join([*stand.paths, os.environ.get("PYTHONPATH", "")])
    said = os.environ | {"TM_TEST_CONF": json.dumps(stand.conf), "PYTHONPATH": paths} | env
    done = subprocess.run(argv, env=said, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout) if code == 0 else {"error": len(done.stderr)}


def test_everything_runs_in_one_process_without_a_broker(stand: Stand) -> None:
    tasks = stand.app.tasks
    stand.tm.definitions.add(name="often", task="effect", args=["tick"], schedule="every 1s")
    defer_many([tasks["effect"].s(n) for n in range(20)])
    defer(tasks["effect"].s("later"), delay="2s")
    defer(tasks["flaky"].s("flaky", 1))
    steps = [{"name": "one", "task": "effect", "args": [101]}, {"name": "two", "task": "effect", "args": [102]}]
    defer(workflow(steps), app=stand.app)
    runner = run(stand, "-c", "3")

    wanted = {*map(str, range(20)), "later", "101", "102"}
    stand.wait(lambda: wanted <= {line[1] for line in stand.effects("effect")}, what="every job")
    stand.wait(lambda: len([line for line in stand.effects("effect") if line[1] == "tick"]) >= 3, what="three ticks")
    stand.wait(lambda: len(stand.effects("flaky")) == 2, what="the second try")
    runner.stop()
    counts = Counter(line[1] for line in stand.effects("effect"))
    assert {counts[name] for name in wanted} == {1}
    assert runner.wait(1) == 0


def test_a_signal_lets_bodies_end_and_begins_none(stand: Stand) -> None:
    tasks = stand.app.tasks
    defer(tasks["sleepy"].s(1, 2.0))
    runner = run(stand, "-c", "1")
    stand.wait(lambda: stand.effects("start"), what="its beginning")
    defer(tasks["effect"].s(2))
    os.kill(runner.pid, signal.SIGTERM)

    assert runner.wait(20) == 0
    assert [line[0] for line in stand.effects()] == ["start", "end"]
    assert stand.outcomes() == {"succeeded": 1}
    assert stand.count(tables.job) == 1


def test_a_signal_is_told_to_the_bodies_that_run(stand: Stand) -> None:
    defer(stand.app.tasks["until_stopping"].s(1, 60.0))
    runner = run(stand)
    stand.wait(lambda: stand.effects("start"), what="its beginning")
    os.kill(runner.pid, signal.SIGTERM)

    assert runner.wait(20) == 0  # it did not wait for the minute
    assert [line[2] for line in stand.effects()] == ["False", "True"]
    assert stand.outcomes() == {"succeeded": 1}


def test_what_a_killed_process_ran_runs_in_the_next_one(stand: Stand) -> None:
    defer(stand.app.tasks["sleepy"].s(1, 3.0))
    first = run(stand)
    stand.wait(lambda: stand.effects("start"), what="its beginning")
    first.kill()
    run(stand)

    stand.wait_until_settled()
    assert [line[4 - 1] for line in stand.effects("end")] == ["2"]  # the second attempt
    assert stand.outcomes() == {"orphaned": 1, "succeeded": 1}


def test_two_of_them_run_each_job_once(stand: Stand) -> None:
    run(stand, "-c", "2"), run(stand, "-c", "2")
    defer_many([stand.app.tasks["effect"].s(n) for n in range(60)], delay=timedelta(milliseconds=200))

    stand.wait_until_settled()
    assert Counter(line[1] for line in stand.effects("effect")) == dict.fromkeys(map(str, range(60)), 1)


def test_once_runs_what_is_due_and_says_what_it_did(stand: Stand) -> None:
    tasks = stand.app.tasks
    defer_many([tasks["effect"].s(n) for n in range(5)])
    defer(tasks["effect"].s("later"), delay="1h")
    defer(tasks["fails"].s(1))

    done = run_once(stand)
    assert (done["succeeded"], done["retried"]) == (5, 1)
    assert run_once(stand)["claimed"] in (0, 1)  # the retry, if it is due by now
    assert sorted(line[1] for line in stand.effects("effect")) == ["0", "1", "2", "3", "4"]


def test_once_fails_where_the_database_is_away(stand: Stand) -> None:
    if stand.pair != "postgresql":
        pytest.skip("alike on the others")
    stand.conf["tm_database_url"] = "postgresql://nobody@127.0.0.1:1/none"
    assert run_once(stand, code=1)["error"]
