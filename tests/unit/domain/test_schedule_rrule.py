"""Recurrence rules of iCalendar: by hand-checked tables, and held against dateutil for random rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from time import process_time
from typing import Any

import pytest
from dateutil.rrule import rrulestr
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from celery_tm.domain.dst import Fold, Gap
from celery_tm.domain.schedule import Rrule, Zone, load_schedule, read_schedule
from celery_tm.domain.schedule.rrule_text import FREQUENCIES, WEEKDAYS
from celery_tm.errors import InvalidValue

START = "DTSTART:20260101T090000"  # a Thursday
UTC_ZONE = Zone()
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


def first(text: str, count: int, *, after: datetime = BEGINNING, zone: Zone = UTC_ZONE) -> list[str]:
    rule = read_schedule(text, zone)
    assert isinstance(rule, Rrule)
    found: list[str] = []
    following = rule.next_after(after)
    while following is not None and len(found) < count:
        found.append(following.strftime("%Y-%m-%d %H:%M"))
        following = rule.next_after(following)
    return found


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("FREQ=MONTHLY;BYDAY=-1FR", ["2026-01-30 09:00", "2026-02-27 09:00", "2026-03-27 09:00"]),
        ("FREQ=DAILY", ["2026-01-01 09:00", "2026-01-02 09:00", "2026-01-03 09:00"]),
        ("FREQ=DAILY;INTERVAL=10;COUNT=3", ["2026-01-01 09:00", "2026-01-11 09:00", "2026-01-21 09:00"]),
        ("FREQ=DAILY;UNTIL=20260102T090000", ["2026-01-01 09:00", "2026-01-02 09:00"]),
        ("FREQ=DAILY;UNTIL=20260102T085959", ["2026-01-01 09:00"]),
        ("FREQ=DAILY;UNTIL=20260102", ["2026-01-01 09:00", "2026-01-02 09:00"]),
        ("FREQ=WEEKLY;BYDAY=MO,FR", ["2026-01-02 09:00", "2026-01-05 09:00", "2026-01-09 09:00"]),
        ("FREQ=WEEKLY;INTERVAL=2;BYDAY=TU,SU;WKST=MO", ["2026-01-04 09:00", "2026-01-13 09:00", "2026-01-18 09:00"]),
        ("FREQ=WEEKLY;INTERVAL=2;BYDAY=TU,SU;WKST=SU", ["2026-01-11 09:00", "2026-01-13 09:00", "2026-01-25 09:00"]),
        ("FREQ=MONTHLY;BYMONTHDAY=-1", ["2026-01-31 09:00", "2026-02-28 09:00", "2026-03-31 09:00"]),
        ("FREQ=MONTHLY;BYMONTHDAY=31", ["2026-01-31 09:00", "2026-03-31 09:00", "2026-05-31 09:00"]),
        ("FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13", ["2026-02-13 09:00", "2026-03-13 09:00", "2026-11-13 09:00"]),
        ("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1", ["2026-01-30 09:00", "2026-02-27 09:00", "2026-03-31 09:00"]),
        ("FREQ=YEARLY;BYMONTH=11;BYDAY=4TH", ["2026-11-26 09:00", "2027-11-25 09:00", "2028-11-23 09:00"]),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29", ["2028-02-29 09:00", "2032-02-29 09:00"]),
        ("FREQ=YEARLY;BYWEEKNO=1;BYDAY=MO", ["2027-01-04 09:00", "2028-01-03 09:00", "2029-01-01 09:00"]),
        ("FREQ=YEARLY;BYYEARDAY=-1", ["2026-12-31 09:00", "2027-12-31 09:00"]),
        ("FREQ=YEARLY;BYDAY=20MO", ["2026-05-18 09:00", "2027-05-17 09:00"]),
        ("FREQ=HOURLY;INTERVAL=6", ["2026-01-01 09:00", "2026-01-01 15:00", "2026-01-01 21:00", "2026-01-02 03:00"]),
        ("FREQ=MINUTELY;INTERVAL=20;BYHOUR=9,10;BYDAY=FR", ["2026-01-02 09:00", "2026-01-02 09:20", "2026-01-02 09:40"]),
        ("FREQ=DAILY;BYHOUR=8,16;BYMINUTE=0,30", ["2026-01-01 16:00", "2026-01-01 16:30", "2026-01-02 08:00"]),
    ],
)  # fmt: skip
def test_a_rule_fires_as_the_calendar_says(rule: str, expected: list[str]) -> None:
    assert first(f"{START} RRULE:{rule}", len(expected)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{START}\nRRULE:FREQ=DAILY\nEXDATE:20260102T090000,20260103T090000", ["2026-01-01 09:00", "2026-01-04 09:00"]),
        (
            f"{START} RRULE:FREQ=DAILY;COUNT=2 RDATE:20260101T120000",
            ["2026-01-01 09:00", "2026-01-01 12:00", "2026-01-02 09:00"],
        ),
        (
            f"{START} RRULE:FREQ=YEARLY RRULE:FREQ=MONTHLY;BYMONTHDAY=5;COUNT=1",
            ["2026-01-01 09:00", "2026-01-05 09:00", "2027-01-01 09:00"],
        ),
        (f"{START} RDATE:20260301T100000,20260201T100000", ["2026-02-01 10:00", "2026-03-01 10:00"]),
        (f"{START} FREQ=DAILY;COUNT=1", ["2026-01-01 09:00"]),
        (f"{START.lower()} rrule:freq=daily;count=1", ["2026-01-01 09:00"]),
        ("DTSTART;VALUE=DATE:20260102 RRULE:FREQ=DAILY;COUNT=1", ["2026-01-02 00:00"]),
    ],
)
def test_dates_are_added_and_taken_out(text: str, expected: list[str]) -> None:
    assert first(text, 4)[: len(expected)] == expected


def test_a_mapping_with_rule_and_start_means_the_same_as_the_text() -> None:
    text = read_schedule(f"{START}\nRRULE:FREQ=MONTHLY;BYDAY=-1FR", Zone())

    for start in ("2026-01-01T09:00:00", "20260101T090000", datetime(2026, 1, 1, 9)):
        for rule in ("FREQ=MONTHLY;BYDAY=-1FR", "RRULE:FREQ=MONTHLY;BYDAY=-1FR"):
            assert read_schedule({"kind": "rrule", "rule": rule, "start": start}, Zone()) == text
    assert text.expression == f"{START}\nRRULE:FREQ=MONTHLY;BYDAY=-1FR"


def test_the_local_time_is_kept_over_a_change_of_clocks() -> None:
    zone = Zone(name="Europe/Warsaw")

    assert first("DTSTART:20260328T023000 RRULE:FREQ=DAILY", 3, zone=zone) == [
        "2026-03-28 01:30", "2026-03-29 01:00", "2026-03-30 00:30",
    ]  # fmt: skip
    autumn = datetime(2026, 10, 24, 12, tzinfo=UTC)
    daily, hourly = "DTSTART:20260101T023000 RRULE:FREQ=DAILY", "DTSTART:20260101T003000 RRULE:FREQ=HOURLY;BYHOUR=2"
    assert first(daily, 2, after=autumn, zone=zone) == ["2026-10-25 00:30", "2026-10-26 01:30"]
    assert first(hourly, 3, after=autumn, zone=zone) == ["2026-10-25 00:30", "2026-10-25 01:30", "2026-10-26 01:30"]
    assert first(hourly, 2, after=autumn, zone=Zone(name="Europe/Warsaw", fold=Fold.SECOND)) == [
        "2026-10-25 01:30", "2026-10-26 01:30",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("FREQ=MONTHLY;BYDAY=-1FR", "every month on the last Friday at 09:00, from 2026-01-01 09:00 in UTC"),
        ("FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,TU,WE;COUNT=5",
         "every 2 weeks on Monday to Wednesday at 09:00 5 times in all, from 2026-01-01 09:00 in UTC"),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=-1;UNTIL=20300101T000000",
         "every year on the last day of the month in February at 09:00 until 2030-01-01 00:00, "
         "from 2026-01-01 09:00 in UTC"),
        ("FREQ=HOURLY;BYHOUR=8,9", "every hour with BYHOUR=8,9, from 2026-01-01 09:00 in UTC"),
    ],
)  # fmt: skip
def test_a_rule_says_in_words_when_it_fires(rule: str, words: str) -> None:
    assert read_schedule(f"{START} RRULE:{rule}", Zone()).describe() == words


# Held against dateutil


def lists(*elements: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    return st.lists(st.one_of(*elements), min_size=1, max_size=5, unique=True).map(lambda items: ",".join(map(str, items)))


def from_either_end(most: int) -> st.SearchStrategy[int]:
    return st.integers(1, most) | st.integers(1, most).map(lambda n: -n)


@st.composite
def rules(draw: st.DrawFn) -> str:
    freq = draw(st.sampled_from(FREQUENCIES))
    parts = {"FREQ": freq, "INTERVAL": str(draw(st.integers(1, 3) | st.integers(1, 40)))}
    days = st.sampled_from(WEEKDAYS)
    if freq in ("YEARLY", "MONTHLY") and draw(st.booleans()):
        days = st.builds(lambda n, day: f"{n}{day}", from_either_end(5), days)
    choices: dict[str, st.SearchStrategy[str]] = {
        "BYMONTH": lists(st.integers(1, 12)),
        "BYMONTHDAY": lists(from_either_end(31)),
        "BYYEARDAY": lists(from_either_end(366)),
        "BYDAY": lists(days),
        "BYHOUR": lists(st.integers(0, 23)),
        "BYMINUTE": lists(st.integers(0, 59)),
        "BYSECOND": lists(st.integers(0, 59)),
        # dateutil does not see week 1 of the next year as week -52 or -53 of its own.
        "BYWEEKNO": lists(st.integers(1, 53), st.integers(-51, -1)),
        "BYSETPOS": lists(from_either_end(4)),
        "WKST": st.sampled_from(WEEKDAYS),
    }
    for key in draw(st.lists(st.sampled_from(sorted(choices)), max_size=2, unique=True)):
        parts[key] = draw(choices[key])
    if freq != "YEARLY" or any(sign.isdigit() for sign in parts.get("BYDAY", "")):
        parts.pop("BYWEEKNO", None)
    # In the week of DTSTART dateutil picks from the days that are left of it, RFC 5545 from all.
    if freq == "WEEKLY" or not any(key.startswith("BY") and key != "BYSETPOS" for key in parts):
        parts.pop("BYSETPOS", None)
    return ";".join(f"{key}={value}" for key, value in parts.items())


starts = st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2040, 1, 1)).map(
    lambda at: at.replace(microsecond=0)
)


@settings(max_examples=50, deadline=None)
@given(rule=rules(), start=starts, tail=st.sampled_from(["", ";COUNT=3", ";COUNT=40"]))
def test_a_random_rule_fires_as_dateutil_says(rule: str, start: datetime, tail: str) -> None:
    text = f"DTSTART:{start:%Y%m%dT%H%M%S}\nRRULE:{rule}{tail}"
    try:
        ours = load_schedule("rrule", text, Zone())
    except InvalidValue:
        assume(False)
        raise
    since = start.replace(tzinfo=UTC) - timedelta(days=1)
    found = list(islice(ours.between(since, since + timedelta(days=366 * 60)), 6))

    assume(len(found) == 6 or tail)  # dateutil would search the rest of the calendar
    expected = list(islice(rrulestr(text), len(found)))
    assert [at.replace(tzinfo=None) for at in found] == expected
    if tail == ";COUNT=3":
        assert len(found) <= 3


@settings(max_examples=25, deadline=None)
@given(rule=rules(), start=starts, days=st.integers(0, 20_000))
def test_asked_from_far_away_a_rule_fires_as_if_walked_from_its_start(rule: str, start: datetime, days: int) -> None:
    try:
        ours = load_schedule("rrule", f"DTSTART:{start:%Y%m%dT%H%M%S} RRULE:{rule}", Zone())
    except InvalidValue:
        assume(False)
        raise
    after = start.replace(tzinfo=UTC) + timedelta(days=days)
    following = ours.next_after(after)
    assume(following is not None)
    assert following is not None

    # Any instant before it, asked for its next one, leads to it too.
    assert ours.next_after(after + (following - after) / 2) == following
    assert ours.next_after(following - timedelta(microseconds=1)) == following


# Bounds


@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=SECONDLY", "FREQ=MINUTELY;INTERVAL=7", "FREQ=HOURLY;BYDAY=MO", "FREQ=DAILY", "FREQ=WEEKLY;BYDAY=MO,TU",
        "FREQ=MONTHLY;BYDAY=-1FR", "FREQ=YEARLY;BYMONTH=3;BYDAY=1SU",
    ],
)  # fmt: skip
def test_a_rule_that_began_long_ago_answers_at_once(rule: str) -> None:
    ours = read_schedule(f"DTSTART:19000101T000000 RRULE:{rule}", Zone(name="Europe/Warsaw"))
    ours.next_after(BEGINNING)
    started = process_time()
    for day in range(100):
        assert ours.next_after(BEGINNING + timedelta(days=day)) is not None

    assert (process_time() - started) / 100 < 0.005


@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=MONTHLY;BYMONTH=4;BYMONTHDAY=31",
        "FREQ=DAILY;INTERVAL=7;BYDAY=MO",  # DTSTART is a Thursday
        "FREQ=YEARLY;INTERVAL=2;BYMONTH=2;BYMONTHDAY=29;UNTIL=20270101T000000",
        "FREQ=DAILY;UNTIL=20251231T000000",
        "FREQ=SECONDLY;INTERVAL=2;BYSECOND=1",
        "FREQ=MONTHLY;BYDAY=MO;BYSETPOS=6",
    ],
)
def test_a_rule_that_never_fires_is_refused_in_bounded_time(rule: str) -> None:
    started = process_time()
    with pytest.raises(InvalidValue, match="never fires"):
        read_schedule(f"{START} RRULE:{rule}", Zone())

    assert process_time() - started < 5


def test_a_set_whose_every_date_is_taken_out_never_fires() -> None:
    with pytest.raises(InvalidValue, match="never fires"):
        read_schedule(f"{START} RRULE:FREQ=DAILY;COUNT=1 EXDATE:20260101T090000", Zone())


def test_a_rule_that_fires_in_skipped_time_alone_is_refused_with_gap_skip() -> None:
    text = "DTSTART:20260329T023000 RRULE:FREQ=DAILY;COUNT=1"

    assert first(text, 1, zone=Zone(name="Europe/Warsaw")) == ["2026-03-29 01:00"]
    with pytest.raises(InvalidValue, match="clocks are put forward"):
        read_schedule(text, Zone(name="Europe/Warsaw", gap=Gap.SKIP))


def test_a_great_count_is_counted_once_and_then_answered_at_once() -> None:
    ours = read_schedule(f"{START} RRULE:FREQ=DAILY;COUNT=100000", Zone())
    last = datetime(2026, 1, 1, 9, tzinfo=UTC) + timedelta(days=99_999)

    assert ours.next_after(last - timedelta(seconds=1)) == last
    assert ours.next_after(last) is None


# What is refused


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("RRULE:FREQ=DAILY", ["no DTSTART", "DTSTART:20260101T090000"]),
        ("FREQ=DAILY", ["no DTSTART"]),
        (START, ["no RRULE"]),
        (f"{START} {START} RRULE:FREQ=DAILY", ["two DTSTART"]),
        ("DTSTART;TZID=Europe/Warsaw:20260101T090000 RRULE:FREQ=DAILY", ["TZID", "use timezone="]),
        ("DTSTART:20260101T090000Z RRULE:FREQ=DAILY", ["in UTC", "use timezone="]),
        (f"{START} RRULE:FREQ=DAILY;UNTIL=20270101T000000Z", ["UNTIL", "use timezone="]),
        ("DTSTART:20260230T090000 RRULE:FREQ=DAILY", ["DTSTART '20260230T090000'", "not a local time"]),
        ("DTSTART:tomorrow RRULE:FREQ=DAILY", ["DTSTART 'TOMORROW'"]),
        (f"{START} RRULE:INTERVAL=2", ["no FREQ"]),
        (f"{START} RRULE:FREQ=FORTNIGHTLY", ["FREQ 'FORTNIGHTLY'", "WEEKLY"]),
        (f"{START} RRULE:FREQ=DAILY;INTERVAL=0", ["INTERVAL '0'", "1-100000"]),
        (f"{START} RRULE:FREQ=DAILY;COUNT=0", ["COUNT '0'", "1-100000"]),
        (f"{START} RRULE:FREQ=DAILY;COUNT=100001", ["COUNT '100001'"]),
        (f"{START} RRULE:FREQ=DAILY;COUNT=5;UNTIL=20270101T000000", ["both COUNT and UNTIL"]),
        (f"{START} RRULE:FREQ=DAILY;BYHOUR=24", ["BYHOUR '24'", "0-23"]),
        (f"{START} RRULE:FREQ=DAILY;BYMONTHDAY=0", ["BYMONTHDAY '0'", "1-31 or -31--1"]),
        (f"{START} RRULE:FREQ=DAILY;BYMONTH=13", ["BYMONTH '13'", "1-12"]),
        (f"{START} RRULE:FREQ=DAILY;BYDAY=XX", ["BYDAY 'XX'", "-1FR"]),
        (f"{START} RRULE:FREQ=WEEKLY;BYDAY=1MO", ["number before a day", "MONTHLY"]),
        (f"{START} RRULE:FREQ=MONTHLY;BYWEEKNO=5", ["BYWEEKNO", "YEARLY"]),
        (f"{START} RRULE:FREQ=MONTHLY;BYSETPOS=5", ["BYSETPOS"]),
        (f"{START} RRULE:FREQ=DAILY;BYHOURS=5", ["'BYHOURS=5'", "did you mean 'BYHOUR'"]),
        (f"{START} RRULE:FREQ=DAILY;FREQ=DAILY", ["FREQ twice"]),
        (f"{START} RRULE:FREQ=DAILY;", ["'' is not part"]),
        (f"{START} RRULE:FREQ=DAILY;INTERVAL=٢", ["INTERVAL"]),
        (f"{START} EXRULE:FREQ=DAILY", ["'EXRULE:FREQ=DAILY'", "EXDATE"]),
        (f"{START} RRULE:FREQ=DAILY " + "EXDATE:20260101T090000 " * 300, ["too many", "4000"]),
    ],
)  # fmt: skip
def test_a_bad_rule_is_refused_saying_what_is_wrong(text: str, words: list[str]) -> None:
    with pytest.raises(InvalidValue) as refusal:
        load_schedule("rrule", text, Zone())

    assert refusal.value.field.startswith("schedule")
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rule": "FREQ=DAILY"}, ["no 'start'", "'start': '2026-01-01T09:00:00'"]),
        ({"start": "2026-01-01T09:00:00"}, ["no 'rule'"]),
        ({"rule": "FREQ=DAILY", "start": "2026-01-01T09:00:00Z"}, ["schedule.start", "use timezone="]),
        ({"rule": "FREQ=DAILY", "start": datetime(2026, 1, 1, tzinfo=UTC)}, ["schedule.start", "use timezone="]),
        ({"rule": "FREQ=DAILY", "start": "soon"}, ["schedule.start", "'soon'"]),
        ({"rule": "FREQ=DAILY", "start": 5}, ["schedule.start", "5"]),
        ({"rule": 5, "start": "2026-01-01T09:00:00"}, ["schedule.rule", "5"]),
        ({"rule": "FREQ=DAILY", "start": "2026-01-01T09:00:00", "until": "x"}, ["no key 'until'"]),
    ],
)
def test_a_bad_mapping_is_refused_naming_the_key(given: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidValue) as refusal:
        read_schedule({"kind": "rrule", **given}, Zone())

    assert all(word in str(refusal.value) for word in words), str(refusal.value)
