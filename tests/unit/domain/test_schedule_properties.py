"""What holds for every kind of schedule, in every zone, under every policy for clocks that change."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from celery_tm.domain.dst import Fold, Gap, transitions
from celery_tm.domain.schedule import KINDS, Schedule, Zone, load_schedule, read_schedule
from celery_tm.domain.schedule.solar import EVENTS
from celery_tm.errors import InvalidValue

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
TICK = timedelta(microseconds=1)
# "localtime" is this machine's, "Factory" and the like are no places.
ZONES = sorted(name for name in available_timezones() if name not in ("localtime", "Factory", "posixrules"))


# Schedules of every kind


def several(one: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    return st.lists(one.map(str), min_size=1, max_size=3).map(",".join)


def field(low: int, high: int) -> st.SearchStrategy[str]:
    span = st.tuples(st.integers(low, high), st.integers(low, high)).map(lambda ends: f"{min(ends)}-{max(ends)}")
    step = st.integers(1, max(high - low, 1)).map(lambda size: f"*/{size}")
    return st.one_of(st.just("*"), several(st.integers(low, high)), span, step, st.just("H"))


cron = st.builds(
    "{} {} {} {} {}".format,
    field(0, 59),
    field(0, 23),
    st.sampled_from(["*", "?", "1", "28", "L", "LW", "15W", "L-2", "*/9", "1,15", "H"]),
    st.just("*") | several(st.integers(1, 12)),
    st.sampled_from(["*", "?"]),
) | st.builds("{} {} * * {}".format, field(0, 59), field(0, 23), st.sampled_from(["1-5", "sun", "5#3", "L5", "mon,5#1"]))
clocks = st.times().map(lambda at: at.replace(microsecond=0).isoformat())
walls = st.datetimes(min_value=datetime(1980, 1, 1), max_value=datetime(2037, 1, 1)).map(
    lambda at: at.replace(microsecond=0)
)
offsets = st.sampled_from(["", "", "Z", "+05:30", "-08:00"])

EXPRESSIONS: dict[str, st.SearchStrategy[str]] = {
    "any": st.lists(cron, min_size=2, max_size=3).map(json.dumps),
    "cron": cron | st.builds("{} {}".format, field(0, 59), cron),
    "crontab": cron,
    "interval": st.builds("every {}s from {}Z".format, st.integers(1, 10_000_000), walls.map(datetime.isoformat)),
    "iso8601": st.builds(
        "R{}/{}{}/P{}{}".format,
        st.sampled_from(["", "3", "1000"]),
        walls.map(datetime.isoformat),
        offsets,
        st.sampled_from(["1M", "3M", "1Y", "1D", "2W", "10D", "0D"]),
        st.sampled_from(["T1H", "T30M", "T12H", "T1S"]),
    )
    | st.builds("R/{}{}/P{}".format, walls.map(datetime.isoformat), offsets, st.sampled_from(["1M", "1D", "0.25D", "T6H"])),
    "once": st.builds("at {}{}".format, walls.map(datetime.isoformat), offsets),
    "rrule": st.builds(
        "DTSTART:{:%Y%m%dT%H%M%S}\nRRULE:FREQ={};INTERVAL={}{}".format,
        walls,
        st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"]),
        st.integers(1, 5),
        st.sampled_from(["", ";BYDAY=MO,SU", ";BYMONTH=3,10", ";BYHOUR=1,2", ";COUNT=50", ";BYMINUTE=0,30"]),
    ),
    "solar": st.builds(
        "{} at {},{}".format, st.sampled_from(sorted(EVENTS)), st.integers(-66, 66), st.integers(-180, 180)
    ),
    "window": st.builds(
        "every {}m from {} until {} on {}".format,
        st.integers(1, 1440), clocks, clocks, several(st.sampled_from(["mon", "tue-fri", "sat", "sun", "fri-mon"])),
    ),
}  # fmt: skip

zones = st.builds(
    lambda name, gap, fold: Zone(name=name, gap=gap, fold=fold),
    st.sampled_from(ZONES), st.sampled_from(Gap), st.none() | st.sampled_from(Fold),
)  # fmt: skip


@st.composite
def instants(draw: st.DrawFn, zone: Zone) -> datetime:
    """Draw an instant, mostly one near a change of the zone's clocks."""
    year = draw(st.integers(1985, 2036))
    changes = transitions(ZoneInfo(zone.name), year)
    if changes and draw(st.integers(0, 3)):
        near = draw(st.sampled_from(changes)).at
        return near + draw(st.timedeltas(min_value=-DAY, max_value=DAY))
    return draw(st.datetimes(min_value=datetime(year, 1, 1), max_value=datetime(year, 12, 31), timezones=st.just(UTC)))


def load(kind: str, expression: str, zone: Zone) -> Schedule:
    try:
        return load_schedule(kind, expression, zone, name="report")
    except InvalidValue as refusal:
        # A window of no length, or a local time that its zone skips.
        assume(not any(word in str(refusal) for word in ("empty", "does not exist", "never fires")))
        raise


def test_every_kind_is_among_those_tried() -> None:
    assert set(EXPRESSIONS) == set(KINDS)


@pytest.mark.parametrize("kind", EXPRESSIONS)
@settings(max_examples=45, deadline=None)
@given(data=st.data(), zone=zones)
def test_instants_come_in_order_once_and_from_wherever_one_asks(kind: str, data: st.DataObject, zone: Zone) -> None:
    rule = load(kind, data.draw(EXPRESSIONS[kind]), zone)
    after = data.draw(instants(zone))
    found: list[datetime] = []
    following = rule.next_after(after)
    while following is not None and len(found) < 12:
        found.append(following)
        following = rule.next_after(following)

    assert all(earlier < later for earlier, later in pairwise([after, *found]))
    assert all(instant.tzinfo is UTC for instant in found)
    assert all(instant.microsecond == 0 for instant in found)
    for earlier, later in pairwise([after, *found]):
        asked = earlier + (later - earlier - TICK) * data.draw(st.floats(0, 1))
        assert rule.next_after(asked) == later
        assert rule.next_after(asked.astimezone(ZoneInfo(zone.name))) == later
    if found:
        assert list(islice(rule.between(after, found[-1]), 20)) == found


@pytest.mark.parametrize("kind", EXPRESSIONS)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), zone=zones)
def test_what_the_database_keeps_is_read_back_as_an_equal_schedule(kind: str, data: st.DataObject, zone: Zone) -> None:
    rule = load(kind, data.draw(EXPRESSIONS[kind]), zone)
    again = load_schedule(rule.kind, rule.expression, zone, name="report")

    assert rule.kind == kind
    assert again == rule
    assert hash(again) == hash(rule)
    assert again.expression == rule.expression
    assert again.describe() == rule.describe()
    if kind != "crontab":  # which no text tells from cron
        assert read_schedule(rule.expression, zone, name="report") == rule


ENDS = [
    (end + ahead).replace(tzinfo=timezone(timedelta(hours=hours)))
    for end, step in ((datetime.min, 1), (datetime.max, -1))
    for ahead in (step * n * timedelta(hours=7) for n in (0, 1, 5, 50, 2000))
    for hours in (-14, 0, 14)
]


@pytest.mark.parametrize("kind", EXPRESSIONS)
@settings(max_examples=15, deadline=None)
@given(data=st.data(), zone=zones)
def test_at_the_ends_of_the_calendar_nothing_is_raised(kind: str, data: st.DataObject, zone: Zone) -> None:
    rule = load(kind, data.draw(EXPRESSIONS[kind]), zone)

    for end in data.draw(st.lists(st.sampled_from(ENDS), min_size=3, max_size=3)):
        following = rule.next_after(end)
        assert following is None or following > end


# A daily job


def existing_days(zone: ZoneInfo, first: date, last: date) -> list[date]:
    """Return the days that a zone's calendar has: Samoa left out 30 December 2011, Kiribati 31 December 1994."""
    skipped = {
        (change.wall(change.before) + n * DAY).date()
        for year in range(first.year, last.year + 1)
        for change in transitions(zone, year)
        for n in range((change.after - change.before) // DAY)
    }
    return [first + n * DAY for n in range((last - first).days + 1) if first + n * DAY not in skipped]


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(ZONES),
    year=st.integers(1985, 2034),
    hour=st.integers(0, 23) | st.sampled_from([0, 1, 2, 3, 23]),
    minute=st.sampled_from([0, 30]) | st.integers(0, 59),
)
def test_a_fixed_time_job_fires_once_for_each_local_day_in_any_zone(name: str, year: int, hour: int, minute: int) -> None:
    zone = ZoneInfo(name)
    days = existing_days(zone, date(year, 1, 1), date(year + 1, 12, 31))
    begin = datetime(year, 1, 1, tzinfo=zone).astimezone(UTC) - TICK
    end = datetime(year + 2, 1, 1, tzinfo=zone).astimezone(UTC) - TICK
    fired = list(read_schedule(f"{minute} {hour} * * *", Zone(name=name)).between(begin, end))
    local = [instant.astimezone(zone) for instant in fired]

    # A time that is skipped runs at the first valid instant, which may be midnight, of the next day; and where a whole
    # day was left out, its job runs then too, besides that of the day that follows.
    moved = {at for at in local if (at.hour, at.minute) != (hour, minute)}
    kept = [at.date() for at in local if at not in moved]
    assert len(kept) == len(set(kept))
    assert set(kept) <= set(days)
    missing = set(days) - set(kept)
    assert len(missing) <= len(moved) <= len(missing) + (len(days) < (date(year + 1, 12, 31) - date(year, 1, 1)).days + 1)
    for day in missing:
        assert any(timedelta(0) <= at.date() - day <= DAY for at in moved), f"nothing for {day}"


def test_samoa_s_day_that_never_was_has_no_day_of_its_own() -> None:
    zone = ZoneInfo("Pacific/Apia")
    days = existing_days(zone, date(2011, 12, 28), date(2012, 1, 2))

    assert date(2011, 12, 30) not in days
    assert len(days) == 5
