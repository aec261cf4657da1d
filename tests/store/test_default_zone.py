"""New definitions are in the app's time zone, which is kept with them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from celery import Celery
from celery.schedules import crontab
from tmtest.commands import Cli
from tmtest.ledger import NOON

from celery_tm import TimeManagement
from celery_tm.scheduler.seeding import Seeder
from celery_tm.testing import MovableClock

RULE = "0 18 * * *"
IN_WARSAW, IN_UTC = datetime(2026, 6, 1, 16, tzinfo=UTC), datetime(2026, 6, 1, 18, tzinfo=UTC)


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def test_without_a_zone_a_definition_is_in_the_app_s(tm: TimeManagement, app: Celery, tmp_path: Path) -> None:
    app.conf.timezone = "Europe/Warsaw"
    app.conf.beat_schedule, app.conf.result_expires = {"code": {"task": "effect", "schedule": crontab(0, 18)}}, None
    file = tmp_path / "definitions.toml"
    file.write_text(f'[[definitions]]\nname = "file"\ntask = "effect"\nschedule = "{RULE}"\n')
    tm.definitions.add(name="api", task="effect", schedule=RULE)
    Cli(app).run("definitions", "add", "command", "--task", "effect", "--schedule", RULE)
    tm.definitions.load(file)
    Seeder(tm.installation).seed_once()
    made = {one.name: one for one in tm.definitions.list() if one.name != "celery_tm.prune"}
    assert {name: one.timezone for name, one in made.items()} == dict.fromkeys(
        ("api", "code", "command", "file"), "Europe/Warsaw"
    )
    assert {one.next_run_at for one in made.values()} == {IN_WARSAW}
    assert tm.preview(schedule=RULE, count=1) == [IN_WARSAW]
    assert tm.definitions.preview("new", task="effect", schedule=RULE, within="1d").added == [IN_WARSAW]
    [shown] = Cli(app).json("definitions", "preview", "--schedule", RULE, "--count", "1")
    assert shown["timezone"] == "Europe/Warsaw"


def test_a_later_change_of_the_setting_moves_nothing(tm: TimeManagement, app: Celery, tmp_path: Path) -> None:
    app.conf.timezone = "Europe/Warsaw"
    file = tmp_path / "definitions.json"
    tm.definitions.add(name="api", task="effect", schedule=RULE)
    tm.definitions.add(name="utc", task="effect", schedule=RULE, timezone="UTC")
    exported = Cli(app).run("definitions", "export", "--json").stdout
    app.conf.timezone = "Asia/Tokyo"
    tm.definitions.update("api", queue="slow")
    file.write_text(exported)
    assert tm.definitions.load(file).conflicts == []
    assert {one.name: one.timezone for one in tm.definitions.list()} == {"api": "Europe/Warsaw", "utc": "UTC"}
    tm.definitions.remove("utc")
    tm.definitions.load(file)
    assert tm.definitions.get("utc").next_run_at == IN_UTC


def test_without_a_setting_it_is_utc(tm: TimeManagement) -> None:
    assert tm.definitions.add(name="api", task="effect", schedule=RULE).next_run_at == IN_UTC
