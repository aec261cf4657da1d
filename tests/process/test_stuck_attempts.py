"""Bodies that hang in real workers: the attempt is stale after its limit, interrupted where the pool can do that, and the
next one runs. What ends in time is left alone."""

from __future__ import annotations

import time

import pytest
from tmtest.stand import Stand

from celery_tm import defer
from celery_tm.domain.job import Status

pytestmark = pytest.mark.alone
LIMIT = 4


def story(stand: Stand, id: str) -> list[tuple[int, str]]:
    return [(one.attempt, str(one.outcome)) for one in reversed(stand.tm.job(id).executions)]


@pytest.mark.parametrize("direct", [False, True], ids=["deferred", "direct"])
def test_a_body_that_hangs_is_interrupted_by_the_default_limit_and_tried_again(stand: Stand, direct: bool) -> None:
    stand.conf["tm_stuck_after"] = LIMIT
    stand.beat()
    stand.worker(concurrency=1)  # so the second attempt needs the process in which the first one hangs
    task = stand.app.tasks["sleepy_once"]
    begun = time.monotonic()
    id = task.delay("x", 600).id if direct else defer(task.s("x", 600)).id
    stand.wait(lambda: stand.effects("start"), what="the first attempt")
    stand.wait(lambda: stand.tm.job(id).state == Status.SUCCEEDED, seconds=40, what="the second attempt")
    assert time.monotonic() - begun >= LIMIT
    assert story(stand, id) == [(1, "stale"), (2, "succeeded")]
    (first, second) = stand.effects("start")
    assert first[4] == second[4], "the process was interrupted, not killed"


def test_a_body_that_ignores_its_soft_limit_is_killed(stand: Stand) -> None:
    stand.beat()
    stand.worker(concurrency=1)
    handle = defer(stand.app.tasks["hangs_once"].s("x", 600))
    stand.wait(lambda: handle.state == Status.SUCCEEDED, seconds=60, what="the second attempt")
    assert story(stand, handle.id) == [(1, "stale"), (2, "succeeded")]
    assert stand.effects("interrupted")
    (first, second) = stand.effects("start")
    assert first[4] != second[4], "its process was killed"


def test_threads_cannot_be_interrupted_but_their_bodies_are_told_and_the_job_goes_on(stand: Stand) -> None:
    stand.conf["tm_stuck_after"] = LIMIT
    stand.beat()
    stand.worker("-P", "threads", concurrency=2)
    hangs = defer(stand.app.tasks["sleepy_once"].s("hangs", 60))
    looks = defer(stand.app.tasks["sleepy"].s("looks", 60), max_retries=0)
    stand.wait(lambda: hangs.state == Status.SUCCEEDED, seconds=40, what="the second attempt")
    stand.wait(lambda: looks.state == Status.FAILED, seconds=40, what="the dead letter")
    assert story(stand, hangs.id) == [(1, "stale"), (2, "succeeded")]
    assert story(stand, looks.id) == [(1, "stale")]
    [letter] = stand.tm.dead_letters.list(task="sleepy")
    assert letter.reason == f"stale: it did not end within {LIMIT}s; failed 1 time, max_retries=0"
    stand.wait(lambda: len(stand.effects("end")) == 2, seconds=10, what="the body that looks at job.cancelled")


@pytest.mark.parametrize("direct", [False, True], ids=["deferred", "direct"])
def test_a_default_timeout_ends_a_body_of_a_task_that_states_none(stand: Stand, direct: bool) -> None:
    stand.conf["tm_task_timeout"] = 2
    stand.beat()
    stand.worker(concurrency=1)
    task = stand.app.tasks["sleepy_once"]
    id = task.delay("x", 600).id if direct else defer(task.s("x", 600)).id
    stand.wait(lambda: stand.effects("start"), what="the first attempt")
    stand.wait(lambda: stand.tm.job(id).state == Status.SUCCEEDED, seconds=40, what="the second attempt")
    assert story(stand, id) == [(1, "timeout"), (2, "succeeded")]
    assert stand.tm.job(id).executions[-1].error == "TaskTimeout: it did not end within 2s"


def test_a_body_that_outlives_leases_and_ends_within_its_limit_runs_once(stand: Stand) -> None:
    stand.conf["tm_stuck_after"] = 30
    stand.beat()
    stand.worker(concurrency=1)
    handle = defer(stand.app.tasks["sleepy"].s("x", 7))  # more than two leases
    stand.wait(lambda: handle.state == Status.SUCCEEDED, what="its end")
    assert story(stand, handle.id) == [(1, "succeeded")]
