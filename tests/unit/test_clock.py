"""Durations people write, instants nobody can misread, and time that moves when told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm import clock
from celery_tm.clock import MAX_DURATION, as_utc, format_duration, move_by, moved_time, moved_to, parse_duration
from celery_tm.errors import InvalidValue

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
WARSAW_SUMMER = timezone(timedelta(hours=2))


class Nowhere(tzinfo):
    """A time zone that does not know its offset."""

    def utcoffset(self, when: datetime | None) -> None:
        return None


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (timedelta(minutes=15), 900),
        (90, 90),
        (0.5, 0.5),
        (0, 0),
        ("0s", 0),
        ("15m", 900),
        ("1h 30m", 5400),
        ("1h30m", 5400),
        (" 2 d ", 172800),
        ("1w", 604800),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("1m 1m", 120),
    ],
)
def test_a_duration_is_read_from_what_people_write(written: Any, seconds: float) -> None:
    assert parse_duration(written, field="delay") == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("", "is not a duration"),
        ("15", "is not a duration"),
        ("soon", "is not a duration"),
        ("5 y", "is not a duration"),
        ("-5m", "is not a duration"),
        ("5m!", "is not a duration"),
        ("٣m", "is not a duration"),
        ("1e3s", "is not a duration"),
        ("1s" * 33, "is not a duration"),
        ("9" * 60 + "s", "is not a duration"),
        (True, "True is not a duration"),
        (None, "None is not a duration"),
        ([5], "is not a duration"),
        (float("nan"), "is not a duration"),
        (float("inf"), "is not a duration"),
        (1e300, "is not a duration"),
        (10**400, "is not a duration"),
        (-1, "is negative"),
        (-0.001, "is negative"),
        (timedelta(microseconds=-1), "is negative"),
        ("36501d", "longer than 100 years"),
        (MAX_DURATION + timedelta(microseconds=1), "longer than 100 years"),
    ],
)
def test_anything_else_is_refused_with_the_fields_name(written: Any, words: str) -> None:
    with pytest.raises(InvalidValue, match=words) as refused:
        parse_duration(written, field="tm_lease")

    assert str(refused.value).startswith("tm_lease: ")


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(milliseconds=250), "250ms"),
        (timedelta(seconds=1), "1s"),
        (timedelta(seconds=90), "1m 30s"),
        (timedelta(hours=1, minutes=30), "1h 30m"),
        (timedelta(days=14), "14d"),
        (timedelta(days=1, seconds=1), "1d 1s"),
        (timedelta(minutes=1, milliseconds=500), "1m 0.5s"),
    ],
)
def test_a_duration_is_written_as_people_would(duration: timedelta, text: str) -> None:
    assert format_duration(duration) == text


@given(st.integers(0, MAX_DURATION // timedelta(seconds=1)))
@settings(max_examples=200)
def test_whole_seconds_survive_being_written_and_read(seconds: int) -> None:
    duration = timedelta(seconds=seconds)

    assert parse_duration(format_duration(duration), field="delay") == duration


@given(st.timedeltas(timedelta(0), MAX_DURATION))
@settings(max_examples=200)
def test_any_duration_survives_to_the_microsecond(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration), field="delay") == duration


@pytest.mark.parametrize("minutes", [0, 1, 1440])
@pytest.mark.parametrize("microseconds", [1, 10, 99, 100, 999_999])
def test_a_duration_is_never_written_so_that_it_cannot_be_read(minutes: int, microseconds: int) -> None:
    duration = timedelta(minutes=minutes, microseconds=microseconds)

    assert parse_duration(format_duration(duration), field="delay") == duration


@pytest.mark.parametrize(
    "given_instant",
    [NOON, datetime(2026, 3, 1, 14, tzinfo=WARSAW_SUMMER), datetime(2026, 3, 1, 7, tzinfo=timezone(-timedelta(hours=5)))],
)
def test_an_aware_instant_becomes_utc(given_instant: datetime) -> None:
    assert as_utc(given_instant, field="run_at") == NOON
    assert as_utc(given_instant, field="run_at").tzinfo is UTC


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (datetime(2026, 3, 1, 12), "2026-03-01T12:00:00 has no time zone"),
        (datetime(2026, 3, 1, 12, tzinfo=Nowhere()), "has no time zone"),
        (date(2026, 3, 1), "is not a datetime"),
        ("2026-03-01T12:00:00Z", "is not a datetime"),
        (1_700_000_000, "is not a datetime"),
        (None, "None is not a datetime"),
    ],
)
def test_an_instant_without_a_zone_is_refused_with_the_fields_name(value: Any, words: str) -> None:
    with pytest.raises(InvalidValue, match=words) as refused:
        as_utc(value, field="run_at")

    assert refused.value.field == "run_at"


@pytest.mark.parametrize(
    "edge",
    [
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=5))),
    ],
)
def test_an_instant_beyond_the_calendar_is_refused_with_the_fields_name(edge: datetime) -> None:
    with pytest.raises(InvalidValue, match="run_at"):
        as_utc(edge, field="run_at")


def test_time_flows_unless_it_is_moved() -> None:
    before = datetime.now(UTC)

    assert moved_time() is None
    assert before <= clock.now() <= datetime.now(UTC)
    assert clock.now().tzinfo is UTC


def test_moved_time_stands_still_and_flows_again_afterwards() -> None:
    with moved_to(NOON):
        assert clock.now() == clock.now() == moved_time() == NOON

    assert moved_time() is None


def test_moves_can_be_nested() -> None:
    with moved_to(NOON):
        with moved_to(NOON + timedelta(hours=1)):
            assert clock.now() == NOON + timedelta(hours=1)
        assert clock.now() == NOON


def stumble() -> None:
    with moved_to(NOON):
        raise RuntimeError("on the way")


def test_time_flows_again_after_an_error() -> None:
    with pytest.raises(RuntimeError):
        stumble()

    assert moved_time() is None


def test_a_move_is_stored_as_utc() -> None:
    with moved_to(datetime(2026, 3, 1, 14, tzinfo=WARSAW_SUMMER)):
        assert clock.now().isoformat() == "2026-03-01T12:00:00+00:00"


def test_time_is_not_moved_to_a_naive_instant() -> None:
    with pytest.raises(InvalidValue, match=r"^now: "), moved_to(datetime(2026, 3, 1)):
        pass


@pytest.fixture
def day_ahead() -> Iterator[timedelta]:
    move_by(timedelta(days=1))
    yield timedelta(days=1)
    move_by(timedelta(0))


def test_a_whole_process_can_live_at_another_time_that_flows(day_ahead: timedelta) -> None:
    first, present = moved_time(), datetime.now(UTC)
    second = moved_time()

    assert first is not None
    assert second is not None
    assert first <= present + day_ahead <= second
    assert clock.now() - datetime.now(UTC) <= day_ahead


def test_a_process_that_lives_at_another_time_does_so_in_every_thread(day_ahead: timedelta) -> None:
    seen: list[datetime | None] = []
    other = threading.Thread(target=lambda: seen.append(moved_time()))
    other.start()
    other.join()

    assert [one is not None and one > datetime.now(UTC) + day_ahead / 2 for one in seen] == [True]


@pytest.mark.usefixtures("day_ahead")
def test_time_that_stands_still_goes_before_time_that_flows_elsewhere() -> None:
    with moved_to(NOON):
        assert clock.now() == moved_time() == NOON


def test_a_process_can_be_brought_back_to_the_present() -> None:
    move_by(timedelta(days=1))
    move_by(timedelta(0))

    assert moved_time() is None


def test_a_move_stays_in_its_own_context() -> None:
    seen: list[datetime | None] = []
    with moved_to(NOON):
        other = threading.Thread(target=lambda: seen.append(moved_time()))
        other.start()
        other.join()

    assert seen == [None]
