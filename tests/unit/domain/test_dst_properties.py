"""Local rules against the wall clock itself, in every zone of the tz database, around every kind of change.

The oracle knows nothing of folds and gaps. It reads clocks hour by hour, as a person would, and asks for each local time of
a rule at which instants a clock showed it: at none, at one or at two. Changes before 1970 are left out: nobody plans there,
and the database does not vouch for them.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib.resources import files
from io import BytesIO
from itertools import pairwise, product
from pathlib import Path
from random import Random
from zoneinfo import TZPATH, ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.dst import Fold, Gap, Transition, next_local, transitions, wall_to_utc

MICROSECOND, SECOND = timedelta(microseconds=1), timedelta(seconds=1)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
ZONES = sorted(available_timezones() - {"localtime", "Factory"})
POLICIES = list(product(Gap, Fold))
Walls = Sequence[datetime]


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def clock(instant: datetime, zone: ZoneInfo) -> datetime:
    """Return what a clock on the wall shows."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


# Rules: sorted local times


def every(minutes: int, since: datetime, until: datetime) -> Walls:
    first = since - (since - datetime(1970, 1, 1)) % (minutes * MINUTE)
    return [first + n * minutes * MINUTE for n in range((until - first) // (minutes * MINUTE) + 1)]


def daily(minutes_of_day: Sequence[int], since: datetime, until: datetime) -> Walls:
    midnight = datetime(since.year, since.month, since.day)
    days = range((until - midnight).days + 1)
    return sorted(midnight + n * DAY + minute * MINUTE for n in days for minute in set(minutes_of_day))


def rule_of(walls: Walls) -> Callable[[datetime], datetime | None]:
    def next_naive(wall: datetime) -> datetime | None:
        index = bisect_right(walls, wall)
        return walls[index] if index < len(walls) else None

    return next_naive


# The oracle


class WallClock:
    """What clocks in a zone show in the days around an instant."""

    def __init__(self, zone: ZoneInfo, around: datetime, *, days: int = 4) -> None:
        self.zone = zone
        self.hours = [around.replace(minute=0, second=0, microsecond=0) + n * HOUR for n in range(-24 * days, 24 * days + 1)]
        self.shown: dict[datetime, list[datetime]] = {}
        self.offsets = {clock(hour, zone) - hour.replace(tzinfo=None) for hour in self.hours}

    def showing(self, wall: datetime) -> list[datetime]:
        """Return the instants at which clocks show a local time."""
        if wall not in self.shown:
            instants = [(wall - offset).replace(tzinfo=UTC) for offset in self.offsets]
            self.shown[wall] = sorted(instant for instant in instants if clock(instant, self.zone) == wall)
        return self.shown[wall]

    def first_later_than(self, wall: datetime) -> datetime:
        """Return the first instant at which clocks show a later time: an hour, a minute, a second at a time."""
        instant = self.hours[0]
        for step in (HOUR, MINUTE, SECOND):
            while clock(instant + step, self.zone) < wall:
                instant += step
        return instant + SECOND

    def instants(self, wall: datetime, gap: Gap, fold: Fold) -> list[datetime]:
        """Return when a local time counts."""
        shown = self.showing(wall)
        if not shown:
            return [self.first_later_than(wall)] if gap is Gap.SHIFT else []
        return {Fold.FIRST: shown[:1], Fold.SECOND: shown[-1:], Fold.BOTH: shown}[fold]


def check(zone: ZoneInfo, around: datetime, walls: Walls, bases: Sequence[datetime]) -> None:
    """Ask from each base, with each policy, for the next instant, and compare it with what the wall clock says."""
    wall_clock = WallClock(zone, around)
    next_naive = rule_of(walls)
    for gap, fold in POLICIES:
        expected = sorted({instant for wall in walls for instant in wall_clock.instants(wall, gap, fold)})
        for base in bases:
            index = bisect_right(expected, base)
            right = expected[index] if index < len(expected) else None
            found = next_local(base, zone=zone, gap=gap, fold=fold, next_naive=next_naive)
            assert found == right, f"{zone.key} {gap} {fold} from {base}: {found}, not {right}"


def bases_near(change: Transition) -> Iterator[datetime]:
    """Yield instants around a change: on its edges, a little to each side, in both passes, and a day away."""
    size = abs(change.after - change.before)
    for edge in (change.at - size, change.at, change.at + size):
        yield from (edge - SECOND, edge - MICROSECOND, edge, edge + MICROSECOND, edge + 29 * MINUTE)
    yield from (change.at - DAY, change.at - size / 2, change.at + size / 2, change.at + DAY)


def walls_near(change: Transition, random: Random) -> Walls:
    """Return a random rule for the two days around a change: dense, daily, or right on the edges."""
    edges = [change.wall(change.before), change.wall(change.after)]
    since, until = min(edges) - 30 * HOUR, max(edges) + 30 * HOUR
    match random.randrange(3):
        case 0:
            return every(random.choice([7, 10, 15, 30, 45, 60, 120]), since, until)
        case 1:
            near = [edge.hour * 60 + edge.minute + random.randint(-70, 70) for edge in edges]
            return daily([minute % 1440 for minute in near], since, until)
        case _:
            seconds = (-3600, -1, -0.5, 0, 0.5, 1, random.randint(-4000, 4000))
            return sorted({edge + n * SECOND for edge in edges for n in seconds})


# The tz database, read from its files


def tz_file(name: str) -> bytes:
    for folder in TZPATH:
        path = Path(folder, name)
        if path.is_file():
            return path.read_bytes()
    return files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()


@lru_cache(maxsize=1024)
def changes_in(content: bytes) -> tuple[Transition, ...]:
    """Return the changes of offset that a TZif file lists one by one (RFC 8536), in general up to 2037."""
    start = 44 + tz_block_size(content)
    _, _, _, times, kinds, _ = struct.unpack_from(">6L", content, start + 20)
    at = struct.unpack_from(f">{times}q", content, start + 44)
    indexes = struct.unpack_from(f">{times}B", content, start + 44 + 8 * times)
    offsets = [struct.unpack_from(">lBB", content, start + 44 + 9 * times + 6 * kind)[0] for kind in range(kinds)]
    steps = pairwise([offsets[0], *(offsets[index] for index in indexes)])
    moments = zip(at, steps, strict=True)
    return tuple(
        Transition(datetime.fromtimestamp(moment, UTC), timedelta(seconds=before), timedelta(seconds=after))
        for moment, (before, after) in moments
        if before != after and moment > -(2**40)
    )


def tz_block_size(content: bytes) -> int:
    """Return the size of the first block, whose times have only 32 bits."""
    utc_marks, standard_marks, leaps, times, kinds, letters = struct.unpack_from(">6L", content, 20)
    size: int = 5 * times + 6 * kinds + letters + 8 * leaps + standard_marks + utc_marks
    return size


def distinct_zones() -> dict[bytes, str]:
    return {tz_file(name): name for name in ZONES}


def since_1970(content: bytes) -> list[Transition]:
    return [change for change in changes_in(content) if change.at.year >= 1970]


# Each kind of change, by name

KINDS_OF_CHANGE = [
    ("America/New_York", "2026-03-08 07:00", "1:00:00", "an hour forward"),
    ("America/New_York", "2026-11-01 06:00", "-1:00:00", "an hour back"),
    ("Australia/Lord_Howe", "2017-09-30 15:30", "0:30:00", "half an hour forward"),
    ("Australia/Lord_Howe", "2017-04-01 15:00", "-0:30:00", "half an hour back"),
    ("Pacific/Chatham", "2023-09-23 14:00", "1:00:00", "an hour, from an offset of 12:45"),
    ("Pacific/Chatham", "2024-04-06 14:00", "-1:00:00", "an hour, to an offset of 12:45"),
    ("Asia/Kathmandu", "1985-12-31 18:30", "0:15:00", "a quarter of an hour forward, for good"),
    ("Africa/Cairo", "2023-04-27 22:00", "1:00:00", "midnight skipped"),
    ("Africa/Cairo", "2023-10-26 21:00", "-1:00:00", "the hour before midnight repeated"),
    ("America/Havana", "2024-03-10 05:00", "1:00:00", "midnight skipped"),
    ("America/Havana", "2024-11-03 05:00", "-1:00:00", "midnight repeated"),
    ("America/Goose_Bay", "2010-03-14 04:01", "1:00:00", "at a minute past midnight"),
    ("America/Goose_Bay", "2010-11-07 03:01", "-1:00:00", "at a minute past midnight, into the day before"),
    ("Antarctica/Troll", "2024-03-31 01:00", "2:00:00", "two hours forward"),
    ("Antarctica/Troll", "2024-10-27 01:00", "-2:00:00", "two hours back"),
    ("Antarctica/Casey", "2020-10-03 16:01", "3:00:00", "three hours forward, at a minute past midnight"),
    ("Antarctica/Vostok", "1994-01-31 17:00", "-7:00:00", "seven hours back"),
    ("Europe/Dublin", "2024-03-31 01:00", "1:00:00", "from negative DST to standard time"),
    ("Europe/Dublin", "2024-10-27 01:00", "-1:00:00", "from standard time to negative DST"),
    ("Africa/Casablanca", "2024-03-10 02:00", "-1:00:00", "back for Ramadan"),
    ("Africa/Casablanca", "2024-04-14 02:00", "1:00:00", "forward after Ramadan"),
    ("Africa/El_Aaiun", "1976-04-14 01:00", "1:00:00", "a change of zone, 17 days before one to summer time"),
    ("Asia/Pyongyang", "2015-08-14 15:00", "-0:30:00", "standard time put back, with no DST"),
    ("America/Caracas", "2016-05-01 07:00", "0:30:00", "standard time put forward, with no DST"),
    ("Pacific/Apia", "2011-12-30 10:00", "24:00:00", "a whole day skipped"),
    ("Pacific/Kwajalein", "1993-08-21 12:00", "24:00:00", "a whole day skipped"),
    ("Pacific/Kiritimati", "1994-12-31 10:00", "24:00:00", "the last day of a year skipped"),
    ("Africa/Monrovia", "1972-01-07 00:44:30", "0:44:30", "an odd number of seconds"),
    ("America/Noronha", "2000-10-15 01:00", "-1:00:00", "back a week after it went forward"),
    ("Europe/Warsaw", "2089-03-27 01:00", "1:00:00", "far ahead, by the rule and not by the list"),
    ("Europe/Dublin", "2089-10-30 01:00", "-1:00:00", "far ahead, with negative DST"),
    ("America/Santiago", "2089-04-03 03:00", "-1:00:00", "far ahead, in the south"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "at", "shift", "kind"), KINDS_OF_CHANGE, ids=[f"{n} {a[:10]}" for n, a, _, _ in KINDS_OF_CHANGE]
)
def test_around_each_kind_of_change_a_rule_fires_when_the_wall_clock_says_so(
    name: str, at: str, shift: str, kind: str
) -> None:
    zone, random = ZoneInfo(name), Random(name + at)
    hours, minutes, seconds = (int(part) for part in shift.removeprefix("-").split(":"))
    size = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    change = next(change for change in transitions(zone, int(at[:4])) if change.at == utc(at))

    assert change.after - change.before == (-size if shift.startswith("-") else size)
    for _ in range(6):
        check(zone, change.at, walls_near(change, random), list(bases_near(change)))


# Every zone


def test_in_every_zone_a_rule_fires_when_the_wall_clock_says_so() -> None:
    random = Random(1883)
    for content, name in sorted(distinct_zones().items(), key=lambda item: item[1]):
        changes = since_1970(content)
        for change in random.sample(changes, min(2, len(changes))):
            check(ZoneInfo(name), change.at, walls_near(change, random), list(bases_near(change)))


def test_around_every_change_by_something_else_than_an_hour_too() -> None:
    random = Random(2011)
    odd: dict[Transition, str] = {}
    for content, name in distinct_zones().items():
        for change in since_1970(content):
            if abs(change.after - change.before) != HOUR or change.at.minute % 30 or change.at.second:
                odd[change] = name

    assert len(odd) > 150
    for change, name in random.sample(sorted(odd.items(), key=lambda item: (item[0].at, item[1])), 150):
        check(ZoneInfo(name), change.at, walls_near(change, random), list(bases_near(change)))


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(ZONES),
    base=st.datetimes(min_value=datetime(1970, 1, 5), max_value=datetime(2090, 1, 1), timezones=st.just(UTC)),
    minutes=st.lists(st.integers(0, 1439), min_size=1, max_size=4) | st.integers(5, 1000),
)
def test_from_any_instant_in_any_zone_a_rule_fires_when_the_wall_clock_says_so(
    name: str, base: datetime, minutes: list[int] | int
) -> None:
    zone = ZoneInfo(name)
    here = clock(base, zone)
    since, until = here - 30 * HOUR, here + 30 * HOUR
    walls = every(minutes, since, until) if isinstance(minutes, int) else daily(minutes, since, until)

    check(zone, base, walls, [base])


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(ZONES),
    year=st.integers(1970, 2089),
    nth=st.integers(0, 7),
    seed=st.integers(0, 2**32),
    away=st.timedeltas(min_value=-26 * HOUR, max_value=26 * HOUR),
)
def test_near_any_change_of_any_zone_a_rule_fires_when_the_wall_clock_says_so(
    name: str, year: int, nth: int, seed: int, away: timedelta
) -> None:
    zone = ZoneInfo(name)
    changes = transitions(zone, year) or (Transition(datetime(year, 7, 1, tzinfo=UTC), timedelta(0), HOUR),)
    change = changes[nth % len(changes)]

    check(zone, change.at, walls_near(change, Random(seed)), [change.at + away])


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(ZONES),
    base=st.datetimes(min_value=datetime(1970, 1, 5), max_value=datetime(2030, 1, 1), timezones=st.just(UTC)),
    years=st.integers(1, 59),
    policy=st.sampled_from(POLICIES),
    seed=st.integers(0, 2**32),
)
def test_a_rule_that_fires_once_in_many_years_fires_right_whatever_changed_in_between(
    name: str, base: datetime, years: int, policy: tuple[Gap, Fold], seed: int
) -> None:
    zone, random, (gap, fold) = ZoneInfo(name), Random(seed), policy
    year = base.year + years
    changes = transitions(zone, year) or (Transition(datetime(year, 7, 1, tzinfo=UTC), timedelta(0), HOUR),)
    change = random.choice(changes)
    wall = change.wall(random.choice([change.before, change.after])) + random.randint(-4000, 4000) * SECOND

    found = next_local(base, zone=zone, gap=gap, fold=fold, next_naive=rule_of([wall]))

    assert ([found] if found else []) == WallClock(zone, change.at).instants(wall, gap, fold)[:1]


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(ZONES), year=st.integers(1970, 2089), seed=st.integers(0, 2**32), policy=st.sampled_from(POLICIES)
)
def test_one_local_time_means_what_a_rule_with_that_time_alone_fires_at(
    name: str, year: int, seed: int, policy: tuple[Gap, Fold]
) -> None:
    zone, random, (gap, fold) = ZoneInfo(name), Random(seed), policy
    changes = transitions(zone, year) or (Transition(datetime(year, 7, 1, tzinfo=UTC), timedelta(0), HOUR),)
    change = random.choice(changes)
    wall_clock = WallClock(zone, change.at)

    for wall in walls_near(change, random):
        expected = wall_clock.instants(wall, gap, fold)
        assert wall_to_utc(wall, zone=zone, gap=gap, fold=fold) == (expected[0] if expected else None)


@pytest.mark.parametrize("wall", ["2026-03-08 02:30", "2026-11-01 01:30"])
@pytest.mark.parametrize("policy", POLICIES, ids=[f"{gap} {fold}" for gap, fold in POLICIES])
def test_a_base_in_the_zone_itself_means_its_instant_even_where_no_clock_shows_it(
    wall: str, policy: tuple[Gap, Fold]
) -> None:
    zone, (gap, fold) = ZoneInfo("America/New_York"), policy
    base = datetime.fromisoformat(wall).replace(tzinfo=zone)
    next_naive = rule_of(every(10, base.replace(tzinfo=None) - DAY, base.replace(tzinfo=None) + DAY))

    here = next_local(base, zone=zone, gap=gap, fold=fold, next_naive=next_naive)
    there = next_local(base.astimezone(UTC), zone=zone, gap=gap, fold=fold, next_naive=next_naive)

    assert here == there


@pytest.mark.parametrize(
    ("name", "base"),
    [
        pytest.param("Pacific/Apia", "2011-12-30 09:59:59", id="before a whole day that is skipped"),
        pytest.param("Antarctica/Vostok", "1994-01-31 16:59:59", id="at the end of the first of two passes of seven hours"),
        pytest.param(
            "Antarctica/Vostok", "1994-01-31 17:00:00", id="at the start of the second of two passes of seven hours"
        ),
    ],
)
@pytest.mark.parametrize("policy", POLICIES, ids=[f"{gap} {fold}" for gap, fold in POLICIES])
def test_a_rule_of_every_second_is_asked_only_a_few_times_however_large_the_change(
    name: str, base: str, policy: tuple[Gap, Fold]
) -> None:
    asked = []

    def next_second(wall: datetime) -> datetime:
        asked.append(wall)
        return wall.replace(microsecond=0) + SECOND

    next_local(utc(base), zone=ZoneInfo(name), gap=policy[0], fold=policy[1], next_naive=next_second)

    assert len(asked) <= 3


# What the code takes for granted


def test_no_zone_of_the_tz_database_changes_twice_within_three_days() -> None:
    closest = min(later.at - earlier.at for content in distinct_zones() for earlier, later in pairwise(changes_in(content)))

    assert closest > 3 * DAY


def test_the_changes_of_a_year_are_those_that_the_tz_database_lists() -> None:
    random = Random(1970)
    listed = {name: changes for content, name in distinct_zones().items() if (changes := since_1970(content))}
    for name in random.sample(sorted(listed), 100):
        year = random.randrange(1970, listed[name][-1].at.year + 1)
        # A file may list changes up to 2037, or only as long as its zone follows no rule.
        if year < listed[name][-1].at.year:
            assert transitions(ZoneInfo(name), year) == tuple(c for c in listed[name] if c.at.year == year), (name, year)


# Zones that nobody has, yet


def made_up_zone(first: timedelta, *changes: tuple[str, timedelta]) -> ZoneInfo:
    """Return a zone with these changes and offsets, by way of a TZif file."""
    offsets = [first, *(offset for _, offset in changes)]
    head = b"TZif2" + bytes(15)
    body = head + struct.pack(">6L", 0, 0, 0, len(changes), len(offsets), 4)
    body += b"".join(struct.pack(">q", int(utc(at).timestamp())) for at, _ in changes)
    body += bytes(range(1, len(offsets)))
    body += b"".join(struct.pack(">lBB", int(offset.total_seconds()), 0, 0) for offset in offsets) + b"ODD\0"
    return ZoneInfo.from_file(BytesIO(head + bytes(24) + body + b"\n\n"), key="Made/Up")


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([("2026-05-10 06:00", 3 * HOUR), ("2026-05-10 11:00", 2 * HOUR)], id="forward and back in half a day"),
        pytest.param([("2026-05-10 06:00", HOUR), ("2026-05-10 09:00", 2 * HOUR)], id="back and forward in half a day"),
        pytest.param([("2026-05-10 01:00", 3 * HOUR), ("2026-05-10 05:00", 4 * HOUR)], id="forward twice in half a day"),
        pytest.param([("2026-05-10 01:00", HOUR), ("2026-05-10 05:00", timedelta(0))], id="back twice in half a day"),
        pytest.param([("2026-05-10 12:34:56", timedelta(hours=2, seconds=17))], id="by 17 seconds"),
        pytest.param([("2026-05-10 12:34:56", timedelta(hours=-9, seconds=-1))], id="by eleven hours and a second"),
    ],
)
def test_changes_close_to_each_other_or_by_odd_amounts_count_too(changes: list[tuple[str, timedelta]]) -> None:
    zone, random = made_up_zone(2 * HOUR, *changes), Random(7)
    before = 2 * HOUR
    for at, after in changes:
        change = Transition(utc(at), before, after)
        for _ in range(10):
            check(zone, change.at, walls_near(change, random), list(bases_near(change)))
        before = after


@pytest.mark.parametrize("offset", [4 * HOUR, timedelta(0)])
def test_two_changes_within_half_a_day_are_two(offset: timedelta) -> None:
    between = (2 * HOUR + offset) / 2
    zone = made_up_zone(2 * HOUR, ("2026-05-10 01:00", between), ("2026-05-10 05:00", offset))

    assert transitions(zone, 2026) == (
        Transition(utc("2026-05-10 01:00"), 2 * HOUR, between),
        Transition(utc("2026-05-10 05:00"), between, offset),
    )


@pytest.mark.parametrize("policy", POLICIES, ids=[f"{gap} {fold}" for gap, fold in POLICIES])
@pytest.mark.parametrize("offsets", [(HOUR, 2 * HOUR), (3 * HOUR, 2 * HOUR), (HOUR, timedelta(0)), (5 * HOUR, -5 * HOUR)])
def test_even_changes_on_top_of_each_other_never_yield_a_past_time(
    offsets: tuple[timedelta, timedelta], policy: tuple[Gap, Fold]
) -> None:
    zone, (gap, fold) = made_up_zone(2 * HOUR, ("2026-05-10 06:00", offsets[0]), ("2026-05-10 06:20", offsets[1])), policy
    next_naive = rule_of(every(7, datetime(2026, 5, 9), datetime(2026, 5, 12)))

    for minute in range(0, 48 * 60, 3):
        base = utc("2026-05-09 12:00") + minute * MINUTE
        found = next_local(base, zone=zone, gap=gap, fold=fold, next_naive=next_naive)
        assert found is not None
        assert base < found <= base + 11 * HOUR


# The ends of the calendar


@pytest.mark.parametrize("policy", POLICIES, ids=[f"{gap} {fold}" for gap, fold in POLICIES])
@pytest.mark.parametrize(
    "name", ["UTC", "America/New_York", "Pacific/Kiritimati", "Asia/Tokyo", "Etc/GMT+12", "Europe/Dublin"]
)
def test_at_the_ends_of_the_calendar_there_is_an_answer_or_none(name: str, policy: tuple[Gap, Fold]) -> None:
    zone, (gap, fold) = ZoneInfo(name), policy

    def noon(wall: datetime) -> datetime | None:
        today = wall.replace(hour=12, minute=0, second=0, microsecond=0)
        return today if today > wall else today + DAY if today.date() < datetime.max.date() else None

    for year, hour in product((1, 2, 9989, 9990, 9991, 9998), range(24)):
        base = datetime(year, 1, 1, hour, tzinfo=UTC)
        found = next_local(base, zone=zone, gap=gap, fold=fold, next_naive=noon)
        assert found is not None
        assert base < found <= base + DAY + 15 * HOUR
    for hour in range(24):
        base = datetime(9999, 12, 31, hour, tzinfo=UTC)
        found = next_local(base, zone=zone, gap=gap, fold=fold, next_naive=noon)
        assert found is None or base < found


def test_an_instant_or_a_local_time_outside_the_calendar_has_no_answer() -> None:
    east, west = ZoneInfo("Asia/Tokyo"), ZoneInfo("America/New_York")
    first, last = datetime.min, datetime.max.replace(microsecond=0)

    def means(wall: datetime, zone: ZoneInfo) -> datetime | None:
        return wall_to_utc(wall, zone=zone, gap=Gap.SHIFT, fold=Fold.FIRST)

    def fires(wall: datetime, zone: ZoneInfo, *, after: datetime) -> datetime | None:
        return next_local(after, zone=zone, gap=Gap.SHIFT, fold=Fold.FIRST, next_naive=rule_of([wall]))

    assert means(first, east) is None
    assert means(last, west) is None
    assert means(last, east) == last.replace(tzinfo=UTC) - 9 * HOUR
    assert fires(last, east, after=last.replace(tzinfo=UTC)) is None
    assert fires(last, west, after=last.replace(tzinfo=UTC) - DAY) is None
    assert fires(last, west, after=last.replace(tzinfo=west)) is None
    assert fires(first + DAY, west, after=first.replace(tzinfo=UTC)) is not None
    assert fires(first + DAY, east, after=first.replace(tzinfo=east)) is not None
