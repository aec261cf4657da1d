"""Entries of other schedulers become definitions, on every database, and neither lose nor repeat a run."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery
from celery.beat import PersistentScheduler
from celery.schedules import crontab
from sqlalchemy import Boolean, Column, DateTime, Integer, MetaData, Numeric, String, Table, Text, create_engine, text
from sqlalchemy.engine import make_url
from tmtest.commands import Cli, rows
from tmtest.ledger import NOON
from tmtest.ledger import rows as occurrences
from tmtest.peers import NOW, ZONE, fill, is_installed, recorded
from tmtest.peers.samples import LONG

from celery_tm import Scheduler, TimeManagement
from celery_tm.errors import InvalidValue, SourceEmpty, SourceUnavailable, UnknownSource
from celery_tm.management.importing import Imported, ImportedEntry
from celery_tm.scheduler.seeding import Seeder
from celery_tm.store.database import Database
from celery_tm.store.dialects import with_driver
from celery_tm.testing import MovableClock

TABLES = ("django-celery-beat", "sqlalchemy-celery-beat")
SOURCES = (*TABLES, "redbeat")
TYPES = {"INTEGER": Integer, "BOOL": Boolean, "BOOLEAN": Boolean, "DATETIME": DateTime(timezone=True), "TEXT": Text}


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock, app: Celery) -> MovableClock:
    assert NOON == NOW
    tm_clock.move_to(NOW)
    app.conf.timezone = ZONE
    app.conf.result_expires = None
    return tm_clock


class Peer:
    """One of the other schedulers, with its entries in a place of their own."""

    def __init__(self, source: str, url: str, following: dict[str, Any], prefix: str | None = None) -> None:
        self.source, self.url, self.following, self.prefix = source, url, following, prefix

    def into(self, tm: TimeManagement, **options: Any) -> Imported:
        more = {"key_prefix": self.prefix} if self.prefix else {}
        return tm.definitions.import_from(self.source, url=self.url, **more, **options)

    def arguments(self) -> list[str]:
        return ["import", self.source, "--from", self.url, *(["--key-prefix", self.prefix] if self.prefix else [])]

    def run(self, statement: str, **values: Any) -> None:
        """Change the entries behind the scheduler's back."""
        engine = create_engine(with_driver(make_url(self.url)))
        with engine.begin() as connection:
            connection.execute(text(statement), values)
        engine.dispose()

    @property
    def table(self) -> str:
        return {"django-celery-beat": "django_celery_beat_periodictask"}.get(self.source, "celery_periodictask")


@pytest.fixture
def folder_url(database_url: str, tmp_path: Path) -> str:
    """A database for the other scheduler: a file of its own, or the server's database that we use too."""
    return f"sqlite:///{tmp_path / 'peer.db'}" if database_url.startswith("sqlite") else database_url


def load_tables(url: str, tables: dict[str, Any]) -> None:
    """Write recorded tables into a database, with types that it has."""
    engine = create_engine(with_driver(make_url(url)))
    metadata = MetaData()
    for name, content in tables.items():
        kinds = [(column, content_type(kind)) for column, kind in content["columns"]]
        table = Table(name, metadata, *(Column(column, kind, primary_key=column == "id") for column, kind in kinds))
        metadata.drop_all(engine, tables=[table])
        metadata.create_all(engine, tables=[table])
        values = [{n: typed(v, k) for (n, k), v in zip(kinds, row, strict=True)} for row in content["rows"]]
        if values:
            with engine.begin() as connection:
                connection.execute(table.insert(), values)
    engine.dispose()


def content_type(kind: str) -> Any:
    if kind.startswith(("VARCHAR", "CHAR")):
        return String(255)
    if kind.startswith(("NUMERIC", "DECIMAL")):
        return Numeric(9, 6)
    return Integer if "INTEGER" in kind else TYPES[kind]


def typed(value: Any, kind: Any) -> Any:
    if value is not None and isinstance(kind, DateTime):
        return datetime.fromisoformat(value).replace(tzinfo=UTC)
    return bool(value) if value is not None and kind is Boolean else value


def drop_tables(url: str) -> None:
    engine = create_engine(with_driver(make_url(url)))
    with engine.begin() as connection:
        metadata = MetaData()
        metadata.reflect(connection)
        theirs = [table for name, table in metadata.tables.items() if name.startswith(("django_", "celery_"))]
        metadata.drop_all(connection, tables=theirs)
        if connection.dialect.name == "postgresql":
            for name in ("period", "solarevent"):
                connection.execute(text(f"DROP TYPE IF EXISTS {name}"))
    engine.dispose()


@pytest.fixture
def redis_place(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, Any]]:
    url, prefix = request.getfixturevalue("redis_service")
    client = redis.Redis.from_url(url)
    prefix = f"{prefix}{uuid.uuid4().hex}:"
    yield url, prefix, client
    client.close()


def make_peer(request: pytest.FixtureRequest, source: str, how: str) -> Peer:
    """Return a scheduler's entries: those that were recorded, or those that the real one writes now."""
    if how == "real" and not is_installed(source):
        pytest.skip(f"{source} is not installed; what it wrote once was recorded")
    if source == "redbeat":
        url, prefix, client = request.getfixturevalue("redis_place")
        said = fill(source, url, prefix) if how == "real" else recorded(source)
        for name, content in said["hashes"].items():
            client.hset(f"{prefix}{name}", mapping=content)
            client.zadd(f"{prefix}:schedule", {f"{prefix}{name}": 1})
        return Peer(source, url, said["next"], prefix)
    url = request.getfixturevalue("folder_url")
    if how == "real":
        spoken = url if url.startswith("sqlite") else with_driver(make_url(url)).render_as_string(hide_password=False)
        said = fill(source, spoken)
    else:
        said = recorded(source)
        load_tables(url, said["tables"])
    request.addfinalizer(lambda: drop_tables(url))
    return Peer(source, url, said["next"])


@pytest.fixture(params=SOURCES)
def peer(request: pytest.FixtureRequest) -> Peer:
    return make_peer(request, request.param, "recorded")


@pytest.fixture(params=TABLES)
def table_peer(request: pytest.FixtureRequest) -> Peer:
    return make_peer(request, request.param, "recorded")


def told(imported: Imported) -> dict[str, ImportedEntry]:
    return {entry.name: entry for entry in imported.entries}


# Meaning


@pytest.mark.parametrize("how", ["recorded", "real"])
@pytest.mark.parametrize("source", SOURCES)
def test_each_entry_runs_next_when_its_own_scheduler_would_run_it(
    request: pytest.FixtureRequest, tm: TimeManagement, source: str, how: str
) -> None:
    peer = make_peer(request, source, how)
    found = told(peer.into(tm, dry_run=False))
    compared = 0
    for name, following in peer.following.items():
        entry = next((entry for key, entry in found.items() if key == name or key[:80] == name[:80]), None)
        assert entry is not None, name
        if following is None or entry.outcome != "added" or name in ("missed long ago", "off"):
            continue
        assert entry.next_run_at is not None, name
        if following == "due":
            assert entry.next_run_at <= NOW, name
        else:
            assert abs(entry.next_run_at - datetime.fromisoformat(following)) < timedelta(seconds=1), name
            [previewed] = tm.preview(schedule=schedule_of(tm, entry.name), timezone=entry.timezone or "", since=NOW, count=1)
            if name not in ("starts",):
                assert previewed == entry.next_run_at, name
        compared += 1
    assert compared >= 12


def schedule_of(tm: TimeManagement, name: str) -> Any:
    definition = tm.definitions.get(name)
    return (
        {"kind": "crontab", "expression": definition.schedule}
        if definition.schedule_kind == "crontab"
        else definition.schedule
    )


def test_everything_that_tables_say_is_kept_or_told(tm: TimeManagement, table_peer: Peer) -> None:
    found = told(table_peer.into(tm))
    made = tm.definitions.get("everything")
    headers = {"x": "y"} | ({"periodic_task_name": "everything"} if table_peer.source == "django-celery-beat" else {})
    assert (made.task, made.args, made.kwargs) == ("effect", '["sales", 3]', '{"deep": {"er": [null]}}')
    assert (made.schedule_kind, made.schedule, made.timezone) == ("crontab", "0 * * * *", "Europe/Warsaw")
    assert (made.queue, made.priority, made.expires) == ("slow", 7, timedelta(seconds=90))
    assert made.options == {"exchange": "shop", "routing_key": "shop.slow", "headers": headers}
    assert (made.starts_at, made.runs) == (datetime(2026, 1, 1, tzinfo=UTC), 41)
    assert made.last_run_at is not None
    assert made.last_run_at.replace(microsecond=0) == NOW - timedelta(hours=1)  # some columns have no fractions
    assert (made.overlap, made.recovery, made.origin) == ("allow", "last", f"import:{table_peer.source}")
    assert found["everything"].notes[0] == "its description is not kept: 'what it is for'"
    assert tm.definitions.get("ends").ends_at == datetime(2026, 7, 1, tzinfo=UTC)
    assert tm.definitions.get("one-off").max_runs == 1
    assert not tm.definitions.get("off").enabled
    assert (tm.definitions.get("clocked").schedule_kind, tm.definitions.get("clocked").next_run_at) == (
        "once", datetime(2026, 6, 2, 10, tzinfo=UTC),
    )  # fmt: skip


def test_what_is_over_is_left_out_and_what_cannot_be_read_is_refused(tm: TimeManagement, table_peer: Peer) -> None:
    imported = table_peer.into(tm)
    over = ["clocked, ran", "one-off, ran", "over", "celery.backend_cleanup"]
    assert sorted(imported.names("left out")) == sorted(over)
    found = told(imported)
    assert found["one-off, ran"].notes == ["it is to run once, and has"]
    assert found["over"].notes[-1] == "none of its instants is still to come"
    assert "expire by themselves" in found["celery.backend_cleanup"].notes[-1]
    assert {entry.name: (entry.error or "").split(":")[0] for entry in imported.refused} == {
        "broken": "args", "too short": "schedule", "clocked, missed long ago": "schedule",
    }  # fmt: skip
    assert "is not JSON" in (found["broken"].error or "")
    assert "run it by hand" in (found["clocked, missed long ago"].error or "")
    [short] = [name for name in imported.names("added") if name.startswith(LONG[:60])]
    assert len(short) <= 100
    assert LONG in found[short].notes[0]


def test_everything_that_redbeat_says_is_kept_or_told(request: pytest.FixtureRequest, tm: TimeManagement) -> None:
    found = told(make_peer(request, "redbeat", "recorded").into(tm))
    made = tm.definitions.get("everything")
    assert json.loads(made.args)[0] == "sales"
    assert "2026-01-01" in made.args
    assert (made.queue, made.priority, made.expires) == ("slow", 3, timedelta(seconds=90))
    assert made.options == {"headers": {"x": "y"}, "routing_key": "shop"}
    assert (made.runs, made.last_run_at) == (1, NOW - timedelta(minutes=15))
    assert tm.definitions.get("rule at +2").timezone == "Etc/GMT-2"
    assert "does not follow the clocks" in found["rule at +2"].notes[0]
    assert found["rule that is over"].outcome == "left out"
    assert not tm.definitions.get("off").enabled
    assert tm.definitions.get("ends").ends_at == datetime(2026, 7, 1, tzinfo=UTC)


# Where a definition goes on


def started(app: Celery) -> Scheduler:
    """Return a beat that has taken over what was imported before any beat ran."""
    beat = Scheduler(app)
    beat._adopt()
    return beat


def test_a_missed_instant_is_made_up_for_once_and_nothing_before_it_is(tm: TimeManagement, app: Celery, peer: Peer) -> None:
    found = told(peer.into(tm))
    made = tm.definitions.get("missed")
    missed = datetime(2026, 6, 1, 4 if peer.source != "redbeat" else 2, tzinfo=UTC)
    assert (made.planned_until, made.next_run_at) == (missed - timedelta(microseconds=1), missed)
    assert any("it runs once when beat starts" in note for note in found["missed"].notes)
    started(app).planner.plan_due()
    assert [(row.scheduled_at, row.is_recovery) for row in occurrences(tm, "missed")] == [(missed, True)]
    assert occurrences(tm, "at nine") == []
    assert tm.definitions.get("at nine").planned_until == NOW


def test_what_was_missed_longer_ago_than_catch_up_is_told_and_not_run(tm: TimeManagement, table_peer: Peer) -> None:
    found = told(table_peer.into(tm, dry_run=True))
    assert found["missed long ago"].next_run_at == datetime(2026, 6, 28, tzinfo=UTC)
    assert "2026-05-28 00:00:00 UTC and did not run; that is too long ago" in " ".join(found["missed long ago"].notes)
    found = told(table_peer.into(tm, dry_run=True, catch_up="30d"))
    assert found["missed long ago"].next_run_at == datetime(2026, 5, 28, tzinfo=UTC)
    found = told(table_peer.into(tm, catch_up=0))
    assert found["missed"].planned_until == NOW
    assert found["clocked, missed"].outcome == "refused"


def test_paused_ones_wait_in_their_group_and_make_up_for_nothing(tm: TimeManagement, peer: Peer) -> None:
    found = told(peer.into(tm, paused=True, group="old"))
    assert {d.paused for d in tm.definitions.list(group="old")} == {True}
    assert found["missed"].planned_until == NOW


def test_what_ran_there_after_a_first_import_is_not_run_again(
    tm: TimeManagement, app: Celery, table_peer: Peer, noon: MovableClock
) -> None:
    table_peer.into(tm)
    noon.forward("2d")
    later = NOW + timedelta(days=1, hours=16)
    table_peer.run(f"UPDATE {table_peer.table} SET last_run_at = :at, total_run_count = 9 WHERE name = 'missed'", at=later)
    found = told(table_peer.into(tm))["missed"]
    assert (found.outcome, found.planned_until) == ("unchanged", NOW + timedelta(days=2))
    assert "it goes on from there" in found.notes[0]
    before = rows(tm.installation.database)
    assert told(table_peer.into(tm))["missed"].notes == []
    assert rows(tm.installation.database) == before
    started(app).planner.plan_due()
    assert occurrences(tm, "missed") == []
    assert tm.definitions.get("missed").runs == 9


def test_a_one_off_that_ran_there_after_a_first_import_does_not_run_again(
    tm: TimeManagement, table_peer: Peer, noon: MovableClock
) -> None:
    table_peer.into(tm)
    noon.forward("2h")
    at = NOW + timedelta(hours=1, seconds=1)
    for name in ("one-off", "clocked, missed"):
        table_peer.run(
            f"UPDATE {table_peer.table} SET last_run_at = :at, total_run_count = 1 WHERE name = :n", at=at, n=name
        )
    table_peer.into(tm)
    assert tm.definitions.get("one-off").next_run_at is None
    assert tm.definitions.get("clocked, missed").next_run_at is None


@pytest.mark.parametrize(
    ("import_at", "beat_at", "expected"),
    [
        ("12:04", "12:05", ["12:10", "12:20", "12:30"]),  # nothing was due in between
        ("12:10", "12:10", ["12:10", "12:20", "12:30"]),  # due at that very moment
        ("12:11", "12:12", ["12:10", "12:20", "12:30"]),  # missed before the import
        ("12:04", "12:15", ["12:10", "12:20", "12:30"]),  # missed after the import
        ("12:25", "12:26", ["12:20", "12:30"]),  # two were missed: the later one runs for both
        ("12:04", "12:28", ["12:20", "12:30"]),
    ],
)
def test_switching_over_neither_loses_nor_repeats_a_run(
    tm: TimeManagement, app: Celery, redis_place: Any, noon: MovableClock, import_at: str, beat_at: str, expected: list[str]
) -> None:
    url, prefix, client = redis_place
    rule = {"__type__": "crontab", "minute": "*/10", "hour": "*"}
    ran = {"__type__": "datetime", "year": 2026, "month": 6, "day": 1, "hour": 12, "second": 1, "timezone": "UTC"}
    client.hset(f"{prefix}job", "definition", json.dumps({"name": "job", "task": "effect", "schedule": rule}))
    client.hset(f"{prefix}job", "meta", json.dumps({"last_run_at": ran}))
    client.zadd(f"{prefix}:schedule", {f"{prefix}job": 1})
    noon.move_to(datetime.fromisoformat(f"2026-06-01T{import_at}:00+00:00"))
    tm.definitions.import_from("redbeat", url=url, key_prefix=prefix)
    beat = started(app)
    for minute in range(int(beat_at[3:]), 31):
        noon.move_to(NOW + timedelta(minutes=minute))
        beat.planner.plan_due()
    ran_here = [row.scheduled_at for row in occurrences(tm, "job") if row.state == "pending"]
    assert [f"{at:%H:%M}" for at in sorted(ran_here)] == expected


def test_a_last_run_that_is_still_to_come_is_pointed_out(tm: TimeManagement, table_peer: Peer) -> None:
    if "sqlite" not in table_peer.url and "mysql" not in table_peer.url:
        pytest.skip("PostgreSQL keeps the offset")
    late = NOW + timedelta(hours=2)
    table_peer.run(f"UPDATE {table_peer.table} SET last_run_at = :at WHERE name = 'missed'", at=late.replace(tzinfo=None))
    found = told(table_peer.into(tm, dry_run=True))["missed"]
    assert (found.planned_until, "check --timezone" in found.notes[-1]) == (NOW, True)
    found = told(table_peer.into(tm, dry_run=True, timezone="Europe/Warsaw"))["missed"]
    assert (found.planned_until, found.notes) == (NOW, [])


def test_tables_in_a_schema_are_found(tm: TimeManagement, request: pytest.FixtureRequest) -> None:
    url = tm.settings.tm_database_url
    if not url.startswith("postgresql"):
        pytest.skip("only PostgreSQL has schemas")
    peer = Peer("sqlalchemy-celery-beat", url, {})
    peer.run("CREATE SCHEMA IF NOT EXISTS old_beat")
    load_tables(f"{url}?options=-csearch_path%3Dold_beat", recorded("sqlalchemy-celery-beat")["tables"])
    request.addfinalizer(lambda: peer.run("DROP SCHEMA old_beat CASCADE"))
    with pytest.raises(SourceEmpty):
        peer.into(tm)
    assert "at nine" in peer.into(tm, schema="old_beat", dry_run=True).names("added")
    tm.app.conf.update(beat_dburi=url, beat_schema="old_beat")
    assert "at nine" in tm.definitions.import_from("sqlalchemy-celery-beat").names("added")


# What is there already


def test_importing_twice_changes_nothing(tm: TimeManagement, database: Database, peer: Peer, noon: MovableClock) -> None:
    first = peer.into(tm)
    before = rows(database)
    noon.forward("30s")
    again = peer.into(tm, update=True)
    assert again.names("unchanged") == first.names("added")
    assert again.names("added") == again.names("changed") == []
    assert rows(database) == before


def test_a_dry_run_says_the_same_and_writes_nothing(tm: TimeManagement, database: Database, peer: Peer) -> None:
    before = rows(database)
    tried = peer.into(tm, dry_run=True)
    assert rows(database) == before
    assert peer.into(tm).entries == tried.entries
    tm.definitions.update("at nine", queue="mine", schedule="every 1h")
    before = rows(database)
    assert peer.into(tm, dry_run=True, update=True).names("changed") == ["at nine"]
    assert rows(database) == before


def test_what_differs_is_shown_and_changed_only_if_that_is_wanted(tm: TimeManagement, peer: Peer) -> None:
    peer.into(tm)
    tm.definitions.update("at nine", queue="mine", timezone="UTC", overlap="queue")
    tm.pause("at nine")
    left = told(peer.into(tm))["at nine"]
    assert (left.outcome, dict(left.changes)) == ("differs", {"queue": ("mine", None), "timezone": ("UTC", ZONE)})
    assert tm.definitions.get("at nine").queue == "mine"
    changed = told(peer.into(tm, update=True, actor="kim"))["at nine"]
    assert (changed.outcome, dict(changed.changes)) == ("changed", dict(left.changes))
    made = tm.definitions.get("at nine")
    assert (made.queue, made.timezone, made.overlap, made.paused) == (None, ZONE, "queue", True)
    last = tm.definitions.versions("at nine")[0]
    assert (last.action, last.actor, last.reason) == ("import", "kim", f"imported from {peer.source}")


def test_two_entries_that_would_share_a_name_are_not_mixed_up(tm: TimeManagement, table_peer: Peer) -> None:
    table_peer.run(f"UPDATE {table_peer.table} SET name = :name WHERE name = 'sunset'", name="a  day")
    [refused] = [entry for entry in table_peer.into(tm).refused if entry.name == "a day"]
    assert refused.error == "name: 'a day' and 'a  day' are one name here; rename one of them in the source"


def test_what_the_code_states_too_is_what_seeding_makes_of_it(tm: TimeManagement, app: Celery, peer: Peer) -> None:
    app.conf.beat_schedule = {
        "at nine": {"task": "effect", "schedule": crontab(0, 9, day_of_month="*/2")},
        "ten minutes": {"task": "effect", "schedule": 600},
        "off": {"task": "effect", "schedule": 60},
    }  # fmt: skip
    found = told(peer.into(tm))
    assert "the code wins" in found["at nine"].notes[0]
    before = {name: tm.definitions.get(name) for name in app.conf.beat_schedule}
    assert {d.origin for d in before.values()} == {"beat_schedule:tmtest"}
    assert (before["at nine"].schedule, before["ten minutes"].schedule) == ("0 9 */2 * *", "every 10m")
    assert (before["ten minutes"].next_run_at, before["off"].enabled) == (NOW + timedelta(minutes=10), False)
    Seeder(tm.installation).seed_once()
    assert {name: tm.definitions.get(name) for name in app.conf.beat_schedule} == before


def test_a_retired_definition_comes_back_only_if_that_is_wanted(tm: TimeManagement, app: Celery, peer: Peer) -> None:
    app.conf.beat_schedule = {"at nine": {"task": "effect", "schedule": 60}}
    Seeder(tm.installation).seed_once()
    app.conf.beat_schedule = {}
    Seeder(tm.installation).seed_once()
    assert told(peer.into(tm))["at nine"].outcome == "differs"
    assert tm.definitions.get("at nine").retired_at is not None
    back = told(peer.into(tm, update=True, actor="ann"))["at nine"]
    assert (back.outcome, back.changes["retired"]) == ("changed", (True, False))
    assert [line.actor for line in tm.audit(action="bring back")] == ["ann"]
    assert tm.definitions.get("at nine").next_run_at == datetime(2026, 6, 2, 7, tzinfo=UTC)


# Celery's own beat


@pytest.fixture
def beat_file(app: Celery, tmp_path: Path) -> Path:
    """The file that Celery's own beat keeps, after some runs."""
    app.conf.beat_schedule = {
        "four": {"task": "effect", "schedule": crontab(0, 6)}, "noon": {"task": "effect", "schedule": crontab(30, 14)},
        "hour": {"task": "effect", "schedule": timedelta(hours=1)}, "late hour": {"task": "effect", "schedule": 3600},
        "odd": {"schedule": 60},
    }  # fmt: skip
    path = tmp_path / "celerybeat-schedule"
    old = {key: value for key, value in app.conf.beat_schedule.items() if key != "odd"}
    app.conf.beat_schedule, kept = old, app.conf.beat_schedule
    beat = PersistentScheduler(app=app, schedule_filename=str(path), lazy=False)
    runs = {
        "four": datetime(2026, 5, 31, 4, 0, 1, tzinfo=UTC), "noon": datetime(2026, 5, 31, 12, 30, tzinfo=UTC),
        "hour": datetime(2026, 6, 1, 11, 20, tzinfo=UTC), "late hour": datetime(2026, 6, 1, 10, 20, tzinfo=UTC),
    }  # fmt: skip
    for name, at in runs.items():
        beat.schedule[name] = beat.schedule[name]._next_instance(last_run_at=at.astimezone(ZoneInfo(ZONE)))
    beat.close()
    app.conf.beat_schedule = kept
    return path


def test_beat_s_own_entries_go_on_after_their_last_runs(tm: TimeManagement, beat_file: Path) -> None:
    imported = tm.definitions.import_from("beat", url=str(beat_file))
    found = told(imported)
    assert {name: entry.next_run_at for name, entry in found.items() if entry.outcome == "added"} == {
        "four": datetime(2026, 6, 1, 4, tzinfo=UTC),
        "noon": datetime(2026, 6, 1, 12, 30, tzinfo=UTC),
        "hour": datetime(2026, 6, 1, 13, tzinfo=UTC),  # by the old beat's count it is due at 12:20
        "late hour": datetime(2026, 6, 1, 12, tzinfo=UTC),  # it was due at 11:20
    }
    assert [entry.name for entry in imported.refused] == ["odd"]
    assert (tm.definitions.get("four").runs, tm.definitions.get("four").origin) == (1, "beat_schedule:tmtest")
    Seeder(tm.installation).seed_once()
    assert {d.name: d.version for d in tm.definitions.list() if d.name in found} == dict.fromkeys(
        ["four", "hour", "late hour", "noon"], 1
    )


def test_beat_s_entries_are_imported_without_a_file_too(tm: TimeManagement, app: Celery, tmp_path: Path) -> None:
    app.conf.update(beat_schedule={"job": {"task": "effect", "schedule": 60}}, beat_schedule_filename=str(tmp_path / "none"))
    imported = tm.definitions.import_from("beat")
    assert (imported.names("added"), told(imported)["job"].planned_until) == (["job"], NOW)
    assert "goes on from now" in imported.notes[0]


# The command


def test_the_command_shows_what_it_does_and_its_exit_code_tells(app: Celery, tm: TimeManagement, table_peer: Peer) -> None:
    cli = Cli(app)
    tried = cli.run(*table_peer.arguments(), "--dry-run", code=1)
    assert tried.stdout.endswith("nothing was written: this was a dry run\n")
    assert "added      at nine: 0 9 * * mon-fri in Europe/Warsaw, next 2026-06-02 07:00:00 UTC\n" in tried.stdout
    assert "refused    broken: args: '[1,' is not JSON" in tried.stdout
    assert "             note: its description is not kept: 'what it is for'" in tried.stdout
    done = cli.run(*table_peer.arguments(), "--actor", "kim", code=1)
    assert done.stdout.splitlines() == tried.stdout.splitlines()[:-1]
    assert tm.definitions.get("at nine").created_by == "kim"
    for name in ("broken", "too short", "clocked, missed long ago"):
        table_peer.run(f"DELETE FROM {table_peer.table} WHERE name = :name", name=name)
    tm.definitions.update("at nine", queue="mine")
    shown = cli.run(*table_peer.arguments()).stdout
    assert '             queue: "mine" → –\n             not changed: use --update\n' in shown
    said = cli.json(*table_peer.arguments(), "--update")
    assert (said["counts"]["changed"], said["counts"]["refused"], said["dry_run"]) == (1, 0, False)
    [changed] = [entry for entry in said["entries"] if entry["outcome"] == "changed"]
    assert (changed["name"], changed["changes"]) == ("at nine", {"queue": ["mine", None]})


# What goes wrong


def test_an_unknown_source_is_answered_with_the_nearest(app: Celery, tm: TimeManagement) -> None:
    with pytest.raises(UnknownSource, match="did you mean 'redbeat'"):
        tm.definitions.import_from("red-beat")
    assert "django-celery-beat, redbeat or" in Cli(app).refused("import", "cron")
    assert Cli(app).refused("import", "redbeat", "--schema", "x") == "--schema: redbeat has no such thing; leave it out"


@pytest.mark.parametrize("source", TABLES)
def test_a_database_without_its_tables_says_which_is_missing(tm: TimeManagement, database_url: str, source: str) -> None:
    with pytest.raises(SourceEmpty, match="periodictask; give the database that the old beat uses with --from"):
        tm.definitions.import_from(source, url=database_url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://kim:hunter2@127.0.0.1:1/shop", "cannot read postgresql.*127.0.0.1:1/shop"),
        ("mysql://kim:hunter2@127.0.0.1:1/shop", "cannot read mysql"),
        ("sqlite:////nowhere/shop.db", "no such file"),
        ("postgresql://kim:hunter2@host:port:hunter2/shop", "is not a database URL"),
        ("nosuch://kim:hunter2@host/shop", "unknown database or driver"),
        ("hunter2", "is not a database URL"),
    ],
)
@pytest.mark.parametrize("source", TABLES)
def test_a_database_that_cannot_be_read_is_told_without_its_password(
    tm: TimeManagement, source: str, url: str, words: str
) -> None:
    with pytest.raises((SourceUnavailable, InvalidValue), match=words) as caught:
        tm.definitions.import_from(source, url=url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://:hunter2@127.0.0.1:1/0", "cannot read redis://.*127.0.0.1:1/0"),
        ("redis://:hunter2@127.0.0.1:hunter2/0", "is no URL of a Redis server"),
        ("amqp://kim:hunter2@host//", "'amqp' is no URL of a Redis server"),
        ("hunter2", "it is no URL"),
    ],
)
def test_a_redis_server_that_cannot_be_read_is_told_without_its_password(tm: TimeManagement, url: str, words: str) -> None:
    with pytest.raises((SourceUnavailable, InvalidValue), match=words) as caught:
        tm.definitions.import_from("redbeat", url=url)
    assert "hunter2" not in str(caught.value)


def test_redis_without_a_schedule_says_which_key_is_missing(tm: TimeManagement, redis_place: Any) -> None:
    url, prefix, _ = redis_place
    with pytest.raises(SourceEmpty, match=f"no schedule under the key '{prefix}:schedule'"):
        tm.definitions.import_from("redbeat", url=url, key_prefix=prefix)


def test_what_is_broken_in_redis_is_refused_and_the_others_go_on(request: pytest.FixtureRequest, tm: TimeManagement) -> None:
    peer = make_peer(request, "redbeat", "recorded")
    _, prefix, client = request.getfixturevalue("redis_place")
    broken = {"no json": '{"name":', "a list": "[]", "no schedule": '{"name": "no schedule", "task": "effect"}',
              "odd": '{"name": "odd", "task": "effect", "schedule": {"__type__": "moon"}}'}  # fmt: skip
    for name, definition in broken.items():
        client.hset(f"{prefix}{name}", mapping={"definition": definition})
    client.set(f"{prefix}text", "x")
    client.hset(f"{prefix}at nine", "meta", "{")
    for name in (*broken, "text", "gone"):
        client.zadd(f"{prefix}:schedule", {f"{prefix}{name}": 1})
    imported = peer.into(tm)
    assert {entry.name: entry.error for entry in imported.refused}.keys() == {*broken, "text", "gone"}
    errors = " ".join(entry.error or "" for entry in imported.refused)
    for words in (
        "is not JSON",
        "is not a mapping",
        "the entry has none",
        "unknown kind 'moon'",
        "no hash",
        "the hash has none",
    ):
        assert words in errors
    assert "its last run cannot be read" in told(imported)["at nine"].notes[0]
    assert len(imported.names("added")) >= 12


def test_schedules_that_are_gone_or_unknown_are_refused(tm: TimeManagement, table_peer: Peer) -> None:
    table = table_peer.table
    if table_peer.source == "django-celery-beat":
        table_peer.run(f"UPDATE {table} SET interval_id = NULL WHERE name = 'a day'")
        table_peer.run(f"UPDATE {table} SET interval_id = 99999 WHERE name = 'five days'")
    else:
        table_peer.run(f"UPDATE {table} SET discriminator = 'moonschedule' WHERE name = 'a day'")
        table_peer.run(f"UPDATE {table} SET schedule_id = 99999 WHERE name = 'five days'")
    table_peer.run(
        "UPDATE " + table.replace("periodictask", "crontabschedule") + " SET timezone = 'Mars/Base' WHERE hour = '9'"
    )
    found = told(table_peer.into(tm))
    assert "unknown kind" in (found["a day"].error or "") or "has none" in (found["a day"].error or "")
    assert "is gone" in (found["five days"].error or "")
    assert "unknown time zone 'Mars/Base'" in (found["at nine"].error or "")


def test_tables_of_older_releases_lack_columns_and_tables(tm: TimeManagement, table_peer: Peer) -> None:
    for name in ("priority", "headers", "expire_seconds", "start_time", "description"):
        table_peer.run(f"ALTER TABLE {table_peer.table} DROP COLUMN {name}")
    table_peer.run(f"DROP TABLE {table_peer.table.replace('periodictask', 'solarschedule')}")
    found = told(table_peer.into(tm))
    assert (found["everything"].outcome, tm.definitions.get("everything").priority) == ("added", None)
    assert "is gone" in (found["sunset"].error or "")


def test_a_broken_beat_file_is_told(tm: TimeManagement, tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("x" * 1000)
    with pytest.raises(SourceUnavailable, match="broken"):
        tm.definitions.import_from("beat", url=str(tmp_path / "broken"))
    with pytest.raises(SourceUnavailable, match="no such file"):
        tm.definitions.import_from("beat", url=str(tmp_path / "nothing"))
