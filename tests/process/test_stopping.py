"""A body learns from `job.stopping` that its worker shuts down, on every pool, and may end in order."""

from __future__ import annotations

import importlib.util
import os
import signal

import pytest
from tmtest.stand import Stand

from celery_tm import defer
from celery_tm.domain.job import Status

pytestmark = pytest.mark.alone
POOLS = ["prefork", "threads", "solo", "gevent"]


def start(stand: Stand, pool: str) -> tuple[object, object]:
    if pool == "gevent" and importlib.util.find_spec("gevent") is None:
        pytest.skip("gevent is not installed")
    worker = stand.worker("-P", pool, concurrency=2)
    handle = defer(stand.app.tasks["until_stopping"].s(pool, 60))
    stand.wait(lambda: stand.effects("start"), what="the body")
    return worker, handle


@pytest.mark.parametrize("pool", POOLS)
def test_a_body_hears_of_a_warm_shutdown_ends_and_is_recorded(stand: Stand, pool: str) -> None:
    worker, handle = start(stand, pool)
    worker.stop()  # SIGTERM to the main process only; waits 20 s at most, the body would take 60
    assert [line[2] for line in stand.effects("start")] == ["False"]
    assert [line[2] for line in stand.effects("end")] == ["True"]
    assert handle.state == Status.SUCCEEDED
    assert stand.outcomes(job=handle.id) == {"succeeded": 1}


def test_a_body_hears_of_a_soft_shutdown_before_it_is_cut_off(stand: Stand) -> None:
    stand.conf["worker_soft_shutdown_timeout"] = 15
    worker, handle = start(stand, "prefork")
    os.kill(worker.pid, signal.SIGQUIT)
    stand.wait(lambda: stand.effects("end"), seconds=10, what="the end of the body")
    worker.wait(40)
    assert handle.state == Status.SUCCEEDED


def test_a_body_hears_of_a_shutdown_by_remote_control(stand: Stand) -> None:
    worker, handle = start(stand, "prefork")
    stand.app.control.shutdown()
    worker.wait(40)
    assert [line[2] for line in stand.effects("end")] == ["True"]
    assert handle.state == Status.SUCCEEDED
