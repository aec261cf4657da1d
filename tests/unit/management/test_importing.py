"""What the rows, hashes and files of other schedulers mean as definitions; no database and no server."""

from __future__ import annotations

import dbm.dumb
import os
import pickle
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import crontab, schedule
from tmtest.peers import recorded

from celery_tm.domain.schedule import Zone, read_schedule
from celery_tm.errors import InvalidValue
from celery_tm.management.importing import beat, sources
from celery_tm.management.importing.entry import Entry, Unreadable, read_instant
from celery_tm.management.importing.redbeat import read_hash
from celery_tm.management.importing.rows import DJANGO, SQLALCHEMY, RowReader, Tables
from celery_tm.management.importing.rrules import rrule_text
from celery_tm.scheduler.celery_schedules import interval_rule, read_rule

LAST = datetime(2026, 6, 1, 11, 53, 20, 400000, tzinfo=UTC)


# Celery's schedules


@pytest.mark.parametrize(
    ("rule", "expression"),
    [
        (crontab(day_of_week="monday-friday"), "* * * * 1-5"),
        (crontab(day_of_week="fri-mon"), "* * * * 0,1,5,6"),
        (crontab(day_of_week="sat,sun"), "* * * * sat,sun"),
        (crontab(minute="*/90", hour="22-2"), "0 0-2,22,23 * * *"),
        (crontab(month_of_year="january,march-may"), "* * * 1,3-5 *"),
        (crontab(minute="50-10/5", day_of_month="*/2"), "0,5,10,50,55 * */2 * *"),
        (crontab(minute={5, 35}, hour=3), "5,35 3 * * *"),
        (crontab(hour="0-23", minute="0-59"), "0-59 0-23 * * *"),
    ],
)
def test_words_that_only_celery_takes_are_written_in_numbers(rule: crontab, expression: str) -> None:
    assert read_rule(rule) == {"kind": "crontab", "expression": expression}
    fields = read_schedule(read_rule(rule), Zone()).fields  # type: ignore[attr-defined]
    assert (set(fields.minutes), set(fields.hours), set(fields.months)) == (rule.minute, rule.hour, rule.month_of_year)
    assert (set(fields.days.numbers), set(fields.weekdays.numbers)) == (rule.day_of_month, rule.day_of_week)


@pytest.mark.parametrize(
    ("every", "relative", "zone", "expected"),
    [
        ("10m", False, "UTC", "every 10m from 2026-06-01T11:53:20+00:00"),
        ("10m", True, "UTC", "every 10m from 2026-06-01T11:53:00+00:00"),
        ("2h", True, "Asia/Kolkata", "every 2h from 2026-06-01T11:30:00+00:00"),
        ("2d", True, "Pacific/Auckland", "R/2026-06-01T00:00:00/P2D"),
        ("2d", False, "UTC", "every 2d from 2026-06-01T11:53:20+00:00"),
    ],
)
def test_an_interval_is_counted_from_its_last_run(every: str, relative: bool, zone: str, expected: str) -> None:
    span = {"10m": timedelta(minutes=10), "2h": timedelta(hours=2), "2d": timedelta(days=2)}[every]
    assert interval_rule(span, relative=relative, since=LAST, zone=zone) == expected
    read_schedule(expected, Zone(name=zone))


def test_an_interval_that_never_ends_is_refused() -> None:
    with pytest.raises(InvalidValue, match="never ends"):
        interval_rule(timedelta(0))


# Rows


def task_row(**fields: Any) -> dict[str, Any]:
    return {"id": 1, "name": "job", "task": "effect", "args": "[]", "kwargs": "{}", "enabled": 1, "one_off": 0,
            "total_run_count": 0, "last_run_at": None, "interval_id": 1} | fields  # fmt: skip


def read(row: dict[str, Any], *, tables: Tables = DJANGO, schedules: dict[str, Any] | None = None, **options: Any) -> Any:
    default = {"interval": {"id": 1, "every": 1, "period": "hours"}}
    content = {tables.schedules[kind]: [one] for kind, one in (default if schedules is None else schedules).items()}
    [entry] = RowReader(tables=tables, content={tables.task: [row], **content}, **options).entries()
    return entry


def test_text_times_and_numbers_of_sqlite_are_read() -> None:
    entry = read(task_row(last_run_at="2026-06-01 11:53:20.400000", enabled=0, expire_seconds=60))
    assert (entry.last_run_at, entry.values["enabled"], entry.values["expires"]) == (LAST, False, timedelta(minutes=1))
    assert entry.values["schedule"] == "every 1h from 2026-06-01T11:53:20+00:00"


def test_times_without_an_offset_are_in_the_zone_that_was_said() -> None:
    entry = read(task_row(last_run_at="2026-06-01 13:53:20.400000"), naive=ZoneInfo("Europe/Warsaw"))
    assert entry.last_run_at == LAST


def test_a_crontab_goes_by_its_own_zone_unless_django_says_otherwise() -> None:
    fields = {"id": 1, "minute": "0", "hour": "[9, 10]", "day_of_week": "*", "day_of_month": "*", "month_of_year": "*"}
    row = task_row(interval_id=None, crontab_id=1)
    schedules = {"crontab": {**fields, "timezone": "Asia/Tokyo"}}
    entry = read(row, schedules=schedules, zone="Europe/Warsaw")
    assert (entry.values["schedule"]["expression"], entry.values["timezone"]) == ("0 9,10 * * *", "Asia/Tokyo")
    assert read(row, schedules=schedules, zone="Europe/Warsaw", own_zones=False).values["timezone"] == "Europe/Warsaw"
    assert read(row, schedules={"crontab": fields}, zone="Europe/Warsaw").values["timezone"] == "Europe/Warsaw"


def test_one_that_never_ran_is_counted_from_its_start_or_its_change_as_its_scheduler_does() -> None:
    changed = {"date_changed": "2026-05-30 10:00:00"}
    assert read(task_row(**changed)).values["schedule"] == "every 1h from 2026-05-30T10:00:00+00:00"
    began = read(task_row(**changed, start_time="2026-06-03 05:00:00"))
    assert began.values["schedule"] == "every 1h from 2026-06-03T05:00:00+00:00"
    assert began.since == datetime(2026, 6, 3, 5, tzinfo=UTC) - timedelta(microseconds=1)
    alone = read(task_row(discriminator="intervalschedule", schedule_id=1, **changed), tables=SQLALCHEMY)
    assert (alone.values["schedule"], alone.since) == ("every 1h", None)


def test_an_entry_with_two_schedules_goes_by_the_one_that_counts_there() -> None:
    entry = read(task_row(clocked_id=7))
    assert entry.notes == ("it names 2 schedules; the interval counts, as there",)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kwargs": "[]"}, "kwargs: '\\[\\]' is not a mapping"),
        ({"last_run_at": "soon"}, "last_run_at: 'soon' is not a date and time"),
        ({"interval_id": None}, "schedule: the entry has none"),
        ({"interval_id": 5}, "its interval schedule, id 5, is gone"),
        ({"headers": "{"}, "headers: '{' is not JSON"),
    ],
)
def test_a_row_that_cannot_be_read_says_why(fields: dict[str, Any], words: str) -> None:
    entry = read(task_row(**fields))
    assert isinstance(entry, Unreadable)
    with pytest.raises(ValueError, match=words):
        raise ValueError(entry.error)


def test_a_period_that_is_unknown_is_refused() -> None:
    assert (
        "unknown period 'moons'" in read(task_row(), schedules={"interval": {"id": 1, "every": 1, "period": "moons"}}).error
    )


def test_an_instant_outside_the_calendar_is_refused() -> None:
    with pytest.raises(InvalidValue, match="outside the calendar"):
        read_instant("0001-01-01 00:00:00", field="last_run_at", zone=ZoneInfo("Asia/Tokyo"))


# RedBeat


@pytest.mark.parametrize("name", recorded("redbeat")["hashes"])
def test_every_hash_that_redbeat_wrote_is_read(name: str) -> None:
    content = recorded("redbeat")["hashes"][name]
    entry = read_hash(name, content["definition"].encode(), content["meta"].encode(), zone="Europe/Warsaw")
    assert isinstance(entry, Entry)
    assert (entry.name, entry.values["task"], entry.runs) == (name, "effect", 1)
    assert entry.last_run_at is not None
    read_schedule(entry.values["schedule"], Zone(name=entry.values["timezone"]))


def rule(**fields: Any) -> dict[str, Any]:
    return {"__type__": "rrule", "freq": 3, "interval": 1, "dtstart": 1767259800, "dtstart_tz": 0} | fields


@pytest.mark.parametrize(
    ("fields", "zone", "text"),
    [
        ({}, "UTC", "DTSTART:20260101T093000\nRRULE:FREQ=DAILY"),
        ({"freq": "weekly", "interval": 2, "wkst": {"__type__": "weekday", "wkday": 6}, "byweekday": 0}, "UTC",
         "DTSTART:20260101T093000\nRRULE:FREQ=WEEKLY;INTERVAL=2;WKST=SU;BYDAY=MO"),
        ({"count": 1, "byhour": [0, 12], "bysetpos": -1}, "UTC",
         "DTSTART:20260101T093000\nRRULE:FREQ=DAILY;COUNT=1;BYSETPOS=-1;BYHOUR=0,12"),
        ({"until": 1767346200, "dtstart_tz": -300.0}, "Etc/GMT+5",
         "DTSTART:20260101T043000\nRRULE:FREQ=DAILY;UNTIL=20260102T043000"),
        ({"dtstart_tz": 330.0}, "Asia/Kolkata", "DTSTART:20260101T150000\nRRULE:FREQ=DAILY"),
    ],
)  # fmt: skip
def test_redbeat_s_rules_are_written_as_icalendar_has_them(fields: dict[str, Any], zone: str, text: str) -> None:
    written, found, notes = rrule_text(rule(**fields), app_zone="Asia/Kolkata")
    assert (written, found, bool(notes)) == (text, zone, zone != "UTC")
    read_schedule(written, Zone(name=found))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"byeaster": 0}, "byeaster"),
        ({"dtstart": None}, "no dtstart"),
        ({"freq": 9}, "unknown freq 9"),
        ({"byweekday": ["x"]}, "unknown day of week 'x'"),
        ({"dtstart_tz": 345.0}, "offset \\+05:45"),
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        rrule_text(rule(**fields), app_zone="UTC")


@pytest.mark.parametrize(
    "definition", ["{", "[]", "{}", '{"task": "x", "schedule": {"__type__": "interval"}}', "\udcff", None]
)
def test_a_hash_that_cannot_be_read_says_why(definition: str | None) -> None:
    data = None if definition is None else definition.encode("utf-8", "surrogateescape")
    found = read_hash("job", data, None)
    assert isinstance(found, Unreadable)
    assert (found.name, bool(found.error)) == ("job", True)


# Celery's own beat


class Bomb:
    """Does harm when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


def beat_file(folder: Path, entries: Any) -> str:
    path = str(folder / "celerybeat-schedule")
    with dbm.dumb.open(path, "n") as file:
        file[b"entries"] = pickle.dumps(entries)
    return path


def test_beat_s_file_is_read_without_loading_what_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    zoned = LAST.astimezone(ZoneInfo("Europe/Warsaw"))
    entries: Any = {
        "a": ScheduleEntry("a", "t", zoned, 3, schedule(60), ({1, 2}, Bomb()), {"x": Bomb()}, {"y": [Bomb()]}),
        "b": ScheduleEntry("b", "t", LAST, 0, crontab(0, 4), (), {}, {}),
        "c": Bomb(),
    }
    assert beat.read_file(beat_file(tmp_path, entries)) == {"a": beat.Run(LAST, 3), "b": beat.Run(LAST, 0)}
    assert not (tmp_path / "harm").exists()


def test_a_file_that_is_not_beat_s_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="not the file of Celery's beat"):
        beat.read_file(beat_file(tmp_path, [1, 2]))
    with dbm.dumb.open(str(tmp_path / "other"), "n") as file:
        file[b"entries"] = b"garbage"
    with pytest.raises(InvalidValue, match="not the file of Celery's beat"):
        beat.read_file(str(tmp_path / "other"))


# Where a source is


@pytest.fixture
def app() -> Celery:
    return Celery("shop", broker="redis://broker/1", set_as_current=False)


def django(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    module = ModuleType("django.conf")
    module.settings = SimpleNamespace(**settings)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "django", ModuleType("django"))
    monkeypatch.setitem(sys.modules, "django.conf", module)


def test_django_s_settings_say_where_its_tables_are(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"ENGINE": "django.db.backends.postgresql", "NAME": "shop", "USER": "kim", "PASSWORD": "p@ss", "HOST": "db",
            "PORT": "6432", "OPTIONS": {"sslmode": "require", "pool": True}}  # fmt: skip
    django(monkeypatch, DATABASES={"default": said})
    assert sources._django_url(sources._django_settings()) == "postgresql://kim:p%40ss@db:6432/shop?sslmode=require"
    said = {"ENGINE": "django.db.backends.sqlite3", "NAME": Path("/srv/shop.db")}
    django(monkeypatch, DATABASES={"default": said})
    assert sources._django_url(sources._django_settings()) == "sqlite:////srv/shop.db"
    django(monkeypatch, DATABASES={"default": {"ENGINE": "django.db.backends.oracle"}})
    with pytest.raises(InvalidValue, match="give the database's URL with --from"):
        sources._django_url(sources._django_settings())


def test_without_django_the_url_has_to_be_given(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
    monkeypatch.setattr(sys, "modules", {name: m for name, m in sys.modules.items() if not name.startswith("django")})
    with pytest.raises(InvalidValue, match="no Django settings"):
        sources.read_source(app, "django-celery-beat", sources.Place())
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "no.such.module")
    with pytest.raises(InvalidValue, match="no Django settings"):
        sources.read_source(app, "django-celery-beat", sources.Place())


def test_django_without_time_zones_keeps_local_times(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(sources, "_tables", lambda app, url, tables, **options: asked.update(options, url=url))
    database = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}
    settings = {"DATABASES": database, "USE_TZ": False, "TIME_ZONE": "Asia/Tokyo", "DJANGO_CELERY_BEAT_TZ_AWARE": False}
    django(monkeypatch, **settings)
    sources._django(app, sources.Place())
    assert (asked["url"], asked["naive"], asked["own_zones"]) == ("sqlite:///shop.db", ZoneInfo("Asia/Tokyo"), False)
    sources._django(app, sources.Place(timezone="UTC"))
    assert asked["naive"] == ZoneInfo("UTC")


@pytest.mark.parametrize(
    ("conf", "url", "prefix"),
    [
        ({}, "redis://broker/1", "redbeat:"),
        ({"redbeat_redis_url": "redis://own/2", "redbeat_key_prefix": "x:"}, "redis://own/2", "x:"),
    ],
)
def test_redbeat_s_settings_say_where_it_is(
    app: Celery, monkeypatch: pytest.MonkeyPatch, conf: dict[str, Any], url: str, prefix: str
) -> None:
    from celery_tm.management.importing import redbeat

    asked: dict[str, Any] = {}
    monkeypatch.setattr(redbeat, "read_redis", lambda url, **options: asked.update(options, url=url))
    app.conf.update(conf)
    sources._redbeat(app, sources.Place())
    assert (asked["url"], asked["prefix"]) == (url, prefix)
    sources._redbeat(app, sources.Place(url="redis://other", key_prefix="y:"))
    assert (asked["url"], asked["prefix"]) == ("redis://other", "y:")


def test_the_recorded_entries_name_the_releases_that_wrote_them() -> None:
    versions = [recorded(source)["versions"] for source in ("django-celery-beat", "sqlalchemy-celery-beat", "redbeat")]
    assert all(versions)
