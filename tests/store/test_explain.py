"""Why it ran, ran late or did not: answers from the ledger, the audit and the versions, on every database."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from sqlalchemy import delete, text
from tmtest.ledger import HOUR, MINUTE, NOON, add, claim, plan, start

from celery_tm import Scheduler, TimeManagement, cancel
from celery_tm.errors import DefinitionNotFound
from celery_tm.recovery.reaper import reap
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import nodes, tables
from celery_tm.testing import MovableClock


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def why(tm: TimeManagement, minutes: float, name: str = "tick") -> str:
    return str(tm.explain(name, at=NOON + timedelta(minutes=minutes)))


def test_a_run_on_time_is_told_with_its_attempts_and_its_version(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, actor="alice")
    noon.forward("1m")
    tm.run_due_jobs()
    told = why(tm, 1)
    assert told.startswith("'tick' ran on time for 2026-06-01 12:01:00 UTC")
    assert "attempt 1 succeeded" in told
    assert "added by alice" in told
    assert tm.explain("tick", at=NOON + MINUTE).occurrence is not None


def test_a_late_run_says_how_late_and_why(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule="0 * * * *")
    noon.forward(timedelta(hours=1, minutes=20))
    tm.run_due_jobs()
    told = why(tm, 60)
    assert "ran 20m late" in told
    assert "no beat is known to have been planning before" in told


def test_a_run_that_was_decided_late_although_a_beat_was_running_says_so(
    tm: TimeManagement, app: Celery, noon: MovableClock
) -> None:
    tm.calendars.set("days", ["2026-12-25"])
    add(tm, schedule="*/10 * * * *", calendars=["days"], recovery="all", overlap="allow")
    beat = Scheduler(app)
    beat.work()
    tm.installation.database.run(lambda tx: tx.execute(text("UPDATE tm_calendar SET entries = '{no json'")))
    for _ in range(4):
        noon.forward("10m")
        beat.work()
    tm.calendars.set("days", ["2026-12-25"])
    tm.installation.set_aside.discard("tm_definition", tm.definitions.get("tick").id)
    plan(tm)
    told = why(tm, 10)
    beat.close()
    assert "30m after its instant: a beat was running, but could not read or lock the definition" in told


def test_a_run_that_was_missed_says_by_which_policy(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule="0 * * * *", recovery="skip")
    noon.forward(timedelta(hours=1, minutes=20))
    plan(tm)
    assert "did not run for 2026-06-01 13:00:00 UTC: missed; recovery=skip" in why(tm, 60)


def test_a_paused_definition_names_who_paused_it_and_why(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm)
    tm.pause("tick", actor="alice", reason="stock-taking")
    noon.forward("1m")
    plan(tm)
    told = why(tm, 1)
    assert "did not run" in told
    assert "the definition was paused" in told
    assert "paused by alice" in told
    assert "stock-taking" in told


def test_a_run_that_waits_for_a_slot_says_whether_one_is_free(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, concurrency_key="db", overlap="allow")
    noon.forward("1m")
    plan(tm)
    [first] = claim(tm)
    noon.forward("1m")
    plan(tm)
    assert claim(tm) == []
    assert "the only slot of concurrency_key 'db' is taken" in why(tm, 2)
    with tm.installation.database.transaction() as tx:
        tx.execute(delete(tables.job).where(tables.job.c.id == first))
    assert "waits for its turn: a slot is free" in why(tm, 2)


def test_a_failure_shows_its_error(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, task="fails", max_retries=0)
    noon.forward("1m")
    tm.run_due_jobs()
    assert "failed: ValueError: no 1" in why(tm, 1)


def test_one_that_waits_for_its_turn_says_behind_how_many(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, overlap="queue")
    noon.forward("1m")
    plan(tm)
    start(tm, claim(tm)[0])
    for _ in range(3):
        noon.forward("1m")
        plan(tm)
        claim(tm)
    assert "is running for 2026-06-01 12:01:00" in why(tm, 1)
    assert "waits for its turn" in why(tm, 4)
    assert "2 more wait" in why(tm, 4)


def test_silence_is_explained(tm: TimeManagement, noon: MovableClock) -> None:
    tm.calendars.set("holidays", ["2026-06-02"])
    add(tm, schedule="0 * * * *", calendars=["holidays"], timezone="Europe/Warsaw")
    assert "added later" in why(tm, -60)
    assert "excluded by calendar 'holidays'" in why(tm, 24 * 60)
    assert "12:30:00 UTC is still to come; the next run of 'tick' is at 2026-06-01 13:00:00 UTC (15:00:00 in" in why(tm, 30)
    noon.forward(HOUR + MINUTE)
    assert "had nothing to run at 2026-06-01 12:30:00 UTC: its schedule yields no instant then" in why(tm, 30)
    assert "no beat has decided it yet; no beat was ever seen" in why(tm, 60)
    tm.installation.database.run(lambda tx: nodes.see(tx, "beat@here", "beat", started_ago=HOUR))
    noon.forward(HOUR)
    assert "the last beat was seen at 2026-06-01 13:01:00 UTC" in why(tm, 60)
    assert "in Europe/Warsaw" in why(tm, 60)


def test_a_definition_that_is_spent_or_over_or_not_begun_says_so(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, name="spent", max_runs=1)
    add(tm, name="over", ends_at=NOON + 2 * MINUTE)
    add(tm, name="early", starts_at=NOON + HOUR)
    for _ in range(4):
        noon.forward("1m")
        tm.run_due_jobs()
    assert "has run once, and max_runs=1 allows no more" in why(tm, 3, "spent")
    assert "it ended at 2026-06-01 12:02:00 UTC" in why(tm, 3.9, "over")
    assert "it starts only at 2026-06-01 13:00:00 UTC" in why(tm, 3, "early")


def test_a_question_without_a_time_is_about_now(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule="* * * * * *", overlap="allow")
    noon.forward("5s")
    tm.run_due_jobs()
    assert "ran on time" in str(tm.explain("tick"))


def test_a_removed_definition_is_remembered_and_an_unknown_one_refused(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm)
    tm.definitions.remove("tick", actor="bob", reason="replaced by an event")
    told = why(tm, 1)
    assert "was removed by bob" in told
    assert "replaced by an event" in told
    with pytest.raises(DefinitionNotFound):
        tm.explain("never was")


def test_the_version_in_force_then_is_told_not_the_one_now(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule="*/2 * * * *")
    noon.forward("2m")
    tm.run_due_jobs()
    tm.definitions.update("tick", schedule="*/5 * * * *", actor="carol")
    told = why(tm, 2)
    assert "version 1 was in force (schedule '*/2 * * * *')" in told
    assert "version 2" in told


def test_the_last_fifty_of_every_definition_are_one_statement(tm: TimeManagement, noon: MovableClock) -> None:
    from sqlalchemy import event

    add(tm, name="never ran", schedule="0 0 1 1 *")
    for name in ("a", "b"):
        add(tm, name=name, recovery="skip")
    noon.forward("1h")
    plan(tm)
    statements: list[str] = []
    engine = tm.installation.database.engine
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    seen = tm.glance(count=50)
    assert {name: len(found) for name, found in seen.items()} == {"a": 50, "b": 50, "never ran": 0}
    assert seen["a"][0].scheduled_at == NOON + HOUR
    assert sum("tm_occurrence" in text for text in statements) == 1


# Workflows

STEPS = [
    {"name": "fetch", "task": "effect", "args": [1]},
    {"name": "break", "task": "fails", "args": [2], "max_retries": 0},
    {"name": "load", "task": "effect", "args": [3]},
    {"name": "clean", "task": "effect", "args": [4], "cleanup": True},
]


def test_a_run_that_failed_names_the_step_and_what_it_cancelled(tm: TimeManagement, noon: MovableClock) -> None:
    tm.definitions.add(name="tick", schedule="* * * * *", steps=STEPS)
    noon.forward("1m")
    tm.run_due_jobs()
    told = tm.explain("tick", at=NOON + MINUTE)
    assert told.answer == "'tick' ran for 2026-06-01 12:01:00 UTC and failed: step 'break' failed: ValueError: no 2."
    assert "step 'break' failed in attempt 1: ValueError: no 2" in told.lines
    assert "cancelled: 'load', because step 'break' failed: ValueError: no 2" in told.lines
    assert "2 steps succeeded" in told.lines
    assert not any(line.startswith("attempt") for line in told.lines)


def test_a_run_that_goes_on_says_what_it_waits_for(tm: TimeManagement, noon: MovableClock) -> None:
    steps = [STEPS[0], {**STEPS[1], "max_retries": 3}, *STEPS[2:]]
    tm.definitions.add(name="tick", schedule="* * * * *", steps=steps)
    noon.forward("1m")
    plan(tm)
    assert "has been due since 2026-06-01 12:01:00 UTC and waits for a beat" in why(tm, 1)
    dispatcher = Dispatcher(tm.installation, "beat-1")
    _, claimed = dispatcher.claim(10)
    assert "was due at 2026-06-01 12:01:00 UTC and is about to start: beat-1 has claimed it." in why(tm, 1)
    dispatcher.expand(claimed)
    told = why(tm, 1)
    assert "is running for 2026-06-01 12:01:00 UTC" in told
    assert "0 of 4 steps have ended, it waits for 'fetch'." in told
    assert "step 'fetch' waits for a beat to send it" in told
    assert "'break', 'load', 'clean' wait for other steps" in told
    [first] = claim(tm)
    assert "step 'fetch' waits for a free worker" in why(tm, 1)
    start(tm, first)
    assert "step 'fetch' is running in attempt 1 on worker" in why(tm, 1)


def test_a_step_that_waits_for_its_next_try_says_why(tm: TimeManagement, noon: MovableClock) -> None:
    steps = [STEPS[0], {**STEPS[1], "max_retries": 3, "retry": {"kind": "fixed", "delay": "5m"}}, *STEPS[2:]]
    tm.definitions.add(name="tick", schedule="* * * * *", steps=steps)
    noon.forward("1m")
    tm.run_due_jobs()
    told = why(tm, 1)
    assert "1 of 4 steps has ended, it waits for 'break'." in told
    assert "step 'break' is tried again at 2026-06-01 12:06:00 UTC: ValueError: no 2" in told


def test_a_run_that_was_cancelled_or_given_up_says_so(tm: TimeManagement, noon: MovableClock) -> None:
    tm.definitions.add(name="tick", schedule="0 * * * *", steps=STEPS[:1], overlap="allow")
    tm.definitions.add(name="late", schedule="0 * * * *", steps=STEPS[:1], execution_timeout="2m")
    noon.forward("1h")
    plan(tm)
    dispatcher = Dispatcher(tm.installation, "beat-1")
    dispatcher.expand(dispatcher.claim(10)[1])
    [run] = tm.occurrences("tick")
    root = next(job for job in tm.jobs(task="celery_tm.workflow") if job.occurrence == run.id)
    cancel(id=root.id, app=tm.app, actor="kim", reason="no longer needed")
    told = why(tm, 60)
    assert "was cancelled: " in told
    assert "no longer needed" in told
    assert "cancelled: 'fetch', because " in told
    noon.forward("3m")
    reap(tm.installation.database, limit=10)
    told = why(tm, 60, "late")
    assert "ran for 2026-06-01 13:00:00 UTC and was given up: " in told
    assert "cancelled: 'fetch', because " in told


def test_without_a_time_the_last_run_is_meant_also_one_by_hand(tm: TimeManagement, tm_clock: MovableClock) -> None:
    tm_clock.move_to(datetime(2026, 6, 1, 12, 0, 30, tzinfo=UTC))
    tm.definitions.add(name="daily", task="fails", args=[1], schedule="0 3 * * *", max_retries=0)
    tm_clock.forward("1h")
    tm.trigger("daily", actor="kim")
    tm.run_due_jobs(now=tm_clock.now)
    tm_clock.forward("2h")
    assert "ValueError: no 1" in str(tm.explain("daily"))


SPRING, AUTUMN, WARSAW = datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC), ZoneInfo("Europe/Warsaw")


def local(day: datetime, hour: int, minute: int) -> datetime:
    return day.replace(hour=hour, minute=minute, tzinfo=WARSAW)


def test_a_local_time_that_clocks_skip_is_the_run_at_the_change(tm: TimeManagement, noon: MovableClock) -> None:
    noon.move_to(SPRING)
    add(tm, name="shifted", schedule="30 2 * * *", timezone="Europe/Warsaw")
    add(tm, name="left out", schedule="30 2 * * *", timezone="Europe/Warsaw", gap="skip")
    noon.move_to(SPRING + HOUR)
    tm.run_due_jobs()
    told = str(tm.explain("shifted", at=local(SPRING, 2, 30)))
    assert "ran on time for 2026-03-29 01:00:00 UTC (03:00:00 in Europe/Warsaw)" in told
    assert "02:30:00 does not exist on 2026-03-29: clocks go forward from 02:00 to 03:00" in told
    told = str(tm.explain("left out", at=local(SPRING, 2, 30)))
    assert "did not run" in told
    assert "does not exist on 2026-03-29" in told
    assert "gap=skip" in told


def test_a_local_time_that_comes_twice_is_the_one_that_ran(tm: TimeManagement, noon: MovableClock) -> None:
    noon.move_to(AUTUMN - HOUR)
    add(tm, name="first", schedule="30 2 * * *", timezone="Europe/Warsaw")
    add(tm, name="second", schedule="30 2 * * *", timezone="Europe/Warsaw", fold="second")
    for minutes in (30, 90, 120):
        noon.move_to(AUTUMN + minutes * MINUTE)
        tm.run_due_jobs()
    told = str(tm.explain("first", at=local(AUTUMN, 2, 30)))
    assert "ran on time for 2026-10-25 00:30:00 UTC" in told
    assert (
        "comes twice on 2026-10-25, at 2026-10-25 00:30:00 UTC and 2026-10-25 01:30:00 UTC: this is about the first" in told
    )
    told = str(tm.explain("second", at=local(AUTUMN, 2, 30)))
    assert "ran on time for 2026-10-25 01:30:00 UTC" in told
    assert "this is about the second" in told
    assert "had nothing to run" in str(tm.explain("first", at=local(AUTUMN, 2, 30).replace(fold=1)))


def test_the_pause_in_force_then_is_named_not_the_latest(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm)
    tm.pause("tick", actor="alice", reason="stock-taking")
    noon.forward("1m")
    plan(tm)
    tm.resume("tick", actor="alice")
    noon.forward("1m")
    plan(tm)
    tm.pause("tick", actor="bob", reason="too loud")
    told = why(tm, 1)
    assert "it was paused by alice" in told
    assert "stock-taking" in told
    assert "it is paused now: paused by bob" in told
    tm.resume("tick", actor="bob")
    for _ in range(60):  # more lines than one look at the audit returns
        tm.disable("tick")
        tm.enable("tick")
    assert "it was paused by alice" in why(tm, 1)
    assert "and is on again" in why(tm, 1)


def test_a_run_by_hand_says_who_started_it_and_why(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule="0 3 * * *")
    add(tm, name="falls", task="fails", max_retries=0, schedule="0 3 * * *")
    noon.forward(timedelta(minutes=26, seconds=30))
    tm.trigger("tick", actor="ann", reason="month end")
    tm.trigger("falls", actor="bob")
    assert "'tick' was started by hand at 2026-06-01 12:26:30 UTC by ann ('month end'), outside its schedule: it " in why(
        tm, 26.5
    )
    tm.run_due_jobs()
    told = why(tm, 26.5)
    assert (
        "'tick' was started by hand at 2026-06-01 12:26:30 UTC by ann ('month end'), outside its schedule: it completed"
        in told
    )
    assert "on time" not in told
    told = why(tm, 26.5, "falls")
    assert "was started by hand at 2026-06-01 12:26:30 UTC by bob, outside its schedule: it ran for" in told
    assert "failed: ValueError: no 1" in told
    run = tm.explain("tick", at=noon.now).occurrence
    assert run is not None
    noon.forward("10m")
    tm.replay(run.id, actor="kim", reason="once more")
    tm.run_due_jobs()
    assert "was replayed at 2026-06-01 12:36:30 UTC by kim ('once more'), outside its schedule: it completed" in why(
        tm, 36.5
    )


def test_a_schedule_of_millions_of_runs_that_is_over_is_explained_at_once(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule="every 1s", ends_at=NOON + MINUTE, recovery="skip")
    add(tm, name="cron", schedule="* * * * * *", ends_at=NOON + MINUTE, recovery="skip")
    noon.forward("50d")
    began = time.perf_counter()
    for name in ("tick", "cron"):
        assert "ended at 2026-06-01 12:01:00" in str(tm.explain(name, at=noon.now))
        assert tm.explain(name).at == NOON + MINUTE
    assert time.perf_counter() - began < 5, "walking 4,000,000 seconds takes minutes"
