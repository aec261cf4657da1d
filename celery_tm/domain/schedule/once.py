"""Once: one instant, given with its offset or as a local time of the definition's zone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from ...clock import as_utc
from ...errors import InvalidValue, shown
from ..dst import Fold, wall_to_utc
from .base import MAX_LENGTH, Schedule, Zone, checked_keys
from .words import moment

_SHAPE = re.compile(r"at\s+(?P<at>[0-9]{4}-.*)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Once(Schedule):
    """Fires at one instant: `at` is aware UTC, or naive and then a local time of `zone`."""

    kind: ClassVar[str] = "once"
    at: datetime
    zone: Zone

    @property
    def expression(self) -> str:  # type: ignore[override]
        """Return the text that `load` takes back."""
        return f"at {self.at.isoformat()}"

    @classmethod
    def load(cls, expression: str, zone: Zone, *, name: str = "") -> Once:  # noqa: ARG003
        """Return the schedule of text like "at 2026-12-24T18:00:00+01:00"; without an offset it is local time."""
        match = _SHAPE.fullmatch(expression.strip()) if len(expression) <= MAX_LENGTH else None
        if not match:
            raise InvalidValue("schedule", f"{shown(expression)} is not an instant", cls.example())
        at = read_moment(match["at"], field="schedule", example=cls.example())
        # The zone does not matter to an instant with an offset: leave it out, so that equal instants are equal.
        once = cls(as_utc(at, field="schedule"), Zone()) if at.tzinfo else cls(at.replace(fold=0), zone)
        if once.instant is None:
            raise InvalidValue(
                "schedule",
                f"{once.at.isoformat()} does not exist in {zone.name}: clocks are put forward over it, so it never fires",
                "give another time, or gap='shift'",
            )
        return once

    @classmethod
    def expression_of(cls, given: Mapping[str, Any]) -> str:
        """Return the expression of {"kind": "once", "at": …}, where `at` is text or a datetime."""
        checked_keys(given, needed=["at"], example=cls.example())
        at = given["at"]
        if isinstance(at, datetime):
            return f"at {as_utc(at, field='schedule.at').isoformat()}"
        if not isinstance(at, str):
            raise InvalidValue("schedule.at", f"{shown(at)} is not a date and time", cls.example())
        return f"at {at.strip()}"

    @classmethod
    def example(cls) -> str:
        """Return an example of what is right."""
        return "use e.g. 'at 2026-12-24T18:00:00+01:00', or {'kind': 'once', 'at': '2026-12-24T18:00:00'} for local time"

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Say whether a text is "at" and something."""
        return re.match(r"at\s", text, re.IGNORECASE) is not None

    @property
    def instant(self) -> datetime | None:
        """Return when that is, or None if the zone skips that time and so does the definition."""
        if self.at.tzinfo:
            return self.at
        # Both passes would be twice, and once is once.
        fold = self.zone.fold if self.zone.fold is Fold.SECOND else Fold.FIRST
        return wall_to_utc(self.at, zone=self.zone.info, gap=self.zone.gap, fold=fold)

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the instant if it is strictly later than `instant`."""
        at = self.instant
        return at if at and at > instant else None

    def describe(self) -> str:
        """Say when it fires."""
        return f"once, at {moment(self.at)} {'UTC' if self.at.tzinfo else f'in {self.zone.name}'}"


def read_moment(text: str, *, field: str, example: str) -> datetime:
    """Return a date and time in ISO 8601, naive if it has no offset; a date alone is refused, since it names no time."""
    at: datetime | None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or not text.isascii() or not re.search(r"[Tt ]", text.strip()):
        raise InvalidValue(field, f"{shown(text)} is not a date and time", example)
    return at
