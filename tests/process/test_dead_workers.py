"""Workers that are killed, stopped or slow: their jobs run again, their tries are counted, they cannot finish late."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import pytest
from tmtest.stand import Stand

from celery_tm import cancel, defer
from celery_tm.domain.job import Status
from celery_tm.store import tables

LEASE = 3
# On a busy machine billiard's pool may hang after a hard limit where the broker has no event loop, as the file broker.
pytestmark = pytest.mark.alone


def started(stand: Stand, attempt: int) -> list[list[str]]:
    return [line for line in stand.effects("start") if line[3] == str(attempt)]


def test_a_killed_worker_s_job_runs_again_after_its_lease_with_the_try_counted(stand: Stand) -> None:
    stand.beat()
    victim = stand.worker(concurrency=1)
    handle = defer(stand.app.tasks["sleepy_once"].s("x", 60))
    stand.wait(lambda: started(stand, 1), what="the first attempt")
    victim.kill()
    killed_at = time.monotonic()
    stand.worker(concurrency=1)

    stand.wait(lambda: handle.state == Status.SUCCEEDED, seconds=30, what="the second attempt")
    waited = time.monotonic() - killed_at
    assert waited >= LEASE * 2 / 3 - 0.5, "it was taken over while the lease could still have been renewed"
    assert [(e.attempt, str(e.outcome)) for e in stand.tm.job(handle.id).executions] == [(2, "succeeded"), (1, "orphaned")]
    assert len(started(stand, 2)) == 1


def test_a_killed_worker_s_direct_call_runs_again_too(stand: Stand) -> None:
    stand.beat()
    victim = stand.worker(concurrency=1)
    result = stand.app.tasks["sleepy_once"].delay("x", 60)
    stand.wait(lambda: started(stand, 1), what="the first attempt")
    victim.kill()
    stand.worker(concurrency=1)

    stand.wait(lambda: stand.tm.job(result.id).state == Status.SUCCEEDED, seconds=30, what="the second attempt")
    assert stand.outcomes(job=result.id) == Counter(orphaned=1, succeeded=1)


def test_a_worker_that_was_only_stopped_cannot_finish_the_job_any_more(stand: Stand) -> None:
    stand.beat()
    sleeper = stand.worker(concurrency=1)
    handle = defer(stand.app.tasks["sleepy_once"].s("x", 2))
    stand.wait(lambda: started(stand, 1), what="the first attempt")
    sleeper.signal_all(signal.SIGSTOP)
    stand.worker(concurrency=1)
    stand.wait(lambda: handle.state == Status.SUCCEEDED, seconds=30, what="the second attempt")
    before = stand.tm.job(handle.id).executions

    sleeper.signal_all(signal.SIGCONT)
    stand.wait(lambda: [line for line in stand.effects("end") if line[3] == "1"], what="the late end of the first body")
    stand.wait_for_text(sleeper, "LeaseWasLost")
    assert stand.tm.job(handle.id).executions == before
    assert [(e.attempt, str(e.outcome)) for e in before] == [(2, "succeeded"), (1, "orphaned")]
    assert (stand.count(tables.job), stand.count(tables.dead_letter)) == (0, 0)


def test_a_body_longer_than_its_lease_keeps_it(stand: Stand) -> None:
    stand.beat()
    stand.worker(concurrency=1)
    handle = defer(stand.app.tasks["sleepy"].s("long", LEASE * 2.5))
    stand.wait(lambda: handle.state == Status.SUCCEEDED, seconds=30, what="its end")
    assert stand.outcomes() == Counter(succeeded=1)
    assert len(stand.effects("start")) == 1


def test_a_cancelled_body_sees_it_and_is_recorded_as_cancelled(stand: Stand) -> None:
    stand.worker(concurrency=1)
    handle = defer(stand.app.tasks["sleepy"].s("x", 60))
    stand.wait(lambda: started(stand, 1), what="the first attempt")
    assert cancel(id=handle.id, app=stand.app)
    stand.wait(lambda: handle.state == Status.CANCELED, what="the cancellation")
    assert stand.outcomes() == Counter(cancelled=1)


@pytest.fixture
def patient_stand(stand: Stand) -> Stand:
    """A stand whose leases do not end during a test, so that only what is recorded at once shows."""
    stand.conf["tm_lease"] = 120
    return stand


def test_a_killed_pool_process_is_recorded_at_once(patient_stand: Stand) -> None:
    stand = patient_stand
    stand.beat()
    stand.worker(concurrency=1)
    handle = defer(stand.app.tasks["sleepy_once"].s("x", 60), delay=0.1)
    [line] = stand.wait(lambda: started(stand, 1), what="the first attempt")
    os.kill(int(line[4]), signal.SIGKILL)
    stand.wait(lambda: handle.state == Status.SUCCEEDED, seconds=30, what="the second attempt")
    assert [(e.attempt, str(e.outcome)) for e in stand.tm.job(handle.id).executions] == [(2, "succeeded"), (1, "orphaned")]


def test_a_hard_time_limit_is_recorded_as_timeout_and_tried_again(patient_stand: Stand) -> None:
    stand = patient_stand
    stand.beat()
    stand.worker(concurrency=1)
    handle = defer(stand.app.tasks["sleepy_once"].s("x", 60).set(time_limit=1), delay=0.1)
    stand.wait(lambda: handle.state == Status.SUCCEEDED, seconds=30, what="the second attempt")
    assert [(e.attempt, str(e.outcome)) for e in stand.tm.job(handle.id).executions] == [(2, "succeeded"), (1, "timeout")]


def test_a_killed_beat_is_replaced_by_the_other(stand: Stand) -> None:
    victim = stand.beat()
    stand.beat()
    stand.worker(concurrency=1)
    stand.tm.definitions.add(name="tick", task="effect", schedule="* * * * * *", overlap="allow", recovery="all")
    stand.wait(lambda: len(stand.effects("effect")) >= 2, what="two ticks")
    victim.kill()
    after_kill = len(stand.effects("effect"))
    stand.wait(lambda: len(stand.effects("effect")) >= after_kill + 3, what="three more ticks")
    stand.tm.disable("tick")
    stand.wait_until_settled()
    assert stand.outcomes() == Counter(succeeded=len(stand.effects("effect")))
