"""One key from many processes: one job, also while it runs and after it succeeded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tmtest.stand import TESTS, Stand

from celery_tm import defer
from celery_tm.domain.job import Status
from celery_tm.store import tables

SCRIPT = """
import json, os, sys, time
from tmtest.main import app
from celery_tm import defer
delay, start = float(sys.argv[1]), float(sys.argv[2])
effect = app.tasks["effect"]
time.sleep(max(0, start - time.time()))
handles = [defer(effect.s("keyed"), delay=delay, key="one") for _ in range(20)]
print(json.dumps([[h.id, h.created] for h in handles]))
"""


def defer_from_processes(stand: Stand, count: int, delay: float) -> list[tuple[str, bool]]:
    """Defer the same key twenty times from each of `count` processes that start at the same moment."""
    env = os.environ | {"TM_TEST_CONF": json.dumps(stand.conf), "PYTHONPATH": str(TESTS)}
    argv = [sys.executable, "-c", SCRIPT, str(delay), str(time.time() + 6)]
    children = [subprocess.Popen(argv, stdout=subprocess.PIPE, env=env, cwd=Path(stand.folder)) for _ in range(count)]
    answers = [child.communicate(timeout=90)[0] for child in children]
    assert all(child.returncode == 0 for child in children)
    return [(id, created) for answer in answers for id, created in json.loads(answer)]


def test_ten_processes_with_one_key_create_one_job(stand: Stand) -> None:
    answers = defer_from_processes(stand, 10, delay=3600)
    assert len(answers) == 200
    assert len({id for id, _ in answers}) == 1
    assert sum(created for _, created in answers) == 1
    assert stand.count(tables.job) == 1


@pytest.mark.thorough
def test_ten_processes_with_one_key_run_it_once_while_and_after_it_succeeds(stand: Stand) -> None:
    (stand.folder / "results").mkdir()
    stand.conf["result_backend"] = stand.app.conf.result_backend = f"file://{stand.folder}/results"
    stand.beat()
    stand.worker(concurrency=2)
    answers = defer_from_processes(stand, 10, delay=0)
    assert len({id for id, _ in answers}) == 1
    assert sum(created for _, created in answers) == 1
    stand.wait_until_settled()
    assert len(stand.effects("effect")) == 1

    again = defer(stand.app.tasks["effect"].s("keyed"), key="one")
    assert (again.created, again.state, again.result) == (False, Status.SUCCEEDED, "keyed")
    direct = stand.app.tasks["keyed"].delay(7)
    stand.wait(lambda: stand.effects("keyed"), what="the direct call")
    stand.wait_until_settled()
    again = [stand.app.tasks["keyed"].delay(7) for _ in range(3)]
    handle = defer(stand.app.tasks["keyed"].s(7))
    assert (handle.created, handle.id, handle.result) == (False, direct.id, {"n": 7})
    barrier = stand.app.tasks["effect"].delay("barrier")
    stand.wait(lambda: ["effect", "barrier", barrier.id, "1"] in stand.effects("effect"), what="the last message")
    assert len(stand.effects("keyed")) == 1
    assert [result.get(timeout=10) for result in again] == [{"n": 7}] * 3, "already ran, with this result"
