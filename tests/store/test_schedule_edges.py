"""Small promises about schedules that were broken from outside: previews, ends, options, jitter, zones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from celery import Celery
from celery.schedules import schedule
from sqlalchemy import delete
from tmtest.commands import Cli

from celery_tm import TimeManagement
from celery_tm.domain.schedule import Zone, read_schedule
from celery_tm.errors import InvalidValue
from celery_tm.scheduler import zones
from celery_tm.scheduler.celery_schedules import read_rule
from celery_tm.scheduler.seeding import Seeder
from celery_tm.scheduler.zones import ZoneWatch
from celery_tm.store import occurrences, tables
from celery_tm.testing import MovableClock

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def test_a_dry_run_of_an_edit_shows_what_its_policy_keeps(tm: TimeManagement, app: Celery) -> None:
    tm.definitions.add(name="d", task="effect", schedule="0 * * * *")
    edit = ("definitions", "edit", "d", "--schedule", "30 * * * *", "--dry-run", "--within", "3h")
    at_one = "2026-06-01T13:00:00+00:00"
    assert at_one in Cli(app).json(*edit)["removed"]
    assert at_one in Cli(app).json(*edit, "--policy", "graceful")["kept"]


def test_what_is_over_as_somebody_meant_it_is_no_warning(tm: TimeManagement, noon: MovableClock) -> None:
    tm.definitions.add(name="once", task="effect", args=[1], schedule={"kind": "once", "at": NOON + timedelta(minutes=1)})
    tm.definitions.add(name="ends", task="effect", args=[1], schedule="@hourly", ends_at=NOON + timedelta(hours=1))
    for _ in range(3):
        noon.forward("1h")
        tm.run_due_jobs()
    assert [one.next_run_at for one in tm.definitions.list()] == [None, None]
    found = [finding for finding in tm.doctor() if finding.check == "next runs"]
    assert [str(finding.level) for finding in found] == ["ok"]


def test_options_that_an_entry_no_longer_states_are_taken_out(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    entry = {"task": "effect", "schedule": 60.0, "args": [1]}
    options = {"queue": "fast", "expires": 30, "headers": {"a": 1}}
    app.conf.beat_schedule = {"e": {**entry, "options": options}, "kept": {**entry, "options": {"queue": "fast"}}}
    Seeder(tm.installation).seed_once()
    made = tm.definitions.get("e")
    assert (made.queue, made.expires, made.options) == ("fast", timedelta(seconds=30), {"headers": {"a": 1}})
    tm.definitions.update("kept", queue="slow", actor="ann")
    app.conf.beat_schedule = {"e": entry, "kept": entry}
    Seeder(tm.installation).seed_once()
    now = tm.definitions.get("e")
    assert (now.queue, now.expires, now.options) == (None, None, {})
    assert tm.definitions.get("kept").queue == "slow", "a person has set it since"


def test_jitter_longer_than_the_time_between_runs_is_refused(tm: TimeManagement) -> None:
    values = {"task": "effect", "schedule": "* * * * *"}
    with pytest.raises(InvalidValue, match="jitter: 5m is longer than the 1m between runs"):
        tm.definitions.add(name="d", jitter="5m", overlap="skip", **values)
    tm.definitions.add(name="d", jitter="30s", overlap="skip", **values)
    with pytest.raises(InvalidValue, match="is longer than the 10s between runs"):
        tm.definitions.update("d", schedule="every 10s")
    tm.definitions.update("d", schedule="every 10s", overlap="allow")


@pytest.mark.parametrize(("zone", "minute"), [("Asia/Kolkata", 30), ("Europe/Warsaw", 0), ("UTC", 0)])
def test_a_relative_schedule_goes_by_local_hours(zone: str, minute: int) -> None:
    rule = read_schedule(read_rule(schedule(timedelta(hours=1), relative=True), zone=zone), Zone(name=zone))
    following = rule.next_after(NOON + timedelta(minutes=1))
    assert following is not None
    assert following.minute == minute


def test_a_late_tz_database_does_not_silence_an_interval(tm: TimeManagement) -> None:
    tm.definitions.add(name="often", task="effect", schedule="*/5 * * * *", timezone="Europe/Warsaw")
    tm.definitions.add(name="fixed", task="effect", schedule="30 14 * * *", timezone="Europe/Warsaw")
    with tm.installation.database.transaction() as tx:
        # Planned when the zone was an hour further ahead than the tz database says now.
        tx.execute(tables.definition.update().values(planned_until=NOON, planned_offset=3 * 3600))
    assert tm.definitions.get("often").following == NOON + timedelta(minutes=5)
    fixed = tm.definitions.get("fixed").following
    assert fixed is not None
    assert fixed > NOON


def test_a_new_tz_database_moves_what_is_planned_ahead(tm: TimeManagement) -> None:
    made = tm.definitions.add(name="d", task="effect", schedule="0 * * * *", timezone="Europe/Warsaw", plan_ahead="3h")
    database = tm.installation.database
    with database.transaction() as tx:
        wrong = [row.id for row in occurrences.planned_ahead(tx, made.id).values()]
        tx.execute(delete(tables.mark))
        for number, id in enumerate(wrong):
            moved = {"scheduled_at": NOON + timedelta(hours=number, minutes=45), "id": f"old{number}"}
            tx.execute(tables.occurrence.update().where(tables.occurrence.c.id == id).values(moved))
    watch = ZoneWatch(tm.installation)
    watch.check_once()
    with database.transaction(write=False) as tx:
        ahead = occurrences.planned_ahead(tx, made.id).values()
        assert {row.scheduled_at.minute for row in ahead} == {0}


def test_the_version_of_the_zones_is_that_of_the_folder_they_are_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty, real = tmp_path / "empty", tmp_path / "real"
    for folder in (empty, real / "Europe"):
        folder.mkdir(parents=True)
    (empty / "tzdata.zi").write_text("# version 1999a\n")
    (real / "Europe" / "London").write_bytes(b"TZif")
    monkeypatch.setattr(zones, "TZPATH", (str(empty), str(real)))
    first = zones.tz_version.__wrapped__()
    assert first.startswith("unversioned")
    (real / "Europe" / "London").write_bytes(b"TZif2")
    assert zones.tz_version.__wrapped__() != first
    (real / "tzdata.zi").write_text("# version 2026b\n")
    assert zones.tz_version.__wrapped__() == "2026b"


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [("latest", True), ("contest_prod", True), ("testimonials", True), ("attestations", True), ("shop", True),
     ("shop_test", False), ("test", False), ("test_shop", False), ("tests2", False), ("shop-test-gw0", False)],
)  # fmt: skip
def test_the_plugin_empties_only_what_is_named_for_tests(tmp_path: Path, name: str, is_refused: bool) -> None:
    from celery_tm.settings import read_settings
    from celery_tm.store.database import Database
    from celery_tm.testing.databases import _refuse_real

    database = Database(read_settings({"tm_database_url": f"sqlite:///{tmp_path / name}.db"}, {}))
    try:
        _refuse_real(database)
    except InvalidValue:
        assert is_refused
    else:
        assert not is_refused
