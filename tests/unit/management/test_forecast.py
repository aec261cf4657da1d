"""The forecast: how many instants each coming hour has, with bounded work that says where it ends."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.definition import Definition, new_definition
from celery_tm.errors import InvalidValue
from celery_tm.management.forecast import EXACT, HOUR, Forecast, checked_hours, forecast

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
WEEK = 168


def a_definition(name: str, schedule: str, **values: Any) -> Definition:
    stated = {"task": "t", "schedule": schedule, **values}
    return new_definition(id=name, name=name, values=stated, now=MONDAY - timedelta(days=1), actor=None)


def of(*definitions: Definition, hours: int = WEEK, **wanted: Any) -> Forecast:
    return forecast(definitions, since=MONDAY, hours=hours, **wanted)


def test_each_hour_has_its_instants_by_definition() -> None:
    found = of(a_definition("nightly", "30 2 * * *"), a_definition("half hourly", "*/30 8-9 * * 1"))

    assert [hour for hour, count in enumerate(found.counts["nightly"]) if count] == [2 + 24 * day for day in range(7)]
    assert {hour: count for hour, count in enumerate(found.counts["half hourly"]) if count} == {8: 2, 9: 2}
    assert found.totals[2] == 1
    assert found.totals[8] == 2
    assert found.estimated == []


def test_an_instant_at_the_very_beginning_counts_and_one_at_the_very_end_does_not() -> None:
    assert of(a_definition("hourly", "0 * * * *"), hours=3).totals == [1, 1, 1]


def test_hours_are_those_of_the_definitions_own_zone() -> None:
    found = of(a_definition("warsaw", "0 3 * * *", timezone="Europe/Warsaw"), hours=24)

    assert [hour for hour, count in enumerate(found.totals) if count] == [2]


def test_those_that_are_off_have_none() -> None:
    off = [a_definition("paused", "0 * * * *", paused=True), a_definition("disabled", "0 * * * *", enabled=False)]

    assert of(*off).counts == {}
    assert of(*off).totals == [0] * WEEK


def test_one_whose_runs_are_numbered_stops_with_its_last() -> None:
    assert sum(of(a_definition("thrice", "0 * * * *", max_runs=3, starts_at=MONDAY)).totals) == 2 + 1


@pytest.mark.parametrize(
    ("schedule", "hourly"), [("every 1s", 3600), ("* * * * * *", 3600), ("*/5 * * * *", 12), ("*/7 * * * *", 9)]
)
def test_what_fires_very_often_is_estimated(schedule: str, hourly: int) -> None:
    found = of(a_definition("often", schedule))

    assert found.estimated == ["often"]
    assert set(found.totals) == {hourly}


def test_what_fires_often_in_some_hours_only_is_estimated_as_that() -> None:
    found = of(a_definition("office", "* 9-16 * * 1-5"))

    assert set(found.totals[9:17]) == {60}
    assert sum(found.totals) == 60 * 8 * 5


def test_where_the_counting_stops_the_rest_is_estimated_by_its_rate() -> None:
    found = of(a_definition("often", "* * * * *"), a_definition("nightly", "0 0 * * *"), steps=150)

    assert found.estimated == ["often"]
    assert set(found.counts["often"]) == {60}
    assert sum(found.counts["nightly"]) == 7


def test_definitions_with_the_same_timeline_are_counted_once() -> None:
    alike = [a_definition(f"n{number}", "0 * * * *") for number in range(1000)]

    found = of(*alike, steps=WEEK + 10)

    assert found.estimated == []
    assert set(found.totals) == {1000}


def test_ten_thousand_different_definitions_are_counted_as_far_as_the_work_reaches() -> None:
    one = a_definition("n", "0 0 * * *")
    rules = [f"{n % 60} {n // 60 % 24} {n // 1440 + 1} * *" for n in range(10_000)]
    many = [replace(one, name=f"n{number}", schedule=rule) for number, rule in enumerate(rules)]
    before = time.process_time()

    found = of(*many)

    assert time.process_time() - before < 3  # a fraction of a second on a quiet machine
    assert len(found.estimated) <= 10_000
    assert sum(found.totals) >= 10_000  # the first of each is known without reading its schedule


def test_ordinary_definitions_after_many_busy_ones_are_still_there() -> None:
    busy = [a_definition(f"busy {n}", f"{n % 60} * * * * *") for n in range(60)]
    late = [a_definition(f"late {n}", f"{n} 5 * * *") for n in range(60)]

    found = of(*busy, *late, steps=100)

    assert {sum(found.counts[one.name]) for one in late} == {7}
    assert {found.counts[one.name][4 * 24 + 5] for one in late} == {1}
    assert set(found.estimated) >= {one.name for one in late}


def test_an_estimate_by_rate_goes_no_further_than_the_definition() -> None:
    ends = replace(a_definition("ends", "0 * * * *"), ends_at=MONDAY + 10 * HOUR)
    counted = replace(a_definition("counted", "0 * * * *"), max_runs=5)

    found = of(ends, counted, steps=1)

    assert (sum(found.counts["ends"]), sum(found.counts["counted"])) == (11, 5)
    assert found.totals[11:] == [0] * (WEEK - 11)


def test_the_busiest_of_an_hour_come_first() -> None:
    found = of(a_definition("once", "0 5 * * *"), a_definition("b", "*/20 5 * * *"), a_definition("a", "*/20 5 * * *"))

    assert found.busiest(5) == [("a", 3), ("b", 3), ("once", 1)]
    assert found.busiest(6) == []


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 59), st.integers(0, 23), st.integers(1, 48))
def test_what_is_not_estimated_is_exact(minute: int, hour: int, hours: int) -> None:
    definition = a_definition("some", f"{minute} {hour}-23/3 * * *")
    found = of(definition, hours=hours)
    instants = list(definition.timeline.between(MONDAY - timedelta(seconds=1), MONDAY + hours * HOUR))

    assert len(instants) < EXACT
    assert sum(found.totals) == sum(instant < MONDAY + hours * HOUR for instant in instants)


@pytest.mark.parametrize("hours", [0, -1, True, 1.5, "7", 745])
def test_hours_that_nobody_can_look_ahead_are_refused(hours: Any) -> None:
    with pytest.raises(InvalidValue, match="hours"):
        checked_hours(hours)
