"""Why it ran, ran late or did not: answers from the ledger, the audit and the versions, on every database."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tmtest.ledger import HOUR, MINUTE, NOON, add, claim, plan, start

from celery_tm import TimeManagement
from celery_tm.errors import DefinitionNotFound
from celery_tm.store import nodes
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
    assert "no beat was planning before" in told


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
    assert "yields no instant then" in why(tm, 30) or "still to come" in why(tm, 30)
    noon.forward(HOUR + MINUTE)
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
