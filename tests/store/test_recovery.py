"""Catching up on every database: by each policy, over many rounds, through crashes, and without starving anybody."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event
from tmtest.ledger import HOUR, MINUTE, NOON, add, claim, ledger, owed, plan, rows, start

from celery_tm import Task, TimeManagement, current_job
from celery_tm.scheduler import planner as planning
from celery_tm.scheduler.planner import Planner
from celery_tm.testing import MovableClock
from celery_tm.worker import recorder


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


class Crash(BaseException):
    """The process dies here."""


def states(tm: TimeManagement) -> dict[str, int]:
    found = [state for _, state in ledger(tm)]
    return {state: found.count(state) for state in sorted(set(found))}


@pytest.mark.parametrize(
    ("values", "expected", "runs"),
    [
        ({"recovery": "all"}, {"pending": 60}, range(1, 61)),
        ({"recovery": "last"}, {"coalesced": 59, "pending": 1}, [60]),
        ({"recovery": "skip"}, {"missed": 59, "pending": 1}, [60]),
        ({"recovery": "bounded", "recovery_count": 3}, {"missed": 56, "pending": 4}, [57, 58, 59, 60]),
        ({"recovery": "bounded", "recovery_within": "5m"}, {"missed": 54, "pending": 6}, range(55, 61)),
        (
            {"recovery": {"policy": "bounded", "within": "10m", "count": 2}},
            {"missed": 57, "pending": 3},
            [58, 59, 60],
        ),
        ({"recovery": "compressed"}, {"coalesced": 59, "pending": 1}, [60]),
    ],
)
def test_an_hour_of_downtime_is_caught_up_by_the_policy(
    tm: TimeManagement, noon: MovableClock, values: Any, expected: dict[str, int], runs: Any
) -> None:
    add(tm, overlap="allow", **values)
    noon.forward("1h")  # the instant of 13:00 itself is on time
    plan(tm)
    assert states(tm) == expected
    assert [minute for minute, state in ledger(tm) if state == "pending"] == list(runs)
    assert [minute for minute, _ in ledger(tm)] == list(range(1, 61))


def test_recovered_runs_are_flagged_and_spaced(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, recovery={"policy": "bounded", "count": 4, "spacing": "10s"}, overlap="allow")
    noon.forward(timedelta(minutes=30, seconds=30))
    plan(tm)
    assert [(row.is_recovery, str(row.state)) for row in rows(tm)][-4:] == [(True, "pending")] * 4
    half = 30.5
    assert [run_at for run_at, _, _ in owed(tm)] == pytest.approx([half, half + 1 / 6, half + 2 / 6, half + 3 / 6])
    noon.forward("10s")
    plan(tm)
    assert len(claim(tm)) == 2


def test_spacing_goes_on_where_an_earlier_gap_left_off(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, recovery={"policy": "all", "spacing": "20m"}, overlap="allow")
    noon.forward(timedelta(minutes=2, seconds=30))
    plan(tm)
    noon.forward(timedelta(minutes=1, seconds=0))
    plan(tm)
    assert [run_at for run_at, _, _ in owed(tm)] == pytest.approx([2.5, 22.5, 42.5])


def test_a_compressed_run_knows_its_range_and_ordinary_runs_theirs(tm: TimeManagement, noon: MovableClock) -> None:
    seen: list[Any] = []

    @tm.app.task(base=Task, name="remembers", shared=False)
    def remembers() -> None:
        seen.append(current_job().window)

    add(tm, task="remembers", args=[], recovery="compressed")
    noon.forward("1m")
    tm.run_due_jobs()
    noon.forward(timedelta(minutes=30, seconds=30))
    tm.run_due_jobs()
    noon.forward("30s")
    tm.run_due_jobs()
    assert seen == [
        (NOON + MINUTE, NOON + 2 * MINUTE),
        (NOON + 2 * MINUTE, NOON + 32 * MINUTE),
        (NOON + 32 * MINUTE, NOON + 33 * MINUTE),
    ]
    compressed = rows(tm)[-2]
    assert (compressed.is_recovery, compressed.covers_from) == (True, NOON + 2 * MINUTE)


def test_days_behind_are_planned_in_bounded_rounds_while_others_stay_on_time(
    tm: TimeManagement, noon: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(tm, recovery={"policy": "bounded", "count": 5}, overlap="allow")
    noon.forward("3d")
    for name in ("x", "y"):
        add(tm, name=name, schedule="every 1m")
    noon.forward("1m")
    sizes: list[int] = []
    planner, more = Planner(tm.installation), True
    on_time: list[int] = []
    while more:
        before = len(rows(tm))
        more = planner.plan_due().more
        sizes.append(len(rows(tm)) - before)
        on_time.append(len(ledger(tm, "x")))
    minutes = 3 * 24 * 60 + 1
    assert len(rows(tm)) == sum(sizes) == minutes
    assert max(sizes) <= planning.MAX_INSTANTS
    assert on_time[0] == 1, "the others were decided in the first round"
    assert states(tm) == {"missed": minutes - 6, "pending": 6}


def test_many_that_are_behind_share_a_round(tm: TimeManagement, noon: MovableClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "ROUND", 60)
    monkeypatch.setattr(planning, "FEWEST", 5)
    for name in ("a", "b", "c"):
        add(tm, name=name, recovery="skip")
    noon.forward("1h")
    add(tm, name="late comer")
    noon.forward("1m")
    rounds = plan(tm)
    assert rounds >= 3
    assert [len(ledger(tm, name)) for name in ("a", "b", "c", "late comer")] == [61, 61, 61, 1]


def test_what_becomes_due_while_a_herd_is_planned_is_late_but_not_missed(tm: TimeManagement, noon: MovableClock) -> None:
    for n in range(4):
        add(tm, name=f"d{n}", recovery="skip", overlap="allow")
    noon.forward("1m")
    planner = Planner(tm.installation)
    for _ in range(4):
        assert planner.plan_due(limit=1).definitions == 1
        noon.forward("6s")  # each round takes its time; the last one is 18 s after the instant
    assert [ledger(tm, f"d{n}") for n in range(4)] == [[(1, "pending")]] * 4
    planner.plan_due()
    noon.forward("37s")
    planner.plan_due(limit=1)
    noon.forward("11s")  # a beat that was asleep in between was not at work
    planner.plan_due()
    assert sorted(ledger(tm, f"d{n}")[-1][1] for n in range(4)) == ["missed"] * 3 + ["pending"]


def test_a_crash_in_the_middle_decides_no_instant_twice(
    tm: TimeManagement, noon: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "ROUND", 20)
    add(tm, recovery="all", overlap="allow")
    noon.forward("1h")
    engine = tm.installation.database.engine
    calls = {"n": 0}

    def die_now_and_then(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.lstrip().upper().startswith(("INSERT", "UPDATE")):
            calls["n"] += 1
            if calls["n"] % 3 == 2:
                raise Crash

    planner, more = Planner(tm.installation), True
    event.listen(engine, "before_cursor_execute", die_now_and_then)
    try:
        for _ in range(60):
            try:
                more = planner.plan_due().more
            except Crash:
                continue
            if not more:
                break
    finally:
        event.remove(engine, "before_cursor_execute", die_now_and_then)
    plan(tm)
    assert [minute for minute, _ in ledger(tm)] == list(range(1, 61))
    assert len(owed(tm)) == 60


def test_recovered_instants_take_turns_instead_of_skipping_each_other(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, recovery="all")  # with overlap=skip, the default
    noon.forward(timedelta(minutes=3, seconds=30))
    plan(tm)
    done = []
    for _ in range(3):
        [id] = claim(tm)
        done.append(id)
        recorder.record_success(tm.installation, start(tm, id), None)
    assert claim(tm) == []
    assert ledger(tm) == [(1, "completed"), (2, "completed"), (3, "completed")]


def test_a_clock_that_is_put_back_repeats_nothing(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, overlap="allow", recovery="all")
    noon.forward("5m")
    plan(tm)
    noon.move_to(NOON + 2 * MINUTE)
    plan(tm)
    noon.move_to(NOON + 6 * MINUTE)
    plan(tm)
    assert [minute for minute, _ in ledger(tm)] == [1, 2, 3, 4, 5, 6]


def test_a_pause_over_downtime_is_recorded_as_skipped_not_made_up_for(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, recovery="all", overlap="allow")
    tm.pause("tick", actor="alice", reason="stock-taking")
    noon.forward("3m")
    tm.resume("tick")
    noon.forward("1m")
    plan(tm)
    assert ledger(tm) == [(1, "skipped"), (2, "skipped"), (3, "skipped"), (4, "pending")]


def test_max_runs_ends_a_definition(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, max_runs=2)
    for _ in range(4):
        noon.forward("1m")
        tm.run_due_jobs()
    assert ledger(tm) == [(1, "completed"), (2, "completed")]
    kept = tm.definitions.get("tick")
    assert (kept.runs, kept.next_run_at) == (2, None)
    assert tm.definitions.update("tick", max_runs=3).next_run_at == NOON + 5 * MINUTE


def test_jitter_shifts_the_run_and_not_the_instant(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, jitter="30s", overlap="allow")
    noon.forward("5m")
    plan(tm)
    assert [minute for minute, _ in ledger(tm)] == [1, 2, 3, 4, 5]
    job = tm.jobs()[-1]
    assert job.scheduled_at == NOON + 5 * MINUTE
    assert timedelta(0) <= job.run_at - job.scheduled_at < timedelta(seconds=30)


def test_a_job_that_waited_too_long_expires(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, expires="2m", overlap="queue")
    noon.forward("1m")
    plan(tm)
    noon.forward("3m")
    assert tm.run_due_jobs().expired == 1
    assert ledger(tm)[0] == (1, "cancelled")


def test_an_hour_twice_and_an_hour_never_are_in_the_ledger_once_each(tm: TimeManagement, noon: MovableClock) -> None:
    noon.move_to(datetime(2026, 10, 24, 12, tzinfo=UTC))
    add(tm, name="nightly", schedule="30 2 * * *", timezone="Europe/Warsaw")
    add(tm, name="hourly", schedule="0 * * * *", timezone="Europe/Warsaw")
    for _ in range(48):
        noon.forward(HOUR)
        plan(tm)
    assert [row.scheduled_at.isoformat() for row in rows(tm, "nightly")] == [
        "2026-10-25T00:30:00+00:00",
        "2026-10-26T01:30:00+00:00",
    ]
    hours = [row.scheduled_at for row in rows(tm, "hourly")]
    assert [later - earlier for earlier, later in itertools.pairwise(hours)] == [HOUR] * 47
