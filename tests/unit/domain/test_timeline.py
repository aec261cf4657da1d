"""Timelines: what a schedule yields within its bounds, and how far back and ahead one looks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.calendar import closures_of
from celery_tm.domain.schedule import Zone, read_schedule
from celery_tm.domain.timeline import Timeline

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def a_timeline(schedule: str = "0 * * * *", *, excluded: tuple[str, ...] = (), **bounds: Any) -> Timeline:
    closures = closures_of(excluded, "UTC") if excluded else None
    return Timeline(rule=read_schedule(schedule, Zone()), closures=closures, **bounds)


def test_both_bounds_belong_to_the_timeline() -> None:
    timeline = a_timeline(starts_at=NOON + HOUR, ends_at=NOON + 3 * HOUR)

    assert list(timeline.between(NOON - DAY, NOON + DAY)) == [NOON + HOUR, NOON + 2 * HOUR, NOON + 3 * HOUR]
    assert timeline.next_after(NOON + 3 * HOUR) is None


@pytest.mark.parametrize(
    ("after", "expected"),
    [(NOON - SECOND, NOON), (NOON, NOON + HOUR), (NOON + 59 * MINUTE, NOON + HOUR)],
)
def test_the_next_instant_is_strictly_later(after: datetime, expected: datetime) -> None:
    assert a_timeline().next_after(after) == expected


def test_between_excludes_its_beginning_and_includes_its_end() -> None:
    assert list(a_timeline().between(NOON, NOON + 2 * HOUR)) == [NOON + HOUR, NOON + 2 * HOUR]
    assert list(a_timeline().between(NOON, NOON)) == []
    assert list(a_timeline().between(NOON + DAY, NOON)) == []


def test_what_is_excluded_is_not_yielded_and_an_end_in_it_ends_before_it() -> None:
    timeline = a_timeline(excluded=("2026-01-02",), ends_at=NOON + DAY)

    assert list(timeline.between(NOON, NOON + 3 * DAY))[-1] == datetime(2026, 1, 1, 23, tzinfo=UTC)


@pytest.mark.parametrize(
    ("at", "reach", "expected"),
    [
        (NOON, DAY, NOON),
        (NOON + SECOND, DAY, NOON),
        (NOON + 59 * MINUTE, DAY, NOON),
        (NOON + 30 * MINUTE, 30 * MINUTE, NOON),
        (NOON + 30 * MINUTE, 29 * MINUTE, None),
        (NOON - 5 * DAY, DAY, NOON - 5 * DAY),
    ],
)
def test_the_latest_instant_is_looked_for_as_far_back_as_is_said(
    at: datetime, reach: timedelta, expected: datetime | None
) -> None:
    assert a_timeline().latest_until(at, reach=reach) == expected


def test_nothing_is_found_before_the_start() -> None:
    assert a_timeline(starts_at=NOON).latest_until(NOON - SECOND, reach=30 * DAY) is None


@settings(max_examples=60, deadline=None)
@given(
    schedule=st.sampled_from(["0 * * * *", "every 7m", "0 9 * * mon", "0 0 1 * *", "every 1s"]),
    seconds=st.integers(0, 10**7),
    days=st.integers(1, 40),
)
def test_the_latest_instant_is_the_last_of_all_within_reach(schedule: str, seconds: int, days: int) -> None:
    timeline, at = a_timeline(schedule), NOON + seconds * SECOND
    reach = days * DAY if schedule != "every 1s" else days * SECOND

    found = timeline.latest_until(at, reach=reach)

    if found is None:
        assert next(timeline.between(at - reach - SECOND / 10**6, at), None) is None
    else:
        assert at - reach <= found <= at
        following = timeline.next_after(found)
        assert following is None or following > at


def test_the_period_is_that_of_the_schedule_also_before_a_closed_time() -> None:
    assert a_timeline(excluded=("2026-01-01T12:30/2026-01-05T00:00",)).period_at(NOON) == HOUR
    assert a_timeline("at 2026-01-01T12:00:00+00:00").period_at(NOON) == timedelta(0)
