"""The small interface every kind of schedule has, and the registry of kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from ...clock import format_duration, parse_duration
from ...errors import InvalidValue, UnknownTimeZone, nearest, shown
from ..dst import Fold, Gap

KINDS: dict[str, type[Schedule]] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Zone:
    """The time zone a schedule's local times are in, and what it does when clocks change. `fold=None`: as the kind likes."""

    name: str = "UTC"
    gap: Gap = Gap.SHIFT
    fold: Fold | None = None

    @property
    def info(self) -> ZoneInfo:
        """Return the tz database's entry."""
        try:
            return ZoneInfo(self.name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise UnknownTimeZone(self.name, nearest(self.name, _zones())) from None


class Schedule(ABC):
    """A rule that yields instants in order. Two equal schedules yield the same instants."""

    kind: ClassVar[str]
    expression: str

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in cls.__dict__:
            KINDS[cls.kind] = cls

    @classmethod
    @abstractmethod
    def load(cls, expression: str, zone: Zone) -> Schedule:
        """Return the schedule that `expression` means; refuse one that is wrong or never fires."""

    @classmethod
    def expression_of(cls, given: Mapping[str, Any]) -> str:
        """Return the expression of a mapping such as {"kind": "cron", "expression": "…"}."""
        unknown = set(given) - {"kind", "expression"}
        if unknown or not isinstance(given.get("expression"), str):
            raise InvalidValue("schedule", f"{dict(given)!r} has no expression, or more than one", cls.example())
        return str(given["expression"])

    @classmethod
    @abstractmethod
    def example(cls) -> str:
        """Return an example of what is right, for error messages."""

    @abstractmethod
    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first instant strictly later than `instant`, or None if there is none."""

    @abstractmethod
    def describe(self) -> str:
        """Say in plain words when it fires."""

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Yield the instants later than `after` and not later than `until`."""
        instant = self.next_after(after)
        while instant is not None and instant <= until:
            yield instant
            instant = self.next_after(instant)

    def period_at(self, instant: datetime) -> timedelta:
        """Return the time from `instant` to the next one: the original delay that backoff is a share of."""
        following = self.next_after(instant)
        return following - instant if following else timedelta(0)


def read_schedule(value: Any, zone: Zone) -> Schedule:
    """Return the schedule that a person's input means."""
    if isinstance(value, timedelta):
        every = format_duration(parse_duration(value, field="schedule"))
        return load_schedule("interval", f"every {every}", zone)
    if isinstance(value, str):
        text = value.strip()
        return load_schedule("interval" if text.startswith(("every ", "@every ")) else "cron", text, zone)
    if isinstance(value, Mapping):
        kind = value.get("kind")
        if not isinstance(kind, str) or kind not in KINDS:
            raise InvalidValue("schedule", f"unknown kind {kind!r}", f"use one of {', '.join(sorted(KINDS))}")
        return load_schedule(kind, KINDS[kind].expression_of(value), zone)
    raise InvalidValue(
        "schedule", f"{shown(value)} is not a schedule", "give e.g. '*/5 * * * *', 'every 10s' or a timedelta"
    )


def load_schedule(kind: str, expression: str, zone: Zone) -> Schedule:
    """Return the schedule that the database keeps as kind and expression."""
    if kind not in KINDS:
        raise InvalidValue("schedule", f"unknown kind {kind!r}", f"use one of {', '.join(sorted(KINDS))}")
    return KINDS[kind].load(expression, zone)


def read_zone(name: Any) -> str:
    """Return a name the tz database has."""
    if not isinstance(name, str):
        raise InvalidValue("timezone", f"{name!r} is not text", "use a name like 'Europe/Warsaw'")
    if name not in _zones():
        raise UnknownTimeZone(name, nearest(name, _zones()))
    return name


_known_zones: set[str] = set()


def _zones() -> set[str]:
    if not _known_zones:
        _known_zones.update(available_timezones())
    return _known_zones
