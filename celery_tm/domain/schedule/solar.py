"""Solar: sunrise, sunset and the like at a place, as Celery has them.

Each day of the place (from midnight to midnight of its mean solar time) is looked at on its own, from the same points
always. So an instant does not depend on where one asks from. Where the sun does not rise or set, the next day that has
the event follows. `ephem` computes where the sun is; it is an extra, loaded when first needed.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from importlib import import_module
from itertools import pairwise
from math import degrees, radians
from typing import Any, ClassVar

from ...errors import InvalidValue, nearest, shown
from .base import MAX_LENGTH, Schedule, Zone, checked_keys

DAY, SECOND = timedelta(days=1), timedelta(seconds=1)
MAX_DAYS = 400
STEP = 1800
MARGIN = 2.0  # degrees: more than the sun's size, its parallax and a day's change of its declination together
# What ephem counts days from.
EPHEM_EPOCH = datetime(1899, 12, 31, 12, tzinfo=UTC)
_SHAPE = re.compile(r"(?P<event>\w+)\s+at\s+(?P<lat>[^\s,]+)\s*,\s*(?P<lon>[^\s,]+)", re.ASCII)
_NUMBER = re.compile(r"[+-]?[0-9]{1,3}(?:\.[0-9]{1,30})?(?:e-[0-9]{1,3})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Event:
    """An event: the sun goes up or down through a height above the horizon, in degrees. `limb`: its upper edge does."""

    upwards: bool
    height: float
    limb: bool = False


# Celery's names and heights. Solar noon is when the sun is in the south or north, whatever its height.
EVENTS: Mapping[str, Event | None] = {
    "dawn_astronomical": Event(True, -18),
    "dawn_nautical": Event(True, -12),
    "dawn_civil": Event(True, -6),
    "sunrise": Event(True, -34 / 60, limb=True),
    "solar_noon": None,
    "sunset": Event(False, -34 / 60, limb=True),
    "dusk_civil": Event(False, -6),
    "dusk_nautical": Event(False, -12),
    "dusk_astronomical": Event(False, -18),
}


@dataclass(frozen=True, slots=True)
class Solar(Schedule):
    """Fires at an event of the sun at a latitude and longitude."""

    kind: ClassVar[str] = "solar"
    event: str
    lat: float
    lon: float

    @property
    def expression(self) -> str:  # type: ignore[override]
        """Return the text that `load` takes back."""
        return f"{self.event} at {self.lat},{self.lon}"

    @classmethod
    def load(cls, expression: str, zone: Zone, *, name: str = "") -> Solar:  # noqa: ARG003
        """Return the schedule of text like "sunset at 52.2,21.0"."""
        match = _SHAPE.fullmatch(expression.strip()) if len(expression) <= MAX_LENGTH else None
        if not match:
            raise InvalidValue("schedule", f"{shown(expression)} is not an event of the sun at a place", cls.example())
        _ephem()
        event = _read_event(match["event"])
        return cls(event, _degrees(match["lat"], "lat", 90), _degrees(match["lon"], "lon", 180))

    @classmethod
    def expression_of(cls, given: Mapping[str, Any]) -> str:
        """Return the expression of {"kind": "solar", "event": "sunset", "lat": 52.2, "lon": 21.0}."""
        checked_keys(given, needed=["event", "lat", "lon"], example=cls.example())
        if not isinstance(given["event"], str):
            raise InvalidValue("schedule.event", f"{shown(given['event'])} is not text", _event_example())
        event = _read_event(given["event"].strip())
        return f"{event} at {_degrees(given['lat'], 'lat', 90)},{_degrees(given['lon'], 'lon', 180)}"

    @classmethod
    def example(cls) -> str:
        """Return an example of what is right."""
        return "use e.g. 'sunset at 52.2,21.0', or {'kind': 'solar', 'event': 'sunset', 'lat': 52.2, 'lon': 21.0}"

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Say whether a text is a word, "at" and two things."""
        return _SHAPE.fullmatch(text) is not None

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first instant strictly later than `instant`, or None if there is none for over a year."""
        try:
            first = (instant.astimezone(UTC) + DAY * (self.lon / 360)).date() - DAY
        except OverflowError:
            if instant.year > 1:
                return None
            first = date.min
        for ahead in range(MAX_DAYS + 1):
            try:
                found = _events_of(self.event, self.lat, self.lon, first + ahead * DAY)
            except OverflowError:
                continue  # before the first day of the calendar, or after the last
            for at in found:
                if at > instant:
                    return at
        return None

    def describe(self) -> str:
        """Say when it fires."""
        north, east = "N" if self.lat >= 0 else "S", "E" if self.lon >= 0 else "W"
        return f"at {self.event.replace('_', ' ')} at {abs(self.lat)}° {north}, {abs(self.lon)}° {east}"


@lru_cache(maxsize=4096)
def _events_of(event: str, lat: float, lon: float, day: date) -> tuple[datetime, ...]:
    """Return the instants of an event on one day of the place, to the second."""
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC) - round(lon * 240) * SECOND
    crossing = EVENTS[event]
    if crossing is None:
        transit = _observer(lat, lon).next_transit(_ephem().Sun(), start=_days(begin))
        return (EPHEM_EPOCH + timedelta(seconds=round(float(transit) * 86400)),)
    sky = _Sky(lat, lon, begin, crossing)
    if not sky.may_cross(lat):
        return ()
    return tuple(
        begin + sky.turn(low, high) * SECOND
        for low, high in pairwise(sky.points())
        if sky.is_up(high) is crossing.upwards is not sky.is_up(low)
    )


class _Sky:
    """How high the sun stands over one day of a place, by the second."""

    def __init__(self, lat: float, lon: float, begin: datetime, event: Event) -> None:
        self.observer, self.sun = _observer(lat, lon), _ephem().Sun()
        self.begin, self.event = _days(begin), event
        self.heights: dict[int, float] = {}

    def height(self, second: int) -> float:
        """Return the height over that of the event, in radians."""
        if second not in self.heights:
            self.observer.date = self.begin + second / 86400
            self.sun.compute(self.observer)
            edge = self.sun.radius if self.event.limb else 0.0
            self.heights[second] = self.sun.alt + edge - radians(self.event.height)
        return self.heights[second]

    def is_up(self, second: int) -> bool:
        """Say whether the sun stands at the event's height or above."""
        return self.height(second) >= 0

    def may_cross(self, lat: float) -> bool:
        """Say whether the sun comes near the event's height at all: a look at noon spares the many of a polar night."""
        self.observer.date = self.begin + 0.5
        self.sun.compute(self.observer)
        declination = degrees(self.sun.dec)
        highest, lowest = 90 - abs(lat - declination), abs(lat + declination) - 90
        return lowest - MARGIN <= self.event.height <= highest + MARGIN

    def points(self) -> list[int]:
        """Return the seconds to look at: evenly spread, and where the sun turns, lest it rises and sets in between."""
        found = set(range(0, 86400 + STEP, STEP))
        for middle in range(0, 86400 + STEP, STEP):
            before, at, after = (self.height(middle + n * STEP) for n in (-1, 0, 1))
            if (at - before) * (at - after) > 0:
                found.add(middle + round(STEP / 2 * (before - after) / (before - 2 * at + after)))
        return sorted(second for second in found if 0 <= second <= 86400)

    def turn(self, low: int, high: int) -> int:
        """Return the first second between the two at which it is as at `high`."""
        return low + bisect_left(range(low, high), True, key=lambda second: self.is_up(second) is self.is_up(high))


def _days(at: datetime) -> float:
    """Return an instant as ephem counts it; its own conversion reads dates before 1582 as Julian ones."""
    return (at - EPHEM_EPOCH) / DAY


def _observer(lat: float, lon: float) -> Any:
    observer = _ephem().Observer()
    observer.lat, observer.lon = radians(lat), radians(lon)
    observer.pressure = 0  # the heights allow for the bending of light already
    return observer


def _ephem() -> Any:
    try:
        return import_module("ephem")
    except ImportError:
        raise InvalidValue("schedule", "kind 'solar' needs ephem", "run `pip install 'celery-tm[solar]'`") from None


def _read_event(text: str) -> str:
    if text not in EVENTS:
        close = nearest(text, EVENTS)
        hint = f", did you mean {close!r}?" if close else ""
        raise InvalidValue("schedule.event", f"{shown(text)} is not an event of the sun{hint}", _event_example())
    return text


def _event_example() -> str:
    return f"use one of {', '.join(EVENTS)}"


def _degrees(value: Any, what: str, most: int) -> float:
    """Return a latitude or longitude in degrees."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -most <= value <= most:
        raise InvalidValue(f"schedule.{what}", f"{shown(value)} is not in -{most} to {most} degrees", "use e.g. 52.2")
    return round(float(value), 6) + 0.0  # to a step; and no minus zero
