"""What people state about a definition, in calls, files and commands: read, checked, and written back.

Every way in passes through `check_values`, so an error says the same wherever it is made: which field, what is wrong with
it, and what would be right.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

from ..clock import as_utc, format_duration, parse_duration
from ..errors import InvalidValue, UnknownOption, nearest, shown
from .calendar import checked_entries
from .codec import decode, encode
from .dst import Fold, Gap
from .job import MAX_TASK, checked_concurrency, checked_priority, checked_retries, checked_text
from .overlap import Overlap
from .recovery import Recovery
from .retry import read_policy, write_policy
from .schedule import Zone, read_schedule, read_zone

# What a person may state. What is not stated keeps its default, or its present value in an update.
FIELDS = (
    "task", "args", "kwargs", "schedule", "timezone", "gap", "fold", "starts_at", "ends_at", "excluded", "calendars",
    "jitter", "max_runs", "enabled", "paused", "group", "queue", "priority", "max_retries", "retry", "overlap",
    "concurrency_key", "concurrency", "recovery", "recovery_count", "recovery_within", "recovery_spacing",
    "execution_timeout", "task_timeout", "expires", "pause_after", "plan_ahead", "options",
)  # fmt: skip
MAX_COUNT = 10_000
MAX_PAUSE_AFTER = 100

E = TypeVar("E", bound=StrEnum)


def check_values(values: Mapping[str, Any], *, zone: Zone, name: str = "", present: Any = None) -> dict[str, Any]:
    """Return the columns that the stated values mean; refuse unknown names and anything malformed.

    `present` is the definition that is edited: what is not stated, it has already.
    """
    values = _spread(values)
    for field in values:
        if field not in FIELDS:
            raise UnknownOption(str(field), nearest(str(field), FIELDS))
    columns: dict[str, Any] = {field: _CHECKS[field](value) for field, value in values.items() if field in _CHECKS}
    if {"concurrency", "concurrency_key"} & values.keys():
        key = values.get("concurrency_key", getattr(present, "concurrency_key", None))
        limit = values.get("concurrency", getattr(present, "concurrency", None) if key else None)
        columns["concurrency_key"], columns["concurrency"] = checked_concurrency(key, limit)
    zone = Zone(
        name=columns.get("timezone", zone.name), gap=columns.get("gap", zone.gap), fold=columns.get("fold", zone.fold)
    )
    if "schedule" in values:
        rule = read_schedule(values["schedule"], zone, name=name)
        columns |= {"schedule_kind": rule.kind, "schedule": rule.expression}
    return columns


def _spread(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values with recovery={"policy": "bounded", "count": 3} written out as recovery and its bounds."""
    recovery = values.get("recovery")
    if not isinstance(recovery, Mapping):
        return values
    parts = {"policy": "recovery", "count": "recovery_count", "within": "recovery_within", "spacing": "recovery_spacing"}
    for part in recovery:
        if part not in parts:
            raise UnknownOption(f"recovery.{part}", nearest(str(part), parts))
    if "policy" not in recovery:
        raise InvalidValue("recovery", f"{shown(dict(recovery))} has no policy", "add e.g. 'policy': 'bounded'")
    rest = {name: value for name, value in values.items() if name != "recovery"}
    for column in parts.values():
        if column in rest:
            raise InvalidValue(column, "recovery= states the bounds already", "state them in one place")
    # A mapping states all of it: a bound that is not there is none.
    return rest | {column: recovery.get(part) for part, column in parts.items()}


def write_value(name: str, value: Any) -> Any:
    """Return a column as a person would state it, in plain JSON."""
    if name in ("args", "kwargs"):
        return decode(value)
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _choice(enum: type[E], field: str, *, optional: bool = False) -> Any:
    def check(value: Any) -> E | None:
        if value is None and optional:
            return None
        try:
            return enum(value)
        except ValueError:
            choices = ", ".join(repr(str(member)) for member in enum)
            near = nearest(str(value), [str(member) for member in enum])
            hint = f"; did you mean {near!r}?" if near else ""
            raise InvalidValue(field, f"{shown(value)} is not one of its values", f"use one of {choices}{hint}") from None

    return check


def _text(field: str, limit: int) -> Any:
    return lambda value: None if value is None else checked_text(value, field=field, limit=limit)


def _flag(field: str) -> Any:
    def check(value: Any) -> bool:
        if not isinstance(value, bool):
            raise InvalidValue(field, f"{shown(value)} is not true or false", "give a bool")
        return value

    return check


def _json(field: str, kind: type, shape: str) -> Any:
    def check(value: Any) -> str:
        if not isinstance(value, kind if kind is dict else (list, tuple)):
            raise InvalidValue(field, f"{shown(value)} is not a {shape}", f"give a {shape}")
        return encode(value, field=field)

    return check


def _options(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidValue("options", f"{shown(value)} is not a mapping", "give Celery options such as {'headers': {…}}")
    encode(dict(value), field="options")  # says where it is wrong
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue(
            "options", f"they are not plain JSON ({error})", "give text, numbers, lists and mappings"
        ) from None
    return dict(value)


def _instant(field: str) -> Any:
    def check(value: Any) -> datetime | None:
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                raise InvalidValue(field, f"{shown(value)} is not a date and time", _INSTANT) from None
        return None if value is None else as_utc(value, field=field)

    return check


_INSTANT = "use ISO 8601 with an offset, e.g. '2026-12-24T18:00:00+01:00'"


def _duration(field: str, example: str, *, zero: bool = False) -> Any:
    def check(value: Any) -> timedelta | None:
        if value is None:
            return None
        duration = parse_duration(value, field=field)
        if duration == timedelta(0):
            if zero:
                return None
            raise InvalidValue(field, f"{shown(value)} leaves no time", f"give a longer duration, e.g. {example!r}")
        return duration

    return check


def _count(field: str, limit: int) -> Any:
    def check(value: Any) -> int | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
            raise InvalidValue(field, f"{shown(value)} is not a count", f"give a whole number from 1 to {limit}")
        return value

    return check


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise InvalidValue("calendars", f"{shown(value)} is not a list of names", "give e.g. ['holidays']")
    return tuple(checked_text(item, field=f"calendars[{place}]", limit=100) for place, item in enumerate(value))


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "task": lambda value: checked_text(value, field="task", limit=MAX_TASK),
    "args": _json("args", list, "list"),
    "kwargs": _json("kwargs", dict, "mapping"),
    "timezone": read_zone,
    "gap": _choice(Gap, "gap"),
    "fold": _choice(Fold, "fold", optional=True),
    "starts_at": _instant("starts_at"),
    "ends_at": _instant("ends_at"),
    "excluded": lambda value: () if value is None else checked_entries(value, field="excluded"),
    "calendars": lambda value: () if value is None else _names(value),
    "jitter": _duration("jitter", "30s", zero=True),
    "max_runs": _count("max_runs", 1_000_000_000),
    "enabled": _flag("enabled"),
    "paused": _flag("paused"),
    "group": _text("group", 100),
    "queue": _text("queue", 255),
    "priority": lambda value: None if value is None else checked_priority(value),
    "max_retries": lambda value: None if value is None else checked_retries(value),
    "retry": lambda value: None if value is None else write_policy(read_policy(value)),
    "overlap": _choice(Overlap, "overlap"),
    "recovery": _choice(Recovery, "recovery"),
    "recovery_count": _count("recovery_count", MAX_COUNT),
    "recovery_within": _duration("recovery_within", "2h"),
    "recovery_spacing": _duration("recovery_spacing", "10s", zero=True),
    "execution_timeout": _duration("execution_timeout", "1h"),
    "task_timeout": _duration("task_timeout", "5m"),
    "expires": _duration("expires", "1h"),
    "pause_after": _count("pause_after", MAX_PAUSE_AFTER),
    "plan_ahead": _duration("plan_ahead", "1d", zero=True),
    "options": _options,
}
