"""Recurrence rules of iCalendar (RFC 5545): DTSTART, RRULE, RDATE and EXDATE, in local time of the definition's zone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import Any, ClassVar

from ...errors import InvalidValue, shown
from ..dst import Fold
from .base import Schedule, Zone, checked_keys, checked_text
from .once import read_moment
from .rrule_text import EXAMPLE, HOURLY, Recurrence, Rule, read_recurrence
from .rrule_walk import MAX_STEPS, RuleWalk, TooFar
from .rrule_words import recurrence_words

MAX_TEXT = 4000
# How far the last of COUNT times may be looked for, in all rules together; once, because it is kept.
MAX_COUNT_STEPS = 250_000


@dataclass(frozen=True, slots=True)
class Rrule(Schedule):
    """Fires where local time is in the recurrence set; DTSTART itself only if it is."""

    kind: ClassVar[str] = "rrule"
    expression: str
    zone: Zone

    @classmethod
    def load(cls, expression: str, zone: Zone, *, name: str = "") -> Rrule:  # noqa: ARG003
        """Return the schedule of iCalendar text; refuse one that is malformed or never fires."""
        text = checked_text(expression, what="a recurrence rule", example=EXAMPLE, limit=MAX_TEXT)
        recurrence = read_recurrence(text)
        if _walk(recurrence.text).next_after(datetime.min) is None:  # noqa: DTZ901
            raise InvalidValue("schedule", f"{shown(text)} never fires", EXAMPLE)
        schedule = cls(recurrence.text, zone)
        if schedule.next_after(datetime.min.replace(tzinfo=UTC)) is None:
            raise InvalidValue(
                "schedule", f"{shown(text)} never fires in {zone.name}: clocks are put forward over it", "use gap='shift'"
            )
        return schedule

    @classmethod
    def expression_of(cls, given: Mapping[str, Any]) -> str:
        """Return the expression of {"kind": "rrule", "rule": "FREQ=…", "start": "2026-01-01T09:00:00"}."""
        if "expression" in given:
            return super(Rrule, cls).expression_of(given)
        checked_keys(given, needed=["rule", "start"], example=cls.example())
        rule, start = given["rule"], given["start"]
        if not isinstance(rule, str):
            raise InvalidValue("schedule.rule", f"{shown(rule)} is not text", cls.example())
        if isinstance(start, str):
            start = read_moment(start, field="schedule.start", example=cls.example())
        if not isinstance(start, datetime) or start.tzinfo or start.microsecond:
            raise InvalidValue(
                "schedule.start",
                f"{shown(start if isinstance(start, datetime) else given['start'])} is not a local time in whole seconds",
                "give one without an offset, e.g. '2026-01-01T09:00:00', and use timezone=",
            )
        return f"DTSTART:{start.isoformat().replace('-', '').replace(':', '')}\n{rule}"

    @classmethod
    def example(cls) -> str:
        """Return an example of what is right."""
        return f"{EXAMPLE}, or {{'kind': 'rrule', 'rule': 'FREQ=DAILY', 'start': '2026-01-01T09:00:00'}}"

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Say whether a text begins like a line of iCalendar."""
        return re.match(r"(?:DTSTART|RRULE|RDATE|EXDATE)[:;]|FREQ=", text, re.IGNORECASE) is not None

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first instant strictly later than `instant`; None also if it is too far to be found."""
        walk = _walk(self.expression)
        return self.zone.next_after(instant, fold=walk.fold, next_naive=walk.next_after)

    def describe(self) -> str:
        """Say when it fires."""
        return f"{recurrence_words(_walk(self.expression).recurrence)} in {self.zone.name}"


class _SetWalk:
    """The local times of a recurrence set: those of its rules and its own, less what is taken out."""

    def __init__(self, recurrence: Recurrence) -> None:
        self.recurrence = recurrence
        share = max(len(recurrence.rules), 1)
        self.steps = MAX_STEPS // share
        self.walks = [_counted(rule, recurrence.start, MAX_COUNT_STEPS // share) for rule in recurrence.rules]
        often = any(rule.freq >= HOURLY for rule in recurrence.rules)
        self.fold = Fold.BOTH if often else Fold.FIRST

    def next_after(self, wall: datetime) -> datetime | None:
        """Return the first local time strictly later than `wall`."""
        found = (self._first(walk.after(wall, steps=self.steps)) for walk in self.walks)
        added = self._first(at for at in self.recurrence.added if at > wall)
        return min((at for at in (*found, added) if at is not None), default=None)

    def _first(self, times: Iterable[datetime]) -> datetime | None:
        """Return the first that is not taken out; the steps of all that are count as one walk."""
        try:
            return next((at for at in times if at not in self.recurrence.taken_out), None)
        except TooFar:
            return None


def _counted(rule: Rule, start: datetime, steps: int) -> RuleWalk:
    """Return the walk of a rule, with its COUNT as the UNTIL that comes to the same."""
    walk = RuleWalk(rule, start)
    if rule.count is None:
        return walk
    try:
        last = next(islice(walk.after(datetime.min, steps=steps), rule.count - 1, None), None)  # noqa: DTZ901
    except TooFar:
        raise InvalidValue("schedule", f"COUNT={rule.count} reaches too far to be counted", "use UNTIL=") from None
    return RuleWalk(replace(rule, until=last), start)


@lru_cache(maxsize=4096)
def _walk(text: str) -> _SetWalk:
    return _SetWalk(read_recurrence(text))
