"""Backfills on every database: what did not run runs, once, for its own instant, and nothing else is moved."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import func, select, update
from tmtest.commands import Cli
from tmtest.ledger import HOUR, MINUTE, NOON, add, claim, ledger, plan, rows, start

from celery_tm import Task, TimeManagement, cancel, current_job
from celery_tm.domain.backfill import MAX_BACKFILL, Backfilled
from celery_tm.domain.ids import occurrence_id
from celery_tm.domain.occurrence import OccurrenceState
from celery_tm.errors import DefinitionNotFound, InvalidValue, TmError
from celery_tm.scheduler import editing
from celery_tm.store import audit, definitions, jobs, tables
from celery_tm.store.database import Database
from celery_tm.testing import MovableClock
from celery_tm.worker import recorder


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


@pytest.fixture
def seen(app: Celery) -> list[Any]:
    """What the bodies of the task "sees" see: the instant they stand for, and the range."""
    seen: list[Any] = []

    @app.task(base=Task, name="sees", shared=False)
    def sees() -> None:
        seen.append((minutes(current_job().scheduled_at), current_job().window))

    return seen


def minutes(instant: datetime) -> float:
    return (instant - NOON) / MINUTE


def told(made: Backfilled) -> tuple[list[float], list[tuple[float, str]]]:
    """Return the minutes after noon that run, and those that do not and why."""
    return [minutes(at) for at in made.instants], [(minutes(at), why) for at, why in made.left_out]


def counts(tm: TimeManagement) -> dict[str, int]:
    with tm.installation.database.transaction(write=False) as tx:
        chosen = (tables.occurrence, tables.job, tables.audit, tables.lane)
        return {one.name: int(tx.execute(select(func.count()).select_from(one)).scalar_one()) for one in chosen}


def owed(tm: TimeManagement) -> list[Any]:
    with tm.installation.database.transaction(write=False) as tx:
        return jobs.select_jobs(tx, limit=100_000)


def run_all(tm: TimeManagement) -> int:
    """Run until nothing is due, and return in how many rounds something ran."""
    rounds = 0
    while tm.run_due_jobs().claimed:
        rounds += 1
    return rounds


def set_state(tm: TimeManagement, minute: float, state: OccurrenceState) -> None:
    """Let an instant have ended in a certain way."""
    with tm.installation.database.transaction() as tx:
        at = tables.occurrence.c.scheduled_at == NOON + minute * MINUTE
        tx.execute(update(tables.occurrence).where(at).values(state=state))


# What runs


def test_instants_before_the_definition_was_added_run_in_order_and_know_their_instant(
    tm: TimeManagement, noon: MovableClock, seen: list[Any]
) -> None:
    definition = add(tm, task="sees", args=[])
    made = tm.backfill("tick", since=NOON - 5 * MINUTE, reason="a new report", actor="alice")
    assert told(made) == ([-5, -4, -3, -2, -1], [])
    assert rows(tm) == list(made.created)
    for row in made.created:
        assert row.id == occurrence_id(definition.id, row.scheduled_at)
        assert (row.reason, row.is_recovery, row.replay_of) == ("backfill: a new report", True, None)
        assert (str(row.state), row.decided_at, row.covers_from) == ("pending", NOON, None)
    assert [(minutes(job.scheduled_at), job.source, job.actor) for job in owed(tm)] == [
        (minute, "recovery", "alice") for minute in (-5, -4, -3, -2, -1)
    ]
    assert {(job.original_delay, job.run_at <= NOON, job.run_at > NOON - MINUTE) for job in owed(tm)} == {
        (MINUTE, True, True)
    }
    assert run_all(tm) == 5  # one after the other
    assert [minute for minute, _ in seen] == [-5, -4, -3, -2, -1]
    assert {(str(one.source), one.actor) for one in tm.history("tick")} == {("recovery", "alice")}
    assert {(str(row.state), row.reason) for row in rows(tm)} == {("completed", "backfill: a new report")}


def test_what_was_skipped_missed_coalesced_or_cancelled_is_replayed_beside_its_row(
    tm: TimeManagement, noon: MovableClock, seen: list[Any]
) -> None:
    definition = add(tm, task="sees", args=[], overlap="allow", recovery="all")
    noon.forward("6m")
    plan(tm)
    run_all(tm)
    for minute, state in enumerate(("skipped", "missed", "coalesced", "cancelled"), start=1):
        set_state(tm, minute, OccurrenceState(state))
    before = rows(tm)
    seen.clear()

    made = tm.backfill("tick", since=NOON + MINUTE, until=NOON + 6 * MINUTE)

    assert told(made) == ([1, 2, 3, 4], [(5, "it completed")])
    for minute, row in enumerate(made.created, start=1):
        original = occurrence_id(definition.id, NOON + minute * MINUTE)
        assert (row.replay_of, row.scheduled_at - NOON - minute * MINUTE) == (original, timedelta(microseconds=1))
    assert set(before) <= set(rows(tm))
    run_all(tm)
    assert sorted(minute for minute, _ in seen) == [1, 2, 3, 4]  # the true instants
    assert [str(row.state) for row in rows(tm) if row.replay_of] == ["completed"] * 4
    assert told(tm.backfill("tick", since=NOON + MINUTE, until=NOON + 6 * MINUTE)) == (
        [], [(minute, "it completed") for minute in (1, 2, 3, 4, 5)],
    )  # fmt: skip


def test_what_failed_or_is_stale_is_left_out_unless_it_is_to_run_again(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, overlap="allow", recovery="all")
    noon.forward("4m")
    plan(tm)
    run_all(tm)
    for minute, state in enumerate(("failed", "stale", "completed"), start=1):
        set_state(tm, minute, OccurrenceState(state))
    whole = {"since": NOON + MINUTE, "until": NOON + 4 * MINUTE}
    assert told(tm.backfill("tick", **whole)) == (
        [], [(1, "it failed"), (2, "it ran and became stale"), (3, "it completed")],
    )  # fmt: skip
    originals = [row.id for row in rows(tm)[:3]]
    for place in (1, 2, 3):
        made = tm.backfill("tick", again=True, **whole)
        assert told(made) == ([1, 2, 3], [])
        assert {row.scheduled_at.microsecond for row in made.created} == {place}
        assert [row.replay_of for row in made.created] == originals
        run_all(tm)


def test_what_is_in_process_planned_ahead_or_not_decided_yet_is_left_out(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, overlap="allow", recovery="all", plan_ahead="5m")
    noon.forward("3m")
    plan(tm)
    first, second, _ = claim(tm)
    start(tm, first)
    noon.forward("2m")  # no beat since
    for again in (False, True):
        assert told(tm.backfill("tick", since=NOON, again=again)) == (
            [0] if not again else [],
            [
                *([(0, "it is still pending")] if again else []),
                (1, "it is still running"),
                (2, "it is still queued"),
                (3, "it is still queued"),
                (4, "it is not decided yet; a beat does that by itself"),
            ],
        )
    plan(tm)
    assert [row.replay_of for row in rows(tm)] == [None] * len(rows(tm))
    assert second in {job.id for job in owed(tm)}


def test_an_instant_that_was_replayed_by_hand_is_made_up_for(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm)
    tm.pause("tick")
    noon.forward("2m")
    plan(tm)
    tm.resume("tick")
    noon.forward("10s")
    first = tm.replay(rows(tm)[0].id)
    run_all(tm)
    noon.forward("10s")
    tm.replay(first.id)  # and the replay once more
    made = tm.backfill("tick", since=NOON, until=NOON + 90 * timedelta(seconds=1), dry_run=True, overlap="allow")
    assert told(made) == ([0], [(1, "it is still pending")])
    run_all(tm)
    assert told(tm.backfill("tick", since=NOON + MINUTE)) == ([2], [(1, "it completed")])


def test_a_place_that_is_taken_by_another_run_is_passed_over(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, overlap="allow")
    tm.pause("tick")
    noon.forward("1m")
    plan(tm)
    for _ in range(2):  # at the very same moment: a microsecond later, and two
        assert tm.trigger("tick").scheduled_at > NOON + MINUTE
    noon.forward("1m")
    [made] = tm.backfill("tick", since=NOON + MINUTE, until=NOON + 2 * MINUTE).created
    assert made.scheduled_at == NOON + MINUTE + timedelta(microseconds=3)


def test_one_that_compresses_gives_each_run_its_own_range(tm: TimeManagement, seen: list[Any]) -> None:
    add(tm, task="sees", args=[], recovery="compressed")
    tm.backfill("tick", since=NOON - 3 * MINUTE)
    run_all(tm)
    assert seen == [(n, (NOON + n * MINUTE, NOON + (n + 1) * MINUTE)) for n in (-3, -2, -1)]


def test_a_range_without_an_instant_is_no_error_and_writes_nothing(tm: TimeManagement) -> None:
    add(tm, schedule="0 0 * * *")
    before = counts(tm)
    made = tm.backfill("tick", since=NOON - HOUR)
    assert (made.counts, str(made)) == (
        {"instants": 0, "created": 0, "left_out": 0},
        "'tick' has no instant from 2026-06-01T11:00:00+00:00 until 2026-06-01T12:00:00+00:00",
    )
    assert counts(tm) == before


def test_a_dry_run_says_the_same_and_writes_nothing(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm)
    noon.forward("1m")
    tm.run_due_jobs()
    tm.pause("tick")
    noon.forward("2m")
    plan(tm)
    before = counts(tm)
    dry = tm.backfill("tick", since=NOON - 2 * MINUTE, dry_run=True, reason="to see")
    assert counts(tm) == before
    assert (dry.dry_run, dry.counts) == (True, {"instants": 5, "created": 4, "left_out": 1})
    done = tm.backfill("tick", since=NOON - 2 * MINUTE, reason="to see")
    assert replace(done, dry_run=True) == dry
    assert counts(tm)["tm_job"] == len(done.created) == 4


def test_a_backfill_is_audited_with_its_range_and_its_counts(tm: TimeManagement, database: Database) -> None:
    add(tm)
    tm.backfill("tick", since=NOON - 2 * MINUTE, actor="alice", reason="new")
    with database.transaction(write=False) as tx:
        line = audit.lines(tx, "definition:tick")[0]
    assert (line["action"], line["actor"], line["reason"]) == ("backfill", "alice", "new")
    assert line["after"] == {
        "since": "2026-06-01T11:58:00+00:00", "until": "2026-06-01T12:00:00+00:00", "overlap": "queue", "again": False,
        "instants": 2, "created": 2, "left_out": 0,
    }  # fmt: skip


# What is not moved


@pytest.mark.parametrize("overlap", ["skip", "queue", "queue_one", "replace", "allow"])
def test_nothing_of_the_definition_is_moved(tm: TimeManagement, noon: MovableClock, overlap: str) -> None:
    add(tm, max_runs=3, overlap=overlap, recovery={"policy": "all", "spacing": "1s"})
    noon.forward("1m")
    plan(tm)
    run_all(tm)
    before = tm.definitions.get("tick")
    assert before.runs == 1
    assert tm.backfill("tick", since=NOON - 5 * MINUTE).counts["created"] == 6
    assert tm.definitions.get("tick") == before
    noon.forward("10s")
    run_all(tm)
    assert tm.definitions.get("tick") == before  # backfilled runs are not counted by max_runs


def test_runs_start_as_far_apart_as_recovered_ones(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, overlap="allow", recovery={"policy": "last", "spacing": "10s"})
    tm.backfill("tick", since=NOON - 3 * MINUTE)
    assert [job.run_at - NOON for job in owed(tm)] == [n * timedelta(seconds=10) for n in (0, 1, 2)]


@pytest.mark.parametrize("switch", ["pause", "disable"])
def test_a_definition_that_is_off_is_backfilled(tm: TimeManagement, noon: MovableClock, switch: str) -> None:
    add(tm)
    getattr(tm, switch)("tick")
    noon.forward("2m")
    plan(tm)
    assert told(tm.backfill("tick", since=NOON - MINUTE)) == ([-1, 0, 1], [])
    assert run_all(tm) == 3


def test_a_retired_definition_is_refused(tm: TimeManagement, database: Database) -> None:
    add(tm)
    with database.transaction() as tx:
        found = definitions.find(tx, "tick", lock=True)
        assert found is not None
        editing.retire(tm.installation, tx, found, reason="no longer in the code")
    with pytest.raises(InvalidValue, match=r"'tick' was retired at 2026-06-01T12:00:00.*name it there again"):
        tm.backfill("tick", since=NOON - MINUTE)


# Overlap


def lanes_of(tm: TimeManagement) -> set[tuple[str | None, int | None]]:
    return {(job.concurrency_key, job.concurrency) for job in owed(tm)}


@pytest.mark.parametrize(
    ("stated", "asked", "at_once"),
    [
        ({"overlap": "skip"}, None, 1),
        ({"overlap": "queue"}, None, 1),
        ({"overlap": "queue_one"}, None, 1),
        ({"overlap": "replace"}, None, 1),
        ({"overlap": "allow"}, None, 5),
        ({"overlap": "allow"}, "queue", 1),
        ({"overlap": "skip"}, "allow", 5),
        ({"overlap": "queue"}, "allow", 5),
        ({"overlap": "allow", "concurrency_key": "k", "concurrency": 2}, None, 2),
        ({"overlap": "allow", "concurrency_key": "k", "concurrency": 2}, "allow", 2),
        ({"overlap": "skip", "concurrency_key": "k"}, "queue", 1),
    ],
)
def test_runs_take_turns_or_go_at_once(tm: TimeManagement, stated: Any, asked: str | None, at_once: int) -> None:
    definition = add(tm, **stated)
    tm.backfill("tick", since=NOON - 5 * MINUTE, overlap=asked)
    own = ("k", stated.get("concurrency", 1)) if "concurrency_key" in stated else (f"definition:{definition.id}", 1)
    assert lanes_of(tm) == {own if "concurrency_key" in stated or at_once == 1 else (None, None)}
    assert len(claim(tm)) == at_once
    assert len(claim(tm)) == 0


def test_under_skip_nothing_is_backfilled_beside_a_run_in_process(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm)
    noon.forward("1m")
    plan(tm)
    [job] = claim(tm)
    running = start(tm, job)
    before = counts(tm)
    for asked in ({}, {"overlap": "queue"}, {"dry_run": True}):
        with pytest.raises(InvalidValue, match="a run of 'tick' is in process"):
            tm.backfill("tick", since=NOON - MINUTE, **asked)
    assert counts(tm) == before
    assert tm.backfill("tick", since=NOON - MINUTE, overlap="allow", dry_run=True).counts["created"] == 2
    recorder.record_success(tm.installation, running, None)
    assert tm.backfill("tick", since=NOON - MINUTE).counts["created"] == 2


def test_nobody_takes_turns_with_a_backfill_that_runs_at_once(tm: TimeManagement) -> None:
    add(tm)
    tm.backfill("tick", since=NOON - 2 * MINUTE, overlap="allow")
    assert told(tm.backfill("tick", since=NOON - 2 * MINUTE))[0] == []  # nothing to run, nothing to refuse
    with pytest.raises(InvalidValue, match="a run of 'tick' is in process"):
        tm.backfill("tick", since=NOON - 3 * MINUTE)
    run_all(tm)
    assert tm.backfill("tick", since=NOON - 3 * MINUTE).counts["created"] == 1
    assert tm.backfill("tick", since=NOON - 4 * MINUTE).counts["created"] == 1  # in line behind the one before
    assert len(claim(tm)) == 1


def test_a_run_that_covers_what_was_missed_is_not_run_beside(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, recovery="compressed")
    noon.forward("1m")
    plan(tm)
    [job] = claim(tm)
    running = start(tm, job)
    noon.forward("1m")
    plan(tm)  # skipped, so the next one covers it too, counts as recovered, and stands in no line
    recorder.record_success(tm.installation, running, None)
    noon.forward("1m")
    plan(tm)
    assert [row.is_recovery for row in rows(tm) if str(row.state) == "pending"] == [True]
    with pytest.raises(InvalidValue, match="a run of 'tick' is in process"):
        tm.backfill("tick", since=NOON - MINUTE)


def test_an_instant_that_comes_meanwhile_under_skip_is_skipped_says_why_and_can_be_backfilled(
    tm: TimeManagement, noon: MovableClock
) -> None:
    add(tm)
    tm.backfill("tick", since=NOON - 3 * MINUTE)
    noon.forward("1m")
    plan(tm)
    [skipped] = [row for row in rows(tm) if row.scheduled_at == NOON + MINUTE]
    assert (str(skipped.state), skipped.reason) == (
        "skipped", "recovered or backfilled ones were still in process; overlap=skip",
    )  # fmt: skip
    assert "recovered or backfilled ones were still in process" in str(tm.explain("tick", at=NOON + MINUTE))
    assert run_all(tm) == 3
    noon.forward("10s")
    [made] = tm.backfill("tick", since=NOON + MINUTE).created
    assert made.replay_of == skipped.id
    run_all(tm)
    noon.forward("50s")
    tm.run_due_jobs()
    assert ledger(tm)[-1] == (2, "completed")  # and the next one runs


def test_an_instant_that_comes_meanwhile_under_queue_waits_behind(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, overlap="queue")
    tm.backfill("tick", since=NOON - 2 * MINUTE)
    noon.forward("1m")
    plan(tm)
    order = []
    while claimed := claim(tm):
        [job] = claimed
        running = start(tm, job)
        order.append(minutes(running.scheduled_at))
        recorder.record_success(tm.installation, running, None)
    assert order == [-2, -1, 1]


def test_an_instant_that_comes_meanwhile_under_replace_cancels_the_rest_which_can_be_backfilled(
    tm: TimeManagement, noon: MovableClock
) -> None:
    add(tm, overlap="replace")
    tm.backfill("tick", since=NOON - 3 * MINUTE)
    tm.run_due_jobs()
    noon.forward("1m")
    tm.run_due_jobs()
    assert ledger(tm) == [(-3, "completed"), (-2, "cancelled"), (-1, "cancelled"), (1, "completed")]
    assert {row.reason for row in rows(tm)[1:3]} == {"replaced by the one of 2026-06-01T12:01:00+00:00; overlap=replace"}
    noon.forward("1s")
    made = tm.backfill("tick", since=NOON - 3 * MINUTE)
    assert told(made) == ([-2, -1, 0], [(-3, "it completed"), (1, "it completed")])


def test_a_cancelled_run_can_be_backfilled(tm: TimeManagement, app: Celery) -> None:
    add(tm)
    [made] = tm.backfill("tick", since=NOON - MINUTE).created
    [job] = owed(tm)
    cancel(id=job.id, app=app)
    assert [str(row.state) for row in rows(tm)] == ["cancelled"]
    [again] = tm.backfill("tick", since=NOON - MINUTE).created
    assert again.replay_of == made.id


# Many at once


def test_two_people_who_ask_for_the_same_get_it_once(
    tm: TimeManagement, tm_clock: MovableClock, request: pytest.FixtureRequest
) -> None:
    tm_clock.forward("1s")
    add(tm, schedule="every 1s")
    made: list[Backfilled] = []
    gate = threading.Barrier(4)
    until = NOON - HOUR

    def ask() -> None:  # threads live in the real present, which is later
        gate.wait()
        made.append(tm.backfill("tick", since=until - 300 * timedelta(seconds=1), until=until))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.counts["created"] for one in made) == [0, 0, 0, 300]
    assert [one.counts["instants"] for one in made] == [300] * 4
    assert {why for one in made for _, why in one.left_out} == {"it is still pending"}
    assert (len(rows(tm)), len(owed(tm))) == (300, 300)


def test_as_many_as_may_be_are_backfilled_in_seconds(tm: TimeManagement, noon: MovableClock, thorough: bool) -> None:
    if not thorough and tm.installation.database.dialect.name != "postgresql":
        pytest.skip("on PostgreSQL; with --thorough on every database")
    add(tm)
    whole = {"since": NOON - MAX_BACKFILL * MINUTE}
    began = time.monotonic()
    assert tm.backfill("tick", **whole).counts["created"] == MAX_BACKFILL
    assert time.monotonic() - began < 30  # a few seconds on a quiet machine
    assert counts(tm)["tm_occurrence"] == counts(tm)["tm_job"] == MAX_BACKFILL
    assert [minutes(job.scheduled_at) for job in owed(tm)[:2]] == [-MAX_BACKFILL, 1 - MAX_BACKFILL]
    began = time.monotonic()
    assert tm.backfill("tick", **whole).counts["left_out"] == MAX_BACKFILL
    assert time.monotonic() - began < 30
    assert len(claim(tm)) == 1


def test_one_too_many_is_refused_at_once_and_writes_nothing(tm: TimeManagement) -> None:
    add(tm, schedule="every 1s")
    before = counts(tm)
    began = time.monotonic()
    with pytest.raises(InvalidValue, match=r"more than 10,000 instants .*give a shorter range, e.g. until=1990-"):
        tm.backfill("tick", since=datetime(1990, 1, 1, tzinfo=UTC))
    assert time.monotonic() - began < 5
    assert counts(tm) == before


# What is pruned, and what is explained


def test_a_backfilled_run_is_kept_as_long_as_one_on_time(tm: TimeManagement, noon: MovableClock) -> None:
    object.__setattr__(tm.settings, "tm_keep_last", 0)  # else it is among the last of its definition
    add(tm, schedule="0 0 1 1 *")
    long_ago = {"since": datetime(2020, 1, 1, tzinfo=UTC), "until": datetime(2021, 1, 1, tzinfo=UTC)}
    assert tm.backfill("tick", **long_ago).counts["created"] == 1
    run_all(tm)
    noon.forward("89d")
    assert tm.prune().occurrences == 0
    assert tm.backfill("tick", **long_ago).reasons == {"it completed": 1}
    noon.forward("2d")
    assert tm.prune().occurrences == 1


@pytest.mark.parametrize(("task", "why"), [("effect", "it completed"), ("fails", "it failed")])
def test_a_run_whose_row_is_pruned_and_whose_record_is_kept_is_not_run_twice(
    tm: TimeManagement, noon: MovableClock, task: str, why: str
) -> None:
    definition = add(tm, task=task, max_retries=0)
    noon.forward("1m")
    tm.run_due_jobs()
    with tm.installation.database.transaction() as tx:
        tx.execute(tables.occurrence.delete())
    noon.forward("30s")
    assert told(tm.backfill("tick", since=NOON + MINUTE)) == ([], [(1, why)])
    [made] = tm.backfill("tick", since=NOON + MINUTE, again=True).created
    assert made.replay_of == occurrence_id(definition.id, NOON + MINUTE)
    assert run_all(tm) == 1
    assert len(tm.history(task=task)) == 2  # the second one is recorded too


def test_a_backfilled_instant_is_explained_as_such(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm)
    tm.pause("tick")
    noon.forward("2m")
    plan(tm)
    tm.backfill("tick", since=NOON - MINUTE, until=NOON + 2 * MINUTE, reason="stock-taking is over")
    run_all(tm)
    for minute in (-1, 1):  # before it was added, and skipped
        told = str(tm.explain("tick", at=NOON + minute * MINUTE))
        assert "it completed" in told
        assert "after its instant: it was backfilled" in told
        assert "backfill: stock-taking is over" in told
        assert "no beat is known" not in told


# Mistakes


@pytest.fixture
def cli(app: Celery, tm: TimeManagement) -> Cli:
    return Cli(app)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"name": "tik"}, "no definition named 'tik'; did you mean 'tick'? "),
    ({"name": "zzz"}, "no definition named 'zzz'; `celery -A app tm definitions list` shows them"),
    ({"name": ""}, "no definition named ''"),
    ({"since": "2026-05-01T00:00:00"}, "since: 2026-05-01T00:00:00 has no time zone; pass an aware datetime"),
    ({"until": "2026-05-31T00:00:00"}, "until: 2026-05-31T00:00:00 has no time zone"),
    ({"until": "2026-05-01T00:00:00+00:00"}, "since: 2026-05-31T00:00:00+00:00 is not before 2026-05-01T00:00:00+00:00"),
    ({"until": "2026-05-31T00:00:00+00:00"}, "is not before"),
    ({"until": "2027-05-31T00:00:00+00:00"}, "until: 2027-05-31T00:00:00+00:00 is still to come"),
    ({"since": "2027-05-31T00:00:00+00:00"}, "since: 2027-05-31T00:00:00+00:00 is not before"),
    ({"since": "0001-01-01T00:00:00+05:00"}, "since: 0001-01-01T00:00:00+05:00 is outside the calendar"),
    ({"since": "2000-01-01T00:00:00+00:00"}, "since: 'tick' has more than 10,000 instants"),
    ({"overlap": "skip"}, "overlap: 'skip' would run one instant and skip all the others; use 'queue' for one at a time"),
    ({"overlap": "replace"}, "overlap: 'replace' would run the latest instant"),
    ({"overlap": "quue"}, "did you mean 'queue'?"),
    ({"actor": "a" * 256}, "actor: 256 characters are too many"),
]


@pytest.mark.parametrize(("values", "words"), BAD, ids=[words for _, words in BAD])
def test_a_mistake_is_refused_in_the_same_words_and_nothing_is_written(
    tm: TimeManagement, cli: Cli, values: dict[str, Any], words: str
) -> None:
    add(tm)
    before = counts(tm)
    said = {"name": "tick", "since": "2026-05-31T00:00:00+00:00"} | values
    arguments = [text for option, text in said.items() if option != "name" for text in (f"--{option}", text)]
    refused = cli.refused("backfill", said["name"], *arguments)
    read: dict[str, Callable[[str], Any]] = {"since": datetime.fromisoformat, "until": datetime.fromisoformat}
    with pytest.raises(TmError) as error:
        tm.backfill(said.pop("name"), **{option: read.get(option, str)(text) for option, text in said.items()})
    assert words in refused
    assert refused == str(error.value)
    assert isinstance(error.value, (InvalidValue, DefinitionNotFound))
    assert counts(tm) == before


def test_a_time_that_is_none_and_a_missing_one_are_refused(tm: TimeManagement, cli: Cli) -> None:
    assert cli.refused("backfill", "tick", "--since", "then").startswith(
        "since: 'then' is not a date and time; use ISO 8601"
    )
    assert "Missing option '--since'" in cli.misused("backfill", "tick")


# The command


def test_the_command_runs_and_tells_what_runs(tm: TimeManagement, noon: MovableClock, cli: Cli) -> None:
    add(tm, timezone="Europe/Warsaw", overlap="allow", recovery="all")
    noon.forward("3m")
    plan(tm)
    run_all(tm)
    set_state(tm, 2, OccurrenceState.SKIPPED)
    arguments = ("backfill", "tick", "--since", "2026-06-01T13:59+02:00", "--until", "2026-06-01T12:03Z")
    text = cli.run(*arguments, "--dry-run").stdout
    assert text.startswith(
        "3 of 4 instants of 'tick' from 2026-06-01T11:59:00+00:00 until 2026-06-01T12:03:00+00:00 would run; left out 1: it"
    )
    assert "2026-06-01 11:59:00Z  2026-06-01 13:59:00+02:00" in text
    assert owed(tm) == []
    done = cli.json(*arguments, "--reason", "a look back", "--actor", "ann", "--overlap", "allow", "--yes")
    assert (done["name"], done["dry_run"], done["counts"]) == ("tick", False, {"instants": 4, "created": 3, "left_out": 1})
    assert [one["instant"] for one in done["created"]] == [
        "2026-06-01T11:59:00+00:00", "2026-06-01T12:00:00+00:00", "2026-06-01T12:02:00+00:00",
    ]  # fmt: skip
    assert [one["replay_of"] is None for one in done["created"]] == [True, True, False]
    assert {one["occurrence"] for one in done["created"]} == {job.occurrence for job in owed(tm)}
    assert {job.actor for job in owed(tm)} == {"ann"}
    assert lanes_of(tm) == {(None, None)}
    again = cli.json(*arguments, "--again", "--yes")
    assert (len(again["created"]), {one["why"] for one in again["left_out"]}) == (1, {"it is still pending"})


def test_the_command_shows_the_first_of_many(tm: TimeManagement, cli: Cli) -> None:
    add(tm)
    refused = cli.refused("backfill", "tick", "--since", "2026-06-01T00:00Z")
    assert "720 runs from 2026-06-01 00:00:00 UTC to 2026-06-01 11:59:00 UTC. Pass --yes" in refused
    assert owed(tm) == []
    lines = cli.run("backfill", "tick", "--since", "2026-06-01T00:00Z", "--yes").stdout.splitlines()
    assert lines[0].startswith("720 of 720 instants of 'tick'")
    assert (len(lines), lines[-1]) == (23, "… and 700 more; --json lists them all")
    add(tm, name="other", schedule="@yearly")
    [line] = cli.run("backfill", "other", "--since", "2026-06-01T00:00Z").stdout.splitlines()
    assert line.startswith("'other' has no instant from")


def test_a_backfill_of_a_definition_with_steps(tm: TimeManagement, tm_clock: MovableClock) -> None:
    steps = [{"name": "a", "task": "effect", "args": [1]}, {"name": "b", "task": "effect", "args": [2]}]
    tm.definitions.add(name="several", schedule="0 * * * *", steps=steps)
    now = tm_clock.now
    made = tm.backfill("several", since=now - timedelta(hours=3), until=now, reason="they were forgotten")
    assert len(made.created) == 3
    for _ in range(10):
        tm.run_due_jobs(now=tm_clock.now)
        tm_clock.forward("1s")
        if any(job.step for job in tm.jobs()):  # its steps are no runs beside the others
            again = tm.backfill("several", since=now - timedelta(hours=4), until=now, dry_run=True)
            assert len(again.created) == 1
    assert [str(one.state) for one in tm.occurrences("several")] == ["completed"] * 3
    assert {tm.report(one.id)["counts"]["succeeded"] for one in made.created} == {2}
