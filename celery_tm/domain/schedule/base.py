"""The small interface every kind of schedule has, and the time zone its local times are in.

A schedule is a pure value: no clock, no database. `next_after` answers for any aware instant of the calendar and returns
None where nothing follows. Which kinds there are, and how a person's input becomes one, is `registry`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from ...errors import InvalidValue, UnknownTimeZone, nearest, shown
from ..dst import Fold, Gap, next_local

KINDS: dict[str, type[Schedule]] = {}
MAX_LENGTH = 200


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

    def next_after(
        self, instant: datetime, *, fold: Fold, next_naive: Callable[[datetime], datetime | None]
    ) -> datetime | None:
        """Return the first instant later than `instant` of a rule on local time; `fold` is what the kind likes."""
        return next_local(instant, zone=self.info, gap=self.gap, fold=self.fold or fold, next_naive=next_naive)


class Schedule(ABC):
    """A rule that yields instants in order. Two equal schedules yield the same instants."""

    __slots__ = ()

    kind: ClassVar[str]
    expression: str

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in cls.__dict__:
            KINDS[cls.kind] = cls

    @classmethod
    @abstractmethod
    def load(cls, expression: str, zone: Zone, *, name: str = "") -> Schedule:
        """Return the schedule that `expression` means for the definition `name`; refuse one that is wrong or never fires."""

    @classmethod
    def expression_of(cls, given: Mapping[str, Any]) -> str:
        """Return the expression of a mapping such as {"kind": "cron", "expression": "…"}."""
        checked_keys(given, needed=["expression"], example=cls.example())
        if not isinstance(given["expression"], str):
            raise InvalidValue(
                "schedule.expression", f"{shown(given['expression'])} is no text, so there is no expression", cls.example()
            )
        return given["expression"]

    @classmethod
    @abstractmethod
    def example(cls) -> str:
        """Return an example of what is right, for error messages."""

    @classmethod
    def recognises(cls, text: str) -> bool:  # noqa: ARG003
        """Say whether a text without a kind is of this kind; what no kind recognises is read as cron."""
        return False

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


def checked_keys(given: Mapping[str, Any], *, needed: Iterable[str], optional: Iterable[str] = (), example: str) -> None:
    """Refuse a mapping that lacks a key it needs, or has one that its kind does not know."""
    needed, known = list(needed), ["kind", *needed, *optional]
    for key in given:
        if key not in known:
            close = nearest(key, known)
            hint = f", did you mean {close!r}?" if close else ""
            raise InvalidValue("schedule", f"a schedule of kind {given['kind']!r} has no key {shown(key)}{hint}", example)
    for key in needed:
        if key not in given:
            raise InvalidValue("schedule", f"the schedule of kind {given['kind']!r} has no {key!r}", example)


def checked_text(text: str, *, what: str, example: str, limit: int = MAX_LENGTH) -> str:
    """Return a text without blanks around it; refuse one that nobody writes by hand."""
    text = text.strip()
    if len(text) > limit:
        raise InvalidValue("schedule", f"{len(text)} characters are too many for {what}, {limit} is the most", example)
    return text


def read_zone(name: Any) -> str:
    """Return a name the tz database has."""
    if not isinstance(name, str):
        raise InvalidValue("timezone", f"{shown(name)} is not text", "use a name like 'Europe/Warsaw'")
    if name not in _zones():
        raise UnknownTimeZone(name, nearest(name, _zones()))
    return name


_known_zones: set[str] = set()


def _zones() -> set[str]:
    if not _known_zones:
        _known_zones.update(available_timezones())
    return _known_zones
