"""The pytest plugin: `tm_clock` freezes celery_tm's time and moves it when told."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from celery_tm import clock
from celery_tm.errors import InvalidValue
from celery_tm.testing import MovableClock

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_time_stands_still_in_a_test_that_asks_for_it(tm_clock: MovableClock) -> None:
    assert clock.now() == clock.now() == tm_clock.now == clock.moved_time()


def test_time_starts_at_a_whole_second_that_has_just_passed(tm_clock: MovableClock) -> None:
    assert clock.now().microsecond == 0
    assert timedelta(0) <= datetime.now(UTC) - clock.now() < timedelta(minutes=5)


def test_time_is_moved_to_an_instant(tm_clock: MovableClock) -> None:
    tm_clock.move_to(NOON)

    assert clock.now() == tm_clock.now == NOON


@pytest.mark.parametrize("duration", [timedelta(minutes=15), 900, "15m"])
def test_time_is_moved_forward(tm_clock: MovableClock, duration: Any) -> None:
    tm_clock.move_to(NOON)
    tm_clock.forward(duration)
    tm_clock.forward(duration)

    assert clock.now() == NOON + timedelta(minutes=30)


def test_time_may_be_moved_back(tm_clock: MovableClock) -> None:
    tm_clock.move_to(NOON)
    tm_clock.move_to(NOON - timedelta(days=1))

    assert clock.now() == NOON - timedelta(days=1)


def test_an_instant_of_another_zone_is_the_same_instant(tm_clock: MovableClock) -> None:
    tm_clock.move_to(NOON.astimezone(timezone(timedelta(hours=9))))

    assert clock.now() == NOON
    assert clock.now().tzinfo is UTC


def test_time_flows_again_when_it_is_released(tm_clock: MovableClock) -> None:
    tm_clock.move_to(NOON)
    tm_clock.release()

    assert clock.moved_time() is None


@pytest.fixture
def flows_afterwards() -> Iterator[None]:
    """Set up before `tm_clock`, so it is taken down after it."""
    yield
    assert clock.moved_time() is None


def test_time_flows_again_after_the_test(flows_afterwards: None, tm_clock: MovableClock) -> None:
    tm_clock.move_to(NOON)

    assert clock.moved_time() == NOON


@pytest.mark.parametrize("mistake", [datetime(2026, 3, 1), "2026-03-01T12:00:00Z", None])
def test_a_refused_move_leaves_time_where_it_was(tm_clock: MovableClock, mistake: Any) -> None:
    tm_clock.move_to(NOON)

    with pytest.raises(InvalidValue):
        tm_clock.move_to(mistake)

    assert clock.moved_time() == tm_clock.now == NOON


def test_time_is_not_moved_forward_by_less_than_nothing(tm_clock: MovableClock) -> None:
    tm_clock.move_to(NOON)

    with pytest.raises(InvalidValue, match="duration"):
        tm_clock.forward(-5)

    assert clock.now() == NOON
