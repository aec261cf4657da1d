"""Clocks put forward and back: when local rules fire then, by table for three zones and by an independent count for many."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.dst import Fold, Gap, Transition, transitions
from celery_tm.domain.schedule import Zone, read_schedule

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
NEW_YORK, WARSAW, LORD_HOWE = "America/New_York", "Europe/Warsaw", "Australia/Lord_Howe"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires(
    expression: str, zone: str, after: str, until: str, *, gap: Gap = Gap.SHIFT, fold: Fold | None = None
) -> list[str]:
    """Return the instants of a rule in UTC, as text."""
    rule = read_schedule(expression, Zone(name=zone, gap=gap, fold=fold))
    return [instant.strftime("%m-%d %H:%M") for instant in rule.between(utc(after), utc(until))]


# Put forward: New York skips 02:00-03:00 on 8 March, Warsaw on 29 March, Lord Howe 02:00-02:30 on 4 October


@pytest.mark.parametrize(
    ("expression", "zone", "after", "until", "expected"),
    [
        ("30 2 * * *", NEW_YORK, "2026-03-07 00:00", "2026-03-10 00:00", ["03-07 07:30", "03-08 07:00", "03-09 06:30"]),
        ("0 2 * * *", NEW_YORK, "2026-03-07 12:00", "2026-03-10 00:00", ["03-08 07:00", "03-09 06:00"]),
        ("0 3 * * *", NEW_YORK, "2026-03-07 12:00", "2026-03-10 00:00", ["03-08 07:00", "03-09 07:00"]),
        ("59 59 1 * * *", NEW_YORK, "2026-03-07 12:00", "2026-03-09 12:00", ["03-08 06:59", "03-09 05:59"]),
        ("15,45 2 * * *", NEW_YORK, "2026-03-08 00:00", "2026-03-09 00:00", ["03-08 07:00"]),
        ("0 2,3 * * *", NEW_YORK, "2026-03-08 00:00", "2026-03-09 00:00", ["03-08 07:00"]),
        ("*/30 * * * *", NEW_YORK, "2026-03-08 06:00", "2026-03-08 08:00",
         ["03-08 06:30", "03-08 07:00", "03-08 07:30", "03-08 08:00"]),
        ("0 */2 * * *", NEW_YORK, "2026-03-08 04:59", "2026-03-08 08:00", ["03-08 05:00", "03-08 07:00", "03-08 08:00"]),
        ("30 2 * * *", WARSAW, "2026-03-28 00:00", "2026-03-31 00:00", ["03-28 01:30", "03-29 01:00", "03-30 00:30"]),
        ("30 2 29 3 *", WARSAW, "2026-01-01 00:00", "2027-12-31 00:00", ["03-29 01:00", "03-29 00:30"]),
        ("*/30 * * * *", WARSAW, "2026-03-29 00:00", "2026-03-29 02:00",
         ["03-29 00:30", "03-29 01:00", "03-29 01:30", "03-29 02:00"]),
        ("15 2 * * *", LORD_HOWE, "2026-10-02 00:00", "2026-10-05 00:00", ["10-02 15:45", "10-03 15:30", "10-04 15:15"]),
        ("45 2 * * *", LORD_HOWE, "2026-10-02 00:00", "2026-10-05 00:00", ["10-02 16:15", "10-03 15:45", "10-04 15:45"]),
        ("*/10 2 * * *", LORD_HOWE, "2026-10-03 12:00", "2026-10-04 12:00",
         ["10-03 15:30", "10-03 15:40", "10-03 15:50"]),
    ],
)  # fmt: skip
def test_what_falls_into_skipped_time_runs_at_the_first_valid_instant(
    expression: str, zone: str, after: str, until: str, expected: list[str]
) -> None:
    assert fires(expression, zone, after, until) == expected


@pytest.mark.parametrize(
    ("expression", "zone", "after", "until", "expected"),
    [
        ("30 2 * * *", NEW_YORK, "2026-03-07 00:00", "2026-03-10 00:00", ["03-07 07:30", "03-09 06:30"]),
        ("0 3 * * *", NEW_YORK, "2026-03-07 12:00", "2026-03-10 00:00", ["03-08 07:00", "03-09 07:00"]),
        ("0 */2 * * *", NEW_YORK, "2026-03-08 04:59", "2026-03-08 08:00", ["03-08 05:00", "03-08 08:00"]),
        ("30 2 29 3 *", WARSAW, "2026-01-01 00:00", "2027-12-31 00:00", ["03-29 00:30"]),
        ("*/10 2 * * *", LORD_HOWE, "2026-10-03 12:00", "2026-10-04 12:00", ["10-03 15:30", "10-03 15:40", "10-03 15:50"]),
    ],
)
def test_with_gap_skip_what_falls_into_skipped_time_does_not_run(
    expression: str, zone: str, after: str, until: str, expected: list[str]
) -> None:
    assert fires(expression, zone, after, until, gap=Gap.SKIP) == expected


# Put back: New York repeats 01:00-02:00 on 1 November, Warsaw 02:00-03:00 on 25 October, Lord Howe 01:30-02:00 on 5 April


@pytest.mark.parametrize(
    ("expression", "zone", "after", "until", "expected"),
    [
        ("30 1 * * *", NEW_YORK, "2026-10-31 00:00", "2026-11-03 00:00", ["10-31 05:30", "11-01 05:30", "11-02 06:30"]),
        ("0 1 * * *", NEW_YORK, "2026-10-31 12:00", "2026-11-03 00:00", ["11-01 05:00", "11-02 06:00"]),
        ("0 2 * * *", NEW_YORK, "2026-10-31 12:00", "2026-11-03 00:00", ["11-01 07:00", "11-02 07:00"]),
        ("0,30 1 * * *", NEW_YORK, "2026-11-01 00:00", "2026-11-02 00:00", ["11-01 05:00", "11-01 05:30"]),
        ("30 2 * * *", WARSAW, "2026-10-24 00:00", "2026-10-27 00:00", ["10-24 00:30", "10-25 00:30", "10-26 01:30"]),
        ("0 3 * * *", WARSAW, "2026-10-24 12:00", "2026-10-27 00:00", ["10-25 02:00", "10-26 02:00"]),
        ("45 1 * * *", LORD_HOWE, "2026-04-03 12:00", "2026-04-06 00:00", ["04-03 14:45", "04-04 14:45", "04-05 15:15"]),
        ("15 1 * * *", LORD_HOWE, "2026-04-04 12:00", "2026-04-06 00:00", ["04-04 14:15", "04-05 14:45"]),
    ],
)
def test_a_fixed_time_in_repeated_time_runs_once_in_the_first_pass(
    expression: str, zone: str, after: str, until: str, expected: list[str]
) -> None:
    assert fires(expression, zone, after, until) == expected


@pytest.mark.parametrize(
    ("expression", "zone", "after", "until", "expected"),
    [
        ("*/30 * * * *", NEW_YORK, "2026-11-01 04:30", "2026-11-01 07:30",
         ["11-01 05:00", "11-01 05:30", "11-01 06:00", "11-01 06:30", "11-01 07:00", "11-01 07:30"]),
        ("30 * * * *", NEW_YORK, "2026-11-01 04:00", "2026-11-01 08:00",
         ["11-01 04:30", "11-01 05:30", "11-01 06:30", "11-01 07:30"]),
        ("30 0-2 * * *", NEW_YORK, "2026-11-01 04:00", "2026-11-02 00:00",
         ["11-01 04:30", "11-01 05:30", "11-01 06:30", "11-01 07:30"]),
        ("*/30 * * * *", WARSAW, "2026-10-24 23:30", "2026-10-25 02:00",
         ["10-25 00:00", "10-25 00:30", "10-25 01:00", "10-25 01:30", "10-25 02:00"]),
        ("*/30 * * * *", LORD_HOWE, "2026-04-04 14:00", "2026-04-04 16:00",
         ["04-04 14:30", "04-04 15:00", "04-04 15:30", "04-04 16:00"]),
        ("*/15 1 * * *", LORD_HOWE, "2026-04-04 13:00", "2026-04-05 00:00",
         ["04-04 14:00", "04-04 14:15", "04-04 14:30", "04-04 14:45", "04-04 15:00", "04-04 15:15"]),
    ],
)  # fmt: skip
def test_a_rule_with_a_star_a_range_or_a_step_runs_in_both_passes(
    expression: str, zone: str, after: str, until: str, expected: list[str]
) -> None:
    assert fires(expression, zone, after, until) == expected


@pytest.mark.parametrize("expression", ["30 1 * * *", "30-31/5 1 * * *"])
@pytest.mark.parametrize(
    ("fold", "expected"),
    [
        (Fold.FIRST, ["11-01 05:30", "11-02 06:30"]),
        (Fold.SECOND, ["11-01 06:30", "11-02 06:30"]),
        (Fold.BOTH, ["11-01 05:30", "11-01 06:30", "11-02 06:30"]),
    ],
)
def test_a_stated_fold_policy_goes_before_the_rule_s_own(expression: str, fold: Fold, expected: list[str]) -> None:
    assert fires(expression, NEW_YORK, "2026-11-01 00:00", "2026-11-03 00:00", fold=fold) == expected


@pytest.mark.parametrize(
    ("fold", "expected"),
    [
        (Fold.FIRST, ["04-04 14:15", "04-04 14:45", "04-04 15:45", "04-04 16:15"]),
        (Fold.SECOND, ["04-04 14:15", "04-04 15:15", "04-04 15:45", "04-04 16:15"]),
        (Fold.BOTH, ["04-04 14:15", "04-04 14:45", "04-04 15:15", "04-04 15:45", "04-04 16:15"]),
    ],
)
def test_half_an_hour_put_back_repeats_half_an_hour(fold: Fold, expected: list[str]) -> None:
    assert fires("15,45 * * * *", LORD_HOWE, "2026-04-04 14:00", "2026-04-04 16:30", fold=fold) == expected


# Where the base stands


@pytest.mark.parametrize(
    ("after", "fold", "expected"),
    [
        ("2026-11-01 05:29", Fold.FIRST, "11-01 05:30"),
        ("2026-11-01 05:30", Fold.FIRST, "11-02 06:30"),
        ("2026-11-01 05:45", Fold.FIRST, "11-02 06:30"),
        ("2026-11-01 06:00", Fold.FIRST, "11-02 06:30"),
        ("2026-11-01 06:15", Fold.FIRST, "11-02 06:30"),
        ("2026-11-01 06:45", Fold.FIRST, "11-02 06:30"),
        ("2026-11-01 05:15", Fold.SECOND, "11-01 06:30"),
        ("2026-11-01 06:00", Fold.SECOND, "11-01 06:30"),
        ("2026-11-01 06:15", Fold.SECOND, "11-01 06:30"),
        ("2026-11-01 06:30", Fold.SECOND, "11-02 06:30"),
        ("2026-11-01 05:30", Fold.BOTH, "11-01 06:30"),
        ("2026-11-01 06:15", Fold.BOTH, "11-01 06:30"),
        ("2026-11-01 06:30", Fold.BOTH, "11-02 06:30"),
    ],
)
def test_a_base_inside_the_repeated_hour_never_yields_a_past_or_a_repeated_time(
    after: str, fold: Fold, expected: str
) -> None:
    assert fires("30 1 * * *", NEW_YORK, after, "2026-11-02 12:00", fold=fold)[0] == expected


@pytest.mark.parametrize(("zone", "change"), [
    (NEW_YORK, "2026-03-08 07:00"), (NEW_YORK, "2026-11-01 06:00"),
    (WARSAW, "2026-03-29 01:00"), (WARSAW, "2026-10-25 01:00"),
    (LORD_HOWE, "2026-10-03 15:30"), (LORD_HOWE, "2026-04-04 15:00"),
])  # fmt: skip
@pytest.mark.parametrize("expression", ["30 1 * * *", "*/7 * * * *", "0 2 * * *", "*/20 * * * * *"])
def test_every_base_near_a_change_yields_a_later_time(expression: str, zone: str, change: str) -> None:
    rule = read_schedule(expression, Zone(name=zone))

    for minutes in range(-75, 76, 3):
        base = utc(change) + minutes * MINUTE + timedelta(seconds=1)
        following = rule.next_after(base)
        assert following is not None
        assert base < following < base + 26 * HOUR


def test_a_base_in_any_zone_means_its_instant() -> None:
    base = utc("2026-11-01 06:15")
    rule = read_schedule("30 1 * * *", Zone(name=NEW_YORK))

    assert rule.next_after(base.astimezone(ZoneInfo("Asia/Tokyo"))) == rule.next_after(base)
    assert rule.next_after(base.astimezone(ZoneInfo(NEW_YORK))) == rule.next_after(base)


# The changes themselves


def test_the_changes_of_a_year_are_found_to_the_second() -> None:
    assert transitions(ZoneInfo(NEW_YORK), 2026) == (
        Transition(utc("2026-03-08 07:00"), -5 * HOUR, -4 * HOUR),
        Transition(utc("2026-11-01 06:00"), -4 * HOUR, -5 * HOUR),
    )
    assert [change.is_gap for change in transitions(ZoneInfo(LORD_HOWE), 2026)] == [False, True]
    assert transitions(ZoneInfo("UTC"), 2026) == ()


def test_a_day_that_a_zone_skipped_runs_at_the_first_valid_instant() -> None:
    # Samoa went from 29 to 31 December 2011.
    assert fires("0 10 * * *", "Pacific/Apia", "2011-12-29 12:00", "2011-12-31 22:00") == [
        "12-29 20:00", "12-30 10:00", "12-30 20:00", "12-31 20:00",
    ]  # fmt: skip
    assert fires("0 10 * * *", "Pacific/Apia", "2011-12-29 12:00", "2011-12-31 22:00", gap=Gap.SKIP) == [
        "12-29 20:00", "12-30 20:00", "12-31 20:00",
    ]  # fmt: skip


def test_a_skipped_hour_before_midnight_runs_at_midnight() -> None:
    # Greenland puts clocks forward at 23:00 on a Saturday.
    assert fires("30 23 * * *", "America/Nuuk", "2026-03-28 00:00", "2026-03-30 12:00") == [
        "03-28 01:30", "03-29 01:00", "03-30 00:30",
    ]  # fmt: skip


def test_a_change_of_offset_years_ahead_counts_for_a_rule_that_fires_after_it() -> None:
    # North Korea went from +09:00 to +08:30 in August 2015, and had not changed anything since 1945.
    assert fires("0 0 29 2 *", "Asia/Pyongyang", "2012-03-01 00:00", "2016-12-31 00:00") == ["02-28 15:30"]


# The same again, counted independently: minute by minute, for random rules near changes of many zones

CHANGES = [
    (NEW_YORK, "2026-03-08"), (NEW_YORK, "2026-11-01"), (WARSAW, "2026-03-29"), (WARSAW, "2026-10-25"),
    (LORD_HOWE, "2026-04-04"), (LORD_HOWE, "2026-10-03"),
    ("Antarctica/Troll", "2026-03-29"), ("Antarctica/Troll", "2026-10-25"),
    ("America/Nuuk", "2026-03-29"), ("America/Nuuk", "2026-10-25"), ("America/Havana", "2026-03-08"),
    ("America/Havana", "2026-11-01"), ("America/Santiago", "2026-04-05"), ("America/Santiago", "2026-09-06"),
    ("Asia/Beirut", "2026-03-28"), ("Africa/Casablanca", "2026-02-15"), ("Africa/Casablanca", "2026-03-22"),
    ("Pacific/Chatham", "2026-04-04"), ("Pacific/Chatham", "2026-09-26"), ("Asia/Pyongyang", "2015-08-14"),
    ("America/Caracas", "2016-05-01"), ("Europe/Volgograd", "2020-12-26"), ("Europe/Dublin", "2026-10-25"),
]  # fmt: skip


def count_by_minute(
    minutes: set[int], hours: set[int], zone: ZoneInfo, since: datetime, until: datetime, gap: Gap, fold: Fold
) -> list[datetime]:
    """Walk UTC minute by minute and read the wall clock; where it jumps forward, look at what it jumped over."""
    found = []
    instant, previous = since + MINUTE, since.astimezone(zone).replace(tzinfo=None)
    while instant <= until:
        local = instant.astimezone(zone)
        wall = local.replace(tzinfo=None, fold=0)
        comes_twice = local.replace(fold=0).utcoffset() > local.replace(fold=1).utcoffset()
        counts = not comes_twice or fold is Fold.BOTH or local.fold == (fold is Fold.SECOND)
        matches = counts and wall.minute in minutes and wall.hour in hours
        if gap is Gap.SHIFT and wall - previous > MINUTE:
            skipped = [previous + n * MINUTE for n in range(1, (wall - previous) // MINUTE)]
            matches = matches or any(at.minute in minutes and at.hour in hours for at in skipped)
        if matches:
            found.append(instant)
        instant, previous = instant + MINUTE, wall
    return found


@settings(max_examples=80, deadline=None)
@given(
    change=st.sampled_from(CHANGES),
    minutes=st.sets(st.integers(0, 59), min_size=1, max_size=3),
    hours=st.sets(st.sampled_from([0, 1, 2, 3, 4, 22, 23]), min_size=1, max_size=4),
    gap=st.sampled_from(Gap),
    fold=st.sampled_from(Fold),
)
def test_near_a_change_a_rule_fires_when_the_wall_clock_says_so(
    change: tuple[str, str], minutes: set[int], hours: set[int], gap: Gap, fold: Fold
) -> None:
    name, day = change
    since, until = utc(day) - 12 * HOUR, utc(day) + 36 * HOUR
    expression = f"{','.join(map(str, sorted(minutes)))} {','.join(map(str, sorted(hours)))} * * *"
    rule = read_schedule(expression, Zone(name=name, gap=gap, fold=fold))

    assert list(rule.between(since, until)) == count_by_minute(minutes, hours, ZoneInfo(name), since, until, gap, fold)


# A daily job, once per local day, in any zone of the world

ZONES = sorted(available_timezones() - {"localtime", "Factory"})


def valid_instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return when a local time first comes, or the first instant after the time that was skipped."""
    instant = wall.replace(tzinfo=zone).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None, fold=0) == wall:
        return instant
    low, high = sorted([instant, wall.replace(tzinfo=zone, fold=1).astimezone(UTC)])
    before = low.astimezone(zone).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = low + ((high - low) / 2 // timedelta(seconds=1)) * timedelta(seconds=1)
        low, high = (middle, high) if middle.astimezone(zone).utcoffset() == before else (low, middle)
    return high


@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(ZONES),
    year=st.integers(1990, 2037),
    hour=st.sampled_from([0, 1, 2, 3, 23]) | st.integers(0, 23),
    minute=st.sampled_from([0, 30]) | st.integers(0, 59),
)
def test_a_daily_job_fires_exactly_once_for_each_local_day_of_a_year(name: str, year: int, hour: int, minute: int) -> None:
    zone = ZoneInfo(name)
    first = date(year, 1, 1)
    walls = [datetime(year, 1, 1, hour, minute) + n * DAY for n in range((date(year + 1, 1, 1) - first).days)]
    expected = sorted({valid_instant(wall, zone) for wall in walls})

    rule = read_schedule(f"{minute} {hour} * * *", Zone(name=name))
    fired = list(rule.between(expected[0] - timedelta(seconds=1), expected[-1]))

    assert fired == expected
    assert all(earlier < later for earlier, later in pairwise(fired))
    local_days = {instant.astimezone(zone).date() for instant in fired}
    # A time skipped before midnight comes on the next day, and a skipped day not at all.
    assert len(local_days) >= len(walls) - 2


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(ZONES),
    after=st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2037, 1, 1), timezones=st.just(UTC)),
    expression=st.sampled_from(["30 2 * * *", "0 0 * * *", "*/17 * * * *", "59 23 L * *", "15 */3 * * *"]),
)
def test_in_no_zone_a_past_or_repeated_instant_is_yielded(name: str, after: datetime, expression: str) -> None:
    rule = read_schedule(expression, Zone(name=name))

    instants = [after]
    for _ in range(10):
        following = rule.next_after(instants[-1])
        assert following is not None
        instants.append(following)

    assert all(earlier < later for earlier, later in pairwise(instants))
