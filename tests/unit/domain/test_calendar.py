"""Calendars: each way to write a closed time, what is refused and where, and that no closed instant fires."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.calendar import FOREVER, MAX_ENTRIES, WEEKDAYS, checked_entries, closures_of, next_open
from celery_tm.domain.schedule import Zone, read_schedule
from celery_tm.domain.timeline import Timeline
from celery_tm.errors import InvalidValue

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def a_timeline(schedule: str, *entries: str, zone: str = "UTC", **bounds: Any) -> Timeline:
    closures = closures_of(checked_entries(list(entries), field="excluded"), zone) if entries else None
    return Timeline(rule=read_schedule(schedule, Zone(name=zone)), closures=closures, **bounds)


def first(schedule: str, *entries: str, zone: str = "UTC", after: datetime = NOON, count: int = 3) -> list[str]:
    """Return the first instants later than `after`, as local times."""
    timeline, found = a_timeline(schedule, *entries, zone=zone), []
    instant = timeline.next_after(after)
    while instant is not None and len(found) < count:
        found.append(f"{instant.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M}")
        instant = timeline.next_after(instant)
    return found


# What is taken


@pytest.mark.parametrize(
    ("entry", "kept"),
    [
        ("2026-12-24", "2026-12-24"),
        (" 2026-12-24 ", "2026-12-24"),
        (date(2026, 12, 24), "2026-12-24"),
        ("2026-W52-4", "2026-12-24"),
        ("12-25", "12-25"),
        ("02-29", "02-29"),
        ("sat", "sat"),
        ("Sun", "sun"),
        ("MON", "mon"),
        ("2026-12-24/2027-01-02", "2026-12-24/2027-01-02"),
        ("2026-12-24 / 2026-12-24", "2026-12-24/2026-12-24"),
        ("20261224/20261225", "2026-12-24/2026-12-25"),
        ("2026-12-24T10:00/2026-12-24T12:00", "2026-12-24T10:00:00/2026-12-24T12:00:00"),
        ("2026-12-24T10:00/2026-12-25", "2026-12-24T10:00:00/2026-12-25T00:00:00"),
        ("2026-12-24T10:00+01:00/2026-12-24T12:00+01:00", "2026-12-24T10:00:00+01:00/2026-12-24T12:00:00+01:00"),
        ("2026-12-24T10:00Z/2026-12-24T10:00:01Z", "2026-12-24T10:00:00+00:00/2026-12-24T10:00:01+00:00"),
    ],
)
def test_each_entry_is_kept_in_its_one_spelling(entry: Any, kept: str) -> None:
    assert checked_entries([entry], field="excluded") == (kept,)
    assert checked_entries([kept], field="excluded") == (kept,)
    closures_of((kept,), "Europe/Warsaw")


def test_a_list_or_a_tuple_of_entries_is_taken_and_none_at_all() -> None:
    assert checked_entries(("sat", "sun"), field="excluded") == ("sat", "sun")
    assert checked_entries([], field="excluded") == ()


# What is refused

EXAMPLE = "use e.g. '2026-12-24', '2026-12-24/2027-01-02', '2026-12-24T10:00/2026-12-24T12:00', '12-25' or 'sat'"


@pytest.mark.parametrize(
    ("entry", "problem", "remedy"),
    [
        (5, "5 is not text or a date", EXAMPLE),
        (None, "None is not text or a date", EXAMPLE),
        (["sat"], "['sat'] is not text or a date", EXAMPLE),
        (datetime(2026, 12, 24), "is not text or a date", EXAMPLE),
        ("", "'' is one moment, not a day or a range", EXAMPLE),
        ("saturday", "'saturday' is one moment, not a day or a range", EXAMPLE),
        ("christmas!", "'christmas!' is not a date or a range", EXAMPLE),
        ("13-01", "'13-01' is not a date or a range", EXAMPLE),
        ("02-30", "'02-30' is not a date or a range", EXAMPLE),
        ("2026-02-29", "'2026-02-29' is not a date or a range", EXAMPLE),
        ("2026-12-24T10:00", "'2026-12-24T10:00' is one moment, not a day or a range", EXAMPLE),
        ("2026-12-24/", "is not a date or a range", EXAMPLE),
        ("/2026-12-24", "is not a date or a range", EXAMPLE),
        ("2026-12-24/2026-12-25/2026-12-26", "is not a date or a range", EXAMPLE),
        ("2026-12-24/tomorrow", "is not a date or a range", EXAMPLE),
        ("2026-12-24T10:00/12:00", "is not a date or a range", EXAMPLE),
        ("sat/sun", "is not a date or a range", EXAMPLE),
        ("12-24/12-26", "is not a date or a range", EXAMPLE),
        ("2026-12-25/2026-12-24", "ends before it starts", "give the earlier day first"),
        ("2026-12-24T12:00/2026-12-24T10:00", "ends before it starts", "give the earlier time first"),
        ("2026-12-24T12:00/2026-12-24T12:00", "ends before it starts", "give the earlier time first"),
        ("2026-12-24T12:00Z/2026-12-24T14:00", "has an offset at one end only", "give both or none"),
        ("٢٠٢٦-12-24", "is not a date or a range", EXAMPLE),
    ],
)
def test_a_wrong_entry_is_refused_by_its_place_with_an_example(entry: Any, problem: str, remedy: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        checked_entries(["sat", entry], field="excluded")

    assert refused.value.field == "excluded[1]"
    assert problem in refused.value.problem
    assert refused.value.remedy == remedy


@pytest.mark.parametrize("value", ["sat", b"sat", 5, None, {"sat": 1}, {"sat"}, (day for day in WEEKDAYS)])
def test_what_is_not_a_list_is_refused_with_an_example(value: Any) -> None:
    with pytest.raises(InvalidValue, match=r"^dates: .* is not a list; give a list; use e\.g\. '2026-12-24'"):
        checked_entries(value, field="dates")


def test_a_calendar_has_its_limit() -> None:
    assert len(checked_entries(["sat"] * MAX_ENTRIES, field="dates")) == MAX_ENTRIES
    with pytest.raises(InvalidValue, match="dates: 5001 entries are too many; stay within 5000"):
        checked_entries(["sat"] * (MAX_ENTRIES + 1), field="dates")


@settings(max_examples=300, deadline=None)
@given(st.text("0123456789-/T:+Z satun.", max_size=40) | st.text(max_size=12))
def test_a_text_is_kept_in_a_spelling_that_can_be_read_or_refused_by_its_place(text: str) -> None:
    try:
        kept = checked_entries([text], field="excluded")
    except InvalidValue as refused:
        assert refused.field == "excluded[0]"  # noqa: PT017
    else:
        assert checked_entries(list(kept), field="excluded") == kept
        for zone in ("UTC", "Pacific/Kiritimati", "America/St_Johns"):
            closures_of(kept, zone).reopens_after(NOON)


# What they close


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("2026-01-02", ["2026-01-03 09:00", "2026-01-04 09:00", "2026-01-05 09:00"]),
        ("2026-01-02/2026-01-04", ["2026-01-05 09:00", "2026-01-06 09:00", "2026-01-07 09:00"]),
        ("sat", ["2026-01-02 09:00", "2026-01-04 09:00", "2026-01-05 09:00"]),
        ("01-03", ["2026-01-02 09:00", "2026-01-04 09:00", "2026-01-05 09:00"]),
        ("2026-01-02T09:00/2026-01-04T09:00", ["2026-01-04 09:00", "2026-01-05 09:00", "2026-01-06 09:00"]),
        ("2026-01-02T09:01/2026-01-04T09:01", ["2026-01-02 09:00", "2026-01-05 09:00", "2026-01-06 09:00"]),
        ("2026-01-02T08:00Z/2026-01-02T08:00:01Z", ["2026-01-03 09:00", "2026-01-04 09:00", "2026-01-05 09:00"]),
    ],
)
def test_each_entry_closes_local_time_of_the_definitions_zone(entry: str, expected: list[str]) -> None:
    assert first("0 9 * * *", entry, zone="Europe/Warsaw") == expected


def test_a_day_of_the_year_is_closed_every_year() -> None:
    assert first("0 0 24,25 12 *", "12-25", count=3) == ["2026-12-24 00:00", "2027-12-24 00:00", "2028-12-24 00:00"]


def test_the_29th_of_february_is_closed_when_there_is_one() -> None:
    assert first("0 0 28,29 2 *", "02-29", after=utc("2027-03-01"), count=2) == ["2028-02-28 00:00", "2029-02-28 00:00"]


def test_a_closed_day_is_one_of_its_zone_and_not_of_utc() -> None:
    (one,) = first("0 * * * *", "2026-01-02", zone="Asia/Kathmandu", after=utc("2026-01-01T18:00"), count=1)

    assert one == "2026-01-03 00:00"


def test_closures_that_overlap_or_touch_are_passed_at_once() -> None:
    entries = ["2026-01-02", "2026-01-03/2026-01-06", "2026-01-05T12:00/2026-01-08T10:00", "thu"]

    assert first("0 9 * * *", *entries) == ["2026-01-09 09:00", "2026-01-10 09:00", "2026-01-11 09:00"]


def test_an_open_instant_reopens_at_no_time() -> None:
    assert closures_of(("sat",), "UTC").reopens_after(NOON) is None


# Where clocks change at midnight


@pytest.mark.parametrize(
    ("zone", "closed", "opens"),
    [
        ("America/Sao_Paulo", "2018-11-03", "2018-11-04T03:00"),  # 00:00 does not exist: the day begins at 01:00
        ("America/Sao_Paulo", "2018-02-17", "2018-02-18T03:00"),  # the last hour comes twice
        ("America/Havana", "2026-10-31", "2026-11-01T04:00"),  # the first hour of the next day comes twice
        ("Asia/Beirut", "2026-03-28", "2026-03-28T22:00"),
        ("America/Toronto", "1919-03-30", "1919-03-31T04:30"),  # from 23:30 to 00:30: the day begins at 00:30
        ("Pacific/Apia", "2011-12-29", "2011-12-30T10:00"),  # the next day does not exist at all
        ("America/Nuuk", "2026-10-24", "2026-10-25T02:00"),
    ],
)
def test_a_closed_day_ends_with_its_last_local_instant(zone: str, closed: str, opens: str) -> None:
    closures, end = closures_of((closed,), zone), utc(opens)

    assert closures.reopens_after(end - 30 * MINUTE) == end
    assert closures.reopens_after(end - timedelta(microseconds=1)) == end
    assert closures.reopens_after(end) is None


def test_a_day_that_ends_twice_is_closed_in_both_passes() -> None:
    """In St. John's clocks went from 00:01 back to 23:01 of the day before."""
    closed, zone = "2010-11-06", "America/St_Johns"
    midnight, again = utc("2010-11-07T02:30"), utc("2010-11-07T03:30")
    closures = closures_of((closed,), zone)

    assert closures.reopens_after(midnight - SECOND) == midnight
    assert closures.reopens_after(midnight) is None
    assert closures.reopens_after(midnight + MINUTE) == again
    assert closures.reopens_after(again) is None
    instants = list(a_timeline("every 30s", closed, zone=zone).between(midnight - HOUR, again + MINUTE))
    assert instants == [midnight, midnight + 30 * SECOND, again, again + 30 * SECOND, again + MINUTE]


def test_a_range_of_local_times_that_begins_in_skipped_time_begins_where_time_goes_on() -> None:
    closures = closures_of(("2026-03-29T02:30:00/2026-03-29T03:15:00",), "Europe/Warsaw")

    assert closures.reopens_after(utc("2026-03-29T01:00")) == utc("2026-03-29T01:15")
    assert closures.reopens_after(utc("2026-03-29T00:59")) is None


# At the ends of the calendar


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/New_York"])
@pytest.mark.parametrize(
    "entry",
    ["2026-01-01/9999-12-31", "2026-01-01T00:00/9999-12-31T23:59:59", "0001-01-01T00:00/9999-12-31T23:59:59",
     "2026-01-01T00:00-05:00/9999-12-31T23:59:59-05:00", "0001-01-01/9999-12-31"],
)  # fmt: skip
@pytest.mark.parametrize("schedule", ["0 9 * * *", "every 1s", "sunset at 52.2,21.0"])
def test_what_is_closed_forever_never_opens(zone: str, entry: str, schedule: str) -> None:
    found = a_timeline(schedule, entry, zone=zone).next_after(utc("2026-01-03"))

    assert (found or FOREVER).year == 9999


def test_a_last_day_that_is_closed_has_no_end() -> None:
    assert closures_of(("9999-12-31",), "UTC").reopens_after(utc("9999-12-31T12:00")) == FOREVER


@pytest.mark.parametrize(
    ("schedule", "entries"),
    [
        ("0 9 * * sat", ["sat"]),
        ("0 0 25 12 *", ["12-25"]),
        ("every 1s", list(WEEKDAYS)),
        ("sunset at 52.2,21.0", list(WEEKDAYS)),
    ],
)
def test_a_rule_that_never_meets_an_open_day_is_given_up_soon(schedule: str, entries: list[str]) -> None:
    timeline, started = a_timeline(schedule, *entries), time.monotonic()

    assert timeline.next_after(NOON) is None
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("schedule", "entries", "expected"),
    [
        ("0 0 29 2 *", ["mon", "tue", "wed", "fri", "sat", "sun"], "2052-02-29 00:00"),
        ("every 1s", ["2026-01-01/2999-12-31"], "3000-01-01 00:00"),
        ("* * * * *", ["2026-01-01/2125-12-31", "2126-01-01T00:00/2500-01-01T00:00"], "2500-01-01 00:00"),
        ("0 9 * * sat", ["2026-01-01/2099-12-31", "01-02"], "2100-01-09 09:00"),
    ],
)
def test_long_closures_are_jumped_over(schedule: str, entries: list[str], expected: str) -> None:
    started = time.monotonic()

    assert first(schedule, *entries, count=1) == [expected]
    assert time.monotonic() - started < 5


def test_many_single_days_are_passed_one_after_the_other() -> None:
    days = [(date(2026, 1, 1) + n * DAY).isoformat() for n in range(2000)]

    assert first("every 1s", *days, count=1) == ["2031-06-24 00:00"]


# Against trying each instant

entries = st.lists(
    st.sampled_from([
        "mon", "sat", "sun", "10-25", "10-26", "2026-10-24", "2026-10-25", "2026-10-23/2026-10-26", "2026-10-27/2026-11-02",
        "2026-10-25T00:30/2026-10-25T04:00", "2026-10-24T22:00Z/2026-10-25T01:30Z", "2026-10-28T10:10/2026-10-28T10:20",
    ]),
    max_size=6,
)  # fmt: skip


def is_closed(instant: datetime, given_entries: list[str], zone: str) -> bool:
    """Say whether one of the entries closes an instant, in the plainest way."""
    local = instant.astimezone(ZoneInfo(zone))
    for entry in given_entries:
        begin, _, end = entry.partition("/")
        if "T" in entry:
            start, stop = (
                one if one.tzinfo else one.replace(tzinfo=ZoneInfo(zone))
                for one in map(datetime.fromisoformat, (begin, end))
            )
            if start.astimezone(UTC) <= instant < stop.astimezone(UTC):
                return True
        elif end:
            if date.fromisoformat(begin) <= local.date() <= date.fromisoformat(end):
                return True
        elif entry in (f"{local:%m-%d}", f"{local:%a}".lower(), f"{local:%Y-%m-%d}"):
            return True
    return False


@settings(max_examples=120, deadline=None)
@given(
    chosen=entries,
    zone=st.sampled_from(["UTC", "Europe/Warsaw", "America/Nuuk", "Asia/Kathmandu", "America/Havana"]),
    schedule=st.sampled_from(["0 * * * *", "every 37m", "15 23,0 * * *", "every 50m from 22:00 until 03:00"]),
)
def test_the_open_instants_are_those_of_the_rule_that_nothing_closes(chosen: list[str], zone: str, schedule: str) -> None:
    after, until = utc("2026-10-22"), utc("2026-10-30")
    timeline = a_timeline(schedule, *chosen, zone=zone)

    expected = [one for one in timeline.rule.between(after, until) if not is_closed(one, chosen, zone)]

    assert list(timeline.between(after, until)) == expected
    assert all(earlier < later for earlier, later in pairwise(expected))


def test_a_rule_that_is_over_needs_no_calendar() -> None:
    assert next_open(None, closures_of(("sat",), "UTC"), lambda _: None) is None
