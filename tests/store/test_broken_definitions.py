"""A definition that cannot be read or planned stops nobody else; it can be switched, mended and removed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import text, update
from tmtest.ledger import NOON, rows

from celery_tm import Scheduler, TimeManagement, events
from celery_tm.scheduler.planner import Planner
from celery_tm.scheduler.seeding import Seeder
from celery_tm.scheduler.zones import ZoneWatch
from celery_tm.store import tables
from celery_tm.testing import MovableClock

MINUTE = timedelta(minutes=1)
# What a row may hold that this release, or this node, cannot read.
UNREADABLE: dict[str, dict[str, Any]] = {
    "a kind whose package is missing": {"schedule_kind": "moon", "schedule": "full"},
    "an expression that is no longer valid": {"schedule": "61 25 * * *"},
    "a word of a newer release": {"overlap": "merge"},
    "a gap policy of a newer release": {"gap": "both"},
    "a zone that this node lacks": {"timezone": "Mars/Olympus"},
    "a calendar that is gone": {"calendars": ["gone"]},
    "options that are a number": {"options": 7},
    "a waiting edit without its time": {"next_edit": {"values": {"paused": True}}},
    "arguments that are no JSON": {"args": "[1,"},
}


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


@pytest.fixture
def heard() -> Iterator[list[events.DefinitionBroken]]:
    found: list[Any] = []

    def hear(sender: Any, **fields: Any) -> None:
        found.append(fields)

    events.definition_broken.connect(hear)
    yield found
    events.definition_broken.disconnect(hear)


def add(tm: TimeManagement, name: str, **values: Any) -> Any:
    return tm.definitions.add(**({"name": name, "task": "effect", "args": [1], "schedule": "* * * * *"} | values))


def spoil(tm: TimeManagement, name: str, **values: Any) -> None:
    """Leave a row as a newer release, another node or a person would have."""
    table = tables.definition
    tm.installation.database.run(lambda tx: tx.execute(update(table).where(table.c.name == name).values(**values)))


def spoil_text(tm: TimeManagement, name: str, column: str, value: str) -> None:
    statement = text(f"UPDATE tm_definition SET {column} = :value WHERE name = :name")
    tm.installation.database.run(lambda tx: tx.execute(statement, {"value": value, "name": name}))


def broken_and_sound(tm: TimeManagement, how: str) -> None:
    add(tm, "broken")
    add(tm, "sound")
    spoil(tm, "broken", **UNREADABLE[how])


def fired(tm: TimeManagement, name: str = "sound") -> list[str]:
    return [str(row.state) for row in rows(tm, name)]


@pytest.mark.parametrize("how", UNREADABLE)
def test_the_others_are_planned(tm: TimeManagement, noon: MovableClock, heard: list[Any], how: str) -> None:
    broken_and_sound(tm, how)
    before = tm.definitions.get("broken")
    planner = Planner(tm.installation)
    for _ in range(3):
        noon.forward("1m")
        planner.plan_due()
    assert fired(tm) == ["pending", "skipped", "skipped"]
    assert [one["name"] for one in heard] == ["broken"], "reported once"
    after = tm.definitions.get("broken")
    assert after.problem
    assert (after.next_run_at, after.planned_until) == (before.next_run_at, before.planned_until), "the row is left alone"


@pytest.mark.parametrize("column", ["options", "steps", "next_edit", "excluded", "calendars", "retry"])
def test_a_column_that_is_no_json_stops_nobody(tm: TimeManagement, noon: MovableClock, column: str) -> None:
    add(tm, "broken")
    add(tm, "sound")
    spoil_text(tm, "broken", column, "{no json")
    noon.forward("1m")
    assert Planner(tm.installation).plan_due().definitions == 1
    assert fired(tm) == ["pending"]
    assert column in (tm.definitions.get("broken").problem or "")
    tm.pause("broken")
    assert tm.definitions.get("broken").paused
    with tm.installation.database.transaction(write=False) as tx:
        asked = text(f"SELECT {column} FROM tm_definition WHERE name = 'broken'")
        assert tx.execute(asked).scalar() == "{no json", "what nobody can read is not overwritten"


def test_a_calendar_that_is_no_json_stops_nobody(tm: TimeManagement, noon: MovableClock) -> None:
    tm.calendars.set("days", ["2026-12-25"])
    add(tm, "broken", calendars=["days"])
    add(tm, "sound")
    tm.installation.database.run(lambda tx: tx.execute(text("UPDATE tm_calendar SET entries = '{no json'")))
    noon.forward("1m")
    Planner(tm.installation).plan_due()
    assert fired(tm) == ["pending"]
    assert "days" in (tm.definitions.get("broken").problem or "")
    assert tm.calendars.list() == []
    tm.calendars.set("days", ["2026-12-26"])
    assert tm.definitions.get("broken").problem is None


@pytest.mark.parametrize("how", UNREADABLE)
def test_a_tick_does_not_take_it_for_an_outage(tm: TimeManagement, app: Celery, noon: MovableClock, how: str) -> None:
    broken_and_sound(tm, how)
    scheduler = Scheduler(app)
    told: list[Any] = []

    def hear(sender: Any, **fields: Any) -> None:
        told.append(fields)

    events.outage_began.connect(hear)
    try:
        noon.forward("1m")
        for _ in range(3):
            scheduler.work()
    finally:
        events.outage_began.disconnect(hear)
        scheduler.close()
    assert fired(tm) in (["queued"], ["pending"])
    assert [one for one in told if one["what"] == "database"] == []


def test_beat_does_not_spin_for_a_row_that_it_has_set_aside(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    add(tm, "broken")
    spoil(tm, "broken", schedule_kind="moon")
    noon.forward("1m")
    scheduler = Scheduler(app)
    try:
        scheduler.work()
        assert scheduler.work() > 0.5
    finally:
        scheduler.close()


def test_a_row_that_fails_while_it_is_written_is_found_among_the_others(
    tm: TimeManagement, noon: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is that fails, and however late: halves are tried until it is alone."""
    for n in range(7):
        add(tm, f"d{n}")
    real = Planner._write

    def write(self: Planner, tx: Any, plans: Any, now: Any) -> None:
        if any(made.definition.name == "d3" for made in plans):
            raise RuntimeError("this one cannot be written")
        real(self, tx, plans, now)

    monkeypatch.setattr(Planner, "_write", write)
    noon.forward("1m")
    planner = Planner(tm.installation)
    planned = [planner.plan_due()]
    while planned[-1].more:
        planned.append(planner.plan_due())
    assert sum(one.definitions for one in planned) == 6
    assert [fired(tm, f"d{n}") for n in range(7)] == [["pending"]] * 3 + [[]] + [["pending"]] * 3


@pytest.mark.parametrize("how", UNREADABLE)
def test_seeding_and_the_zone_watch_go_on(tm: TimeManagement, app: Celery, how: str) -> None:
    app.conf.result_expires = None
    app.conf.timezone = "Europe/Warsaw"
    app.conf.beat_schedule = {name: {"task": "effect", "schedule": 60} for name in ("broken", "sound")}
    Seeder(tm.installation).seed_once()
    spoil(tm, "broken", **UNREADABLE[how])
    app.conf.beat_schedule = {"sound": {"task": "effect", "schedule": 30}, "new": {"task": "effect", "schedule": 30}}
    Seeder(tm.installation).seed_once()
    found = {one.name: one for one in tm.definitions.list()}
    assert found["sound"].schedule == "every 30s"
    assert found["broken"].retired_at is not None, "dropped in code together with its package"
    assert found["new"].next_run_at
    spoil(tm, "sound", next_run_at=NOON + timedelta(days=9))
    watch = ZoneWatch(tm.installation)
    watch.check_once()
    assert watch._done
    assert tm.definitions.get("sound").next_run_at < NOON + timedelta(days=9)


def test_code_that_states_a_schedule_again_mends_it(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    app.conf.result_expires = None
    app.conf.beat_schedule = {"job": {"task": "effect", "schedule": 60}}
    Seeder(tm.installation).seed_once()
    spoil(tm, "job", schedule_kind="moon", schedule="full")
    Seeder(tm.installation).seed_once()
    assert tm.definitions.get("job").problem is None
    noon.forward("1m")
    assert Planner(tm.installation).plan_due().definitions == 1


# What people do about it


@pytest.mark.parametrize("how", UNREADABLE)
def test_it_can_be_switched_and_removed(tm: TimeManagement, noon: MovableClock, how: str) -> None:
    broken_and_sound(tm, how)
    noon.forward("1h")
    assert tm.pause("broken").paused
    assert not tm.resume("broken").paused
    assert not tm.disable("broken").enabled
    assert tm.enable("broken").enabled
    tm.definitions.update("broken", group="g")
    tm.pause(group="g")
    assert tm.definitions.get("broken").paused
    tm.definitions.remove("broken")
    assert [one.name for one in tm.definitions.list()] == ["sound"]


@pytest.mark.parametrize(
    ("how", "values"),
    [
        ("a kind whose package is missing", {"schedule": "*/5 * * * *"}),
        ("an expression that is no longer valid", {"schedule": "*/5 * * * *"}),
        ("a word of a newer release", {"overlap": "skip"}),
        ("a zone that this node lacks", {"timezone": "UTC"}),
        ("a calendar that is gone", {"calendars": []}),
        ("options that are a number", {"options": {}}),
        ("arguments that are no JSON", {"args": [2]}),
    ],
)
def test_an_update_that_states_it_anew_mends_it(
    tm: TimeManagement, noon: MovableClock, how: str, values: dict[str, Any]
) -> None:
    broken_and_sound(tm, how)
    noon.forward("10m")
    assert tm.definitions.update("broken", **values).problem is None
    assert tm.definitions.get("broken").problem is None
    noon.forward("5m")
    assert Planner(tm.installation).plan_due().definitions == 2


@pytest.mark.parametrize("how", UNREADABLE)
def test_explain_forecast_and_lists_show_it_with_the_error(tm: TimeManagement, noon: MovableClock, how: str) -> None:
    broken_and_sound(tm, how)
    noon.forward("1h")
    problem = tm.definitions.get("broken").problem
    assert problem
    told = tm.explain("broken")
    assert "cannot be planned on this node" in told.answer
    assert problem in told.answer
    assert "no beat is known" not in str(told)
    found = tm.forecast(hours=2)
    assert "sound" in found.counts
    if how not in ("a waiting edit without its time", "arguments that are no JSON"):  # their times are known
        assert found.broken.keys() == {"broken"}
        assert found.counts.keys() == {"sound"}
    assert [one.name for one in tm.definitions.list()] == ["broken", "sound"]
    assert {entry["name"] for entry in tm.definitions.export()["definitions"]} == {"broken", "sound"}


def test_one_node_that_lacks_a_package_does_not_hold_up_the_others(
    tm: TimeManagement, noon: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is shared; what one process cannot do, another may."""
    from celery_tm.domain import definition as domain
    from celery_tm.installation import Installation

    add(tm, "sunset", schedule={"kind": "solar", "event": "sunset", "lat": 52.2, "lon": 21.0})
    noon.forward("1d")
    other = Installation(tm.app)
    real = domain._loaded
    monkeypatch.setattr(domain, "_loaded", lambda *_: (_ for _ in ()).throw(ImportError("no module named ephem")))
    assert Planner(other).plan_due().definitions == 0
    monkeypatch.setattr(domain, "_loaded", real)
    other.database.dispose()
    assert Planner(tm.installation).plan_due().definitions == 1, "at once, not five minutes later"
    assert "no beat is known" not in str(tm.explain("sunset", at=datetime(2026, 6, 1, 19, tzinfo=UTC)))


def test_doctor_names_broken_and_overdue_definitions(tm: TimeManagement, noon: MovableClock) -> None:
    broken_and_sound(tm, "a kind whose package is missing")
    assert next(one.text for one in tm.doctor() if one.check == "definitions").startswith("broken cannot be planned here")
    noon.forward("3h")
    told = {one.objects[0]: one for one in tm.doctor() if one.check == "definitions"}
    assert told.keys() == {"broken", "sound"}
    assert "unknown kind 'moon'" in told["broken"].text
    assert "due since 2026-06-01 12:01:00 UTC" in told["sound"].text
    tm.definitions.remove("broken")
    tm.run_due_jobs(now=noon.now)
    assert [one.level for one in tm.doctor() if one.check == "definitions"] == ["ok"]


def test_metrics_count_broken_and_overdue_definitions(tm: TimeManagement, noon: MovableClock) -> None:
    from celery_tm.metrics.collecting import StateCollector

    broken_and_sound(tm, "a kind whose package is missing")
    noon.forward("3h")
    Planner(tm.installation).plan_due()
    found = {family.name: family.samples[0].value for family in StateCollector(tm.installation).collect() if family.samples}
    assert (found["celery_tm_definitions_broken"], found["celery_tm_definitions_overdue"]) == (1.0, 1.0)
