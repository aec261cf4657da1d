"""How long an attempt may run: which limit holds, and that a stuck limit weakens no shorter one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_tm.domain.checkup import is_unusually_long
from celery_tm.domain.execution import Failure, Outcome
from celery_tm.domain.job import Job
from celery_tm.domain.retry import Bury
from celery_tm.domain.time_limits import PoolLimits, is_stuck_limit, read_limits, stuck_limit

DAY, MINUTE, SECOND = timedelta(days=1), timedelta(minutes=1), timedelta(seconds=1)
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("max_duration", "hard", "jobs", "limit"),
    [
        (None, None, 1, DAY),
        (None, 60.0, 1, DAY),
        (None, 2 * 86_400.0, 1, 2 * DAY),  # somebody allows more than the default
        (15 * MINUTE, None, 1, 15 * MINUTE),
        (15 * MINUTE, 3_600.0, 1, 15 * MINUTE),
        (2 * DAY, None, 1, 2 * DAY),
        (MINUTE, None, 10, 10 * MINUTE),
        (None, None, 10, DAY),
    ],
)
def test_an_attempt_is_stuck_after_its_tasks_limit_or_the_default(
    max_duration: timedelta | None, hard: float | None, jobs: int, limit: timedelta
) -> None:
    assert stuck_limit(max_duration, default=DAY, hard=hard, jobs=jobs) == limit


@pytest.mark.parametrize(
    ("stated", "capped"),
    [
        (PoolLimits(), PoolLimits(70, 60)),
        (PoolLimits(30, 20), PoolLimits(30, 20)),
        (PoolLimits(30), PoolLimits(30, 60)),
        (PoolLimits(900, 600), PoolLimits(70, 60)),
        (PoolLimits(None, 10), PoolLimits(70, 10)),
    ],
)
def test_a_pool_gets_the_shortest_limit(stated: PoolLimits, capped: PoolLimits) -> None:
    assert stated.capped(MINUTE) == capped


def test_a_limit_of_the_message_goes_before_that_of_the_task_and_the_pool() -> None:
    assert PoolLimits(None, 5).over(PoolLimits(30, 20)) == PoolLimits(30, 5)


@pytest.mark.parametrize("nonsense", [None, "12", [1], [1, 2, 3], ["a", "b"], [True, -1], {"hard": 1}])
def test_limits_of_a_message_that_are_none_are_left_out(nonsense: Any) -> None:
    assert read_limits(nonsense) == PoolLimits()


def test_limits_of_a_message_are_hard_and_soft() -> None:
    assert read_limits([70, 60.0]) == PoolLimits(70, 60)


@pytest.mark.parametrize(
    ("limit", "elapsed", "soft", "is_stuck"),
    [
        (None, 60.0, None, False),
        (MINUTE, 60.0, None, True),
        (MINUTE, 59.0, None, True),  # the pool counts from before the gate
        (MINUTE, 30.0, None, False),  # interrupted by a limit that nobody here knows of
        (MINUTE, 60.0, 30.0, False),
        (MINUTE, 60.0, 60.0, True),
    ],
)
def test_an_interrupted_attempt_is_stuck_only_if_no_shorter_limit_interrupted_it(
    limit: timedelta | None, elapsed: float, soft: float | None, is_stuck: bool
) -> None:
    assert is_stuck_limit(limit, elapsed=elapsed, soft=soft) is is_stuck


def job(**values: Any) -> Job:
    stated = {"id": "j", "task": "t", "args": "[]", "kwargs": "{}", "run_at": NOON, "created_at": NOON}
    return Job(**{**stated, "original_delay": SECOND, **values})  # type: ignore[arg-type]


def test_a_lease_that_ends_at_the_limit_was_renewed_until_then() -> None:
    assert job(stuck_at=NOON + MINUTE, lease_until=NOON + MINUTE).has_stuck_lease
    assert not job(stuck_at=NOON + MINUTE, lease_until=NOON + SECOND).has_stuck_lease  # its worker died before
    assert not job(lease_until=None).has_stuck_lease


def test_the_dead_letter_of_a_stuck_attempt_says_so() -> None:
    stale = Failure.stale(15 * MINUTE)
    assert (stale.error, stale.outcome) == ("MaxDurationExceeded: it did not end within 15m", Outcome.STALE)
    assert Bury("failed 3 times").of(stale) == Bury("stale: it did not end within 15m; failed 3 times")
    assert Bury("stale: it is").of(stale) == Bury("stale: it is")
    assert Bury("failed 3 times").of(Failure(error="x")) == Bury("failed 3 times")


@pytest.mark.parametrize(
    ("running", "usual", "is_long"),
    [
        (4 * MINUTE, SECOND, False),
        (5 * MINUTE, SECOND, True),
        (20 * MINUTE, 5 * MINUTE, False),
        (25 * MINUTE, 5 * MINUTE, True),
    ],
)
def test_an_attempt_runs_unusually_long_after_five_minutes_and_five_times_the_usual(
    running: timedelta, usual: timedelta, is_long: bool
) -> None:
    assert is_unusually_long(running, usual=usual) is is_long
