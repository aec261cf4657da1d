"""ISO 8601 repeating intervals: counted from the start, true to the calendar."""

from __future__ import annotations

from calendar import monthrange
from datetime import UTC, datetime, timedelta, timezone
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.dst import Fold, Gap
from celery_tm.domain.schedule import Iso8601, Zone, load_schedule, read_schedule
from celery_tm.errors import InvalidValue

BEGINNING = datetime(2020, 1, 1, tzinfo=UTC)
WARSAW, NEW_YORK = "Europe/Warsaw", "America/New_York"


def first(text: str, count: int, *, zone: str = "UTC", after: datetime = BEGINNING, fold: Fold | None = None) -> list[str]:
    rule = read_schedule(text, Zone(name=zone, fold=fold))
    assert isinstance(rule, Iso8601)
    found: list[str] = []
    following = rule.next_after(after)
    while following is not None and len(found) < count:
        found.append(following.strftime("%Y-%m-%d %H:%M"))
        following = rule.next_after(following)
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("R3/2026-01-01T00:00:00Z/P1M", ["2026-01-01 00:00", "2026-02-01 00:00", "2026-03-01 00:00"]),
        ("R1/2026-01-01T00:00:00Z/P1M", ["2026-01-01 00:00"]),
        ("r2/2026-01-01t00:00:00z/p1m", ["2026-01-01 00:00", "2026-02-01 00:00"]),
        ("R5/2026-01-31T09:00:00Z/P1M",
         ["2026-01-31 09:00", "2026-02-28 09:00", "2026-03-31 09:00", "2026-04-30 09:00", "2026-05-31 09:00"]),
        ("R5/2024-02-29T00:00:00Z/P1Y",
         ["2024-02-29 00:00", "2025-02-28 00:00", "2026-02-28 00:00", "2027-02-28 00:00", "2028-02-29 00:00"]),
        ("R3/2026-10-31T00:00:00Z/P4M", ["2026-10-31 00:00", "2027-02-28 00:00", "2027-06-30 00:00"]),
        ("R3/2026-01-01T00:00:00Z/P2W", ["2026-01-01 00:00", "2026-01-15 00:00", "2026-01-29 00:00"]),
        ("R3/2026-01-01T00:00:00Z/P1Y6M", ["2026-01-01 00:00", "2027-07-01 00:00", "2029-01-01 00:00"]),
        ("R3/2026-01-01T00:00:00Z/P1DT12H", ["2026-01-01 00:00", "2026-01-02 12:00", "2026-01-04 00:00"]),
        ("R3/2026-01-01T00:00:00Z/P0.5D", ["2026-01-01 00:00", "2026-01-01 12:00", "2026-01-02 00:00"]),
        ("R3/2026-01-01T00:00:00Z/PT6H", ["2026-01-01 00:00", "2026-01-01 06:00", "2026-01-01 12:00"]),
        ("R3/2026-01-01T00:00:00Z/PT1H30M", ["2026-01-01 00:00", "2026-01-01 01:30", "2026-01-01 03:00"]),
        ("R3/2026-01-01T00:00:00Z/PT1,5H", ["2026-01-01 00:00", "2026-01-01 01:30", "2026-01-01 03:00"]),
        ("R2/20260101T000000Z/P1D", ["2026-01-01 00:00", "2026-01-02 00:00"]),
        ("R2/2026-01-01/P1D", ["2026-01-01 00:00", "2026-01-02 00:00"]),
        ("R3/2026-01-01T00:00:00Z/2026-01-01T06:00:00Z", ["2026-01-01 00:00", "2026-01-01 06:00", "2026-01-01 12:00"]),
        ("R3/2026-01-01T09:00:00/2026-01-08T09:00:00", ["2026-01-01 09:00", "2026-01-08 09:00", "2026-01-15 09:00"]),
        ("R2/P1M/2026-03-31T00:00:00Z", ["2026-02-28 00:00", "2026-03-28 00:00"]),
        ("R2/PT6H/2026-01-01T00:00:00Z", ["2025-12-31 18:00", "2026-01-01 00:00"]),
        ("R2/PT6H/2026-01-01T00:00:00", ["2025-12-31 18:00", "2026-01-01 00:00"]),
        ("R2/2026-01-31T23:00:00-05:00/P1M", ["2026-02-01 04:00", "2026-03-01 04:00"]),  # 31 January there
    ],
)  # fmt: skip
def test_an_interval_repeats_from_its_start(text: str, expected: list[str]) -> None:
    assert first(text, 10) == expected


def test_without_a_number_it_goes_on_to_the_end_of_the_calendar() -> None:
    rule = read_schedule("R/2026-01-31T00:00:00Z/P1M", Zone())

    assert rule.next_after(datetime(9999, 11, 30, tzinfo=UTC)) == datetime(9999, 12, 31, tzinfo=UTC)
    assert rule.next_after(datetime(9999, 12, 31, tzinfo=UTC)) is None


# Clocks: Warsaw skips 02:00-03:00 on 29 March and repeats it on 25 October; New York repeats 01:00-02:00 on 1 November


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        # Local time, and days step on the wall clock.
        ("R/2026-03-28T02:30:00/P1D", WARSAW, ["2026-03-28 01:30", "2026-03-29 01:00", "2026-03-30 00:30"]),
        ("R/2026-10-24T02:30:00/P1D", WARSAW, ["2026-10-24 00:30", "2026-10-25 00:30", "2026-10-26 01:30"]),
        ("R/2026-10-24T02:30:00/P1W", WARSAW, ["2026-10-24 00:30", "2026-10-31 01:30"]),
        # An instant, and days step on the wall clock of the zone.
        ("R/2026-03-28T12:00:00Z/P1D", WARSAW, ["2026-03-28 12:00", "2026-03-29 11:00", "2026-03-30 11:00"]),
        # An instant in the second pass is that instant, though the local time comes first an hour earlier.
        ("R/2026-11-01T06:30:00Z/P1D", NEW_YORK, ["2026-11-01 06:30", "2026-11-02 06:30"]),
        # Hours are exact.
        ("R/2026-03-28T12:00:00/PT24H", WARSAW, ["2026-03-28 11:00", "2026-03-29 11:00", "2026-03-30 11:00"]),
        ("R/2026-10-24T12:00:00/PT12H", WARSAW, ["2026-10-24 10:00", "2026-10-24 22:00", "2026-10-25 10:00"]),
        # From start to end: whole days of local time are days.
        ("R/2026-03-28T12:00:00/2026-03-29T12:00:00", WARSAW, ["2026-03-28 11:00", "2026-03-29 10:00", "2026-03-30 10:00"]),
        ("R/2026-03-28T12:00:00+01:00/2026-03-29T12:00:00+02:00", WARSAW, ["2026-03-28 11:00", "2026-03-29 10:00"]),
        ("R/2026-03-29T01:00:00/2026-03-29T04:00:00", WARSAW, ["2026-03-29 00:00", "2026-03-29 02:00"]),
        # No zone but an offset: its own wall clock.
        ("R/2026-03-28T12:00:00+01:00/P1D", "UTC", ["2026-03-28 11:00", "2026-03-29 11:00"]),
    ],
)  # fmt: skip
def test_over_a_change_of_clocks_dates_keep_local_time_and_hours_do_not(text: str, zone: str, expected: list[str]) -> None:
    assert first(text, len(expected), zone=zone) == expected


@pytest.mark.parametrize(
    ("fold", "expected"),
    [
        (Fold.FIRST, ["2026-10-25 00:30", "2026-10-26 01:30"]),
        (Fold.SECOND, ["2026-10-25 01:30", "2026-10-26 01:30"]),
        (Fold.BOTH, ["2026-10-25 00:30", "2026-10-25 01:30", "2026-10-26 01:30"]),
    ],
)
def test_a_start_that_comes_twice_follows_the_policy(fold: Fold, expected: list[str]) -> None:
    assert first("R/2026-10-25T02:30:00/P1D", len(expected), zone=WARSAW, fold=fold) == expected


def test_with_gap_skip_a_start_that_does_not_exist_is_left_out_or_refused() -> None:
    zone = Zone(name=WARSAW, gap=Gap.SKIP)

    daily = read_schedule("R/2026-03-29T02:30:00/P1D", zone)
    assert daily.next_after(BEGINNING) == datetime(2026, 3, 30, 0, 30, tzinfo=UTC)
    with pytest.raises(InvalidValue, match="does not exist in Europe/Warsaw"):
        read_schedule("R/2026-03-29T02:30:00/PT1H", zone)
    with pytest.raises(InvalidValue, match="never fires in Europe/Warsaw with gap='skip'"):
        read_schedule("R1/2026-03-29T02:30:00/P1D", zone)


# Counted from the start, asked from anywhere


def nth(start: datetime, months: int, rest: timedelta, n: int) -> datetime:
    index = start.year * 12 + start.month - 1 + months * n
    year, month = divmod(index, 12)
    return start.replace(year=year, month=month + 1, day=min(start.day, monthrange(year, month + 1)[1])) + rest * n


@settings(max_examples=200, deadline=None)
@given(
    start=st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2100, 1, 1)),
    months=st.integers(0, 30),
    days=st.integers(0, 40),
    hours=st.integers(0, 30),
    n=st.integers(0, 400),
    count=st.none() | st.integers(1, 500),
)
def test_the_nth_instant_is_the_start_and_n_periods(
    start: datetime, months: int, days: int, hours: int, n: int, count: int | None
) -> None:
    start = start.replace(microsecond=0)
    if not (months or days or hours):
        return
    text = f"R{count or ''}/{start.isoformat()}/P{months}M{days}DT{hours}H"
    rule, rest = load_schedule("iso8601", text, Zone()), timedelta(days=days, hours=hours)
    expected = nth(start, months, rest, n).replace(tzinfo=UTC) if count is None or n < count else None
    before = nth(start, months, rest, n - 1).replace(tzinfo=UTC) if n else BEGINNING - timedelta(days=100_000)

    assert rule.next_after(before) == expected
    if expected:
        assert rule.next_after(expected - timedelta(seconds=1)) == expected
        assert rule.next_after(before + (expected - before) / 2) == expected


def test_a_start_long_ago_costs_nothing() -> None:
    for period in ("P1M", "P1D", "PT1S", "P1Y2M3DT4H5M6S"):
        rule = read_schedule(f"R/0100-01-31T00:00:00/{period}", Zone(name=WARSAW))
        rule.next_after(BEGINNING)
        started = process_time()
        for day in range(100):
            assert rule.next_after(BEGINNING + timedelta(days=day)) is not None
        assert (process_time() - started) / 100 < 0.001


@pytest.mark.parametrize(
    ("text", "zone", "words"),
    [
        ("R/2026-01-01T09:00:00/P1M", WARSAW, "every month from 2026-01-01 09:00 in Europe/Warsaw"),
        ("R5/2026-01-01T09:00:00Z/PT90M", "UTC", "every 1 hour and 30 minutes from 2026-01-01 09:00 in UTC, 5 times in all"),
        ("R1/2026-01-01T09:00:00+02:00/P1Y6M", "UTC",
         "every 1 year and 6 months from 2026-01-01 09:00 in UTC+02:00, 1 time in all"),
        ("R/2026-01-01T09:00:00Z/P1DT1S", WARSAW, "every 1 day and 1 second from 2026-01-01 10:00 in Europe/Warsaw"),
    ],
)  # fmt: skip
def test_an_interval_says_in_words_when_it_fires(text: str, zone: str, words: str) -> None:
    assert read_schedule(text, Zone(name=zone)).describe() == words


def test_text_and_mapping_mean_the_same_and_are_read_back() -> None:
    text = "R5/2026-01-01T00:00:00Z/P1M"
    rule = read_schedule(text, Zone())

    assert rule.expression == text
    assert read_schedule({"kind": "iso8601", "expression": text.lower()}, Zone()) == rule
    assert load_schedule(rule.kind, rule.expression, Zone()) == rule


def test_instants_at_the_ends_of_the_calendar_are_answered() -> None:
    rules = [
        read_schedule(f"R/{start}/{period}", Zone(name=zone))
        for start in ("0001-01-02T00:00:00", "2026-01-01T00:00:00Z", "9999-12-30T00:00:00Z")
        for period in ("P1D", "PT1H", "P9000Y")
        for zone in ("UTC", "Asia/Tokyo")
    ]
    for rule in rules:
        for end in (datetime.min, datetime.max):
            for hours in (-14, 0, 14):
                asked = end.replace(tzinfo=timezone(timedelta(hours=hours)))
                following = rule.next_after(asked)
                assert following is None or following > asked


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("R0/2026-01-01T00:00:00Z/P1M", ["'R0'", "from 1", "R5/2026-01-01T00:00:00Z/P1M"]),
        ("R-1/2026-01-01T00:00:00Z/P1M", ["'R-1'"]),
        ("R9999999999/2026-01-01T00:00:00Z/P1M", ["'R9999999999'"]),
        ("R٣/2026-01-01T00:00:00Z/P1M", ["'R٣'"]),
        ("R/P1M", ["'R/P1M'", "a start and a period"]),
        ("R/2026-01-01T00:00:00Z/P1M/P1M", ["a start and a period"]),
        ("R/2026-01-01T00:00:00Z/", ["the end ''"]),
        ("R/2026-01-01T00:00:00Z/P", ["'P'", "P1M"]),
        ("R/2026-01-01T00:00:00Z/PT", ["'PT'"]),
        ("R/2026-01-01T00:00:00Z/P1DT", ["'P1DT'"]),
        ("R/2026-01-01T00:00:00Z/P1H", ["'P1H'", "PT90M"]),
        ("R/2026-01-01T00:00:00Z/P1M1Y", ["'P1M1Y'"]),
        ("R/2026-01-01T00:00:00Z/P-1D", ["'P-1D'"]),
        ("R/2026-01-01T00:00:00Z/PT0S", ["'PT0S'", "too short", "PT1S"]),
        ("R/2026-01-01T00:00:00Z/PT0.9S", ["'PT0.9S'", "too short"]),
        ("R/2026-01-01T00:00:00Z/P1.5M", ["'P1.5M'", "fraction of months"]),
        ("R/2026-01-01T00:00:00Z/P0.5Y", ["'P0.5Y'", "fraction of years"]),
        ("R/2026-01-01T00:00:00Z/P1.5DT1H", ["'P1.5DT1H'", "smallest unit"]),
        ("R/2026-01-01T00:00:00Z/P1DT0.5S", ["'P1DT0.5S'", "whole seconds"]),
        ("R/2026-01-01T00:00:00Z/P999999999Y", ["longer than the calendar"]),
        ("R/2026-01-01T00:00:00Z/P999999999W", ["longer than the calendar"]),
        ("R/2026-13-01T00:00:00Z/P1M", ["the start '2026-13-01T00:00:00Z'"]),
        ("R/2026-01-01T00:00:00.5Z/P1M", ["the start", "whole seconds"]),
        ("R/0001-01-01T00:00:00+14:00/P1M", ["the start"]),
        ("R/today/P1M", ["the start 'TODAY'"]),
        ("R/P1M/today", ["the end 'TODAY'"]),
        ("R/P1Y/0001-06-01T00:00:00Z", ["before the calendar"]),
        ("R/2026-01-01T00:00:00Z/2026-01-01T00:00:00Z", ["ends before it starts"]),
        ("R/2026-01-01T00:00:00Z/2025-01-01T00:00:00Z", ["ends before it starts"]),
        ("R/2026-01-01T00:00:00Z/2027-01-01T00:00:00", ["offset", "both alike"]),
        ("R/" + "2" * 500, ["characters are too many"]),
    ],
)
def test_what_is_no_repeating_interval_is_refused_saying_why(text: str, words: list[str]) -> None:
    with pytest.raises(InvalidValue) as refusal:
        load_schedule("iso8601", text, Zone())

    assert refusal.value.field == "schedule"
    assert all(word in str(refusal.value) for word in words), str(refusal.value)
