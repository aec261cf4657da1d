"""Which kinds of schedule there are, and how a person's input becomes one of them.

A package adds a kind of its own with an entry point in the group `celery_tm.schedules`, whose name is the kind and whose
object is a subclass of `Schedule`. It is looked for only when an unknown kind is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ...clock import as_utc, format_duration, parse_duration
from ...errors import InvalidValue, nearest, shown
from .base import KINDS, Schedule, Zone

GROUP = "celery_tm.schedules"
SELDOM = timedelta(days=366 * 5)


def read_schedule(value: Any, zone: Zone, *, name: str = "") -> Schedule:
    """Return the schedule that a person's input means for the definition `name`."""
    if isinstance(value, timedelta):
        every = format_duration(parse_duration(value, field="schedule"))
        return load_schedule("interval", f"every {every}", zone, name=name)
    if isinstance(value, datetime):
        return load_schedule("once", f"at {as_utc(value, field='schedule').isoformat()}", zone, name=name)
    if isinstance(value, str):
        text = value.strip()
        kinds = [kind for kind, schedule in KINDS.items() if schedule.recognises(text)]
        return load_schedule(kinds[0] if kinds else "cron", text, zone, name=name)
    if isinstance(value, (list, tuple)):
        return _any_of(value, zone, name=name)
    if isinstance(value, Mapping):
        kind = find_kind(value.get("kind"))
        return kind.load(kind.expression_of(value), zone, name=name)
    raise InvalidValue(
        "schedule", f"{shown(value)} is not a schedule", "give e.g. '*/5 * * * *', 'every 10s' or a timedelta"
    )


def _any_of(values: Sequence[Any], zone: Zone, *, name: str) -> Schedule:
    """Return several schedules as one; one that stands alone is itself."""
    from .union import Union

    union = Union.of(values, zone, name=name)
    return union if len(union.parts) > 1 else union.parts[0]


def load_schedule(kind: str, expression: str, zone: Zone, *, name: str = "") -> Schedule:
    """Return the schedule that the database keeps as kind and expression."""
    return find_kind(kind).load(expression, zone, name=name)


def find_kind(kind: Any) -> type[Schedule]:
    """Return the class of a kind, from here or from a package that adds it."""
    if isinstance(kind, str):
        found = KINDS.get(kind) or _added(kind)
        if found:
            return found
    known = sorted({*KINDS, *_entries()})
    close = nearest(kind, known) if isinstance(kind, str) else None
    hint = f", did you mean {close!r}?" if close else ""
    raise InvalidValue("schedule", f"unknown kind {shown(kind)}{hint}", f"use one of {', '.join(known)}")


def _added(kind: str) -> type[Schedule] | None:
    entry = _entries().get(kind)
    if entry is None:
        return None
    where = f"the entry point {kind!r} of {GROUP!r} ({entry.value})"
    try:
        found = entry.load()
    except Exception as error:
        raise InvalidValue("schedule", f"{where} cannot be loaded ({error!r})", "repair or remove the package") from error
    if not (isinstance(found, type) and issubclass(found, Schedule) and getattr(found, "kind", None) == kind):
        raise InvalidValue(
            "schedule",
            f"{where} is {shown(found)}, not a schedule of that kind",
            f"let it name a subclass of celery_tm.Schedule with kind = {kind!r}",
        )
    KINDS[kind] = found
    return found


@cache
def _entries() -> dict[str, EntryPoint]:
    """Return the kinds that installed packages add. Kept, because it reads the metadata of every package."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def seldom(schedule: Schedule, after: datetime) -> timedelta | None:
    """Return the wait for the first instant, or from it to the second, if it is over five years: probably a mistake."""
    for _ in range(2):
        following = schedule.next_after(after)
        if following is None:
            return None
        if following - after > SELDOM:
            return following - after
        after = following
    return None
