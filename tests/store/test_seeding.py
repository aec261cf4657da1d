"""`beat_schedule` becomes definitions on every database: code wins for what it states, the database for the rest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar
from tmtest.ledger import NOON, rows

from celery_tm import Scheduler, TimeManagement, events
from celery_tm.scheduler.seeding import Seeder
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
    seed(app, {"job": entry})
    noon.forward("1m")
    scheduler = Scheduler(app)
    scheduler.planner.plan_due()
    [job] = tm.jobs()
    assert (job.task, job.args, job.queue, job.priority) == ("effect", "[1]", "slow", 3)
    assert (job.expires_at, dict(job.options)) == (NOON + timedelta(minutes=3), {"headers": {"x": "y"}})


def test_seeding_again_changes_nothing_and_code_wins_for_what_it_states(tm: TimeManagement, app: Celery) -> None:
    entry = {"task": "effect", "schedule": 60}
    seed(app, {"job": entry})
    seed(app, {"job": entry})
    assert seeded(tm)["job"].version == 1
    tm.definitions.update("job", schedule="every 5m", overlap="queue")
    tm.pause("job")
    seed(app, {"job": {"task": "plain", "schedule": 60}})
    found = seeded(tm)["job"]
    assert (found.schedule, found.task) == ("every 1m", "plain")
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
