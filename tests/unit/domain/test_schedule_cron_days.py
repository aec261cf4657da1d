"""The days of cron: `L`, `W`, `#`, both day fields and `H`, each held against a matcher that looks at one day at a time."""

from __future__ import annotations

import subprocess
import sys
from calendar import monthrange
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.dst import Fold
from celery_tm.domain.schedule import Cron, Crontab, Zone, load_schedule, read_schedule, seldom
from celery_tm.domain.schedule.cron import _Walk
from celery_tm.errors import InvalidValue

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)  # a Thursday
DAY = timedelta(days=1)


def days(expression: str, count: int, *, kind: str = "cron", after: datetime = NEW_YEAR - DAY) -> list[str]:
    rule = load_schedule(kind, expression, Zone())
    return [f"{at:%Y-%m-%d}" for at in islice(rule.between(after, datetime(2500, 1, 1, tzinfo=UTC)), count)]


@pytest.mark.parametrize(
    ("day", "expected"),
    [
        ("L", ["2026-01-31", "2026-02-28", "2026-03-31"]),
        ("L-3", ["2026-01-28", "2026-02-25", "2026-03-28"]),
        ("L-30", ["2026-01-01", "2026-03-01", "2026-05-01"]),
        ("LW", ["2026-01-30", "2026-02-27", "2026-03-31", "2026-04-30", "2026-05-29"]),
        ("15W", ["2026-01-15", "2026-02-16", "2026-03-16", "2026-04-15", "2026-05-15"]),
        ("1W", ["2026-01-01", "2026-02-02", "2026-03-02", "2026-04-01", "2026-05-01", "2026-06-01", "2026-07-01",
                "2026-08-03"]),
        ("31W", ["2026-01-30", "2026-03-31", "2026-05-29"]),
        ("1W,L", ["2026-01-01", "2026-01-31", "2026-02-02", "2026-02-28"]),
        ("1,LW,l-1", ["2026-01-01", "2026-01-30", "2026-02-01", "2026-02-27", "2026-03-01"]),
    ],
)  # fmt: skip
def test_a_day_of_month_may_be_counted_from_the_end_or_moved_to_a_weekday(day: str, expected: list[str]) -> None:
    assert days(f"0 0 {day} * *", len(expected)) == expected
    assert days(f"0 0 {day.lower()} * ?", len(expected)) == expected


@pytest.mark.parametrize(
    ("day", "expected"),
    [
        ("5#3", ["2026-01-16", "2026-02-20", "2026-03-20"]),
        ("fri#3", ["2026-01-16", "2026-02-20", "2026-03-20"]),
        ("5#5", ["2026-01-30", "2026-05-29", "2026-07-31"]),
        ("L5", ["2026-01-30", "2026-02-27", "2026-03-27"]),
        ("5L", ["2026-01-30", "2026-02-27", "2026-03-27"]),
        ("friL", ["2026-01-30", "2026-02-27", "2026-03-27"]),
        ("L7", ["2026-01-25", "2026-02-22", "2026-03-29"]),
        ("1#1,L5", ["2026-01-05", "2026-01-30", "2026-02-02", "2026-02-27"]),
        ("mon,5#1", ["2026-01-02", "2026-01-05", "2026-01-12"]),
        ("5/1", ["2026-01-02", "2026-01-03", "2026-01-09"]),
    ],
)
def test_a_day_of_week_may_be_the_nth_or_the_last_of_the_month(day: str, expected: list[str]) -> None:
    assert days(f"0 0 * * {day}", len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 0 13 * 5", ["2026-01-02", "2026-01-09", "2026-01-13", "2026-01-16"]),  # either
        ("0 0 31 2 1", ["2026-02-02", "2026-02-09", "2026-02-16"]),  # one of the two never comes
        ("0 0 */2 * 1", ["2026-01-05", "2026-01-19", "2026-02-09", "2026-02-23"]),  # both: one begins with *
        ("0 0 1-31/2 * 1", ["2026-01-01", "2026-01-03", "2026-01-05", "2026-01-07"]),  # either
        ("0 0 13 * */5", ["2026-02-13", "2026-03-13", "2026-09-13"]),  # both: Sunday or Friday, the 13th
        ("0 0 * * 1", ["2026-01-05", "2026-01-12"]),
        ("0 0 ? * 1", ["2026-01-05", "2026-01-12"]),
        ("0 0 L * 1#1", ["2026-01-05", "2026-01-31", "2026-02-02"]),
    ],
)
def test_two_day_fields_are_either_or_unless_one_begins_with_a_star(expression: str, expected: list[str]) -> None:
    assert days(expression, len(expected)) == expected


# Celery's own crontab


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 0 13 * 5", ["2026-02-13", "2026-03-13", "2026-11-13"]),
        ("0 0 29 2 1", ["2044-02-29", "2072-02-29", "2112-02-29"]),
        ("0 0 1 * *", ["2026-01-01", "2026-02-01"]),
    ],
)
def test_in_a_crontab_both_day_fields_must_match(expression: str, expected: list[str]) -> None:
    assert days(expression, len(expected), kind="crontab") == expected


def test_a_crontab_is_not_a_cron() -> None:
    crontab = read_schedule({"kind": "crontab", "expression": "0 9  * * 1"}, Zone())

    assert crontab == Crontab("0 9 * * 1", Zone()) == load_schedule("crontab", crontab.expression, Zone())
    assert crontab != Cron("0 9 * * 1", Zone())
    assert read_schedule("0 9 * * 1", Zone()) == Cron("0 9 * * 1", Zone())
    assert crontab.describe() == "at 09:00 on Monday in UTC"
    assert load_schedule("crontab", "0 0 13 * 5", Zone()).describe() == (
        "at 00:00 on day 13 of the month if it is Friday in UTC"
    )


def test_a_crontab_has_no_seconds() -> None:
    with pytest.raises(InvalidValue, match="6 fields, and Celery's crontab has no seconds"):
        load_schedule("crontab", "0 0 9 * * 1", Zone())


def test_a_crontab_that_never_fires_is_refused() -> None:
    with pytest.raises(InvalidValue, match="never fires"):
        load_schedule("crontab", "0 0 30 2 1", Zone())


def test_a_crontab_that_fires_once_in_decades_is_found_at_once() -> None:
    rule = load_schedule("crontab", "0 0 29 2 1", Zone(name="America/New_York"))
    rule.next_after(NEW_YEAR)
    started = process_time()

    assert seldom(rule, NEW_YEAR) == datetime(2044, 2, 29, 5, tzinfo=UTC) - NEW_YEAR
    assert process_time() - started < 0.05
    # From there on there is one more before 2100, which has no 29 February, and the next is 40 years later.
    assert rule.next_after(datetime(2072, 3, 1, tzinfo=UTC)) == datetime(2112, 2, 29, 5, tzinfo=UTC)


# Held against one day at a time


def allows_month_day(item: str, day: date) -> bool:
    length = monthrange(day.year, day.month)[1]
    if item in "*?":
        return True
    if item == "L":
        return day.day == length
    if item == "LW":
        last = max(n for n in range(1, length + 1) if day.replace(day=n).weekday() < 5)
        return day.day == last
    if item.startswith("L-"):
        return day.day == length - int(item[2:])
    if item.endswith("W"):
        wanted = int(item[:-1])
        if wanted > length:
            return False
        weekdays = [n for n in range(1, length + 1) if day.replace(day=n).weekday() < 5]
        # Saturday goes to Friday and Sunday to Monday, both one day off; at the month's ends it is two.
        return day.day == min(weekdays, key=lambda n: abs(n - wanted))
    if item.startswith("*/"):
        return (day.day - 1) % int(item[2:]) == 0
    low, _, high = item.partition("-")
    return int(low) <= day.day <= int(high or low)


def allows_weekday(item: str, day: date) -> bool:
    number = day.isoweekday() % 7
    if item in "*?":
        return True
    if "#" in item:
        weekday, nth = item.split("#")
        same = [n for n in range(1, day.day + 1) if day.replace(day=n).weekday() == day.weekday()]
        return number == int(weekday) % 7 and len(same) == int(nth)
    if item.startswith("L"):
        return number == int(item[1:]) % 7 and (day + timedelta(days=7)).month != day.month
    if item.startswith("*/"):
        return number % int(item[2:]) == 0
    low, _, high = item.partition("-")
    return any(n % 7 == number for n in range(int(low), int(high or low) + 1))


def allows(month_days: str, weekdays: str, day: date, *, both: bool) -> bool:
    of_month = any(allows_month_day(item, day) for item in month_days.split(","))
    of_week = any(allows_weekday(item, day) for item in weekdays.split(","))
    if both or month_days[0] in "*?" or weekdays[0] in "*?":
        return of_month and of_week
    return of_month or of_week


def spans(low: int, high: int) -> st.SearchStrategy[str]:
    return st.tuples(st.integers(low, high), st.integers(low, high)).map(lambda ends: f"{min(ends)}-{max(ends)}")


def several(one: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(one, min_size=1, max_size=3).map(",".join)


month_days = st.one_of(
    st.sampled_from(["*", "?"]),
    st.integers(1, 31).map(lambda n: f"*/{n}"),
    several(
        st.one_of(
            st.integers(1, 31).map(str),
            spans(1, 31),
            st.integers(1, 31).map(lambda n: f"{n}W"),
            st.integers(1, 30).map(lambda n: f"L-{n}"),
            st.sampled_from(["L", "LW"]),
        )
    ),
)
weekdays = st.one_of(
    st.sampled_from(["*", "?"]),
    st.integers(1, 7).map(lambda n: f"*/{n}"),
    several(
        st.one_of(
            st.integers(0, 7).map(str),
            spans(0, 7),
            st.builds(lambda day, nth: f"{day}#{nth}", st.integers(0, 7), st.integers(1, 5)),
            st.integers(0, 7).map(lambda day: f"L{day}"),
        )
    ),
)


@settings(max_examples=100, deadline=None)
@given(
    month_day=month_days, weekday=weekdays, kind=st.sampled_from(["cron", "crontab"]),
    since=st.dates(min_value=date(1990, 1, 1), max_value=date(2099, 1, 1)),
)  # fmt: skip
def test_the_days_of_an_expression_are_those_that_match_one_by_one(
    month_day: str, weekday: str, kind: str, since: date
) -> None:
    if "W" in month_day and weekday not in ("*", "?"):
        weekday = "*"
    expression, both = f"30 12 {month_day} * {weekday}", kind == "crontab"
    window = [since + n * DAY for n in range(500)]
    expected = [day for day in window if allows(month_day, weekday, day, both=both)]
    if not expected and never_fires(kind, expression):
        return
    begin = datetime(since.year, since.month, since.day, tzinfo=UTC)

    assert [at.date() for at in load_schedule(kind, expression, Zone()).between(begin, begin + 500 * DAY)] == expected


def never_fires(kind: str, expression: str) -> bool:
    try:
        load_schedule(kind, expression, Zone())
    except InvalidValue as refusal:
        return "never fires" in str(refusal)
    return False


plain = st.builds(
    lambda *fields: " ".join(fields),
    several(st.integers(0, 59).map(str)) | st.just("*"),
    several(spans(0, 59)) | st.integers(1, 59).map(lambda n: f"*/{n}"),
    several(st.integers(0, 23).map(str)) | st.just("*") | st.integers(1, 23).map(lambda n: f"{n}/2"),
    st.just("*") | several(st.integers(1, 28).map(str)),
    st.just("*") | several(st.integers(1, 12).map(str)),
    st.just("*"),
) | st.builds("{} {} * * {}".format, st.integers(0, 59), st.integers(0, 23), several(spans(0, 7)))


@settings(max_examples=150, deadline=None)
@given(expression=plain, start=st.datetimes(min_value=datetime(1600, 1, 1), max_value=datetime(9990, 1, 1)))
def test_croniter_and_the_walk_over_days_agree_where_both_may_be_asked(expression: str, start: datetime) -> None:
    rule = load_schedule("cron", expression, Zone())
    assert isinstance(rule, Cron)
    walk = _Walk(rule.fields)

    assert walk.croniter is not None
    for _ in range(4):
        found = walk.next_after(start)
        assert found is not None
        assert found == walk.days.next_after(start)
        start = found


# H


def test_h_is_the_same_for_a_name_in_every_process_and_release() -> None:
    # Frozen: a change here moves the jobs of everybody who uses H.
    at = read_schedule("H H(0-6) * * *", Zone(), name="report").next_after(NEW_YEAR)
    assert at == datetime(2026, 1, 1, 5, 43, tzinfo=UTC)
    script = (
        "from celery_tm.domain.schedule import *; from datetime import *;"
        "print(read_schedule('H H(0-6) * * *', Zone(), name='report').next_after(datetime(2026, 1, 1, tzinfo=UTC)))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert answer.strip() == str(at)


@pytest.mark.parametrize(
    ("field", "index", "allowed"),
    [
        ("H", 1, range(60)), ("H(0-29)", 1, range(30)), ("H(5-5)", 1, [5]), ("H", 2, range(24)), ("H(0-6)", 2, range(7)),
        ("H", 0, range(60)),
    ],
)  # fmt: skip
def test_h_spreads_names_evenly_over_its_range(field: str, index: int, allowed: range) -> None:
    parts = ["0", "0", "0", "*", "*", "*"]
    parts[index] = field
    hits: Counter[int] = Counter()
    for number in range(600):
        rule = load_schedule("cron", " ".join(parts), Zone(), name=f"job-{number}")
        assert isinstance(rule, Cron)
        (value,) = (rule.fields.seconds, rule.fields.minutes, rule.fields.hours)[index]
        hits[value] += 1

    assert set(hits) == set(allowed)
    assert max(hits.values()) <= 4 * 600 / len(allowed)


@pytest.mark.parametrize("name", ["a", "b", "report", "ż", "x" * 100])
def test_h_with_a_step_keeps_the_step(name: str) -> None:
    quarters = load_schedule("cron", "H/15 * * * *", Zone(), name=name)
    tens = load_schedule("cron", "H(0-29)/10 * * * *", Zone(), name=name)
    assert isinstance(quarters, Cron)
    assert isinstance(tens, Cron)

    first = quarters.fields.minutes[0]
    assert first < 15
    assert quarters.fields.minutes == (first, first + 15, first + 30, first + 45)
    first = tens.fields.minutes[0]
    assert first < 10
    assert tens.fields.minutes == (first, first + 10, first + 20)


def test_h_in_a_day_field_is_a_day_that_every_month_and_week_has() -> None:
    for number in range(100):
        of_month = load_schedule("cron", "0 0 H * *", Zone(), name=f"job-{number}")
        of_week = load_schedule("cron", "0 0 * H H", Zone(), name=f"job-{number}")
        assert len(list(of_month.between(NEW_YEAR - DAY, NEW_YEAR + 364 * DAY))) == 12
        assert len(list(of_week.between(NEW_YEAR - DAY, NEW_YEAR + 364 * DAY))) in (4, 5)


def test_the_name_is_part_of_a_schedule_only_where_h_is_spread_by_it() -> None:
    assert read_schedule("0 9 * * *", Zone(), name="a") == read_schedule("0 9 * * *", Zone(), name="b")
    assert read_schedule("H 9 * * *", Zone(), name="a") != read_schedule("H 9 * * *", Zone(), name="b")
    assert read_schedule("H 9 * * *", Zone(), name="a") == read_schedule("H 9 * * *", Zone(), name="a")
    assert read_schedule("h 9 * * *", Zone(), name="a").next_after(NEW_YEAR) == (
        read_schedule("H 9 * * *", Zone(), name="a").next_after(NEW_YEAR)
    )


def test_h_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidValue, match="minute 'H' is spread by the definition's name"):
        read_schedule("H * * * *", Zone())


@pytest.mark.parametrize(
    ("expression", "fold"),
    [
        ("30 1 * * *", Fold.FIRST), ("0,30 1,2 * * *", Fold.FIRST), ("H 1 * * *", Fold.FIRST),
        ("H(0-29) H(1-1) * * *", Fold.FIRST),
        ("H/30 1 * * *", Fold.BOTH), ("*/30 1 * * *", Fold.BOTH), ("30 * * * *", Fold.BOTH), ("30 1-2 * * *", Fold.BOTH),
        ("30 1 1-31 * *", Fold.FIRST), ("* 30 1 * * *", Fold.BOTH),
    ],
)  # fmt: skip
def test_a_fixed_time_is_one_without_a_star_a_range_or_a_step(expression: str, fold: Fold) -> None:
    # New York repeats 01:00-02:00 on 1 November.
    since, until = datetime(2026, 11, 1, 4, tzinfo=UTC), datetime(2026, 11, 1, 9, tzinfo=UTC)
    unset = read_schedule(expression, Zone(name="America/New_York"), name="report")
    stated = read_schedule(expression, Zone(name="America/New_York", fold=fold), name="report")
    other = read_schedule(
        expression, Zone(name="America/New_York", fold=Fold.BOTH if fold is Fold.FIRST else Fold.FIRST), name="report"
    )

    assert list(unset.between(since, until)) == list(stated.between(since, until))
    assert list(unset.between(since, until)) != list(other.between(since, until))


def test_an_ordinary_expression_answers_well_under_a_millisecond() -> None:
    for expression in ("*/5 * * * *", "30 2 * * *", "0 9 * * mon-fri", "0 0 15W * *", "0 0 13 * 5"):
        rule = read_schedule(expression, Zone(name="Europe/Warsaw"))
        rule.next_after(NEW_YEAR)
        started = process_time()
        for day in range(200):
            rule.next_after(NEW_YEAR + day * DAY)
        assert (process_time() - started) / 200 < 0.001
