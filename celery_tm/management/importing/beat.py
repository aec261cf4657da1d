"""Celery's own beat: entries from the app's `beat_schedule`, and their last runs from the file that beat keeps.

The definitions are the same that seeding makes when beat starts. What the file adds is where the old beat stopped, so that
an instant between its end and our beat's start is not lost. The file is a pickle; it is read for names, times and counts
only, and no class that it names is loaded.
"""

from __future__ import annotations

import dbm
import io
import os
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from ...domain.schedule import Zone, read_schedule
from ...domain.schedule.interval import Interval
from ...errors import InvalidValue, SourceUnavailable, TmError
from ...scheduler.celery_schedules import name_of, read_entry
from ...scheduler.seeding import CLEANUP, entries_of, origin_of
from .entry import Contents, Entry, Unreadable

SUFFIXES = ("", ".db", ".dat", ".dir")
IN_CODE = "beat_schedule states it too, and the code wins"
NO_CLEANUP = "results of this app expire by themselves, or there are none: nothing needs cleaning up"


@dataclass(frozen=True, slots=True)
class Run:
    """What beat's file says about one entry."""

    last_run_at: datetime | None
    total_run_count: int


def read_beat(app: Any, path: str | None) -> Contents:
    """Return the app's entries with their last runs from beat's file, if there is one."""
    load(app)
    file = path or str(app.conf.beat_schedule_filename)
    there = any(os.path.exists(file + suffix) for suffix in SUFFIXES)
    if path and not there:
        raise SourceUnavailable(file, "no such file")
    runs = read_file(file) if there else {}
    notes = [] if there else [f"there is no {file}, so no last runs are known: all goes on from now"]
    where = f"beat_schedule and {file}" if there else "beat_schedule"
    return Contents(where=where, entries=list(_entries(app, runs)), notes=notes)


def load(app: Any) -> None:
    """Import the app's tasks as beat does when it starts: their modules may add entries."""
    app.loader.import_default_modules()
    app.finalize(auto=True)


def _entries(app: Any, runs: Mapping[str, Run]) -> Iterator[Entry | Unreadable]:
    for key, entry in entries_of(app).items():
        run = runs.get(key) or Run(None, 0)
        try:
            values = read_entry(app, entry)
            yield Entry(
                name=str(key), values=values, since=run.last_run_at, last_run_at=run.last_run_at, every=_every(values),
                runs=run.total_run_count, origin=origin_of(app),
            )  # fmt: skip
        except (TmError, ValueError) as error:
            yield Unreadable(name=str(key), error=str(error))


def _every(values: Mapping[str, Any]) -> timedelta | None:
    rule = read_schedule(values["schedule"], Zone())
    return rule.every if isinstance(rule, Interval) else None


def as_in_code(app: Any, contents: Contents) -> Contents:
    """Return a scheduler's entries with the code's word for those that `beat_schedule` states too.

    Every scheduler copies them into its own store, and so does seeding: what is imported must be what seeding would make.
    """
    load(app)
    code = {name_of(key): entry for key, entry in entries_of(app).items()}
    entries = [_coded(app, entry, code) if isinstance(entry, Entry) else entry for entry in contents.entries]
    return replace(contents, entries=entries)


def _coded(app: Any, entry: Entry, code: Mapping[str, Any]) -> Entry:
    stated = code.get(name_of(entry.name))
    if stated is None:
        over = NO_CLEANUP if entry.name == CLEANUP and entry.values.get("task") == CLEANUP else entry.over
        return replace(entry, over=over)
    try:
        values = read_entry(app, stated)
        every = _every(values)
    except (TmError, ValueError):
        return entry  # what the code says cannot be read here, so seeding will leave it alone
    values["enabled"] = entry.values["enabled"]
    return replace(entry, values=values, every=every, over=None, origin=origin_of(app), notes=(*entry.notes, IN_CODE))


def read_file(path: str) -> dict[str, Run]:
    """Return last runs by name from the file of Celery's beat."""
    try:
        with dbm.open(path, "r") as file:
            data = file.get(b"entries")
    except (OSError, *dbm.error) as error:
        raise SourceUnavailable(path, f"{error}; beat keeps it locked while it runs") from None
    if data is None:
        return {}
    try:
        entries = _Reader(io.BytesIO(data)).load()
    except Exception as error:  # a pickle that is broken may raise anything
        raise InvalidValue(path, f"it is not the file of Celery's beat ({error!r})", "give it with --from") from None
    if not isinstance(entries, Mapping):
        raise InvalidValue(path, "it is not the file of Celery's beat", "give it with --from")
    return {str(name): run.read() for name, run in entries.items() if isinstance(run, _ScheduleEntry)}


class _Ignored(tzinfo):
    """Stands for whatever else is in the file, and does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> _Ignored:
        return self

    def __setstate__(self, _: Any) -> None:
        pass

    def __setitem__(self, _: Any, __: Any) -> None:
        pass

    def extend(self, _: Any) -> None:
        """Take a list's items."""

    append = extend

    def utcoffset(self, _: datetime | None) -> timedelta | None:
        """Know of no offset."""
        return None


class _ScheduleEntry(_Ignored):
    """Celery's ScheduleEntry, as it is pickled."""

    def __init__(self, *said: Any, **_: Any) -> None:
        _name, _task, self.last_run_at, self.runs = (*said, None, None, None, None)[:4]

    def read(self) -> Run:
        """Return its last run as an instant, if it is one."""
        at = self.last_run_at
        known = isinstance(at, datetime) and at.utcoffset() is not None
        return Run(at.astimezone(UTC) if known else None, self.runs if isinstance(self.runs, int) else 0)


class _Reader(pickle.Unpickler):
    """Reads a pickle without loading what it names: only times are what they are, the rest is ignored."""

    def find_class(self, module: str, name: str) -> Any:
        return _KNOWN.get((module, name), _Ignored)


def _zone(key: str, *_: Any) -> ZoneInfo:
    return ZoneInfo(key)


def _part(owner: Any, name: str) -> Any:
    """Return the one part of a class that a pickled time needs: how its zone is made again."""
    return _zone if owner is ZoneInfo and name == "_unpickle" else _Ignored


_KNOWN: Mapping[tuple[str, str], Any] = {
    ("celery.beat", "ScheduleEntry"): _ScheduleEntry,
    ("datetime", "datetime"): datetime,
    ("datetime", "timedelta"): timedelta,
    ("datetime", "timezone"): timezone,
    ("zoneinfo", "ZoneInfo"): ZoneInfo,
    ("zoneinfo", "ZoneInfo._unpickle"): _zone,
    ("builtins", "getattr"): _part,
}
