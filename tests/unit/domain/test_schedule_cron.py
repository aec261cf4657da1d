"""Cron expressions: what they mean, and what is said about those that mean nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.schedule import Cron, Zone, load_schedule, read_schedule, read_zone
from celery_tm.domain.schedule.base import MAX_LENGTH
from celery_tm.domain.schedule.cron import NICKNAMES
from celery_tm.errors import InvalidValue, UnknownTimeZone

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)  # a Thursday


def first(expression: str, count: int, *, after: datetime = NEW_YEAR, zone: str = "UTC") -> list[str]:
    rule = read_schedule(expression, Zone(name=zone))
    instants: list[str] = []
    while len(instants) < count:
        following = rule.next_after(after)
        assert following is not None
        after = following
        instants.append(after.strftime("%Y-%m-%d %H:%M:%S"))
    return instants


# What expressions mean


@pytest.mark.parametrize(
    ("expression", "instants"),
    [
        ("*/5 * * * *", ["2026-01-01 00:05:00", "2026-01-01 00:10:00"]),
        ("0 12 * * *", ["2026-01-01 12:00:00", "2026-01-02 12:00:00"]),
        ("* * * * * *", ["2026-01-01 00:00:01", "2026-01-01 00:00:02"]),
        ("30 0 12 * * *", ["2026-01-01 12:00:30", "2026-01-02 12:00:30"]),
        ("*/20 1 * * * *", ["2026-01-01 00:01:00", "2026-01-01 00:01:20", "2026-01-01 00:01:40", "2026-01-01 01:01:00"]),
        (
            "0 9-17/4 * * mon-fri",
            ["2026-01-01 09:00:00", "2026-01-01 13:00:00", "2026-01-01 17:00:00", "2026-01-02 09:00:00"],
        ),
        ("0 0 1,15 * *", ["2026-01-15 00:00:00", "2026-02-01 00:00:00"]),
        ("0 0 * feb,Aug *", ["2026-02-01 00:00:00", "2026-02-02 00:00:00"]),
        ("0 0 * * 0", ["2026-01-04 00:00:00", "2026-01-11 00:00:00"]),
        ("0 0 * * SUN", ["2026-01-04 00:00:00", "2026-01-11 00:00:00"]),
        ("0 0 L * *", ["2026-01-31 00:00:00", "2026-02-28 00:00:00"]),
        ("0 0 * * 1#2", ["2026-01-12 00:00:00", "2026-02-09 00:00:00"]),
        ("0 0 * * L5", ["2026-01-30 00:00:00", "2026-02-27 00:00:00"]),
        ("0 0 15W * *", ["2026-01-15 00:00:00", "2026-02-16 00:00:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00:00", "2032-02-29 00:00:00"]),
        ("0 0 13 * 5", ["2026-01-02 00:00:00", "2026-01-09 00:00:00", "2026-01-13 00:00:00"]),
        ("  0   12 * *\t* ", ["2026-01-01 12:00:00"]),
    ],
)
def test_an_expression_fires_where_the_fields_match(expression: str, instants: list[str]) -> None:
    assert first(expression, len(instants)) == instants


@pytest.mark.parametrize(("expression", "instants"), [
    ("0 0 * * 7", ["2026-01-04 00:00:00", "2026-01-11 00:00:00"]),
    ("0 0 * * 6-7", ["2026-01-03 00:00:00", "2026-01-04 00:00:00", "2026-01-10 00:00:00"]),
    ("0 0 * * 7#1", ["2026-01-04 00:00:00", "2026-02-01 00:00:00"]),
])  # fmt: skip
def test_seven_is_sunday_as_in_every_crontab(expression: str, instants: list[str]) -> None:
    assert first(expression, len(instants)) == instants


@pytest.mark.parametrize(
    ("expression", "instants"),
    [
        ("30 1-1 * * *", ["2026-01-01 01:30:00", "2026-01-02 01:30:00"]),
        ("0 0 1-1 * *", ["2026-02-01 00:00:00", "2026-03-01 00:00:00"]),
        ("0 0 * * mon-mon", ["2026-01-05 00:00:00", "2026-01-12 00:00:00"]),
        ("0 0 * * sun-sun", ["2026-01-04 00:00:00", "2026-01-11 00:00:00"]),
        ("0 0 * * 7-7", ["2026-01-04 00:00:00", "2026-01-11 00:00:00"]),
        ("0 0 * * 0-7", ["2026-01-02 00:00:00", "2026-01-03 00:00:00"]),
        ("0 0 * * 7/2", ["2026-01-03 00:00:00", "2026-01-04 00:00:00", "2026-01-06 00:00:00"]),
    ],
)
def test_a_range_from_a_number_to_itself_means_that_number(expression: str, instants: list[str]) -> None:
    assert first(expression, len(instants)) == instants


def test_sunday_may_end_a_range_of_days() -> None:
    assert first("0 0 * * sat-sun", 3) == ["2026-01-03 00:00:00", "2026-01-04 00:00:00", "2026-01-10 00:00:00"]
    assert first("0 0 * * fri-7", 3) == ["2026-01-02 00:00:00", "2026-01-03 00:00:00", "2026-01-04 00:00:00"]


@pytest.mark.parametrize(
    ("nickname", "instants"),
    [
        ("@yearly", ["2027-01-01 00:00:00"]),
        ("@annually", ["2027-01-01 00:00:00"]),
        ("@monthly", ["2026-02-01 00:00:00", "2026-03-01 00:00:00"]),
        ("@weekly", ["2026-01-04 00:00:00", "2026-01-11 00:00:00"]),
        ("@daily", ["2026-01-02 00:00:00"]),
        ("@midnight", ["2026-01-02 00:00:00"]),
        ("@hourly", ["2026-01-01 01:00:00"]),
        ("@Daily", ["2026-01-02 00:00:00"]),
    ],
)
def test_a_nickname_stands_for_its_expression(nickname: str, instants: list[str]) -> None:
    assert first(nickname, len(instants)) == instants


def test_every_nickname_can_be_read() -> None:
    assert all(read_schedule(nickname, Zone()).next_after(NEW_YEAR) for nickname in NICKNAMES)


def test_local_time_is_the_zone_s() -> None:
    assert first("0 12 * * *", 1, zone="Asia/Kolkata") == ["2026-01-01 06:30:00"]


def test_a_base_between_two_seconds_is_not_rounded_past_an_instant() -> None:
    noon, moment = datetime(2026, 1, 1, 12, tzinfo=UTC), timedelta(microseconds=1)
    rule = read_schedule("0 12 * * *", Zone())

    assert rule.next_after(noon - moment) == noon
    assert rule.next_after(noon) == noon + timedelta(days=1)
    assert rule.next_after(noon + moment) == noon + timedelta(days=1)


# Rules that hold for all of them


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    one = st.integers(low, high).map(str)
    span = st.tuples(st.integers(low, high), st.integers(low, high)).map(lambda ends: f"{min(ends)}-{max(ends)}")
    step = st.integers(1, high - low).map(lambda size: f"*/{size}")
    return st.one_of(st.just("*"), one, span, step, st.lists(one, min_size=1, max_size=3).map(",".join))


expressions = st.builds(
    lambda *fields: " ".join(fields),
    numbers(0, 59),
    numbers(0, 23),
    st.just("*") | st.integers(1, 28).map(str),
    st.just("*") | numbers(1, 12),
    st.just("*") | numbers(0, 6),
)
zones = st.sampled_from(
    ["UTC", "Europe/Warsaw", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca"]
)
instants = st.datetimes(min_value=datetime(2020, 1, 1), max_value=datetime(2035, 1, 1), timezones=st.just(UTC))


@settings(max_examples=100, deadline=None)
@given(expression=expressions, zone=zones, after=instants)
def test_the_next_instant_is_strictly_later_whole_seconds_and_utc(expression: str, zone: str, after: datetime) -> None:
    following = read_schedule(expression, Zone(name=zone)).next_after(after)

    assert following is not None
    assert following > after
    assert following.tzinfo is UTC
    assert following.microsecond == 0


@settings(max_examples=50, deadline=None)
@given(expression=expressions, zone=zones, after=instants, hours=st.integers(0, 12))
def test_between_is_next_after_repeated(expression: str, zone: str, after: datetime, hours: int) -> None:
    rule = read_schedule(expression, Zone(name=zone))
    until = after + timedelta(hours=hours)
    repeated = []
    following = rule.next_after(after)
    while following is not None and following <= until:
        repeated.append(following)
        following = rule.next_after(following)

    assert list(rule.between(after, until)) == repeated
    assert all(earlier < later for earlier, later in pairwise(repeated))


def test_between_leaves_out_its_start_and_takes_in_its_end() -> None:
    noon, hour = datetime(2026, 1, 1, 12, tzinfo=UTC), timedelta(hours=1)

    assert list(read_schedule("0 * * * *", Zone()).between(noon, noon + 2 * hour)) == [noon + hour, noon + 2 * hour]


@settings(max_examples=50, deadline=None)
@given(expression=expressions, zone=zones)
def test_what_the_database_keeps_is_read_back_as_an_equal_schedule(expression: str, zone: str) -> None:
    rule = read_schedule(expression, Zone(name=zone))

    assert load_schedule(rule.kind, rule.expression, Zone(name=zone)) == rule


def test_the_period_is_the_time_to_the_next_instant() -> None:
    friday = datetime(2026, 1, 2, 9, tzinfo=UTC)

    assert read_schedule("0 9 * * 1-5", Zone()).period_at(friday) == timedelta(days=3)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 9 * * *", "at 09:00 every day"),
        ("30 2 * * *", "at 02:30 every day"),
        ("15 30 2 * * *", "at 02:30:15 every day"),
        ("0 9,13,17 * * *", "at 09:00, 13:00 and 17:00 every day"),
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("* * * * * *", "every second"),
        ("*/10 * * * * *", "every 10 seconds"),
        ("0 * * * *", "every hour"),
        ("@hourly", "every hour"),
        ("0 */2 * * *", "every 2 hours"),
        ("30 * * * *", "30 minutes past every hour"),
        ("1 * * * *", "1 minute past every hour"),
        ("*/5 * * * mon-fri", "every 5 minutes on Monday to Friday"),
        ("*/15 9-17 * * 1-5", "every 15 minutes from 09:00 until 17:45 on Monday to Friday"),
        ("0 8-18/2 * * 1-5", "at 08:00, 10:00, 12:00, 14:00, 16:00 and 18:00 on Monday to Friday"),
        ("0 4-20/2 * * *", "every 2 hours from 04:00 until 20:00"),
        ("*/7 * * * *", "at minute 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour"),
        ("*/20 1 * * * *", "at second 0, 20 and 40 of minute 1 of every hour"),
        ("0 0 1 * *", "at 00:00 on day 1 of the month"),
        ("0 0 1,15 3-5 *", "at 00:00 on days 1 and 15 of the month in March to May"),
        ("0 0 L * *", "at 00:00 on the last day of the month"),
        ("0 0 LW * *", "at 00:00 on the last weekday of the month"),
        ("0 0 15W * ?", "at 00:00 on the weekday nearest to day 15 of the month"),
        ("0 0 L-3 * *", "at 00:00 on 3 days before the last of the month"),
        ("0 0 * * 5#3", "at 00:00 on the third Friday of the month"),
        ("0 0 * * L5", "at 00:00 on the last Friday of the month"),
        ("0 0 * * sun", "at 00:00 on Sunday"),
        ("0 0 * jan,dec *", "at 00:00 every day in January and December"),
        ("0 0 13 * 5", "at 00:00 on day 13 of the month or on Friday"),
        ("@weekly", "at 00:00 on Sunday"),
    ],
)  # fmt: skip
def test_an_expression_says_in_words_when_it_fires(expression: str, words: str) -> None:
    assert read_schedule(expression, Zone(name="Europe/Warsaw")).describe() == f"{words} in Europe/Warsaw"


# What is refused


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", ["0 fields", "five fields"]),
        ("   ", ["0 fields"]),
        ("* * * *", ["'* * * *'", "4 fields", "five fields"]),
        ("* * * * * * *", ["7 fields"]),
        ("tomorrow", ["'tomorrow'", "1 fields"]),
        ("61 * * * *", ["'61'", "minute"]),
        ("* 24 * * *", ["'24'", "hour"]),
        ("0 0 32 * *", ["'32'", "day of month"]),
        ("0 0 * 13 *", ["'13'", "month"]),
        ("0 0 * 0 *", ["'0'", "month"]),
        ("0 0 * * 8", ["'8'", "day of week"]),
        ("0 0 * * 1#6", ["'1#6'", "day of week"]),
        ("60 0 0 * * *", ["'60'", "second"]),
        ("*/0 * * * *", ["'*/0'", "minute"]),
        ("1-5/0 * * * *", ["'1-5/0'", "minute"]),
        ("0,,1 * * * *", ["'0,,1'", "minute", "empty"]),
        ("* 25 * * *", ["hour '25' is not in 0-23"]),
        ("* 8-25 * * *", ["hour '8-25'", "'25', which is not in 0-23"]),
        ("0 0 * jam *", ["month 'jam' is not in 1-12 or jan-dec"]),
        ("*/70 * * * *", ["minute '*/70'", "1-59"]),
        ("*/60 * * * *", ["minute '*/60'", "1-59"]),
        ("* */24 * * *", ["hour '*/24'", "1-23"]),
        ("0 0 */32 * *", ["day of month '*/32'", "1-31"]),
        ("*/x * * * *", ["minute '*/x'", "1-59"]),
        ("*/ * * * *", ["minute '*/'", "not understood"]),
        ("0 22-1 * * *", ["hour '22-1' goes backwards", "'0-1,22-23'"]),
        ("0 0 * * fri-mon", ["day of week 'fri-mon' goes backwards", "'0-1,5-6'"]),
        ("0 0 5-1 * *", ["day of month '5-1' goes backwards", "'1,5-31'"]),
        ("1-2-3 * * * *", ["minute '1-2-3'", "not understood"]),
        ("*-5 * * * *", ["minute '*-5'", "not understood"]),
        ("? * * * *", ["minute '?'", "not understood"]),
        ("0 0 ?,5 * *", ["day of month '?'", "not understood"]),
        ("L * * * *", ["minute 'L' is not in 0-59"]),
        ("0 0 * L *", ["month 'L'"]),
        ("0 0 * * L", ["day of week 'L'", "L5 for the last Friday"]),
        ("0 0 * * L8", ["day of week 'L8'", "0-7"]),
        ("0 0 * * 5#0", ["day of week '5#0'", "1-5"]),
        ("0 0 * * 8#1", ["day of week '8#1'", "0-7"]),
        ("0 0 * * 1-5#2", ["day of week '1-5#2'"]),
        ("0 0 0W * *", ["day of month '0W'", "1-31"]),
        ("0 0 32W * *", ["day of month '32W'", "1-31"]),
        ("0 0 L-31 * *", ["day of month 'L-31'", "1-30"]),
        ("0 0 L-0 * *", ["day of month 'L-0'", "1-30"]),
        ("0 0 W * *", ["day of month 'W'"]),
        ("0 0 15W * mon", ["day of month '15W'", "day of week 'mon'", "write * there"]),
        ("0 0 LW * */2", ["day of month 'LW'", "day of week '*/2'"]),
        ("0 0 * * 15W", ["day of week '15W'"]),
        ("H(5-2) * * * *", ["minute 'H(5-2)' goes backwards", "H(0-29)"]),
        ("H(0-60) * * * *", ["minute 'H(0-60)'", "'60', which is not in 0-59"]),
        ("H/60 * * * *", ["minute 'H/60'", "1-59"]),
        ("H(0-29 * * * *", ["minute 'H(0-29'", "not understood"]),
        ("(1) * * * *", ["minute '(1)'", "not understood"]),
        ("0 0 31W 2 *", ["never fires"]),
        ("0 0 L-29 2 *", ["never fires"]),
        ("x * * * *", ["'x'", "minute"]),
        ("0 0 * * someday", ["'someday'", "day of week"]),
        ("-1 * * * *", ["'-1'", "minute"]),
        ("0 0 30 2 *", ["never fires"]),
        ("0 0 31 2,4,6,9,11 *", ["never fires"]),
        ("@fortnightly", ["unknown nickname '@fortnightly'", "@weekly"]),
        ("@reboot", ["unknown nickname '@reboot'"]),
        ("٣ * * * *", ["'٣'", "no cron field"]),
        ("１ * * * *", ["'１'", "no cron field"]),
        ("0 0 * * *\x00", ["'\\x00'", "no cron field"]),
        ("0 0 $(date) * *", ["'$'", "no cron field"]),
        ("0.5 * * * *", ["'.'", "no cron field"]),
        ("* " * 2500, ["4999 characters", "too many"]),
        ("9" * 5000, ["5000 characters", "too many"]),
        ("9" * 150 + " * * * *", ["minute"]),
    ],
)  # fmt: skip
def test_a_bad_expression_is_refused_saying_what_is_wrong(expression: str, words: list[str]) -> None:
    with pytest.raises(InvalidValue) as refusal:
        read_schedule(expression, Zone(), name="report")

    assert refusal.value.field == "schedule"
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_a_day_zero_is_refused_instead_of_meaning_the_first() -> None:
    with pytest.raises(InvalidValue, match="day of month"):
        read_schedule("0 0 0 * *", Zone())


@pytest.mark.parametrize("expression", ["R R * * *", "0 r * * *", "R(0-9) * * * *"])
def test_an_expression_that_yields_other_instants_each_time_is_refused(expression: str) -> None:
    with pytest.raises(InvalidValue, match=r"minute|hour"):
        read_schedule(expression, Zone(), name="report")


tokens = st.sampled_from(["*", "0", "1", "?", "L", "15W", "L5", "mon", "jan", "1#2", "*/2", "5-1", "1-3/2", "0,30"])
noise = st.text(alphabet="0123456789*/,-#?LWlwmonsjan@", min_size=1, max_size=6)


@settings(max_examples=200, deadline=None)
@given(fields=st.lists(tokens | noise, min_size=5, max_size=6))
def test_any_text_is_a_schedule_that_fires_or_is_refused_as_one(fields: list[str]) -> None:
    try:
        rule = load_schedule("cron", " ".join(fields), Zone())
    except InvalidValue:
        return
    following = rule.next_after(NEW_YEAR)

    assert following is not None
    assert following > NEW_YEAR


def test_an_expression_of_the_greatest_length_is_read() -> None:
    minutes = ",".join(str(minute) for minute in range(60))
    expression = f"{minutes} * * * *"

    assert len(expression) < MAX_LENGTH
    assert first(expression, 1) == ["2026-01-01 00:01:00"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (5, ["5 is not a schedule", "*/5 * * * *"]),
        (None, ["None is not a schedule"]),
        ([], ["[] is no list of 1 to", "0 8 * * *"]),
        ([["* * * * *"]], ["another list in it"]),
        ({"kind": "lunar"}, ["unknown kind 'lunar'", "cron"]),
        ({"kind": "chron"}, ["unknown kind 'chron', did you mean 'cron'?"]),
        ({"expression": "* * * * *"}, ["unknown kind None"]),
        ({"kind": "cron"}, ["no 'expression'", "*/5 * * * *"]),
        ({"kind": "cron", "expression": 5}, ["schedule.expression: 5 is no text"]),
        ({"kind": "cron", "expression": "* * * * *", "every": "5m"}, ["no key 'every'"]),
    ],
)
def test_what_is_no_schedule_is_refused_with_an_example(value: Any, words: list[str]) -> None:
    with pytest.raises(InvalidValue) as refusal:
        read_schedule(value, Zone())

    assert refusal.value.field.startswith("schedule")
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_a_kind_that_is_no_text_is_refused_as_unknown() -> None:
    with pytest.raises(InvalidValue, match="schedule: unknown kind"):
        read_schedule({"kind": ["cron"]}, Zone())


def test_a_kind_that_the_database_keeps_but_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidValue, match="unknown kind 'lunar'"):
        load_schedule("lunar", "full moon", Zone())


def test_a_mapping_with_its_kind_means_the_same_as_the_text() -> None:
    mapping = {"kind": "cron", "expression": "0 9 * * *"}

    assert read_schedule(mapping, Zone()) == read_schedule("0 9 * * *", Zone()) == Cron("0 9 * * *", Zone())


# Time zones


def test_a_zone_of_the_tz_database_is_taken() -> None:
    assert read_zone("Europe/Warsaw") == "Europe/Warsaw"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Europe/Warsav", "did you mean 'Europe/Warsaw'"),
        ("europe/warsaw", "did you mean 'Europe/Warsaw'"),
        ("Mars/Olympus_Mons", "unknown time zone 'Mars/Olympus_Mons'"),
        ("../../etc/passwd", "use a name like 'Europe/Warsaw' or 'UTC'"),
        ("", "unknown time zone"),
    ],
)
def test_a_zone_nobody_knows_is_refused_with_the_nearest_one(name: str, words: str) -> None:
    with pytest.raises(UnknownTimeZone, match=words):
        read_zone(name)


@pytest.mark.parametrize("name", [None, 2, UTC])
def test_a_zone_that_is_no_text_is_refused(name: Any) -> None:
    with pytest.raises(InvalidValue, match=r"timezone: .* is not text"):
        read_zone(name)


def test_a_zone_that_this_machine_s_tz_database_lacks_is_an_error_of_ours() -> None:
    kept = load_schedule("cron", "0 9 * * *", Zone(name="Mars/Olympus_Mons"))

    with pytest.raises(UnknownTimeZone, match="Mars/Olympus_Mons"):
        kept.next_after(NEW_YEAR)


@pytest.mark.parametrize("expression", ["* * * 8 -", "* * * * -", "- * * * *", "* * , * *", "* - * * * *"])
def test_a_field_of_punctuation_alone_is_refused(expression: str) -> None:
    with pytest.raises(InvalidValue):
        read_schedule(expression, Zone())
