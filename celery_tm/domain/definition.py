"""A definition: a recurring rule, as it is kept in `tm_definition`, and the checks every way in passes through."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

from ..clock import as_utc
from ..errors import InvalidValue, UnknownOption, nearest
from .codec import encode
from .dst import Fold, Gap
from .job import MAX_TASK, checked_priority, checked_retries, checked_text, checked_timeout
from .overlap import Overlap
from .recovery import Recovery
from .retry import read_policy, write_policy
from .schedule import Schedule, Zone, load_schedule, read_schedule, read_zone

MAX_NAME = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Definition:
    """One row of `tm_definition`. `planned_until` is the last instant decided; it only moves forward."""

    id: str
    name: str
    task: str
    args: str = "[]"
    kwargs: str = "{}"
    schedule_kind: str
    schedule: str
    timezone: str = "UTC"
    gap: Gap = Gap.SHIFT
    fold: Fold | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    enabled: bool = True
    paused: bool = False
    group: str | None = None
    queue: str | None = None
    priority: int | None = None
    max_retries: int | None = None  # None: the task's own, and so for retry and timeout
    retry: Mapping[str, Any] | None = None
    overlap: Overlap = Overlap.SKIP
    recovery: Recovery = Recovery.LAST
    timeout: timedelta | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1
    planned_until: datetime
    next_run_at: datetime | None = None
    last_run_at: datetime | None = None
    created_at: datetime
    created_by: str | None = None
    updated_at: datetime
    updated_by: str | None = None

    @property
    def rule(self) -> Schedule:
        """Return the schedule as a value."""
        return load_schedule(self.schedule_kind, self.schedule, Zone(name=self.timezone, gap=self.gap, fold=self.fold))

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first instant strictly later than `instant` within the definition's bounds."""
        if self.starts_at and instant < self.starts_at:
            instant = self.starts_at - timedelta(microseconds=1)
        following = self.rule.next_after(instant)
        return None if following is None or (self.ends_at and following > self.ends_at) else following


# What a person may state. What is not stated keeps its default, or its present value in an update.
FIELDS = (
    "task", "args", "kwargs", "schedule", "timezone", "gap", "fold", "starts_at", "ends_at", "enabled", "paused", "group",
    "queue", "priority", "max_retries", "retry", "overlap", "recovery", "timeout", "options",
)  # fmt: skip
# What decides when it fires: a change of one of these sets the next instant anew.
TIMING = frozenset({"schedule_kind", "schedule", "timezone", "gap", "fold", "starts_at", "ends_at"})

E = TypeVar("E", bound=StrEnum)


def new_definition(*, id: str, name: str, values: Mapping[str, Any], now: datetime, actor: str | None) -> Definition:
    """Return a checked definition that plans instants later than `now`."""
    checked_text(name, field="name", limit=MAX_NAME)
    columns = check_values(values, zone=Zone())
    for needed in ("task", "schedule"):
        if needed not in values:
            raise InvalidValue(needed, f"definition {name!r} has none", f"add {needed}=…")
    definition = Definition(
        id=id,
        name=name,
        planned_until=now,
        created_at=now,
        updated_at=now,
        created_by=actor,
        updated_by=actor,
        **columns,
    )
    _refuse_empty(definition)
    return replace(definition, next_run_at=definition.next_after(now))


def _refuse_empty(definition: Definition) -> None:
    if definition.starts_at and definition.ends_at and definition.ends_at < definition.starts_at:
        raise InvalidValue("ends_at", "it is before starts_at, so it never fires", "give a later ends_at")


def edited(definition: Definition, *, values: Mapping[str, Any], now: datetime, actor: str | None) -> Definition:
    """Return the next version of a definition, or the same one if nothing differs."""
    zone = Zone(name=definition.timezone, gap=definition.gap, fold=definition.fold)
    columns = check_values(values, zone=zone)
    changed = {name: value for name, value in columns.items() if getattr(definition, name) != value}
    if not changed:
        return definition
    after = replace(definition, **changed, version=definition.version + 1, updated_at=now, updated_by=actor)
    _refuse_empty(after)
    if TIMING & changed.keys():
        # Instants up to now belong to the rule that was in force, and are decided; the new one begins with the next.
        planned_until = max(definition.planned_until, now)
        after = replace(after, planned_until=planned_until, next_run_at=after.next_after(planned_until))
    return after


def check_values(values: Mapping[str, Any], *, zone: Zone) -> dict[str, Any]:
    """Return the columns that the stated values mean; refuse unknown names and anything malformed."""
    for name in values:
        if name not in FIELDS:
            raise UnknownOption(str(name), nearest(str(name), FIELDS))
    columns: dict[str, Any] = {name: _CHECKS[name](value) for name, value in values.items() if name in _CHECKS}
    zone = Zone(
        name=columns.get("timezone", zone.name), gap=columns.get("gap", zone.gap), fold=columns.get("fold", zone.fold)
    )
    if "schedule" in values:
        rule = read_schedule(values["schedule"], zone)
        columns |= {"schedule_kind": rule.kind, "schedule": rule.expression}
    return columns


def _choice(enum: type[E], field: str, *, optional: bool = False) -> Any:
    def check(value: Any) -> E | None:
        if value is None and optional:
            return None
        try:
            return enum(value)
        except ValueError:
            choices = ", ".join(repr(str(member)) for member in enum)
            raise InvalidValue(field, f"{value!r} is not one of its values", f"use one of {choices}") from None

    return check


def _text(field: str, limit: int) -> Any:
    return lambda value: None if value is None else checked_text(value, field=field, limit=limit)


def _flag(field: str) -> Any:
    def check(value: Any) -> bool:
        if not isinstance(value, bool):
            raise InvalidValue(field, f"{value!r} is not true or false", "give a bool")
        return value

    return check


def _json(field: str, kind: type, shape: str) -> Any:
    def check(value: Any) -> str:
        if not isinstance(value, kind if kind is dict else (list, tuple)):
            raise InvalidValue(field, f"{value!r} is not a {shape}", f"give a {shape}")
        return encode(value, field=field)

    return check


def _options(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidValue("options", f"{value!r} is not a mapping", "give Celery options such as {'headers': {…}}")
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
                raise InvalidValue(field, f"{value!r} is not a date and time", "use ISO 8601 with an offset") from None
        return None if value is None else as_utc(value, field=field)

    return check


_CHECKS: Mapping[str, Any] = {
    "task": lambda value: checked_text(value, field="task", limit=MAX_TASK),
    "args": _json("args", list, "list"),
    "kwargs": _json("kwargs", dict, "mapping"),
    "timezone": read_zone,
    "gap": _choice(Gap, "gap"),
    "fold": _choice(Fold, "fold", optional=True),
    "starts_at": _instant("starts_at"),
    "ends_at": _instant("ends_at"),
    "enabled": _flag("enabled"),
    "paused": _flag("paused"),
    "group": _text("group", 100),
    "queue": _text("queue", 255),
    "priority": lambda value: None if value is None else checked_priority(value),
    "max_retries": lambda value: None if value is None else checked_retries(value),
    "retry": lambda value: None if value is None else write_policy(read_policy(value)),
    "overlap": _choice(Overlap, "overlap"),
    "recovery": _choice(Recovery, "recovery"),
    "timeout": lambda value: None if value is None else checked_timeout(value),
    "options": _options,
}

COLUMNS = tuple(f.name for f in fields(Definition))
