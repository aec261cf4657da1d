"""Any: several schedules as one. It fires when one of its parts does, at each instant once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from ...errors import InvalidValue, shown
from .base import Schedule, Zone, checked_keys
from .registry import read_schedule
from .words import listed

MAX_PARTS = 20
INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Union(Schedule):
    """Fires whenever one of its parts does; the parts are ordinary schedules in the definition's zone."""

    kind: ClassVar[str] = "any"
    parts: tuple[Schedule, ...]
    expression: str

    @classmethod
    def load(cls, expression: str, zone: Zone, *, name: str = "") -> Union:
        """Return the schedule of a JSON list of schedules."""
        try:
            given = json.loads(expression)
        except (ValueError, RecursionError):
            raise InvalidValue("schedule", f"{shown(expression)} is no list of schedules", cls.example()) from None
        return cls.of(given, zone, name=name)

    @classmethod
    def of(cls, given: Any, zone: Zone, *, name: str = "") -> Union:
        """Return the union of what a person lists; what is there twice counts once."""
        if not isinstance(given, (list, tuple)) or not 1 <= len(given) <= MAX_PARTS:
            raise InvalidValue("schedule", f"{shown(given)} is no list of 1 to {MAX_PARTS} schedules", cls.example())
        for part in given:
            if isinstance(part, (list, tuple)) or (isinstance(part, Mapping) and part.get("kind") == cls.kind):
                raise InvalidValue("schedule", "a list of schedules has another list in it", "list all in one")
        parts = tuple(dict.fromkeys(read_schedule(part, zone, name=name) for part in given))
        for part in parts:
            if isinstance(part, cls):  # as text
                raise InvalidValue("schedule", "a list of schedules has another list in it", "list all in one")
        return cls(parts, json.dumps([write_part(part) for part in parts]))

    @classmethod
    def expression_of(cls, given: Mapping[str, Any]) -> str:
        """Return the expression of {"kind": "any", "schedules": […]}, or of one as it is kept."""
        if "expression" in given:
            checked_keys(given, needed=["expression"], example=cls.example())
            return str(given["expression"])
        checked_keys(given, needed=["schedules"], example=cls.example())
        return cls.of(given["schedules"], Zone()).expression

    @classmethod
    def example(cls) -> str:
        """Return an example of what is right."""
        return "use e.g. ['0 8 * * *', '0 20 * * 6']"

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Say whether a text is a list."""
        return text.startswith("[")

    @property
    def zone(self) -> Zone | None:
        """Return the zone of the parts that fire at local times; None if none does."""
        zones = (getattr(part, "zone", None) for part in self.parts if not getattr(part, "is_interval_like", False))
        return next((zone for zone in zones if isinstance(zone, Zone)), None)

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first instant of any part that is strictly later than `instant`."""
        return min((at for at in (part.next_after(instant) for part in self.parts) if at), default=None)

    def describe(self) -> str:
        """Say when it fires."""
        return listed([part.describe() for part in self.parts], "and also")


def write_part(part: Schedule) -> Any:
    """Return a part as a person would state it: as text, or with its kind where the text does not tell it."""
    return (
        part.expression if part.kind != "crontab" and _is_told(part) else {"kind": part.kind, "expression": part.expression}
    )


def _is_told(part: Schedule) -> bool:
    try:
        return read_schedule(part.expression, getattr(part, "zone", None) or Zone()).kind == part.kind
    except InvalidValue:
        return False


def rules_at(rule: Schedule, instant: datetime) -> list[str]:
    """Return which of several schedules give an instant; nothing where there is only one."""
    parts = rule.parts if isinstance(rule, Union) else ()
    return [part.expression for part in parts if part.next_after(instant - INSTANT) == instant]
