"""What people state about a definition, in calls, files and commands: read, checked, and written back.

Every way in passes through `check_values`, so an error says the same wherever it is made: which field, what is wrong with
it, and what would be right.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from ..clock import format_duration
from ..errors import InvalidValue, UnknownOption, nearest, shown, spelled
from .calendar import checked_entries
from .checks import checked_options, choice, count, duration, flag, instant, json_text, names, text
from .codec import decode
from .dst import Fold, Gap
from .job import MAX_TASK, checked_concurrency, checked_priority, checked_retries, checked_text
from .overlap import Overlap
from .recovery import Recovery
from .retry import read_policy, write_policy
from .schedule import Zone, read_schedule, read_zone
from .steps import check_steps
from .workflow import MAX_STEPS, TASK, Mode, Strategy

# What a person may state. What is not stated keeps its default, or its present value in an update.
FIELDS = (
    "task", "args", "kwargs", "schedule", "timezone", "gap", "fold", "starts_at", "ends_at", "excluded", "calendars",
    "jitter", "max_runs", "enabled", "paused", "group", "queue", "priority", "max_retries", "retry", "overlap",
    "concurrency_key", "concurrency", "recovery", "recovery_count", "recovery_within", "recovery_spacing",
    "execution_timeout", "task_timeout", "expires", "pause_after", "plan_ahead", "options", "steps", "mode",
    "failure_strategy", "max_parallel", "terminate", "on_start", "on_start_blocking",
    "on_complete",
)  # fmt: skip
MAX_COUNT = 10_000
MAX_PAUSE_AFTER = 100
MAX_GROUP, MAX_GROUPS = 100, 20  # characters of a name, and how many


def check_values(values: Mapping[str, Any], *, zone: Zone, name: str = "", present: Any = None) -> dict[str, Any]:
    """Return the columns that the stated values mean; refuse unknown names and anything malformed.

    `present` is the definition that is edited: what is not stated, it has already.
    """
    values = spread(values)
    for field in values:
        if field not in FIELDS:
            raise UnknownOption(spelled(field), nearest(field, FIELDS))
    columns: dict[str, Any] = {field: _CHECKS[field](value) for field, value in values.items() if field in _CHECKS}
    if {"concurrency", "concurrency_key"} & values.keys():
        key = values.get("concurrency_key", getattr(present, "concurrency_key", None))
        limit = values.get("concurrency", getattr(present, "concurrency", None) if key else None)
        columns["concurrency_key"], columns["concurrency"] = checked_concurrency(key, limit)
    if "group" in values:
        columns |= _groups(values["group"])
    if {"steps", "mode"} & values.keys():
        columns |= _steps(values, columns.get("mode", getattr(present, "mode", Mode.SEQUENTIAL)), present)
    zone = Zone(
        name=columns.get("timezone", zone.name), gap=columns.get("gap", zone.gap), fold=columns.get("fold", zone.fold)
    )
    if "schedule" in values:
        rule = read_schedule(values["schedule"], zone, name=name)
        columns |= {"schedule_kind": rule.kind, "schedule": rule.expression}
    return columns


def _steps(values: Mapping[str, Any], mode: Mode, present: Any) -> dict[str, Any]:
    """Return the steps in the order that the mode means, and the name of the job that stands for all of them."""
    steps = check_steps(values.get("steps", getattr(present, "steps", None)), mode)
    if steps and "task" not in values:
        without = {name: empty for name, empty in (("args", "[]"), ("kwargs", "{}")) if name not in values}
        return {"steps": steps, "task": TASK, **without}
    return {"steps": steps}


def _hook(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hook that is stated as a mapping, and whether it blocks; no hook blocks nothing."""
    hook = values["on_start"]
    if hook is None:
        return {"on_start_blocking": False, **values}
    if not isinstance(hook, Mapping):
        return {}
    for part in hook:
        if part not in ("task", "blocking"):
            raise UnknownOption(f"on_start.{spelled(part)}", nearest(part, ("task", "blocking")))
    if "task" not in hook:
        raise InvalidValue("on_start", f"{shown(dict(hook))} has no task", "add e.g. 'task': 'etl.prepare'")
    if "on_start_blocking" in values:
        raise InvalidValue("on_start_blocking", "on_start= states it already", "state it in one place")
    return {"on_start": hook["task"], "on_start_blocking": hook.get("blocking", False)}


def _groups(value: Any) -> dict[str, Any]:
    """Return the first group, and all of them where there are several."""
    if value is None or isinstance(value, str):
        return {"group": text("group", MAX_GROUP)(value), "groups": ()}
    if not isinstance(value, (list, tuple)) or len(value) > MAX_GROUPS:
        raise InvalidValue("group", f"{shown(value)} is not a list of names", "give e.g. ['billing', 'nightly']")
    found = tuple(dict.fromkeys(checked_text(one, field="group", limit=MAX_GROUP) for one in value))
    return {"group": found[0] if found else None, "groups": found if len(found) > 1 else ()}


def spread(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values with what may be written in two ways written in one.

    `recovery={"policy": "bounded", "count": 3}` becomes recovery and its bounds, `groups` becomes `group`, and
    `on_start={"task": "etl.prepare", "blocking": True}` the hook and whether it blocks.
    """
    if "on_start" in values:
        values = {**values, **_hook(values)}
    if "groups" in values:
        if "group" in values:
            raise InvalidValue("groups", "group= states them already", "state them in one place")
        values = {"group" if name == "groups" else name: value for name, value in values.items()}
    recovery = values.get("recovery")
    if not isinstance(recovery, Mapping):
        return values
    parts = {"policy": "recovery", "count": "recovery_count", "within": "recovery_within", "spacing": "recovery_spacing"}
    for part in recovery:
        if part not in parts:
            raise UnknownOption(f"recovery.{spelled(part)}", nearest(part, parts))
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
        try:
            return decode(value)
        except ValueError:  # a row that somebody wrote by hand: shown as it is
            return value
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def write_fields(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns as the fields that a person would state, in plain JSON; a schedule's kind is a part of the schedule."""
    fields = {name: write_value(name, value) for name, value in columns.items() if name not in _PARTS}
    if columns.get("groups"):
        fields["group"] = list(columns["groups"])
    if "schedule" in fields:
        fields["schedule"] = write_schedule(columns["schedule_kind"], columns["schedule"])
    return fields


def write_schedule(kind: str, expression: str) -> Any:
    """Return a schedule as a person would state it: as text, or with its kind where the text does not tell it."""
    if kind == "any":
        try:
            return json.loads(expression)
        except ValueError:  # a row that somebody wrote by hand: shown as it is
            return expression
    return expression if kind in _TEXT_KINDS else {"kind": kind, "expression": expression}


_PARTS = ("schedule_kind", "groups")  # columns that are a part of another field
_TEXT_KINDS = frozenset({"cron", "interval", "iso8601", "once", "window", "rrule", "solar"})  # told by their text
_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "task": lambda value: checked_text(value, field="task", limit=MAX_TASK),
    "args": json_text("args", list, "list"),
    "kwargs": json_text("kwargs", dict, "mapping"),
    "timezone": read_zone,
    "gap": choice(Gap, "gap"),
    "fold": choice(Fold, "fold", optional=True),
    "starts_at": instant("starts_at"),
    "ends_at": instant("ends_at"),
    "excluded": lambda value: () if value is None else checked_entries(value, field="excluded"),
    "calendars": lambda value: () if value is None else names(value),
    "jitter": duration("jitter", "30s", zero=True),
    "max_runs": count("max_runs", 1_000_000_000),
    "enabled": flag("enabled"),
    "paused": flag("paused"),
    "queue": text("queue", 255),
    "priority": lambda value: None if value is None else checked_priority(value),
    "max_retries": lambda value: None if value is None else checked_retries(value),
    "retry": lambda value: None if value is None else write_policy(read_policy(value)),
    "overlap": choice(Overlap, "overlap"),
    "recovery": choice(Recovery, "recovery"),
    "recovery_count": count("recovery_count", MAX_COUNT),
    "recovery_within": duration("recovery_within", "2h"),
    "recovery_spacing": duration("recovery_spacing", "10s", zero=True),
    "execution_timeout": duration("execution_timeout", "1h"),
    "task_timeout": duration("task_timeout", "5m"),
    "expires": duration("expires", "1h"),
    "pause_after": count("pause_after", MAX_PAUSE_AFTER),
    "plan_ahead": duration("plan_ahead", "1d", zero=True),
    "options": checked_options,
    "mode": choice(Mode, "mode"),
    "failure_strategy": choice(Strategy, "failure_strategy", optional=True),
    "max_parallel": count("max_parallel", MAX_STEPS),
    "terminate": flag("terminate"),
    "on_start": text("on_start", MAX_TASK),
    "on_start_blocking": flag("on_start_blocking"),
    "on_complete": text("on_complete", MAX_TASK),
}
