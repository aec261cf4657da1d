"""Exclusions and named calendars on every database: cut-out instants, and edits of a calendar that count at once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tmtest.ledger import add, plan, rows

from celery_tm import TimeManagement
from celery_tm.errors import InvalidValue
from celery_tm.testing import MovableClock

CHRISTMAS = datetime(2026, 12, 22, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(CHRISTMAS)
    return tm_clock


def days(tm: TimeManagement, name: str = "tick") -> list[int]:
    return [row.scheduled_at.day for row in rows(tm, name)]


def a_week(tm: TimeManagement, noon: MovableClock) -> None:
    for _ in range(7):
        noon.forward("1d")
        plan(tm)


def test_excluded_days_ranges_and_weekdays_are_cut_out(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule="0 9 * * *", overlap="allow", excluded=["2026-12-24/2026-12-26", "sun"])
    a_week(tm, noon)
    assert days(tm) == [23, 28, 29]  # the 27th is a Sunday


def test_definitions_follow_their_calendars(tm: TimeManagement, noon: MovableClock) -> None:
    tm.calendars.set("holidays", ["12-25", "2026-12-26"], actor="alice")
    add(tm, schedule="0 9 * * *", overlap="allow", calendars=["holidays"])
    a_week(tm, noon)
    assert days(tm) == [23, 24, 27, 28, 29]


def test_a_day_that_is_opened_again_is_not_missed(tm: TimeManagement, noon: MovableClock) -> None:
    tm.calendars.set("holidays", ["2026-12-23/2026-12-30"])
    added = add(tm, schedule="0 9 * * *", overlap="allow", calendars=["holidays"])
    assert added.next_run_at == datetime(2026, 12, 31, 9, tzinfo=UTC)
    tm.calendars.set("holidays", ["2026-12-25"], actor="bob", reason="no holiday this year")
    assert tm.definitions.get("tick").next_run_at == datetime(2026, 12, 23, 9, tzinfo=UTC)
    a_week(tm, noon)
    assert days(tm) == [23, 24, 26, 27, 28, 29]


def test_a_past_day_that_is_opened_again_is_not_made_up_for(tm: TimeManagement, noon: MovableClock) -> None:
    tm.calendars.set("holidays", ["2026-12-24/2026-12-26"])
    add(tm, schedule="0 9 * * *", overlap="allow", recovery="all", calendars=["holidays"])
    for _ in range(3):
        noon.forward("1d")
        plan(tm)
    assert days(tm) == [23]
    tm.calendars.set("holidays", ["2026-12-26"])  # on the 25th, at noon
    plan(tm)
    assert days(tm) == [23]
    assert tm.definitions.get("tick").next_run_at == datetime(2026, 12, 27, 9, tzinfo=UTC)


def test_what_was_due_before_a_calendar_changed_is_decided_by_the_old_one(tm: TimeManagement, noon: MovableClock) -> None:
    tm.calendars.set("holidays", ["2026-12-30"])
    add(tm, schedule="0 9 * * *", overlap="allow", recovery="all", calendars=["holidays"])
    noon.forward("1d")  # nobody planned meanwhile
    tm.calendars.set("holidays", ["2026-12-23"])
    assert days(tm) == [23]


def test_a_calendar_that_closes_a_planned_day_takes_it_off_the_horizon(tm: TimeManagement) -> None:
    add(tm, schedule="0 9 * * *", plan_ahead="3d", calendars=[], excluded=[])
    tm.calendars.set("holidays", ["2027-01-01"])
    tm.definitions.update("tick", calendars=["holidays"])
    assert days(tm) == [23, 24, 25]
    tm.calendars.set("holidays", ["2026-12-24"])
    assert days(tm) == [23, 25]


def test_dates_are_local_to_the_definition(tm: TimeManagement) -> None:
    tm.calendars.set("new year", ["2027-01-01"])
    auckland = add(tm, name="nz", schedule="0 0 1 1 *", timezone="Pacific/Auckland", calendars=["new year"])
    assert auckland.next_run_at is not None
    assert auckland.next_run_at.year == 2027
    assert auckland.next_run_at.month == 12
    here = tm.preview(
        schedule="0 12 * * *", timezone="Pacific/Auckland", since=datetime(2026, 12, 30, tzinfo=UTC), count=3,
        calendars=["new year"],
    )  # fmt: skip
    assert [instant.isoformat()[5:13] for instant in here] == ["12-30T23", "01-01T23", "01-02T23"]


@pytest.mark.parametrize(
    ("dates", "words"),
    [
        ("2026-12-24", "is not a list"),
        (["24.12.2026"], r"dates\[0\]: '24.12.2026' is not a date"),
        (["2026-12-24", "2026-12-32"], r"dates\[1\]"),
        (["2026-12-26/2026-12-24"], "ends before it starts"),
        (["13-01"], r"dates\[0\]"),
        ([7], "7 is not text or a date"),
        (["2026-12-24T10:00"], "one moment"),
        (["2026-12-24T10:00/2026-12-24T12:00+01:00"], "offset at one end only"),
    ],
)
def test_a_malformed_calendar_is_refused_and_changes_nothing(tm: TimeManagement, dates: Any, words: str) -> None:
    with pytest.raises(InvalidValue, match=words) as refused:
        tm.calendars.set("c", dates)
    assert "e.g." in str(refused.value) or "give" in str(refused.value)
    assert tm.calendars.list() == []


def test_a_calendar_in_use_is_not_removed_and_an_unknown_one_is_refused(tm: TimeManagement) -> None:
    tm.calendars.set("holidays", ["12-25"])
    add(tm, calendars=["holidays"])
    with pytest.raises(InvalidValue, match="is named by tick"):
        tm.calendars.remove("holidays")
    with pytest.raises(InvalidValue, match="did you mean 'holidays'"):
        add(tm, name="other", calendars=["holydays"])
    tm.definitions.remove("tick")
    tm.calendars.remove("holidays")
    assert tm.calendars.list() == []
