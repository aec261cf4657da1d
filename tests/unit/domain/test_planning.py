"""Planning: every instant is decided exactly once, whatever the clock does, and makes the same rows whoever plans it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.definition import Definition, new_definition
from celery_tm.domain.ids import occurrence_id, occurrence_job_id
from celery_tm.domain.job import DEFAULT_RETRIES, JobState, Slot, Source
from celery_tm.domain.occurrence import OccurrenceState
from celery_tm.domain.overlap import Active, Overlap
from celery_tm.domain.planning import MAX_AHEAD, MAX_INSTANTS, TaskDefaults, ahead, job_of, occurrence_of, plan
from celery_tm.domain.recovery import Decision
from celery_tm.errors import TmError

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def a_definition(**values: Any) -> Definition:
    """Return a definition of every minute, added at noon."""
    defaults = {"task": "shop.sync", "schedule": "* * * * *", "overlap": "allow", "recovery": "all"}
    return new_definition(id="definition", name="sync", values=defaults | values, now=NOON, actor=None)


def states(decisions: Sequence[Decision]) -> list[str]:
    return [str(decision.state or "runs") for decision in decisions]


def in_rounds(definition: Definition, *, now: datetime, limit: int) -> tuple[list[Decision], Definition]:
    """Plan until nothing is due, each round finding owed what those before it let run; return all that was decided."""
    decided: list[Decision] = []
    for _ in range(10_000):
        owed = [decision for decision in decided if decision.runs]
        active = Active(len(owed), sum(not decision.is_recovery for decision in owed))
        made = plan(definition, now=now, active=active, limit=limit)
        decided += made.decisions
        definition = made.after
        if made.is_complete:
            return decided, definition
    raise AssertionError("it never ends")


# One plan


def test_a_plan_decides_what_came_since_and_says_what_comes_next() -> None:
    made = plan(a_definition(), now=NOON + 2 * MINUTE + SECOND)

    assert [decision.scheduled_at for decision in made.decisions] == [NOON + MINUTE, NOON + 2 * MINUTE]
    assert made.after.planned_until == NOON + 2 * MINUTE
    assert made.after.next_run_at == NOON + 3 * MINUTE
    assert made.after.last_run_at == NOON + 2 * MINUTE


def test_a_plan_before_the_next_instant_decides_nothing_and_moves_nothing() -> None:
    definition = replace(a_definition(), last_run_at=NOON - DAY)
    made = plan(definition, now=NOON + 59 * SECOND)

    assert (made.decisions, made.after.planned_until, made.after.next_run_at) == ([], NOON, NOON + MINUTE)
    assert made.after.last_run_at == NOON - DAY


def test_an_instant_is_decided_when_it_has_come_and_not_before() -> None:
    assert plan(a_definition(), now=NOON + MINUTE - SECOND).decisions == []
    assert plan(a_definition(), now=NOON + MINUTE).decisions == [Decision(scheduled_at=NOON + MINUTE)]


def test_a_clock_put_back_decides_nothing_and_takes_nothing_back() -> None:
    made = plan(a_definition(), now=NOON - 5 * DAY)

    assert (made.decisions, made.after.planned_until, made.after.next_run_at) == ([], NOON, NOON + MINUTE)


def test_one_that_has_more_to_decide_queues_up_behind_those_that_became_due_meanwhile() -> None:
    made = plan(a_definition(), now=NOON + HOUR, limit=25)

    assert (made.is_complete, made.after.next_run_at) == (False, NOON + HOUR)
    assert (plan(made.after, now=NOON + HOUR, limit=35).is_complete) is True


def test_a_plan_decides_up_to_its_limit_and_the_next_one_goes_on_there() -> None:
    definition, now = a_definition(), NOON + HOUR
    first = plan(definition, now=now, limit=25)
    second = plan(first.after, now=now, limit=25)

    assert (len(first.decisions), first.after.planned_until) == (25, NOON + 25 * MINUTE)
    assert second.decisions[0].scheduled_at == NOON + 26 * MINUTE


def test_a_long_outage_is_caught_up_over_several_rounds() -> None:
    made = plan(a_definition(schedule="every 1s"), now=NOON + DAY)

    assert len(made.decisions) == MAX_INSTANTS
    assert made.after.planned_until == NOON + MAX_INSTANTS * SECOND
    assert not made.is_complete


def test_recovery_last_runs_one_instant_over_all_rounds() -> None:
    definition, now = a_definition(recovery="last", overlap="skip"), NOON + HOUR + 30 * SECOND
    decided, definition = in_rounds(definition, now=now, limit=20)
    ran = [decision.scheduled_at for decision in decided if decision.runs]

    assert ran == [NOON + HOUR]
    assert definition.planned_until == NOON + HOUR


def test_overlap_skip_asks_what_is_owed() -> None:
    definition = a_definition(overlap="skip")

    assert states(plan(definition, now=NOON + MINUTE).decisions) == ["runs"]
    assert states(plan(definition, now=NOON + MINUTE, active=Active(1, 1)).decisions) == ["skipped"]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"paused": True}, "the definition was paused"),
        ({"enabled": False}, "the definition was disabled"),
        ({"paused": True, "enabled": False}, "the definition was paused"),
    ],
)
def test_while_a_definition_is_off_its_instants_are_recorded_as_skipped_and_it_keeps_its_place(
    values: dict[str, Any], reason: str
) -> None:
    made = plan(a_definition(**values), now=NOON + 3 * MINUTE)

    assert states(made.decisions) == ["skipped"] * 3
    assert {decision.reason for decision in made.decisions} == {reason}
    assert (made.after.planned_until, made.after.next_run_at, made.after.last_run_at) == (
        NOON + 3 * MINUTE,
        NOON + 4 * MINUTE,
        None,
    )


@pytest.mark.parametrize("recovery", ["all", "last", "skip", "compressed", {"policy": "bounded", "count": 3}])
def test_nothing_of_a_paused_definition_runs_however_late_it_is_looked_at(recovery: Any) -> None:
    made = plan(a_definition(paused=True, recovery=recovery), now=NOON + HOUR)

    assert len(made.decisions) == 60
    assert not any(decision.runs for decision in made.decisions)


def test_an_instant_skipped_by_a_pause_stands_in_nobody_s_way() -> None:
    definition = a_definition(overlap="skip", paused=True)
    paused = plan(definition, now=NOON + MINUTE)
    resumed = replace(paused.after, paused=False)

    assert states(plan(resumed, now=NOON + 2 * MINUTE).decisions) == ["runs"]


def test_bounds_are_kept_and_both_ends_belong_to_them() -> None:
    definition = a_definition(starts_at=NOON + 10 * MINUTE, ends_at=NOON + 12 * MINUTE)
    made = plan(definition, now=NOON + HOUR)

    assert definition.next_run_at == NOON + 10 * MINUTE
    assert [d.scheduled_at for d in made.decisions] == [NOON + 10 * MINUTE, NOON + 11 * MINUTE, NOON + 12 * MINUTE]
    assert made.after.next_run_at is None


def test_a_definition_that_has_ended_decides_nothing_more() -> None:
    ended = replace(a_definition(), ends_at=NOON + 30 * SECOND)
    made = plan(ended, now=NOON + DAY)

    assert (made.decisions, made.after.next_run_at, made.after.planned_until) == ([], None, NOON)


@pytest.mark.parametrize(
    "broken",
    [{"schedule": "nonsense"}, {"schedule_kind": "lunar"}, {"timezone": "Mars/Olympus_Mons"}],
    ids=["expression", "kind", "time zone"],
)
def test_a_definition_this_node_cannot_read_fails_with_an_error_of_ours(broken: dict[str, str]) -> None:
    with pytest.raises(TmError):
        plan(replace(a_definition(), **broken), now=NOON + HOUR)


# Any sequence of clocks and limits

schedules = st.sampled_from(["* * * * *", "*/7 * * * *", "0 * * * *", "every 90s", "every 25m", "30 2 * * *"])
# How far the clock goes from round to round: mostly forward, sometimes back, sometimes over a long outage.
jumps = st.integers(-3600, 7200) | st.integers(0, 120) | st.integers(-20_000, 20_000)


@settings(max_examples=60, deadline=None)
@given(
    schedule=schedules,
    recovery=st.sampled_from(["all", "last", "skip", "compressed", {"policy": "bounded", "count": 7}]),
    overlap=st.sampled_from([str(policy) for policy in Overlap]),
    rounds=st.lists(st.tuples(jumps, st.integers(1, 40), st.integers(0, 2), st.booleans()), min_size=1, max_size=12),
    zone=st.sampled_from(["UTC", "America/New_York"]),
)
def test_every_instant_is_decided_exactly_once_whatever_the_clock_does(
    schedule: str, recovery: Any, overlap: str, rounds: list[tuple[int, int, int, bool]], zone: str
) -> None:
    definition = a_definition(schedule=schedule, recovery=recovery, overlap=overlap, timezone=zone)
    decided: list[datetime] = []
    now = latest = NOON
    for jump, limit, active, paused in rounds:
        now += jump * SECOND
        latest = max(latest, now)
        made = plan(replace(definition, paused=paused), now=now, active=Active(active, active), limit=limit)
        assert made.after.planned_until >= definition.planned_until
        assert all(decision.scheduled_at <= now for decision in made.decisions)
        assert not (paused and any(decision.runs for decision in made.decisions))
        decided += [decision.scheduled_at for decision in made.decisions]
        definition = made.after
    for _ in range(20):  # more rounds than the longest outage above takes
        made = plan(definition, now=latest)
        decided += [decision.scheduled_at for decision in made.decisions]
        definition = made.after

    assert decided == list(definition.rule.between(NOON, latest))
    assert all(earlier < later for earlier, later in pairwise(decided))
    assert definition.next_run_at == definition.rule.next_after(max([NOON, *decided]))


@settings(max_examples=60, deadline=None)
@given(schedule=schedules, seconds=st.integers(0, 100_000), limit=st.integers(1, 50), active=st.integers(0, 1))
def test_two_beats_that_plan_the_same_make_the_same_rows(schedule: str, seconds: int, limit: int, active: int) -> None:
    definition, now = a_definition(schedule=schedule), NOON + seconds * SECOND

    one, other = (plan(definition, now=now, active=Active(active, active), limit=limit) for _ in range(2))

    assert one == other
    assert [occurrence_of(definition, d, now=now).id for d in one.decisions] == [
        occurrence_of(definition, d, now=now).id for d in other.decisions
    ]


# Rows


def test_an_occurrence_keeps_the_instant_the_version_and_what_was_decided() -> None:
    definition = replace(a_definition(), version=7)
    decision = Decision(scheduled_at=NOON, state=OccurrenceState.MISSED, reason="why", is_recovery=True)
    row = occurrence_of(definition, decision, now=NOON + SECOND)

    assert (row.id, row.definition, row.version) == (occurrence_id("definition", NOON), "definition", 7)
    assert (row.scheduled_at, row.state, row.reason, row.is_recovery) == (NOON, OccurrenceState.MISSED, "why", True)
    assert (row.decided_at, row.replay_of, row.started_at, row.ended_at) == (NOON + SECOND, None, None, None)


def test_an_occurrence_that_runs_begins_as_pending() -> None:
    assert occurrence_of(a_definition(), Decision(scheduled_at=NOON), now=NOON).state is OccurrenceState.PENDING


def test_the_job_of_an_occurrence_carries_what_the_definition_states() -> None:
    definition = a_definition(
        schedule="every 10m", args=[1, "a"], kwargs={"b": 2}, queue="mail", priority=5, max_retries=7, task_timeout="5m",
        retry="fixed", options={"headers": {"x": "y"}},
    )  # fmt: skip
    job = job_of(definition, Decision(scheduled_at=NOON), now=NOON + SECOND)

    assert job.id == occurrence_job_id(occurrence_id("definition", NOON))
    assert (job.task, job.args, job.kwargs) == ("shop.sync", '[1, "a"]', '{"b": 2}')
    assert (job.run_at, job.created_at, job.state, job.attempt) == (NOON, NOON + SECOND, JobState.PENDING, 1)
    assert (job.queue, job.priority, job.max_retries, job.timeout) == ("mail", 5, 7, 5 * MINUTE)
    assert (job.retry, job.options) == ({"kind": "fixed", "delay": "1m"}, {"headers": {"x": "y"}})
    assert job.occurrence == occurrence_id("definition", NOON)


def test_the_original_delay_of_an_occurrence_is_its_schedule_s_period() -> None:
    assert job_of(a_definition(schedule="0 * * * *"), Decision(scheduled_at=NOON), now=NOON).original_delay == HOUR


@pytest.mark.parametrize(
    ("is_recovery", "source", "expected"),
    [(False, None, Source.SCHEDULED), (True, None, Source.RECOVERY), (False, Source.MANUAL, Source.MANUAL)],
)
def test_a_job_says_where_it_came_from(is_recovery: bool, source: Source | None, expected: Source) -> None:
    decision = Decision(scheduled_at=NOON, is_recovery=is_recovery)

    assert job_of(a_definition(), decision, now=NOON, source=source).source is expected


# Lanes, timeouts and expiry of the job

LANE = "definition:definition"


@pytest.mark.parametrize(
    ("values", "decision", "lane"),
    [
        ({"overlap": "allow"}, {}, (None, None, None)),
        ({"overlap": "allow"}, {"is_recovery": True}, (None, None, None)),
        ({"overlap": "skip"}, {}, (None, None, None)),
        ({"overlap": "skip"}, {"is_recovery": True, "takes_turns": True}, (LANE, 1, Slot.OPEN)),
        ({"overlap": "queue"}, {"takes_turns": True}, (LANE, 1, Slot.OPEN)),
        ({"overlap": "queue_one"}, {"takes_turns": True}, (LANE, 1, Slot.OPEN)),
        ({"overlap": "replace"}, {"takes_turns": True}, (LANE, 1, Slot.OPEN)),
        ({"overlap": "queue"}, {}, (LANE, 1, Slot.OPEN)),  # one that is triggered by hand waits, too
        ({"overlap": "allow", "concurrency_key": "db"}, {}, ("db", 1, Slot.OPEN)),
        ({"overlap": "allow", "concurrency_key": "db", "concurrency": 5}, {}, ("db", 5, Slot.OPEN)),
        ({"overlap": "skip", "concurrency_key": "db", "concurrency": 5}, {}, ("db", 5, Slot.OPEN)),
        ({"overlap": "skip", "concurrency_key": "db"}, {"is_recovery": True, "takes_turns": True}, ("db", 1, Slot.OPEN)),
    ],
)
def test_a_job_waits_in_the_lane_that_its_definition_and_its_overlap_give_it(
    values: dict[str, Any], decision: dict[str, Any], lane: tuple[str | None, int | None, Slot | None]
) -> None:
    job = job_of(a_definition(**values), Decision(scheduled_at=NOON, **decision), now=NOON)

    assert (job.concurrency_key, job.concurrency, job.slot) == lane


@pytest.mark.parametrize(
    ("execution_timeout", "task_timeout", "default", "expected"),
    [
        (None, None, None, None),
        ("1h", None, None, HOUR),
        (None, "5m", None, 5 * MINUTE),
        (None, None, MINUTE, MINUTE),
        ("1h", "5m", None, 5 * MINUTE),
        ("5m", "1h", None, 5 * MINUTE),
        ("1h", None, 5 * MINUTE, 5 * MINUTE),
        ("5m", None, HOUR, 5 * MINUTE),
        (None, "5m", MINUTE, 5 * MINUTE),  # what the definition states goes before the task's own
        ("1h", "5m", MINUTE, 5 * MINUTE),
    ],
)
def test_a_job_has_the_shorter_of_both_timeouts(
    execution_timeout: str | None, task_timeout: str | None, default: timedelta | None, expected: timedelta | None
) -> None:
    definition = a_definition(execution_timeout=execution_timeout, task_timeout=task_timeout)
    job = job_of(definition, Decision(scheduled_at=NOON), now=NOON, defaults=TaskDefaults(timeout=default))

    assert job.timeout == expected
    assert job.execution_timeout == definition.execution_timeout


def test_a_definition_that_states_nothing_goes_by_the_task() -> None:
    retry = {"kind": "fixed", "delay": "1s"}
    of_task = job_of(
        a_definition(), Decision(scheduled_at=NOON), now=NOON, defaults=TaskDefaults(max_retries=None, retry=retry)
    )
    of_definition = job_of(
        a_definition(max_retries=0, retry="fixed"), Decision(scheduled_at=NOON), now=NOON, defaults=TaskDefaults(retry=retry)
    )

    assert (of_task.max_retries, of_task.retry) == (None, retry)
    assert (of_definition.max_retries, of_definition.retry) == (0, {"kind": "fixed", "delay": "1m"})
    assert job_of(a_definition(), Decision(scheduled_at=NOON), now=NOON).max_retries == DEFAULT_RETRIES


@pytest.mark.parametrize(
    ("run_at", "now", "expires_at"),
    [
        (None, NOON, NOON + HOUR),
        (None, NOON + 5 * SECOND, NOON + HOUR + 5 * SECOND),
        (NOON + 10 * MINUTE, NOON, NOON + HOUR + 10 * MINUTE),  # jittered or spaced: its time begins when it may run
        (None, NOON + DAY, NOON + DAY + HOUR),  # recovered: it does not expire before it was decided
    ],
)
def test_a_job_expires_so_long_after_it_could_first_run(
    run_at: datetime | None, now: datetime, expires_at: datetime
) -> None:
    job = job_of(a_definition(expires="1h"), Decision(scheduled_at=NOON, run_at=run_at), now=now)

    assert (job.expires_at, job.is_expired(expires_at), job.is_expired(expires_at - SECOND)) == (expires_at, True, False)


def test_a_job_without_expires_never_expires() -> None:
    assert job_of(a_definition(), Decision(scheduled_at=NOON), now=NOON).expires_at is None


def test_a_job_keeps_its_instant_its_window_and_when_it_is_to_run_apart() -> None:
    decision = Decision(scheduled_at=NOON, run_at=NOON + MINUTE, covers_from=NOON - HOUR, covers_until=NOON + HOUR)
    job, row = job_of(a_definition(), decision, now=NOON), occurrence_of(a_definition(), decision, now=NOON)

    assert (job.scheduled_at, job.run_at) == (NOON, NOON + MINUTE)
    assert (job.covers_from, job.covers_until) == (row.covers_from, row.covers_until) == (NOON - HOUR, NOON + HOUR)


# Jitter


def test_jitter_shifts_when_it_runs_and_not_which_instant_it_is() -> None:
    plain, shaken = a_definition(), a_definition(jitter="30s")
    (was,), (made,) = (plan(one, now=NOON + MINUTE).decisions for one in (plain, shaken))

    assert made.scheduled_at == was.scheduled_at
    assert made.run_at is not None
    assert NOON + MINUTE <= made.run_at < NOON + MINUTE + 30 * SECOND
    assert occurrence_of(shaken, made, now=NOON).id == occurrence_of(plain, was, now=NOON).id
    assert job_of(shaken, made, now=NOON).id == job_of(plain, was, now=NOON).id


@settings(max_examples=100, deadline=None)
@given(seconds=st.integers(1, 100_000), microseconds=st.integers(1, 10_000_000))
def test_the_same_instant_is_always_shifted_alike_and_by_less_than_the_jitter(seconds: int, microseconds: int) -> None:
    definition = replace(a_definition(schedule="every 1s", jitter="1s"), jitter=timedelta(microseconds=microseconds))
    now = NOON + seconds * SECOND
    definition = replace(definition, planned_until=now - SECOND)

    (one,), (other,) = (plan(definition, now=when).decisions for when in (now, now + SECOND / 2))

    assert one == other
    assert one.run_at is not None
    assert timedelta(0) <= one.run_at - now < timedelta(microseconds=microseconds)


def test_jitter_spreads_instants_over_its_whole_width() -> None:
    definition = a_definition(schedule="every 1s", jitter="1h")
    shifts = []
    for place in range(400):
        behind = replace(definition, planned_until=NOON + place * SECOND)
        (decision,) = plan(behind, now=NOON + (place + 1) * SECOND).decisions
        shifts.append(((decision.run_at or NOON) - decision.scheduled_at) / HOUR)

    assert [sum(fourth <= shift * 4 < fourth + 1 for shift in shifts) > 60 for fourth in range(4)] == [True] * 4


def test_two_definitions_of_the_same_schedule_are_not_shifted_alike() -> None:
    one, other = a_definition(jitter="1h"), replace(a_definition(jitter="1h"), id="another")

    assert plan(one, now=NOON + MINUTE).decisions != plan(other, now=NOON + MINUTE).decisions


@pytest.mark.parametrize("recovery", ["all", "last", "compressed"])
def test_a_recovered_run_is_late_enough_and_is_not_shifted(recovery: str) -> None:
    made = plan(a_definition(jitter="1h", recovery=recovery), now=NOON + HOUR + 30 * SECOND)

    assert {decision.run_at for decision in made.decisions} == {None}


def test_an_instant_that_does_not_run_is_not_shifted() -> None:
    made = plan(a_definition(jitter="1h", overlap="skip"), now=NOON + MINUTE, active=Active(1, 1))

    assert [decision.run_at for decision in made.decisions] == [None]


# How often it may run


def test_a_definition_runs_exactly_as_often_as_it_may_and_then_no_more() -> None:
    made = plan(a_definition(max_runs=3), now=NOON + HOUR)

    assert states(made.decisions) == ["runs"] * 3
    assert (made.after.runs, made.after.is_spent, made.after.next_run_at, made.is_complete) == (3, True, None, True)
    assert made.after.planned_until == NOON + 3 * MINUTE


def test_what_does_not_run_uses_up_no_run() -> None:
    definition = a_definition(max_runs=2, recovery="skip")
    made = plan(definition, now=NOON + 30 * MINUTE)

    assert states(made.decisions) == ["missed"] * 29 + ["runs"]
    assert (made.after.runs, made.after.next_run_at) == (1, NOON + 31 * MINUTE)


def test_a_pause_uses_up_no_run() -> None:
    made = plan(a_definition(max_runs=1, paused=True), now=NOON + HOUR)

    assert (made.after.runs, made.after.is_spent, len(made.decisions)) == (0, False, 60)


def test_a_definition_that_is_spent_decides_nothing_more() -> None:
    spent = replace(a_definition(max_runs=3), runs=3)
    made = plan(spent, now=NOON + HOUR)

    assert (made.decisions, made.after.next_run_at, made.after.runs, made.is_complete) == ([], None, 3, True)


def test_a_definition_that_is_retired_decides_nothing_more() -> None:
    made = plan(replace(a_definition(), retired_at=NOON), now=NOON + HOUR)

    assert (made.decisions, made.after.next_run_at, made.after.planned_until) == ([], None, NOON)


def test_a_plan_that_uses_up_the_runs_is_complete_though_more_instants_are_due() -> None:
    made = plan(a_definition(max_runs=3), now=NOON + HOUR, limit=10)

    assert (made.is_complete, made.after.next_run_at, made.after.catching_up_from) == (True, None, None)


@settings(max_examples=100, deadline=None)
@given(
    most=st.integers(1, 30),
    steps=st.lists(st.tuples(st.integers(1, 900), st.integers(0, 1)), min_size=1, max_size=15),
    limit=st.integers(1, 20),
    recovery=st.sampled_from(["all", "last", "skip", "compressed", {"policy": "bounded", "count": 4}]),
)
def test_however_it_is_planned_it_never_runs_more_often_than_it_may(
    most: int, steps: list[tuple[int, int]], limit: int, recovery: Any
) -> None:
    definition, now, ran = a_definition(max_runs=most, recovery=recovery, overlap="skip"), NOON, 0
    for seconds, active in steps:
        now += seconds * SECOND
        made = plan(definition, now=now, active=Active(active, active), limit=limit)
        ran += sum(decision.runs for decision in made.decisions)
        assert (made.after.runs, made.after.is_spent) == (ran, ran >= most)
        assert not made.after.is_spent or (made.after.next_run_at is None and made.decisions == made.decisions[: limit + 1])
        assert not made.after.is_spent or not made.decisions or made.decisions[-1].runs
        definition = made.after

    assert ran <= most


# An edit that waits


def with_edit(definition: Definition, after: datetime) -> Definition:
    return replace(
        definition, next_edit={"values": {"queue": "other"}, "after": after.isoformat(), "actor": "ann", "reason": None}
    )


def test_a_waiting_edit_bounds_what_this_version_decides() -> None:
    made = plan(with_edit(a_definition(), NOON + 5 * MINUTE), now=NOON + HOUR)

    assert [decision.scheduled_at for decision in made.decisions] == [NOON + n * MINUTE for n in range(1, 6)]
    assert (made.is_complete, made.after.planned_until) == (True, NOON + 5 * MINUTE)


def test_before_its_moment_a_waiting_edit_changes_nothing() -> None:
    definition = a_definition()

    assert plan(with_edit(definition, NOON + HOUR), now=NOON + MINUTE).decisions == (
        plan(definition, now=NOON + MINUTE).decisions
    )


@pytest.mark.parametrize("recovery", ["last", "compressed"])
def test_the_last_run_before_a_waiting_edit_is_the_last_of_its_version(recovery: str) -> None:
    made = plan(with_edit(a_definition(recovery=recovery), NOON + 5 * MINUTE), now=NOON + HOUR)

    assert states(made.decisions) == ["coalesced"] * 4 + ["runs"]


def test_a_bounded_count_counts_only_what_its_version_decides() -> None:
    definition = with_edit(a_definition(recovery={"policy": "bounded", "count": 2}), NOON + 6 * MINUTE)
    decided, _ = in_rounds(definition, now=NOON + HOUR, limit=4)

    assert states(decided) == ["missed"] * 4 + ["runs"] * 2


# What is planned ahead


def test_nothing_is_planned_ahead_unless_it_is_stated() -> None:
    assert ahead(a_definition(), now=NOON) == []


def test_the_coming_instants_are_planned_as_far_ahead_as_is_stated() -> None:
    assert ahead(a_definition(plan_ahead="3m"), now=NOON) == [NOON + n * MINUTE for n in (1, 2, 3)]
    assert len(ahead(a_definition(plan_ahead="30d"), now=NOON)) == MAX_AHEAD


def test_no_more_is_planned_ahead_than_may_still_run() -> None:
    definition = replace(a_definition(plan_ahead="1d", max_runs=5), runs=2)

    assert ahead(definition, now=NOON) == [NOON + n * MINUTE for n in (1, 2, 3)]


def test_nothing_is_planned_ahead_of_a_definition_that_is_over() -> None:
    assert ahead(replace(a_definition(plan_ahead="1d"), next_run_at=None), now=NOON) == []


# A new tz database: the offset that was known then is not today's


WARSAW_NINE = datetime(2026, 1, 5, 8, tzinfo=UTC)  # nine o'clock local time


def nine_o_clock(*, offset: int | None = 3600, schedule: str = "0 9 * * *") -> Definition:
    """Return a definition that has decided nine o'clock in Warsaw, with the offset that was known then."""
    definition = a_definition(schedule=schedule, timezone="Europe/Warsaw")
    return replace(definition, planned_until=WARSAW_NINE, planned_offset=offset)


def test_while_the_tz_database_stays_it_goes_on_after_the_last_instant() -> None:
    assert nine_o_clock().resumes_after == WARSAW_NINE
    assert nine_o_clock(offset=None).resumes_after == WARSAW_NINE


def test_a_local_time_that_moved_later_does_not_come_again() -> None:
    """Warsaw was known to be at +02:00, so nine o'clock was at 07:00 UTC; now it is at 08:00 UTC."""
    definition = replace(nine_o_clock(offset=7200), planned_until=WARSAW_NINE - HOUR)

    assert definition.resumes_after == WARSAW_NINE
    assert definition.following == WARSAW_NINE + DAY
    assert plan(definition, now=WARSAW_NINE + HOUR).decisions == []


def test_a_local_time_that_moved_does_not_come_again_however_often_it_is_planned() -> None:
    definition = replace(nine_o_clock(offset=7200), planned_until=WARSAW_NINE - HOUR)
    for minutes in range(0, 180, 10):
        definition = plan(definition, now=WARSAW_NINE - HOUR + minutes * MINUTE).after

    assert definition.planned_until == WARSAW_NINE - HOUR
    assert plan(definition, now=WARSAW_NINE + DAY).decisions == [Decision(scheduled_at=WARSAW_NINE + DAY)]
    assert plan(definition, now=WARSAW_NINE + DAY).after.planned_offset == 3600


def test_a_local_time_that_moved_earlier_is_not_made_up_for() -> None:
    definition = replace(nine_o_clock(offset=0), planned_until=WARSAW_NINE + HOUR)

    assert (definition.resumes_after, definition.following) == (WARSAW_NINE + HOUR, WARSAW_NINE + DAY)


@pytest.mark.parametrize("offset", [-36000, 0, 7200, 50400])
def test_an_interval_goes_by_no_zone_and_loses_no_instant(offset: int) -> None:
    definition = nine_o_clock(offset=offset, schedule="every 10m")

    assert definition.following == WARSAW_NINE + 10 * MINUTE


@settings(max_examples=150, deadline=None)
@given(
    schedule=st.sampled_from(
        ["* * * * *", "*/7 * * * *", "0 9 * * *", "30 2 * * *", "every 25m", "every 2h from 08:00 until 20:00"]
    ),
    zone=st.sampled_from(["Europe/Warsaw", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"]),
    hours=st.integers(0, 24 * 400),
    change=st.integers(-4 * 3600, 4 * 3600).map(lambda seconds: seconds // 900 * 900),
    steps=st.lists(st.integers(1, 5 * 3600), min_size=1, max_size=6),
)  # fmt: skip
def test_a_new_tz_database_repeats_no_local_time_and_goes_never_back(
    schedule: str, zone: str, hours: int, change: int, steps: list[int]
) -> None:
    definition = a_definition(schedule=schedule, timezone=zone, recovery="all")
    planned_until = definition.next_after(NOON + hours * HOUR)
    assert planned_until is not None
    then = (definition.offset_at(planned_until) or 0) + change
    definition = replace(definition, planned_until=planned_until, planned_offset=then)
    wall = planned_until.replace(tzinfo=None) + then * SECOND  # what its clock showed, as it was known then
    now, decided = planned_until, []
    for seconds in steps:
        now += seconds * SECOND
        made = plan(definition, now=now, limit=50)
        assert made.after.planned_until >= definition.planned_until
        decided += [decision.scheduled_at for decision in made.decisions]
        definition = made.after

    assert all(instant > planned_until for instant in decided)
    if definition.is_local and decided:
        offset = definition.offset_at(decided[0]) or 0
        earliest = definition.offset_at(decided[0] - 3 * HOUR)
        if earliest == offset:  # where clocks change that day anyway, local times do come twice
            assert decided[0].replace(tzinfo=None) + offset * SECOND > wall
    if not change:
        assert decided == list(islice(definition.timeline.between(planned_until, now), len(decided)))
