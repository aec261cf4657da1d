"""`beat_schedule` becomes definitions on every database: code wins for what it states, the database for the rest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import celery
import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar
from celery.utils.time import timezone as celery_zones
from sqlalchemy import text
from tmtest.ledger import NOON, rows

from celery_tm import Scheduler, TimeManagement, defer, events
from celery_tm.scheduler.planner import Planner
from celery_tm.scheduler.seeding import Seeder
from celery_tm.store import definitions
from celery_tm.store.database import Database
from celery_tm.testing import MovableClock


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def seed(app: Celery, entries: dict[str, Any]) -> None:
    app.conf.beat_schedule = entries
    app.conf.result_expires = None
    Seeder(TimeManagement(app).installation).seed_once()


def seeded(tm: TimeManagement) -> dict[str, Any]:
    return {d.name: d for d in tm.definitions.list() if d.name != "celery_tm.prune"}


@pytest.mark.parametrize(
    ("rule", "kind", "expression"),
    [
        (crontab(), "crontab", "* * * * *"),
        (crontab(minute="*/15", hour="8-18", day_of_week="mon-fri"), "crontab", "*/15 8-18 * * mon-fri"),
        (crontab(minute=0, hour=[3, 15], day_of_month="1"), "crontab", "0 3,15 1 * *"),
        (timedelta(seconds=30), "interval", "every 30s"),
        (90.0, "interval", "every 1m 30s"),
        (10, "interval", "every 10s"),
        (schedule(run_every=timedelta(hours=2)), "interval", "every 2h"),
        (schedule(run_every=timedelta(days=1), relative=True), "iso8601", "R/1970-01-01T00:00:00/P1D"),
        (solar("sunset", -37.81753, 144.96715), "solar", "sunset at -37.81753,144.96715"),
    ],
)
def test_each_of_celery_s_schedules_is_understood(
    tm: TimeManagement, app: Celery, rule: Any, kind: str, expression: str
) -> None:
    seed(app, {"job": {"task": "effect", "schedule": rule}})
    found = seeded(tm)["job"]
    assert (found.schedule_kind, found.schedule) == (kind, expression)
    assert found.next_run_at is not None
    assert (found.overlap, found.recovery) == ("allow", "last")


def test_a_crontab_matches_as_celery_s_does(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    app.conf.timezone = "Europe/Warsaw"
    seed(app, {"friday 13th": {"task": "effect", "schedule": crontab(0, 9, day_of_month="13", day_of_week="fri")}})
    found = seeded(tm)["friday 13th"]
    assert (found.timezone, found.next_run_at) == ("Europe/Warsaw", datetime(2026, 11, 13, 8, tzinfo=UTC))


def test_options_arguments_and_expiry_are_kept(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    options = {"queue": "slow", "priority": 3, "expires": 120, "headers": {"x": "y"}}
    entry = {"task": "effect", "schedule": 60, "args": (1,), "options": options}
    scheduler = Scheduler(app)
    seed(app, {"job": entry})
    noon.forward("1m")
    scheduler.planner.plan_due()
    [job] = tm.jobs()
    assert (job.task, job.args, job.queue, job.priority) == ("effect", "[1]", "slow", 3)
    assert (job.expires_at, dict(job.options)) == (NOON + timedelta(minutes=3), {"headers": {"x": "y"}})


def test_seeding_again_changes_nothing_and_a_change_of_the_code_is_seeded(tm: TimeManagement, app: Celery) -> None:
    entry = {"task": "effect", "schedule": 60}
    seed(app, {"job": entry})
    seed(app, {"job": entry})
    assert seeded(tm)["job"].version == 1
    tm.definitions.update("job", schedule="every 5m", overlap="queue")
    tm.pause("job")
    seed(app, {"job": {"task": "plain", "schedule": 60}})
    found = seeded(tm)["job"]
    assert (found.schedule, found.task) == ("every 5m", "plain"), "what a person has changed stays"
    assert (found.paused, found.overlap) == (True, "queue")


def test_an_entry_that_is_gone_is_retired_and_comes_back_without_a_backlog(
    tm: TimeManagement, app: Celery, noon: MovableClock
) -> None:
    seed(app, {"job": {"task": "effect", "schedule": 60}, "other": {"task": "effect", "schedule": 60}})
    seed(app, {"other": {"task": "effect", "schedule": 60}})
    gone = seeded(tm)["job"]
    assert (gone.retired_at, gone.next_run_at) == (NOON, None)
    assert seeded(tm)["other"].retired_at is None
    noon.forward("1h")
    assert "was retired by SYSTEM" in str(tm.explain("job", at=NOON + timedelta(minutes=30)))
    seed(app, {"job": {"task": "effect", "schedule": 60}, "other": {"task": "effect", "schedule": 60}})
    back = seeded(tm)["job"]
    assert (back.retired_at, back.next_run_at) == (None, NOON + timedelta(hours=1, minutes=1))
    assert rows(tm, "job") == []


def test_definitions_of_people_and_of_other_apps_are_never_retired(tm: TimeManagement, app: Celery) -> None:
    tm.definitions.add(name="mine", task="effect", schedule="every 1m")
    seed(app, {"job": {"task": "effect", "schedule": 60}})
    app.main = "another app"
    seed(app, {})
    assert {name: d.retired_at for name, d in seeded(tm).items()} == {"mine": None, "job": None}


def test_one_entry_that_cannot_be_read_does_not_stop_the_others(tm: TimeManagement, app: Celery) -> None:
    class Odd(schedule):
        pass

    told: list[str] = []

    def listen(name: str, error: str, **_: Any) -> None:
        told.append(f"{name}: {error}")

    events.entry_refused.connect(listen, sender=app)
    bad = {"odd": {"task": "effect", "schedule": Odd(run_every=5)}, "none": {"schedule": 5}, "text": {"task": "effect"}}
    seed(app, {**bad, "good": {"task": "effect", "schedule": 5}})
    assert list(seeded(tm)) == ["good"]
    assert len(told) == 3
    assert "celery_tm.schedules" in told[0]


class Raises:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize(
    "entry",
    [{"task": "effect", "schedule": 1e300}, {"task": "effect", "schedule": float("inf")}, Raises()],
    ids=["too long", "endless", "an object that raises"],
)
def test_an_entry_that_fails_in_any_way_does_not_stop_the_others(tm: TimeManagement, app: Celery, entry: Any) -> None:
    seed(app, {"bad": entry, "good": {"task": "effect", "schedule": 5}})
    assert list(seeded(tm)) == ["good"]


@pytest.mark.parametrize("damage", ["options = '{'", "options = :deep", "next_edit = :deep", "planned_until = 'infinity'"])
def test_a_seeded_definition_that_cannot_be_read_does_not_stop_the_others(
    tm: TimeManagement, app: Celery, damage: str
) -> None:
    database = tm.installation.database
    if "infinity" in damage and database.dialect.name != "postgresql":
        damage = "options = '['"
    old, new = {"task": "effect", "schedule": 60}, {"task": "effect", "schedule": 90}
    seed(app, {"bad": {**old, "options": {"queue": "x"}}, "changed": old, "gone": old})
    broken = text(f"UPDATE tm_definition SET {damage} WHERE name = 'bad'")
    given = {"deep": "[" * 60_000} if ":deep" in damage else {}
    database.run(lambda tx: tx.execute(broken, given))
    seed(app, {"bad": old, "changed": new, "fresh": old})
    found = seeded(tm)
    assert (found["changed"].schedule, found["fresh"].schedule) == ("every 1m 30s", "every 1m")
    assert found["gone"].retired_at is not None


def test_periodic_tasks_added_in_code_are_seeded_under_short_names(tm: TimeManagement, app: Celery) -> None:
    app.add_periodic_task(30.0, app.tasks["effect"].s("x" * 200))
    app.add_periodic_task(30.0, app.tasks["effect"].s(1), name="named")
    app.conf.result_expires = None
    Seeder(tm.installation).seed_once()
    names = list(seeded(tm))
    assert "named" in names
    assert len(names) == 2
    assert max(map(len, names)) <= 100


def test_the_clean_up_of_results_comes_with_it_as_in_celery_s_beat(tm: TimeManagement, app: Celery) -> None:
    app.conf.beat_schedule = {}
    app.conf.result_expires = 3600
    Seeder(tm.installation).seed_once()
    if app.backend.supports_autoexpire:
        pytest.fail("the test's backend expires by itself")
    found = seeded(tm)["celery.backend_cleanup"]
    assert (found.schedule, found.expires) == ("0 4 * * *", timedelta(hours=12))


def test_pruning_is_seeded_once_and_stays_as_people_leave_it(tm: TimeManagement, app: Celery) -> None:
    seed(app, {})
    assert tm.definitions.get("celery_tm.prune").schedule == "H H * * *"
    tm.definitions.update("celery_tm.prune", schedule="0 5 * * *")
    seed(app, {})
    assert tm.definitions.get("celery_tm.prune").schedule == "0 5 * * *"


def test_two_beats_that_start_at_once_seed_each_entry_once(tm: TimeManagement, app: Celery) -> None:
    import threading

    app.conf.beat_schedule = {f"job {n}": {"task": "effect", "schedule": 60} for n in range(10)}
    app.conf.result_expires = None
    errors: list[BaseException] = []

    def beat() -> None:
        try:
            Seeder(tm.installation).seed_once()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=beat) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(seeded(tm)) == 10
    assert {d.version for d in seeded(tm).values()} == {1}


# As Celery goes by its settings


@pytest.mark.parametrize(
    ("conf", "zone"),
    [
        ({}, "UTC"),
        ({"timezone": "Europe/Warsaw"}, "Europe/Warsaw"),
        ({"timezone": ZoneInfo("Asia/Tokyo")}, "Asia/Tokyo"),
        ({"timezone": UTC}, "UTC"),
        ({"timezone": timezone(timedelta(hours=2))}, "Etc/GMT-2"),
        ({"enable_utc": False, "timezone": "Europe/Warsaw"}, "Europe/Warsaw"),
    ],
)
def test_entries_are_in_the_zone_that_celery_goes_by(tm: TimeManagement, app: Celery, conf: Any, zone: str) -> None:
    app.conf.update(conf)
    seed(app, {"job": {"task": "effect", "schedule": crontab(hour=9, minute=0)}})
    found = seeded(tm)["job"]
    assert found.timezone == zone
    assert found.next_run_at is not None
    assert found.next_run_at.astimezone(app.timezone).hour == 9


def test_without_utc_and_without_a_zone_entries_are_in_the_machine_s(
    tm: TimeManagement, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(celery_zones.__dict__, "local", ZoneInfo("America/New_York"))
    app.conf.update(enable_utc=False, timezone=None)
    seed(app, {"job": {"task": "effect", "schedule": crontab(hour=9, minute=0)}})
    assert seeded(tm)["job"].timezone == "America/New_York"


class Fortnightly(crontab):
    """Every other time."""

    def is_due(self, last_run_at: Any) -> Any:
        return super().is_due(last_run_at)


class Named(crontab):
    """Says what it is for."""

    def __repr__(self) -> str:
        return "named"


def test_a_crontab_that_computes_its_own_times_is_refused_and_one_that_does_not_is_taken(
    tm: TimeManagement, app: Celery
) -> None:
    told: list[dict[str, Any]] = []

    def hear(sender: Any, **fields: Any) -> None:
        told.append(fields)

    events.entry_refused.connect(hear)
    try:
        rules = {"own": Fortnightly(minute=0), "named": Named(minute=0)}
        seed(app, {name: {"task": "effect", "schedule": rule} for name, rule in rules.items()})
    finally:
        events.entry_refused.disconnect(hear)
    assert list(seeded(tm)) == ["named"]
    assert [(one["name"], "computes its own times" in one["error"]) for one in told] == [("own", True)]


# Only what differs is touched


def test_entries_that_say_the_same_are_not_touched_however_far_behind(
    tm: TimeManagement, app: Celery, noon: MovableClock
) -> None:
    entries = {f"e{n}": {"task": "effect", "schedule": 10.0} for n in range(5)}
    seed(app, entries)
    noon.forward("1d")
    before = {one.name: one for one in tm.definitions.list()}
    seed(app, entries)
    assert {one.name: one for one in tm.definitions.list()} == before
    assert rows(tm, "e0") == []


def test_an_entry_that_is_far_behind_is_changed_when_the_planner_has_caught_up(
    tm: TimeManagement, app: Celery, noon: MovableClock
) -> None:
    seed(app, {"e": {"task": "effect", "schedule": 10.0}})
    noon.forward("1d")
    app.conf.beat_schedule = {"e": {"task": "effect", "schedule": 60.0}, "other": {"task": "effect", "schedule": 60.0}}
    seeder, planner = Seeder(tm.installation), Planner(tm.installation)
    seeder.seed_some()
    assert seeded(tm)["e"].schedule == "every 10s"
    assert "other" in seeded(tm), "the others do not wait for it"
    assert len(rows(tm, "e")) == 0
    while planner.plan_due().more:
        pass
    seeder._next_at = 0.0
    seeder.seed_some()
    assert seeded(tm)["e"].schedule == "every 1m"
    assert len(rows(tm, "e")) == 8640, "each instant is decided by the rule that was in force"


def test_an_entry_that_somebody_holds_is_seeded_when_it_is_free(tm: TimeManagement, app: Celery, database: Database) -> None:
    if not database.dialect.skips_locked:
        pytest.skip("one writer at a time")
    seed(app, {"e": {"task": "effect", "schedule": 10.0}})
    app.conf.beat_schedule = {"e": {"task": "effect", "schedule": 60.0}}
    seeder = Seeder(tm.installation)
    with database.transaction() as tx:
        definitions.find(tx, "e", lock=True)
        seeder.seed_some()
    assert seeded(tm)["e"].schedule == "every 10s"
    seeder._next_at = 0.0
    seeder.seed_some()
    assert seeded(tm)["e"].schedule == "every 1m"


def test_an_entry_of_another_app_s_code_is_refused(tm: TimeManagement, app: Celery) -> None:
    seed(app, {"e": {"task": "effect", "schedule": 10.0}})
    main, app.main = app.main, "another"
    told: list[dict[str, Any]] = []

    def hear(sender: Any, **fields: Any) -> None:
        told.append(fields)

    events.entry_refused.connect(hear)
    try:
        seed(app, {"e": {"task": "effect", "schedule": 60.0}})
    finally:
        events.entry_refused.disconnect(hear)
        app.main = main
    assert seeded(tm)["e"].schedule == "every 10s"
    assert [one["name"] for one in told] == ["e"]


# Tasks that are not ours


@pytest.mark.parametrize(
    "attributes",
    [
        {"timeout": (3.05, 27)},
        {"retry_policy": object()},
        {"key": 7, "chunk": "x", "concurrency_key": 3, "concurrency": "many", "keep_key": object()},
    ],
)
def test_attributes_of_a_plain_task_mean_what_its_authors_mean(
    tm: TimeManagement, app: Celery, noon: MovableClock, attributes: dict[str, Any]
) -> None:
    plain = type("Plain", (celery.Task,), {"abstract": True, **attributes})
    name = f"plain-{uuid4()}"

    @app.task(base=plain, name=name)
    def body(*_: Any) -> None:
        pass

    seed(app, {"plain": {"task": name, "schedule": 60.0}, "ours": {"task": "effect", "schedule": 60.0}})
    noon.forward("1m")
    Planner(tm.installation).plan_due()
    assert [str(row.state) for name in ("plain", "ours") for row in rows(tm, name)] == ["pending", "pending"]
    assert defer(name, args=[1], app=app).created
    assert tm.installation.chunk_of(name) == 1
