"""The rows of django-celery-beat and sqlalchemy-celery-beat, read as entries.

The two keep the same columns; they differ in the names of their tables and in how a task names its schedule. Columns that
an older release lacks count as empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from celery.schedules import crontab

from ...domain.codec import decode
from ...errors import InvalidValue, TmError, shown
from ...scheduler.celery_schedules import CRONTAB_FIELDS, interval_rule, read_rule
from .entry import UNSTATED, Entry, Unreadable, read_instant

Row = Mapping[str, Any]
KINDS = ("interval", "crontab", "solar", "clocked")
PERIODS = ("days", "hours", "minutes", "seconds", "microseconds")
REPAIR = "repair it in the source"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """The names of a scheduler's tables, and where it differs."""

    task: str
    schedules: Mapping[str, str]  # by kind
    has_discriminator: bool = False  # a task names its schedule by a word and one id, else by an id for each kind
    names_itself: bool = False  # its messages carry the entry's name in a header
    counts_from_change: bool = False  # an entry that never ran is counted from when it was changed

    @property
    def names(self) -> list[str]:
        """Return all of them."""
        return [self.task, *self.schedules.values()]


DJANGO = Tables(
    task="django_celery_beat_periodictask",
    schedules={kind: f"django_celery_beat_{kind}schedule" for kind in KINDS},
    names_itself=True,
    counts_from_change=True,
)
SQLALCHEMY = Tables(
    task="celery_periodictask",
    schedules={kind: f"celery_{kind}schedule" for kind in KINDS},
    has_discriminator=True,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowReader:
    """Reads the tables of one database. `naive` is the zone of times without an offset, `zone` the app's."""

    tables: Tables
    content: Mapping[str, Sequence[Row]]
    zone: str = "UTC"
    naive: tzinfo = UTC
    own_zones: bool = True  # a crontab goes by its own zone, else by the app's

    def entries(self) -> Iterator[Entry | Unreadable]:
        """Yield the entries in the order in which they were made."""
        schedules = {
            kind: {row.get("id"): row for row in self.content.get(name, ())} for kind, name in self.tables.schedules.items()
        }
        for row in self.content[self.tables.task]:
            name = str(row.get("name") or f"id {row.get('id')}")
            try:
                kind, schedule, notes = self._schedule_of(row, schedules)
                yield self._entry(name, row, kind, schedule, notes)
            except (TmError, ValueError, TypeError, OverflowError, KeyError) as error:
                yield Unreadable(name=name, error=str(error) or type(error).__name__)

    def _schedule_of(self, row: Row, schedules: Mapping[str, Mapping[Any, Row]]) -> tuple[str, Row, list[str]]:
        """Return the kind and the row of a task's schedule."""
        if self.tables.has_discriminator and row.get("discriminator"):
            said = {str(row["discriminator"]).removesuffix("schedule"): row.get("schedule_id")}
        else:
            said = {kind: row[f"{kind}_id"] for kind in KINDS if row.get(f"{kind}_id") is not None}
        if not said:
            raise InvalidValue("schedule", "the entry has none", REPAIR)
        kind, id = next(iter(said.items()))
        if kind not in KINDS:
            raise InvalidValue("schedule", f"unknown kind {shown(kind)}", f"use one of {', '.join(KINDS)}")
        if id not in schedules[kind]:
            raise InvalidValue("schedule", f"its {kind} schedule, id {shown(id)}, is gone", REPAIR)
        notes = [f"it names {len(said)} schedules; the {kind} counts, as there"] if len(said) > 1 else []
        return kind, schedules[kind][id], notes

    def _entry(self, name: str, row: Row, kind: str, schedule: Row, notes: list[str]) -> Entry:
        last_run_at, starts_at = self._instant(row, "last_run_at"), self._instant(row, "start_time")
        runs, enabled, one_off = int(row.get("total_run_count") or 0), _flag(row, "enabled", True), _flag(row, "one_off")
        since = last_run_at
        if since is None and self.tables.counts_from_change and starts_at is None and kind != "clocked":
            since = self._instant(row, "date_changed")
        # One that has not run since its start begins with the start itself.
        anchor = starts_at if starts_at and (last_run_at is None or starts_at > last_run_at) else since
        values: dict[str, Any] = {
            **UNSTATED,
            "task": row.get("task"),
            "args": _json(row, "args", list),
            "kwargs": _json(row, "kwargs", dict),
            "enabled": enabled,
            "starts_at": starts_at,
            "max_runs": 1 if one_off and kind != "clocked" else None,
            **self._schedule(kind, schedule, anchor),
            **self._options(name, row),
        }
        if row.get("description"):
            notes.append(f"its description is not kept: {shown(str(row['description']))}")
        ran = one_off and runs > 0
        awaited = values["schedule"] if kind == "clocked" and enabled and not ran else None
        return Entry(
            name=name,
            values=values,
            since=since or _before(awaited or starts_at),
            last_run_at=last_run_at,
            runs=runs,
            over="it is to run once, and has" if ran else None,
            awaited=awaited,
            notes=tuple(notes),
        )

    def _schedule(self, kind: str, row: Row, anchor: datetime | None) -> dict[str, Any]:
        """Return schedule and zone as a definition states them."""
        zone = self.zone
        if kind == "interval":
            period = str(row["period"])
            if period not in PERIODS:
                raise InvalidValue("schedule", f"unknown period {shown(period)}", f"use one of {', '.join(PERIODS)}")
            return {"schedule": interval_rule(timedelta(**{period: row["every"]}), since=anchor), "timezone": zone}
        if kind == "crontab":
            if self.own_zones and row.get("timezone"):
                zone = str(row["timezone"])
            fields = {field: _cron_text(row.get(field)) for field in CRONTAB_FIELDS}
            return {"schedule": read_rule(crontab(**fields)), "timezone": zone}
        if kind == "solar":
            place = {"lat": float(row["latitude"]), "lon": float(row["longitude"])}
            return {"schedule": {"kind": "solar", "event": str(row["event"]), **place}, "timezone": zone}
        at = self._instant(row, "clocked_time")
        if at is None:
            raise InvalidValue("schedule", "its clocked time is empty", REPAIR)
        return {"schedule": at, "timezone": zone}

    def _options(self, name: str, row: Row) -> dict[str, Any]:
        """Return what the entry says about its messages."""
        options: dict[str, Any] = {key: row[key] for key in ("exchange", "routing_key") if row.get(key)}
        headers = _json(row, "headers", dict)
        if self.tables.names_itself:
            headers["periodic_task_name"] = name  # what django-celery-results shows a result under
        if headers:
            options["headers"] = headers
        ends_at, seconds = self._instant(row, "expires"), row.get("expire_seconds")
        return {
            "queue": row.get("queue") or None,
            "priority": row.get("priority"),
            "ends_at": ends_at,
            "expires": timedelta(seconds=seconds) if seconds and not ends_at else None,
            "options": options,
        }

    def _instant(self, row: Row, field: str) -> datetime | None:
        return read_instant(row.get(field), field=field, zone=self.naive)


def _before(instant: datetime | None) -> datetime | None:
    """Return what to count from so that the instant itself comes."""
    return instant - timedelta(microseconds=1) if instant else None


def _flag(row: Row, field: str, default: bool = False) -> bool:
    value = row.get(field)
    return default if value is None else bool(value)


def _cron_text(value: Any) -> str:
    """Return a field without what older releases kept of Python lists."""
    return "".join(c for c in str("*" if value is None else value) if c not in " []{}") or "*"


def _json(row: Row, field: str, kind: type) -> Any:
    text = row.get(field)
    try:
        value = decode(text) if text else kind()
    except Exception as error:
        raise InvalidValue(field, f"{shown(text)} is not JSON ({error})", REPAIR) from None
    if not isinstance(value, kind):
        raise InvalidValue(field, f"{shown(text)} is not a {'list' if kind is list else 'mapping'}", REPAIR)
    return value
