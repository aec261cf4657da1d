"""Processes that die in the middle of a chain or a chord, and bodies that are killed for taking too long.

Plain Celery loses such work, so it is the oracle only for what a caller is told of a hard time limit.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any

import pytest
from celery import chain, chord
from tmtest.canvas_tasks import OURS
from tmtest.stand import Stand
from tmtest.twice import Side, both

from celery_tm import defer
from celery_tm.domain.job import Status
from celery_tm.store import tables

# As in test_dead_workers: a pool may hang after a hard limit on a busy machine.
pytestmark = pytest.mark.alone


@pytest.mark.parametrize("victim", ["pool process", "worker"])
def test_a_chain_survives_the_death_of_the_process_that_runs_a_step(own_canvas: Stand, victim: str) -> None:
    stand = own_canvas
    stand.beat()
    worker = stand.worker(concurrency=1)
    side = Side(stand, OURS)
    result = chain(side.add.s(1, 2), side.slow_at_first.s(), side.add.s(10), side.add.s(100)).apply_async()
    [begun] = side.wait_for("ran", name="slow_at_first")
    if victim == "worker":
        worker.kill()
        stand.worker(concurrency=1)
    else:
        os.kill(begun["pid"], signal.SIGKILL)

    assert result.get(timeout=30, interval=0.05) == 113
    stand.wait_until_settled()
    side.quiet()
    assert side.ran() == ["add(1, 2)", "slow_at_first(3)", "slow_at_first(3)", "add(3, 10)", "add(13, 100)"]
    assert stand.outcomes() == Counter(succeeded=4, orphaned=1)
    assert stand.count(tables.dead_letter) == 0


def test_a_chord_survives_the_death_of_the_process_that_runs_a_part(own_canvas: Stand) -> None:
    stand = own_canvas
    stand.beat()
    stand.worker(concurrency=2)
    side = Side(stand, OURS)
    result = chord([side.add.s(1, 2), side.slow_at_first.s(5), side.add.s(3, 4)], side.total.s()).apply_async()
    [begun] = side.wait_for("ran", name="slow_at_first")
    os.kill(begun["pid"], signal.SIGKILL)

    assert result.get(timeout=30, interval=0.05) == 15
    stand.wait_until_settled()
    side.quiet()
    assert Counter(fact["name"] for fact in side.facts("ran")) == {"add": 2, "slow_at_first": 2, "total": 1}


def test_a_hard_time_limit_kills_the_body_and_fails_the_task(own_canvas: Stand) -> None:
    stand = own_canvas
    stand.beat()
    stand.worker(concurrency=2)

    def scenario(side: Side) -> Any:
        result = side.too_long.apply_async(time_limit=1, link_error=side.old_errback.s())
        told = side.error(result)
        side.wait_for("errback")
        side.quiet()
        # Celery 5.7 may call an errback twice for a hard limit, so only whom it names is compared.
        return told, side.ran(), {fact["failed"] == result.id for fact in side.facts("errback")}

    told = "FAILURE TimeLimitExceeded: TimeLimitExceeded(1,)"
    # One after the other: a pool whose processes are all killed at once may hang on the file broker.
    assert both(stand, scenario, together=False) == (told, ["too_long()"], {True})

    side = Side(stand, OURS)
    for delay in (0, 0.1):
        handle = defer(side.too_long.s().set(time_limit=1), delay=delay)
        assert side.error(stand.app.AsyncResult(handle.id)) == told
        side.wait(lambda handle=handle: handle.state == Status.FAILED, "the dead letter")
    assert stand.outcomes(task="ours.too_long") == Counter(timeout=3)


def test_a_hard_time_limit_with_tries_left_is_no_failure_to_a_chord(own_canvas: Stand) -> None:
    stand = own_canvas
    stand.beat()
    stand.worker(concurrency=2)
    side = Side(stand, OURS)
    slow = side.slow_at_first.s(5).set(time_limit=1, link_error=[side.old_errback.s()])
    result = chord([side.add.s(1, 2), slow], side.total.s().on_error(side.old_errback.s())).apply_async()

    assert result.get(timeout=30, interval=0.05) == 8
    stand.wait_until_settled()
    side.quiet()
    assert side.facts("errback") == []
    assert Counter(fact["name"] for fact in side.facts("ran")) == {"add": 1, "slow_at_first": 2, "total": 1}


@pytest.mark.parametrize("lease", [3, 120])
def test_no_errback_is_called_for_a_process_that_died_with_tries_left(own_canvas: Stand, lease: int) -> None:
    """Celery hears of a dead pool process up to 5 s late: before its lease has ended, or after another attempt began."""
    stand = own_canvas
    stand.conf["tm_lease"] = lease
    stand.beat()
    stand.worker(concurrency=1)
    side = Side(stand, OURS)
    result = side.slow_at_first.apply_async((5,), link=side.add.s(10), link_error=side.old_errback.s())
    [begun] = side.wait_for("ran")
    os.kill(begun["pid"], signal.SIGKILL)

    stand.wait(lambda: "add(5, 10)" in side.ran(), seconds=30, what="the link")
    stand.wait_until_settled()
    side.quiet()
    assert (result.state, result.result) == ("SUCCESS", 5)
    assert side.ran() == ["slow_at_first(5)", "slow_at_first(5)", "add(5, 10)"]
    assert side.facts("errback") == []
