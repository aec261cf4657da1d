"""Celery's own schedules, read as ours: what `beat_schedule` entries mean as definitions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

from celery.schedules import crontab, schedule, solar
from celery.utils.time import timezone as celery_zones

from ..clock import format_duration
from ..domain.job import MAX_NAME
from ..domain.schedule.cron_fields import read_fields
from ..errors import InvalidValue

DAY = timedelta(days=1)
CRONTAB_FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
OWN_OPTIONS = ("queue", "priority", "expires")
ASKED = ("is_due", "remaining_delta", "remaining_estimate")  # what Celery's beat asks a schedule for


def read_entry(app: Any, entry: Any) -> dict[str, Any]:
    """Return the values of a definition that an entry of `beat_schedule` states."""
    get = entry.get if isinstance(entry, Mapping) else lambda name, default=None: getattr(entry, name, default)
    if not get("task"):
        raise InvalidValue("task", "the entry has none", "add 'task': 'module.function'")
    values: dict[str, Any] = {
        "task": get("task"),
        "args": list(get("args") or ()),
        "kwargs": dict(get("kwargs") or {}),
        "timezone": zone_of(app),
        "schedule": read_rule(get("schedule"), relative=bool(get("relative")), zone=zone_of(app)),
    }
    return values | read_options(dict(get("options") or {}))


def read_rule(value: Any, *, relative: bool = False, zone: str = "UTC") -> Any:
    """Return a schedule of Celery's as `read_schedule` takes it; a relative one goes by the hours of `zone`."""
    _refuse_own_times(value)
    if isinstance(value, crontab):
        return {"kind": "crontab", "expression": " ".join(_words(value, place) for place in range(len(CRONTAB_FIELDS)))}
    if isinstance(value, solar):
        return {"kind": "solar", "event": value.event, "lat": float(value.lat), "lon": float(value.lon)}
    if isinstance(value, schedule) and type(value) is schedule:
        return interval_rule(value.run_every, relative=relative or bool(value.relative), zone=zone)
    if isinstance(value, timedelta):
        return interval_rule(value, relative=relative, zone=zone)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return interval_rule(timedelta(seconds=value), relative=relative, zone=zone)
    raise InvalidValue(
        "schedule",
        f"{type(value).__name__} is no schedule that can be read",
        "use crontab, solar, a timedelta or seconds, or register a kind under the entry point celery_tm.schedules",
    )


def zone_of(app: Any) -> str:
    """Return the name of the zone that Celery goes by: that of `timezone`, UTC, or the machine's with `enable_utc=False`."""
    zone = app.conf.timezone or (celery_zones.utc if app.conf.enable_utc else celery_zones.local)
    name = zone if isinstance(zone, str) else getattr(zone, "key", None) or getattr(zone, "zone", None)
    if isinstance(name, str):
        return name
    offset = zone.utcoffset(None)
    if offset == timedelta(0):
        return "UTC"
    if isinstance(zone, timezone) and offset is not None and not offset % timedelta(hours=1):
        return f"Etc/GMT{-(offset // timedelta(hours=1)):+d}"  # whose signs are the other way round
    raise InvalidValue("timezone", f"{zone!r} has no name in the tz database", "set timezone = 'Europe/Warsaw' or the like")


def default_zone(app: Any) -> str:
    """Return the zone of new definitions that state none: the app's `timezone` where it is set, else UTC."""
    return zone_of(app) if app.conf.timezone else "UTC"


def _refuse_own_times(value: Any) -> None:
    """Refuse a subclass of Celery's schedules that computes its times itself: nobody would ask it."""
    for kind in (crontab, solar):
        if isinstance(value, kind) and any(
            getattr(type(value), name, None) is not getattr(kind, name, None) for name in ASKED
        ):
            raise InvalidValue(
                "schedule",
                f"{type(value).__name__} computes its own times",
                f"use {kind.__name__}, or register a kind under the entry point celery_tm.schedules",
            )


def _words(value: crontab, place: int) -> str:
    """Return a field as it was written; in numbers where ours would read it otherwise ('fri-mon', 'monday', '*/90')."""
    name = CRONTAB_FIELDS[place]
    text, numbers = _field(getattr(value, f"_orig_{name}")), frozenset(getattr(value, name))
    return text if _meaning(text, place) == numbers else _in_numbers(numbers, place)


def _meaning(text: str, place: int) -> frozenset[int] | None:
    parts = ["0", *(text if place == other else "*" for other in range(len(CRONTAB_FIELDS)))]
    try:
        read = read_fields(parts, name="", both=True)
    except InvalidValue:
        return None
    return frozenset((read.minutes, read.hours, read.days.numbers, read.months, read.weekdays.numbers)[place])


def _in_numbers(numbers: frozenset[int], place: int) -> str:
    if len(numbers) == (60, 24, 31, 12, 7)[place]:
        return "*"
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def _field(value: Any) -> str:
    """Return a field of a crontab as text; Celery also takes numbers and sets of them."""
    if isinstance(value, (set, frozenset, list, tuple)):
        return ",".join(str(part) for part in sorted(value))
    return str(value).replace(" ", "")


def interval_rule(every: timedelta, *, relative: bool = False, since: datetime | None = None, zone: str = "UTC") -> str:
    """Return an interval: at round times, or counted from its last run `since`.

    A relative one is rounded as Celery rounds it; one of whole days begins at local midnight.
    """
    if every <= timedelta(0):
        raise InvalidValue("schedule", f"an interval of {every} never ends", "give one second or more")
    local = since.astimezone(ZoneInfo(zone)).replace(microsecond=0) if since else None
    if relative and local is None and zone != "UTC" and every < DAY:
        local = datetime(2000, 1, 1, tzinfo=ZoneInfo(zone))  # any local midnight: it goes by full local hours and minutes
    if relative and every >= DAY and every % DAY == timedelta(0):
        return f"R/{local.date() if local else '1970-01-01'}T00:00:00/P{every // DAY}D"
    if local is None:
        return f"every {format_duration(every)}"
    if relative:
        hours, minutes = every >= timedelta(hours=1), every >= timedelta(minutes=1)
        local = local.replace(minute=0, second=0) if hours else local.replace(second=0) if minutes else local
    return f"every {format_duration(every)} from {local.astimezone(UTC).isoformat()}"


def read_options(options: dict[str, Any]) -> dict[str, Any]:
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
