"""Celery's own schedules, read as ours: what `beat_schedule` entries mean as definitions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from celery.schedules import crontab, schedule, solar

from ..clock import format_duration
from ..domain.definition import MAX_NAME
from ..errors import InvalidValue

DAY = timedelta(days=1)
CRONTAB_FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
OWN_OPTIONS = ("queue", "priority", "expires")


def read_entry(app: Any, entry: Any) -> dict[str, Any]:
    """Return the values of a definition that an entry of `beat_schedule` states."""
    get = entry.get if isinstance(entry, Mapping) else lambda name, default=None: getattr(entry, name, default)
    if not get("task"):
        raise InvalidValue("task", "the entry has none", "add 'task': 'module.function'")
    values: dict[str, Any] = {
        "task": get("task"),
        "args": list(get("args") or ()),
        "kwargs": dict(get("kwargs") or {}),
        "timezone": app.conf.timezone or "UTC",
        "schedule": read_rule(get("schedule"), relative=bool(get("relative"))),
    }
    return values | _options(dict(get("options") or {}))


def read_rule(value: Any, *, relative: bool = False) -> Any:
    """Return a schedule of Celery's as `read_schedule` takes it."""
    if isinstance(value, crontab):
        fields = (getattr(value, f"_orig_{name}") for name in CRONTAB_FIELDS)
        return {"kind": "crontab", "expression": " ".join(_field(field) for field in fields)}
    if isinstance(value, solar):
        return {"kind": "solar", "event": value.event, "lat": float(value.lat), "lon": float(value.lon)}
    if isinstance(value, schedule) and type(value) is schedule:
        return _interval(value.run_every, relative or bool(value.relative))
    if isinstance(value, timedelta):
        return _interval(value, relative)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _interval(timedelta(seconds=value), relative)
    raise InvalidValue(
        "schedule",
        f"{type(value).__name__} is no schedule that can be read",
        "use crontab, solar, a timedelta or seconds, or register a kind under the entry point celery_tm.schedules",
    )


def _field(value: Any) -> str:
    """Return a field of a crontab as text; Celery also takes numbers and sets of them."""
    if isinstance(value, (set, frozenset, list, tuple)):
        return ",".join(str(part) for part in sorted(value))
    return str(value).replace(" ", "")


def _interval(every: timedelta, relative: bool) -> Any:
    """Return an interval; a relative one of whole days begins at local midnight, as Celery rounds it."""
    if relative and every >= DAY and every % DAY == timedelta(0):
        return f"R/1970-01-01T00:00:00/P{every // DAY}D"
    return f"every {format_duration(every)}"


def _options(options: dict[str, Any]) -> dict[str, Any]:
    """Return Celery's message options as what a definition says: how long a run may wait, its queue, and the rest."""
    values = {name: options.pop(name) for name in OWN_OPTIONS if options.get(name) is not None}
    if isinstance(values.get("expires"), datetime):
        values["ends_at"] = values.pop("expires")
    if options:
        values["options"] = options
    return values


def name_of(key: str) -> str:
    """Return a definition's name for an entry; Celery makes long ones of signatures."""
    name = " ".join("".join(c if c.isprintable() else " " for c in str(key)).split()) or "entry"
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 13]} {hashlib.sha256(key.encode()).hexdigest()[:12]}"
