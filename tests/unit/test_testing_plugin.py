"""The pytest plugin: `tm_clock` holds celery_tm's time for a test and moves it when told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from celery_tm import clock
from celery_tm.errors import InvalidValue
from celery_tm.testing import MovableClock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_time_stands_still_at_a_whole_second(tm_clock: MovableClock) -> None:
    assert clock.now() == clock.now() == tm_clock.now
    assert tm_clock.now.microsecond == 0


def test_time_moves_to_where_it_is_told(tm_clock: MovableClock) -> None:
    tm_clock.move_to(NOON)

    assert clock.now() == clock.moved_time() == tm_clock.now == NOON


@pytest.mark.parametrize(("duration", "expected"), [("1h", HOUR), (3600, HOUR), (HOUR, HOUR), ("1h 30m", 1.5 * HOUR), (0, 0 * HOUR)])
def test_time_goes_forward_by_any_duration(tm_clock: MovableClock, duration: float, expected: timedelta) -> None:
    tm_clock.move_to(NOON)
    tm_clock.forward(duration)

    assert clock.now() == NOON + expected


def test_time_may_be_moved_back_by_naming_the_instant(tm_clock: MovableClock) -> None:
    tm_clock.move_to(NOON)
    tm_clock.move_to(NOON - HOUR)

    assert clock.now() == NOON - HOUR
    with pytest.raises(InvalidValue, match="duration: .* negative"):
        tm_clock.forward(-1)


def test_an_instant_of_another_zone_is_the_same_instant(tm_clock: MovableClock) -> None:
    tm_clock.move_to(NOON.astimezone(ZoneInfo("Asia/Tokyo")))

    assert clock.now() == NOON


def test_an_hour_is_an_hour_where_clocks_are_put_back(tm_clock: MovableClock) -> None:
    before = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Warsaw"))
    tm_clock.move_to(before)
    tm_clock.forward("1h")

    assert clock.now() == before.astimezone(UTC) + HOUR


def test_a_naive_instant_is_refused_and_time_stays_where_it_was(tm_clock: MovableClock) -> None:
    tm_clock.move_to(NOON)

    with pytest.raises(InvalidValue, match="has no time zone"):
        tm_clock.move_to(datetime(2026, 1, 1))

    assert clock.now() == tm_clock.now == NOON


def test_time_flows_again_after_a_clock_is_released() -> None:
    movable = MovableClock(NOON)
    assert clock.now() == NOON

    movable.release()

    assert clock.moved_time() is None


def test_time_flows_in_a_test_that_does_not_ask_for_the_clock() -> None:
    assert clock.moved_time() is None
