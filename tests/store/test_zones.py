"""Another tz database moves coming instants and repeats none, on every database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text, update
from tmtest.ledger import NOON, add, plan, rows

from celery_tm import TimeManagement
from celery_tm.scheduler import zones
from celery_tm.scheduler.zones import ZoneWatch
from celery_tm.store import marks, tables
from celery_tm.testing import MovableClock


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def pretend(tm: TimeManagement, **values: object) -> None:
    """Leave the row as a beat with another tz database would have."""
    tm.installation.database.run(lambda tx: tx.execute(update(tables.definition).values(**values)))


def test_a_next_run_that_moved_earlier_is_not_slept_through(tm: TimeManagement, noon: MovableClock) -> None:
    added = add(tm, schedule="0 9 * * *", timezone="Europe/Warsaw")
    right = datetime(2026, 6, 2, 7, tzinfo=UTC)
    assert added.next_run_at == right
    pretend(tm, next_run_at=right + timedelta(hours=1))
    ZoneWatch(tm.installation).check_once()
    assert tm.definitions.get("tick").next_run_at == right


def test_the_walk_goes_in_steps_and_is_done_once_for_each_tz_database(
    tm: TimeManagement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zones, "STEP", 2)
    for n in range(5):
        add(tm, name=f"d{n}", schedule="0 9 * * *", timezone="Europe/Warsaw")
    right = tm.definitions.get("d0").next_run_at
    pretend(tm, next_run_at=NOON + timedelta(days=5))
    watch = ZoneWatch(tm.installation)
    for _ in range(4):
        watch.check_once()
    assert {d.next_run_at for d in tm.definitions.list()} == {right}
    with tm.installation.database.transaction(write=False) as tx:
        assert marks.read(tx, f"tzdata:{tx.app}") == zones.tz_version()
    pretend(tm, next_run_at=NOON + timedelta(days=5))
    ZoneWatch(tm.installation).check_once()
    assert tm.definitions.get("d0").next_run_at == NOON + timedelta(days=5), "the same tz database: nothing to do"


@pytest.mark.parametrize("then", [0, 3600, 10800])
def test_a_local_time_that_was_decided_does_not_come_again(tm: TimeManagement, noon: MovableClock, then: int) -> None:
    """It was decided with another offset (`then`) than Warsaw's 7200 s of summer."""
    add(tm, schedule="0 9 * * *", timezone="Europe/Warsaw", overlap="allow", recovery="all")
    wall = datetime(2026, 6, 2, 9, tzinfo=UTC)
    decided = wall - timedelta(seconds=then)
    noon.move_to(decided)
    pretend(tm, planned_until=decided, planned_offset=then, next_run_at=decided + timedelta(hours=1))
    noon.move_to(datetime(2026, 6, 4, 12, tzinfo=UTC))
    plan(tm)
    days = [row.scheduled_at for row in rows(tm)]
    assert days == [datetime(2026, 6, 3, 7, tzinfo=UTC), datetime(2026, 6, 4, 7, tzinfo=UTC)]
    kept = tm.definitions.get("tick")
    assert kept.planned_offset == 7200
    assert replace(kept, planned_offset=None).resumes_after == kept.planned_until


@pytest.mark.parametrize("damage", ["options = '{'", "options = :deep", "timezone = 'Mars/Base'", "plan_ahead = 1e300"])
def test_the_walk_goes_on_past_a_definition_that_cannot_be_looked_up(tm: TimeManagement, damage: str) -> None:
    for n in range(3):
        add(tm, name=f"d{n}", schedule="0 9 * * *", timezone="Europe/Warsaw")
    right = tm.definitions.get("d0").next_run_at
    pretend(tm, next_run_at=NOON + timedelta(days=5))
    broken = text(f"UPDATE tm_definition SET {damage} WHERE name = 'd1'")
    given = {"deep": "[" * 60_000} if ":deep" in damage else {}
    tm.installation.database.run(lambda tx: tx.execute(broken, given))
    ZoneWatch(tm.installation).check_once()
    found = {d.name: d.next_run_at for d in tm.definitions.list()}
    assert (found["d0"], found["d2"]) == (right, right)
    with tm.installation.database.transaction(write=False) as tx:
        assert marks.read(tx, f"tzdata:{tx.app}") == zones.tz_version()


def test_a_run_in_a_zone_that_this_node_lacks_is_explained_in_utc(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule="0 9 * * *", timezone="Europe/Warsaw")
    noon.move_to(datetime(2026, 6, 2, 7, tzinfo=UTC))
    plan(tm)
    pretend(tm, timezone="Mars/Base")
    assert "2026-06-02 07:00:00 UTC" in str(tm.explain("tick"))
