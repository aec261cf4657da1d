"""Once: one instant, with its offset or in local time."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from celery_tm.domain.dst import Fold, Gap
from celery_tm.domain.schedule import Once, Zone, load_schedule, read_schedule
from celery_tm.errors import InvalidValue

WARSAW = Zone(name="Europe/Warsaw")
EVE = datetime(2026, 12, 24, 17, tzinfo=UTC)


@pytest.mark.parametrize(
    "value",
    [
        "at 2026-12-24T18:00:00+01:00",
        "at 2026-12-24T17:00:00Z",
        "at 2026-12-24 17:00:00+00:00",
        "  AT  2026-12-24T17:00+00:00 ",
        {"kind": "once", "at": "2026-12-24T18:00:00+01:00"},
        {"kind": "once", "at": EVE},
        {"kind": "once", "at": datetime(2026, 12, 24, 18, tzinfo=ZoneInfo("Europe/Warsaw"))},
        EVE,
        EVE.astimezone(timezone(timedelta(hours=5))),
    ],
)
def test_an_instant_may_be_text_a_datetime_or_a_mapping(value: Any) -> None:
    rule = read_schedule(value, WARSAW)

    assert rule == Once(EVE, Zone())
    assert rule.expression == "at 2026-12-24T17:00:00+00:00"
    assert rule.describe() == "once, at 2026-12-24 17:00 UTC"


@pytest.mark.parametrize("value", ["at 2026-12-24T18:00:00", {"kind": "once", "at": "2026-12-24T18:00"}])
def test_text_without_an_offset_is_local_time(value: Any) -> None:
    rule = read_schedule(value, WARSAW)

    assert rule.next_after(EVE - timedelta(days=1)) == EVE
    assert rule.expression == "at 2026-12-24T18:00:00"
    assert rule.describe() == "once, at 2026-12-24 18:00 in Europe/Warsaw"
    assert load_schedule(rule.kind, rule.expression, WARSAW) == rule
    assert load_schedule(rule.kind, rule.expression, Zone()).next_after(EVE) == EVE + timedelta(hours=1)


def test_it_fires_once_and_never_again() -> None:
    rule = Once(EVE, Zone())

    assert rule.next_after(datetime.min.replace(tzinfo=UTC)) == EVE
    assert rule.next_after(EVE - timedelta(microseconds=1)) == EVE
    assert rule.next_after(EVE) is None
    assert rule.next_after(datetime.max.replace(tzinfo=UTC)) is None
    assert list(rule.between(EVE - timedelta(days=1), EVE)) == [EVE]
    assert rule.period_at(EVE) == timedelta(0)


@pytest.mark.parametrize(
    ("fold", "hour"), [(None, 0), (Fold.FIRST, 0), (Fold.SECOND, 1), (Fold.BOTH, 0)]
)  # fmt: skip
def test_a_local_time_that_comes_twice_fires_in_one_pass(fold: Fold | None, hour: int) -> None:
    rule = read_schedule("at 2026-10-25T02:30:00", Zone(name="Europe/Warsaw", fold=fold))

    assert list(rule.between(datetime(2026, 10, 24, tzinfo=UTC), datetime(2026, 10, 26, tzinfo=UTC))) == [
        datetime(2026, 10, 25, hour, 30, tzinfo=UTC)
    ]


def test_a_local_time_that_does_not_exist_fires_at_the_first_valid_instant() -> None:
    rule = read_schedule("at 2026-03-29T02:30:00", WARSAW)

    assert rule.next_after(datetime(2026, 3, 1, tzinfo=UTC)) == datetime(2026, 3, 29, 1, tzinfo=UTC)


def test_with_gap_skip_a_local_time_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"does not exist in Europe/Warsaw.*gap='shift'"):
        read_schedule("at 2026-03-29T02:30:00", Zone(name="Europe/Warsaw", gap=Gap.SKIP))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("at", ["1 fields"]),
        ("at noon", ["'at noon'", "at 2026-12-24T18:00:00+01:00"]),
        ("at 2026-12-24", ["'2026-12-24' is not a date and time"]),
        ("at 2026-13-24T18:00:00", ["'2026-13-24T18:00:00'"]),
        ("at 2026-12-24T25:00:00", ["'2026-12-24T25:00:00'"]),
        ("at ٢026-12-24T18:00:00", ["is not an instant"]),
        ("at 2026-12-24T18:00:00 " + "x" * 500, ["is not an instant"]),
        ("at 0001-01-01T00:00:00+14:00", ["outside the calendar"]),
        ("at 9999-12-31T23:59:59-14:00", ["outside the calendar"]),
        (datetime(2026, 12, 24, 18), ["schedule", "no time zone"]),
        ({"kind": "once"}, ["no 'at'", "'at': '2026-12-24T18:00:00'"]),
        ({"kind": "once", "at": None}, ["schedule.at", "None"]),
        ({"kind": "once", "at": 5}, ["schedule.at", "5"]),
        ({"kind": "once", "at": date(2026, 12, 24)}, ["schedule.at", "2026, 12, 24"]),
        ({"kind": "once", "at": datetime(2026, 12, 24, 18)}, ["schedule.at", "no time zone"]),
        ({"kind": "once", "at": "noon"}, ["'at noon'"]),
        ({"kind": "once", "on": "2026-12-24T18:00"}, ["no key 'on'"]),
    ],
)
def test_what_is_no_instant_is_refused_saying_why(value: Any, words: list[str]) -> None:
    with pytest.raises(InvalidValue) as refusal:
        read_schedule(value, Zone())

    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_a_local_time_outside_the_calendar_in_utc_is_refused() -> None:
    with pytest.raises(InvalidValue, match="schedule"):
        read_schedule("at 9999-12-31T23:59:59", Zone(name="America/New_York"))
