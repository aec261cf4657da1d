"""Definitions become occurrences and jobs on every database: each instant once, whoever plans, whatever happens."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import select, update

from celery_tm import TimeManagement
from celery_tm.domain.occurrence import OccurrenceState
from celery_tm.scheduler.planner import Planner
from celery_tm.store import audit, occurrences, tables
from celery_tm.store.database import Database
from celery_tm.testing import MovableClock

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def add(tm: TimeManagement, **values: Any) -> Any:
    return tm.definitions.add(**({"name": "tick", "task": "effect", "args": [1], "schedule": "* * * * *"} | values))


def ledger(tm: TimeManagement, name: str = "tick") -> list[tuple[int, str]]:
    definition = tm.definitions.get(name).id
    with tm.installation.database.transaction(write=False) as tx:
        rows = occurrences.of_definition(tx, definition, limit=5000)
    return [((row.scheduled_at - NOON) // MINUTE, str(row.state)) for row in reversed(rows)]


def plan(tm: TimeManagement) -> int:
    return Planner(tm.installation).plan_due().definitions


def test_a_definition_goes_by_its_zone_and_its_switches_and_tells_its_last_and_next_run(
    tm: TimeManagement, noon: MovableClock
) -> None:
    added = add(tm, name="nightly", schedule="30 15 * * *", timezone="Europe/Warsaw")  # two hours ahead of UTC
    first, second, third = (datetime(2026, 6, day, 13, 30, tzinfo=UTC) for day in (1, 2, 3))
    assert (added.name, added.schedule, added.timezone) == ("nightly", "30 15 * * *", "Europe/Warsaw")
    assert (added.enabled, added.paused, added.last_run_at, added.next_run_at) == (True, False, None, first)

    noon.move_to(first)
    assert tm.run_due_jobs().succeeded == 1
    ran = tm.definitions.get("nightly")
    assert (ran.last_run_at, ran.next_run_at) == (first, second)

    tm.disable("nightly")
    noon.move_to(second)
    assert tm.run_due_jobs().claimed == 0
    off = tm.definitions.get("nightly")
    assert (off.enabled, off.last_run_at, off.next_run_at) == (False, first, third), "it keeps its place and does not run"

    tm.enable("nightly")
    tm.definitions.update("nightly", schedule="0 15 * * *")
    assert tm.definitions.get("nightly").next_run_at == third - timedelta(minutes=30)
    noon.move_to(third)
    assert tm.run_due_jobs().succeeded == 1
    assert tm.definitions.get("nightly").last_run_at == third - timedelta(minutes=30)


def test_an_instant_becomes_one_occurrence_and_one_job(tm: TimeManagement, noon: MovableClock) -> None:
    added = add(tm, queue="q", priority=4, max_retries=7)
    assert (added.next_run_at, added.version) == (NOON + MINUTE, 1)
    assert plan(tm) == 0
    noon.forward("1m")
    assert plan(tm) == 1
    assert plan(tm) == 0
    [job] = tm.jobs()
    assert (job.task, job.args, job.queue, job.priority, job.max_retries) == ("effect", "[1]", "q", 4, 7)
    assert (job.run_at, job.original_delay, job.source) == (NOON + MINUTE, MINUTE, "scheduled")
    assert ledger(tm) == [(1, "pending")]
    kept = tm.definitions.get("tick")
    assert (kept.planned_until, kept.next_run_at, kept.last_run_at) == (NOON + MINUTE, NOON + 2 * MINUTE, NOON + MINUTE)


def test_a_definition_goes_by_its_task_where_it_states_nothing(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, task="flaky", args=[1, 0])
    noon.forward("1m")
    plan(tm)
    [job] = tm.jobs()
    assert (job.max_retries, job.retry) == (5, {"kind": "fixed", "delay": "200ms"})


def test_an_occurrence_follows_its_job(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm)
    add(tm, name="broken", task="fails", max_retries=0)
    noon.forward("1m")
    assert tm.run_due_jobs(now=noon.now).planned == 2
    assert (ledger(tm), ledger(tm, "broken")) == ([(1, "completed")], [(1, "failed")])
    [execution] = tm.history("tick")
    assert (execution.outcome, execution.source, execution.attempt) == ("succeeded", "scheduled", 1)
    [letter] = tm.dead_letters.list()
    tm.dead_letters.revive(letter.id)
    assert ledger(tm, "broken") == [(1, "pending")]


def test_many_planners_at_once_decide_each_instant_once(tm: TimeManagement, noon: MovableClock) -> None:
    for n in range(20):
        add(tm, name=f"tick {n}", overlap="allow", recovery="all")
    noon.forward("5m")
    errors: list[BaseException] = []

    def work(now: datetime) -> None:
        from celery_tm import clock

        try:
            with clock.moved_to(now):
                while plan(tm):
                    pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(noon.now,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    while plan(tm):
        pass
    assert {tuple(ledger(tm, f"tick {n}")) for n in range(20)} == {tuple((i, "pending") for i in range(1, 6))}
    assert len(tm.jobs(limit=1000)) == 100


@pytest.mark.parametrize(
    ("recovery", "states"),
    [
        ("all", ["pending"] * 5),
        ("last", ["coalesced"] * 4 + ["pending"]),
        ("skip", ["missed"] * 4 + ["pending"]),
    ],
)
def test_missed_instants_follow_the_definition_s_policy(
    tm: TimeManagement, noon: MovableClock, recovery: str, states: list[str]
) -> None:
    add(tm, recovery=recovery, overlap="allow")
    noon.forward("5m")
    plan(tm)
    assert [state for _, state in ledger(tm)] == states
    assert [minute for minute, _ in ledger(tm)] == [1, 2, 3, 4, 5]


def test_an_instant_that_comes_while_an_earlier_one_is_in_process_is_skipped(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm)
    for _ in range(3):
        noon.forward("1m")
        plan(tm)
    assert ledger(tm) == [(1, "pending"), (2, "skipped"), (3, "skipped")]
    tm.run_due_jobs(now=noon.now)
    noon.forward("1m")
    plan(tm)
    assert ledger(tm)[-1] == (4, "pending")


@pytest.mark.parametrize("switch", ["pause", "disable"])
def test_instants_of_a_definition_that_is_off_are_recorded_as_skipped(
    tm: TimeManagement, noon: MovableClock, switch: str
) -> None:
    add(tm)
    getattr(tm, switch)("tick", actor="ann")
    noon.forward("2m")
    plan(tm)
    assert ledger(tm) == [(1, "skipped"), (2, "skipped")]
    getattr(tm, {"pause": "resume", "disable": "enable"}[switch])("tick", actor="ann")
    noon.forward("1m")
    plan(tm)
    assert ledger(tm)[-1] == (3, "pending")


def test_a_long_outage_is_caught_up_in_bounded_rounds(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, recovery="last")
    noon.forward("2d")
    rounds = 0
    while plan(tm):
        rounds += 1
    states = Counter(state for _, state in ledger(tm))
    assert states == Counter(coalesced=2879, pending=1)
    assert rounds == 3


def test_the_clock_going_back_decides_nothing_twice(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, overlap="allow")
    noon.forward("2m")
    plan(tm)
    noon.move_to(NOON)
    assert plan(tm) == 0
    noon.forward("3m")
    plan(tm)
    assert [minute for minute, _ in ledger(tm)] == [1, 2, 3]


def test_an_instant_in_the_ledger_is_never_planned_again(tm: TimeManagement, database: Database, noon: MovableClock) -> None:
    """Even if the definition's place was lost, say by a restore of one table."""
    add(tm, overlap="allow")
    noon.forward("1m")
    tm.run_due_jobs(now=noon.now)
    with database.transaction() as tx:
        tx.execute(update(tables.definition).values(planned_until=NOON, next_run_at=NOON + MINUTE))
    plan(tm)
    assert ledger(tm) == [(1, "completed")]
    assert tm.jobs() == []


def test_an_edit_decides_first_what_was_due_before_it(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, overlap="allow", recovery="all")
    noon.forward("3m")
    edited = tm.definitions.update("tick", schedule="*/10 * * * *")
    assert ledger(tm) == [(1, "pending"), (2, "pending"), (3, "pending")]
    assert (edited.version, edited.next_run_at) == (2, NOON + 10 * MINUTE)


def test_pausing_late_does_not_skip_what_was_due_before(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, overlap="allow", recovery="all")
    noon.forward("2m")
    tm.pause("tick")
    assert ledger(tm) == [(1, "pending"), (2, "pending")]


@pytest.mark.parametrize(
    "broken",
    [{"timezone": "Mars/Olympus"}, {"schedule": "nonsense"}, {"schedule_kind": "lunar"}, {"overlap": "perhaps"}],
    ids=lambda value: next(iter(value)),
)
def test_one_broken_definition_does_not_stop_the_others(
    tm: TimeManagement, database: Database, noon: MovableClock, broken: dict[str, str]
) -> None:
    add(tm, name="broken")
    add(tm)
    with database.transaction() as tx:
        tx.execute(update(tables.definition).where(tables.definition.c.name == "broken").values(broken))
    noon.forward("1m")
    plan(tm)
    assert ledger(tm) == [(1, "pending")]
    with database.transaction(write=False) as tx:
        row = tx.execute(select(tables.definition).where(tables.definition.c.name == "broken")).one()
    assert row.planned_until == NOON, "its instants stay to be decided"
    assert row.next_run_at == noon.now, "the row is left as it is: another node may be able to plan it"


def test_a_trigger_is_a_manual_occurrence_of_this_moment(tm: TimeManagement, database: Database) -> None:
    add(tm, overlap="allow")
    first = tm.trigger("tick", actor="ann", reason="try it")
    second = tm.trigger("tick", actor="ann")
    assert first.id != second.id
    assert {job.source for job in tm.jobs()} == {"manual"}
    assert {job.actor for job in tm.jobs()} == {"ann"}
    with database.transaction(write=False) as tx:
        [*_, line] = audit.lines(tx, "definition:tick")[:2]
    assert (line["action"], line["actor"], line["reason"]) == ("trigger", "ann", "try it")


def test_a_trigger_obeys_the_overlap_rule(tm: TimeManagement) -> None:
    add(tm)
    assert tm.trigger("tick").state is OccurrenceState.PENDING
    refused = tm.trigger("tick")
    assert refused.state is OccurrenceState.SKIPPED
    assert "overlap=skip" in (refused.reason or "")
