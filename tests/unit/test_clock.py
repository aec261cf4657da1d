"""Instants and durations: what is read, what is refused, and time that stands still."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import time_machine
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm import clock
from celery_tm.clock import MAX_DURATION, as_utc, format_duration, moved_time, moved_to, parse_duration
from celery_tm.errors import InvalidValue

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MICROSECOND, SECOND, MINUTE = timedelta(microseconds=1), timedelta(seconds=1), timedelta(minutes=1)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


# Now


def test_now_is_this_machine_s_time_in_utc() -> None:
    with time_machine.travel(NOON, tick=False):
        assert clock.now() == NOON
        assert clock.now().tzinfo is UTC
        assert moved_time() is None


def test_time_stands_still_where_it_was_moved_to_and_flows_again_afterwards() -> None:
    with moved_to(NOON):
        assert clock.now() == moved_time() == NOON

    assert moved_time() is None
    assert clock.now() > NOON - 20 * 365 * DAY


def test_time_moved_within_moved_time_comes_back_to_the_outer_one() -> None:
    with moved_to(NOON):
        with moved_to(NOON + DAY):
            assert clock.now() == NOON + DAY
        assert clock.now() == NOON


def test_an_error_lets_time_flow_again() -> None:
    with pytest.raises(ZeroDivisionError), moved_to(NOON):
        raise ZeroDivisionError

    assert moved_time() is None


def test_time_is_moved_for_one_context_only() -> None:
    seen: list[datetime | None] = []
    with moved_to(NOON):
        other = threading.Thread(target=lambda: seen.append(moved_time()))
        other.start()
        other.join()

    assert seen == [None]


def test_time_can_be_moved_to_an_instant_of_any_zone_but_not_to_a_naive_one() -> None:
    with moved_to(NOON.astimezone(ZoneInfo("Asia/Tokyo"))):
        assert clock.now() == NOON
        assert clock.now().tzinfo is UTC

    with pytest.raises(InvalidValue, match="now: .* has no time zone"), moved_to(datetime(2026, 1, 1)):
        pass


# Instants


@pytest.mark.parametrize("zone", [UTC, ZoneInfo("Europe/Warsaw"), timezone(-9.5 * HOUR)])
def test_an_aware_instant_of_any_zone_becomes_utc(zone: Any) -> None:
    instant = as_utc(NOON.astimezone(zone), field="run_at")

    assert instant == NOON
    assert instant.tzinfo is UTC


def test_both_passes_of_a_repeated_hour_are_told_apart() -> None:
    local = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Warsaw"))

    assert as_utc(local.replace(fold=1), field="run_at") - as_utc(local, field="run_at") == HOUR


def test_a_naive_instant_is_refused_since_nobody_knows_its_zone() -> None:
    with pytest.raises(InvalidValue, match="run_at: 2026-01-01T12:00:00 has no time zone; pass an aware datetime"):
        as_utc(datetime(2026, 1, 1, 12), field="run_at")


@pytest.mark.parametrize("value", ["2026-01-01", date(2026, 1, 1), 5, None])
def test_what_is_no_instant_is_refused_by_the_field_s_name(value: Any) -> None:
    with pytest.raises(InvalidValue, match="run_at: .* is not a datetime"):
        as_utc(value, field="run_at")


@pytest.mark.parametrize(
    "value", [datetime(1, 1, 1, tzinfo=timezone(14 * HOUR)), datetime(9999, 12, 31, 23, tzinfo=timezone(-14 * HOUR))]
)
def test_an_instant_that_utc_cannot_write_is_refused_by_the_field_s_name(value: datetime) -> None:
    with pytest.raises(InvalidValue, match="run_at"):
        as_utc(value, field="run_at")


# Durations


@pytest.mark.parametrize(
    ("value", "duration"),
    [
        (timedelta(minutes=15), 15 * MINUTE),
        (0, timedelta(0)),
        (90, 90 * SECOND),
        (0.5, SECOND / 2),
        ("15m", 15 * MINUTE),
        ("1h 30m", 90 * MINUTE),
        ("1h30m", 90 * MINUTE),
        (" 2d ", 2 * DAY),
        ("1w", 7 * DAY),
        ("250ms", SECOND / 4),
        ("1.5h", 90 * MINUTE),
        ("10 s", 10 * SECOND),
        ("0s", timedelta(0)),
        ("36500d", MAX_DURATION),
    ],
)
def test_a_duration_is_a_timedelta_seconds_or_text(value: Any, duration: timedelta) -> None:
    assert parse_duration(value, field="delay") == duration


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (-1, "-1 is negative"),
        (timedelta(seconds=-1), "is negative"),
        ("-5m", "'-5m' is not a duration"),
        ("", "'' is not a duration"),
        ("15", "'15' is not a duration"),
        ("m", "not a duration"),
        ("15 minutes", "not a duration"),
        ("1h and 5m", "not a duration"),
        ("5M", "not a duration"),
        ("1e3s", "not a duration"),
        ("١٥m", "not a duration"),
        ("15m; drop table", "not a duration"),
        ("1s" * 40, "not a duration"),
        (None, "None is not a duration"),
        (True, "True is not a duration"),
        ([5], "not a duration"),
        (float("nan"), "nan is not a duration"),
        (float("inf"), "inf is not a duration"),
        (1e300, "not a duration"),
        (MAX_DURATION + SECOND, "longer than 100 years"),
        ("5300w", "longer than 100 years"),
        (4e9, "longer than 100 years"),
    ],
)
def test_any_other_duration_is_refused_by_the_field_s_name(value: Any, words: str) -> None:
    with pytest.raises(InvalidValue, match=words) as refusal:
        parse_duration(value, field="delay")

    assert refusal.value.field == "delay"


def test_a_number_of_seconds_too_long_to_write_is_refused_too() -> None:
    with pytest.raises(InvalidValue, match="delay"):
        parse_duration(10**5000, field="delay")


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0s"),
        (10 * SECOND, "10s"),
        (90 * MINUTE, "1h 30m"),
        (DAY + SECOND, "1d 1s"),
        (SECOND / 4, "250ms"),
        (1.5 * SECOND, "1.5s"),
        (30 * DAY, "30d"),
        (MICROSECOND, "0.001ms"),
    ],
)
def test_a_duration_is_written_as_people_write_it(duration: timedelta, text: str) -> None:
    assert format_duration(duration) == text


@settings(max_examples=200, deadline=None)
@given(duration=st.timedeltas(min_value=timedelta(0), max_value=MAX_DURATION))
def test_what_is_written_of_a_duration_is_read_back(duration: timedelta) -> None:
    assert abs(parse_duration(format_duration(duration), field="delay") - duration) <= MICROSECOND


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet="0123456789.smhdw ", max_size=20))
def test_any_text_is_a_duration_within_bounds_or_refused(text: str) -> None:
    try:
        duration = parse_duration(text, field="delay")
    except InvalidValue as refusal:
        assert refusal.field == "delay"
    else:
        assert timedelta(0) <= duration <= MAX_DURATION
