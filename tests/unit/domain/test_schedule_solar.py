"""Solar: sunrise and sunset, as an almanac has them and as Celery computes them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.schedule import Solar, Zone, load_schedule, read_schedule
from celery_tm.domain.schedule.solar import EVENTS
from celery_tm.errors import InvalidValue

ephem = pytest.importorskip("ephem")

DAY = timedelta(days=1)
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "almanac"),
    [
        # Warsaw, 21 June 2026, from the almanac: 04:14 and 21:01 summer time.
        ("sunrise at 52.23,21.01", "2026-06-21 02:14"),
        ("sunset at 52.23,21.01", "2026-06-21 19:01"),
        # Greenwich, equinox: the sun is in the south at 12:07.
        ("solar_noon at 51.48,0.0", "2026-03-20 12:07"),
        # Sydney, 21 December 2026: 05:41 and 20:05 summer time.
        ("sunrise at -33.87,151.21", "2026-12-20 18:41"),
        ("sunset at -33.87,151.21", "2026-12-21 09:05"),
    ],
)
def test_the_sun_rises_and_sets_when_the_almanac_says(text: str, almanac: str) -> None:
    expected = datetime.fromisoformat(almanac).replace(tzinfo=UTC)
    found = read_schedule(text, Zone()).next_after(expected - timedelta(hours=6))

    assert found is not None
    assert abs(found - expected) <= timedelta(minutes=1)


METHODS = {"dawn": "next_rising", "sunrise": "next_rising", "solar": "next_transit"}
HORIZONS = {"astronomical": "-18", "nautical": "-12", "civil": "-6"}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("place", [(52.2, 21.0), (69.6, 18.9), (-45.0, -180.0)])
def test_every_event_is_where_celery_has_it(event: str, place: tuple[float, float]) -> None:
    """Celery asks ephem for the next event; where there is none on a day, half a day later again."""
    rule = Solar(event, *place)
    observer = ephem.Observer()
    observer.lat, observer.lon = map(str, place)
    observer.pressure = 0
    observer.horizon = HORIZONS.get(event.partition("_")[2], "-0:34")
    options = {"use_center": True} if event.partition("_")[2] in HORIZONS else {}
    search = getattr(observer, METHODS.get(event.partition("_")[0], "next_setting"))

    for month in range(1, 13, 2):
        start = datetime(2026, month, 3)
        theirs = None
        for half_day in range(30):
            try:
                theirs = search(ephem.Sun(), start=start + half_day * DAY / 2, **options).datetime().replace(tzinfo=UTC)
                break
            except ephem.CircumpolarError:
                continue
        ours = rule.next_after(start.replace(tzinfo=UTC))
        if theirs:
            assert ours is not None
            assert abs(ours - theirs) < timedelta(seconds=2)
        else:
            assert ours is None or ours > start.replace(tzinfo=UTC) + 14 * DAY


def test_in_the_polar_night_the_next_day_with_a_sunrise_follows() -> None:
    # Tromsø: no sunrise from the end of November to the middle of January.
    rule = read_schedule("sunrise at 69.65,18.96", Zone())
    found = rule.next_after(datetime(2026, 12, 1, tzinfo=UTC))

    assert found is not None
    assert datetime(2027, 1, 10, tzinfo=UTC) < found < datetime(2027, 1, 20, tzinfo=UTC)


def test_at_the_pole_the_sun_rises_once_a_year() -> None:
    rule = read_schedule("sunrise at 90,0", Zone())
    found = list(rule.between(NEW_YEAR, NEW_YEAR + 460 * DAY))

    assert [(at.year, at.month) for at in found] == [(2026, 3), (2027, 3)]


@settings(max_examples=30, deadline=None)
@given(
    event=st.sampled_from(sorted(EVENTS)),
    lat=st.floats(-90, 90),
    lon=st.floats(-180, 180),
    after=st.datetimes(min_value=datetime(1950, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.just(UTC)),
    share=st.floats(0, 0.999999),
)
def test_an_instant_does_not_depend_on_where_one_asks_from(
    event: str, lat: float, lon: float, after: datetime, share: float
) -> None:
    rule = read_schedule({"kind": "solar", "event": event, "lat": lat, "lon": lon}, Zone())
    instants = [after]
    for _ in range(4):
        following = rule.next_after(instants[-1])
        if following is None:
            break
        instants.append(following)

    assert all(earlier < later for earlier, later in pairwise(instants))
    assert all(at.microsecond == 0 for at in instants[1:])
    for earlier, later in pairwise(instants):
        assert rule.next_after(earlier + (later - earlier) * share) in (later, rule.next_after(later))
        assert rule.next_after(later - timedelta(microseconds=1)) == later
    assert list(rule.between(after, instants[-1])) == instants[1:]
    assert load_schedule("solar", rule.expression, Zone()) == rule


def test_text_and_mapping_mean_the_same() -> None:
    rule = read_schedule("sunset at 52.2, 21", Zone())

    assert rule == Solar("sunset", 52.2, 21.0)
    assert rule.expression == "sunset at 52.2,21.0"
    assert read_schedule({"kind": "solar", "event": "sunset", "lat": 52.2, "lon": 21}, Zone()) == rule
    assert read_schedule({"kind": "solar", "event": "sunset", "lat": "52.2", "lon": "21"}, Zone()) == rule
    assert read_schedule("sunset at -0,-0.0", Zone()).expression == "sunset at 0.0,0.0"
    assert rule.describe() == "at sunset at 52.2° N, 21.0° E"
    assert read_schedule("dawn_civil at -33.9,-70.7", Zone()).describe() == "at dawn civil at 33.9° S, 70.7° W"


def test_instants_at_the_ends_of_the_calendar_are_answered() -> None:
    for event in ("sunset", "solar_noon"):
        for lon in (-180.0, 0.0, 180.0):
            for end in (datetime.min, datetime.max):
                for hours in (-14, 0, 14):
                    instant = end.replace(tzinfo=timezone(timedelta(hours=hours)))
                    found = Solar(event, 10.0, lon).next_after(instant)
                    assert found is None or found > instant


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("sunst at 1,2", ["schedule.event", "'sunst'", "did you mean 'sunset'", "dusk_civil"]),
        ("moonrise at 1,2", ["schedule.event", "'moonrise'"]),
        ("sunset at 90.1,2", ["schedule.lat", "90.1", "-90 to 90"]),
        ("sunset at 1,-180.5", ["schedule.lon", "-180.5", "-180 to 180"]),
        ("sunset at x,2", ["schedule.lat", "'x'"]),
        ("sunset at 1,nan", ["schedule.lon", "'nan'"]),
        ("sunset at ١,2", ["schedule.lat"]),
        ({"kind": "solar", "event": "sunset", "lat": 1}, ["no 'lon'", "'lon': 21.0"]),
        ({"kind": "solar", "event": "sunset", "lat": True, "lon": 1}, ["schedule.lat", "True"]),
        ({"kind": "solar", "event": "sunset", "lat": None, "lon": 1}, ["schedule.lat", "None"]),
        ({"kind": "solar", "event": "sunset", "lat": 1, "lon": float("inf")}, ["schedule.lon", "inf"]),
        ({"kind": "solar", "event": "sunset", "lat": 1, "lon": 10**400}, ["schedule.lon"]),
        ({"kind": "solar", "event": 5, "lat": 1, "lon": 1}, ["schedule.event", "5"]),
        ({"kind": "solar", "event": "sunset", "lat": 1, "lng": 1}, ["no key 'lng'"]),
        ({"kind": "solar", "expression": "sunset"}, ["no key 'expression'"]),
    ],
)
def test_what_is_no_event_of_the_sun_is_refused_naming_the_part(value: Any, words: list[str]) -> None:
    with pytest.raises(InvalidValue) as refusal:
        read_schedule(value, Zone())

    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_without_ephem_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ephem", None)

    with pytest.raises(InvalidValue, match=r"pip install 'celery-tm\[solar\]'"):
        read_schedule("sunset at 52.2,21.0", Zone())
    assert read_schedule("0 9 * * *", Zone()).next_after(NEW_YEAR) is not None
