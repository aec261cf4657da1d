"""Intervals: anchored, so that they never drift, and refused where they make no sense."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.schedule import Interval, Zone, load_schedule, read_schedule
from celery_tm.errors import InvalidValue

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)

instants = st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.just(UTC))
intervals = st.builds(Interval, st.timedeltas(min_value=SECOND, max_value=timedelta(days=4000)), instants)


def read(value: Any) -> Interval:
    rule = read_schedule(value, Zone())
    assert isinstance(rule, Interval)
    return rule


@pytest.mark.parametrize(
    ("value", "every"),
    [
        ("every 10s", 10 * SECOND),
        ("every 1h 30m", 90 * MINUTE),
        ("@every 5m", 5 * MINUTE),
        ("  every 2h  ", 2 * HOUR),
        ("every 1s", SECOND),
        ("every 1.5s", 1.5 * SECOND),
        (timedelta(minutes=5), 5 * MINUTE),
        (timedelta(seconds=2.5), 2.5 * SECOND),
        (timedelta(days=7), timedelta(days=7)),
        ({"kind": "interval", "every": "10s"}, 10 * SECOND),
        ({"kind": "interval", "every": 90}, 90 * SECOND),
        ({"kind": "interval", "every": timedelta(hours=2)}, 2 * HOUR),
    ],
)
def test_an_interval_may_be_text_a_timedelta_or_a_mapping(value: Any, every: timedelta) -> None:
    assert read(value) == Interval(every)


@pytest.mark.parametrize(
    "every", [timedelta(days=12), timedelta(days=30), timedelta(days=365), timedelta(seconds=1_234_567)]
)
def test_a_timedelta_of_many_days_is_an_interval_too(every: timedelta) -> None:
    assert read(every) == Interval(every)


def test_an_interval_fires_at_round_times_unless_a_start_is_given() -> None:
    base = NOON + timedelta(minutes=7, seconds=13, microseconds=5)

    assert read("every 5m").next_after(base) == NOON + 10 * MINUTE
    assert read("every 5m from 2026-01-01T12:01:30+00:00").next_after(base) == NOON + timedelta(minutes=11, seconds=30)


@pytest.mark.parametrize(
    "start",
    ["2026-01-01T12:01:30+00:00", "2026-01-01T12:01:30Z", "2026-01-01T14:01:30+02:00"],
)
def test_a_start_may_be_written_in_any_offset(start: str) -> None:
    assert read({"kind": "interval", "every": "5m", "start": start}).start == NOON + 90 * SECOND


def test_a_start_may_be_a_datetime() -> None:
    start = datetime(2026, 1, 1, 14, 1, 30, tzinfo=timezone(2 * HOUR))

    assert read({"kind": "interval", "every": "5m", "start": start}) == Interval(5 * MINUTE, NOON + 90 * SECOND)


def test_a_start_ahead_is_the_first_instant() -> None:
    rule = Interval(HOUR, NOON)

    assert rule.next_after(NOON - timedelta(days=100)) == NOON
    assert rule.next_after(NOON) == NOON + HOUR


@settings(max_examples=200, deadline=None)
@given(rule=intervals, after=instants)
def test_every_instant_is_on_the_grid_strictly_later_and_the_first_such(rule: Interval, after: datetime) -> None:
    following = rule.next_after(after)

    assert following is not None
    assert following > after
    assert following >= rule.start
    assert (following - rule.start) % rule.every == timedelta(0)
    assert following - rule.every <= after or following == rule.start


@settings(max_examples=100, deadline=None)
@given(rule=intervals, after=instants, lateness=st.lists(st.floats(0, 0.999), min_size=1, max_size=20))
def test_however_late_it_is_looked_at_an_interval_does_not_drift(
    rule: Interval, after: datetime, lateness: list[float]
) -> None:
    for late in lateness:
        following = rule.next_after(after)
        assert following is not None
        assert (following - rule.start) % rule.every == timedelta(0)
        after = following + rule.every * late


@settings(max_examples=50, deadline=None)
@given(rule=intervals, after=instants, count=st.integers(0, 30))
def test_between_is_next_after_repeated(rule: Interval, after: datetime, count: int) -> None:
    until = after + rule.every * count
    found = list(islice(rule.between(after, until), 100))

    following = after
    for instant in found:
        assert rule.next_after(following) == instant
        following = instant
    last = rule.next_after(following)
    assert last is not None
    assert last > until
    assert all(later - earlier == rule.every for earlier, later in pairwise(found))


@pytest.mark.parametrize(
    "rule",
    [
        Interval(10 * SECOND),
        Interval(90 * MINUTE),
        Interval(1.5 * SECOND),
        Interval(timedelta(days=30)),
        Interval(HOUR, NOON),
        Interval(HOUR, NOON + timedelta(microseconds=1)),
    ],
)
def test_what_the_database_keeps_is_read_back_as_an_equal_interval(rule: Interval) -> None:
    assert load_schedule(rule.kind, rule.expression, Zone()) == rule


@settings(max_examples=100, deadline=None)
@given(rule=intervals)
def test_an_interval_of_any_precision_is_read_back_as_it_was(rule: Interval) -> None:
    assert load_schedule(rule.kind, rule.expression, Zone()) == rule


def test_the_period_of_an_interval_is_the_interval() -> None:
    assert read("every 5m").period_at(NOON) == 5 * MINUTE


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (timedelta(minutes=90), "every 1 hour and 30 minutes"),
        ("every 1s", "every second"),
        ("every 5m", "every 5 minutes"),
        ("every 1d", "every day"),
        ("every 1.5s", "every 1.5 seconds"),
        ("every 1d 2h 3m 4s", "every 1 day, 2 hours, 3 minutes and 4 seconds"),
        ("every 2h from 2026-01-01T08:00:00+00:00", "every 2 hours from 2026-01-01 08:00 UTC"),
        ("every 2h from 2026-01-01T08:00:30+00:00", "every 2 hours from 2026-01-01 08:00:30 UTC"),
    ],
)
def test_an_interval_says_in_words_when_it_fires(value: Any, words: str) -> None:
    assert read(value).describe() == words


def test_at_the_end_of_the_calendar_an_interval_ends() -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)

    assert Interval(HOUR).next_after(last - HOUR) == last.replace(minute=0, second=0)
    assert Interval(HOUR).next_after(last) is None
    assert Interval(timedelta(days=36500)).next_after(last - timedelta(days=365)) is None
    assert Interval(HOUR).next_after(datetime.max.replace(tzinfo=timezone(-12 * HOUR))) is None
    assert Interval(HOUR).next_after(datetime.min.replace(tzinfo=timezone(12 * HOUR))) == Interval(HOUR).start


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("every 0s", ["'0s'", "too short", "one second or more"]),
        ("every 999ms", ["'999ms'", "too short"]),
        (timedelta(0), ["too short"]),
        (timedelta(milliseconds=500), ["too short"]),
        (timedelta(seconds=-5), ["negative"]),
        ("every day", ["'day'", "not a duration"]),
        ("every 5", ["'5'", "not a duration"]),
        ("every -5s", ["'-5s'", "not a duration"]),
        ("every ٥s", ["not a duration"]),
        ("every 5m 5x", ["not a duration"]),
        ("every 2000000h", ["100 years"]),
        ("every " + "1s" * 1000, ["not an interval"]),
        ("every 5m from now", ["'now'", "ISO 8601"]),
        ("every 5m from 2026-01-01T12:00:00", ["no time zone"]),
        ({"kind": "interval"}, ["'interval' has no 'every'", "'every': '2h'"]),
        ({"kind": "interval", "every": None}, ["schedule.every", "None"]),
        ({"kind": "interval", "every": "soon"}, ["schedule.every", "'soon'"]),
        ({"kind": "interval", "every": "5m", "until": "x"}, ["no key 'until'"]),
        ({"kind": "interval", "evry": "5m"}, ["no key 'evry'", "did you mean 'every'"]),
        ({"kind": "interval", "every": "5m", "start": datetime(2026, 1, 1)}, ["schedule.start", "no time zone"]),
        ({"kind": "interval", "every": "5m", "start": 5}, ["schedule.start", "'5'"]),
    ],
)
def test_what_is_no_interval_is_refused_saying_why(value: Any, words: list[str]) -> None:
    with pytest.raises(InvalidValue) as refusal:
        read_schedule(value, Zone())

    assert refusal.value.field.startswith("schedule")
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_a_start_that_no_calendar_has_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"schedule\.start"):
        read_schedule("every 5m from 0001-01-01T00:00:00+14:00", Zone())


def test_a_start_written_with_a_blank_is_a_start_too() -> None:
    start = str(NOON + 90 * SECOND)  # as str() writes a datetime

    assert read({"kind": "interval", "every": "5m", "start": start}).start == NOON + 90 * SECOND
