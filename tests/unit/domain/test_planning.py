"""Planning: every instant is decided exactly once, whatever the clock does, and makes the same rows whoever plans it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.definition import Definition, new_definition
from celery_tm.domain.ids import occurrence_id, occurrence_job_id
from celery_tm.domain.job import JobState, Source
from celery_tm.domain.occurrence import OccurrenceState
from celery_tm.domain.planning import MAX_INSTANTS, Plan, job_of, occurrence_of, plan
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


def advanced(definition: Definition, made: Plan) -> Definition:
    """Return the definition as it stands after a plan was written."""
    return replace(definition, planned_until=made.planned_until, next_run_at=made.next_run_at, last_run_at=made.last_run_at)


# One plan


def test_a_plan_decides_what_came_since_and_says_what_comes_next() -> None:
    made = plan(a_definition(), now=NOON + 2 * MINUTE + SECOND, active=0)

    assert [decision.scheduled_at for decision in made.decisions] == [NOON + MINUTE, NOON + 2 * MINUTE]
    assert made.planned_until == NOON + 2 * MINUTE
    assert made.next_run_at == NOON + 3 * MINUTE
    assert made.last_run_at == NOON + 2 * MINUTE


def test_a_plan_before_the_next_instant_decides_nothing_and_moves_nothing() -> None:
    definition = replace(a_definition(), last_run_at=NOON - DAY)
    made = plan(definition, now=NOON + 59 * SECOND, active=0)

    assert (made.decisions, made.planned_until, made.next_run_at) == ([], NOON, NOON + MINUTE)
    assert made.last_run_at == NOON - DAY


def test_an_instant_is_decided_when_it_has_come_and_not_before() -> None:
    assert plan(a_definition(), now=NOON + MINUTE - SECOND, active=0).decisions == []
    assert plan(a_definition(), now=NOON + MINUTE, active=0).decisions == [Decision(scheduled_at=NOON + MINUTE)]


def test_a_clock_put_back_decides_nothing_and_takes_nothing_back() -> None:
    made = plan(a_definition(), now=NOON - 5 * DAY, active=0)

    assert (made.decisions, made.planned_until, made.next_run_at) == ([], NOON, NOON + MINUTE)


def test_a_plan_decides_up_to_its_limit_and_the_next_one_goes_on_there() -> None:
    definition, now = a_definition(), NOON + HOUR
    first = plan(definition, now=now, active=0, limit=25)
    second = plan(advanced(definition, first), now=now, active=0, limit=25)

    assert (len(first.decisions), first.planned_until) == (25, NOON + 25 * MINUTE)
    assert second.decisions[0].scheduled_at == NOON + 26 * MINUTE


def test_a_long_outage_is_caught_up_over_several_rounds() -> None:
    made = plan(a_definition(schedule="every 1s"), now=NOON + DAY, active=0)

    assert len(made.decisions) == MAX_INSTANTS
    assert made.next_run_at == made.planned_until + SECOND


def test_recovery_last_runs_one_instant_over_all_rounds() -> None:
    definition, now = a_definition(recovery="last", overlap="skip"), NOON + HOUR + 30 * SECOND
    ran = []
    for _ in range(4):
        made = plan(definition, now=now, active=0, limit=20)
        ran += [decision.scheduled_at for decision in made.decisions if decision.runs]
        definition = advanced(definition, made)

    assert ran == [NOON + HOUR]
    assert definition.planned_until == NOON + HOUR


def test_overlap_skip_asks_what_is_owed() -> None:
    definition = a_definition(overlap="skip")

    assert states(plan(definition, now=NOON + MINUTE, active=0).decisions) == ["runs"]
    assert states(plan(definition, now=NOON + MINUTE, active=1).decisions) == ["skipped"]


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
    made = plan(a_definition(**values), now=NOON + 3 * MINUTE, active=0)

    assert states(made.decisions) == ["skipped"] * 3
    assert {decision.reason for decision in made.decisions} == {reason}
    assert (made.planned_until, made.next_run_at, made.last_run_at) == (NOON + 3 * MINUTE, NOON + 4 * MINUTE, None)


@pytest.mark.parametrize("recovery", ["all", "last", "skip"])
def test_nothing_of_a_paused_definition_runs_however_late_it_is_looked_at(recovery: str) -> None:
    made = plan(a_definition(paused=True, recovery=recovery), now=NOON + HOUR, active=0)

    assert len(made.decisions) == 60
    assert not any(decision.runs for decision in made.decisions)


def test_an_instant_skipped_by_a_pause_stands_in_nobody_s_way() -> None:
    definition = a_definition(overlap="skip", paused=True)
    paused = plan(definition, now=NOON + MINUTE, active=0)
    resumed = replace(advanced(definition, paused), paused=False)

    assert states(plan(resumed, now=NOON + 2 * MINUTE, active=0).decisions) == ["runs"]


def test_bounds_are_kept_and_both_ends_belong_to_them() -> None:
    definition = a_definition(starts_at=NOON + 10 * MINUTE, ends_at=NOON + 12 * MINUTE)
    made = plan(definition, now=NOON + HOUR, active=0)

    assert definition.next_run_at == NOON + 10 * MINUTE
    assert [d.scheduled_at for d in made.decisions] == [NOON + 10 * MINUTE, NOON + 11 * MINUTE, NOON + 12 * MINUTE]
    assert made.next_run_at is None


def test_a_definition_that_has_ended_decides_nothing_more() -> None:
    ended = replace(a_definition(), ends_at=NOON + 30 * SECOND)
    made = plan(ended, now=NOON + DAY, active=0)

    assert (made.decisions, made.next_run_at, made.planned_until) == ([], None, NOON)


@pytest.mark.parametrize(
    "broken",
    [{"schedule": "nonsense"}, {"schedule_kind": "lunar"}, {"timezone": "Mars/Olympus_Mons"}],
    ids=["expression", "kind", "time zone"],
)
def test_a_definition_this_node_cannot_read_fails_with_an_error_of_ours(broken: dict[str, str]) -> None:
    with pytest.raises(TmError):
        plan(replace(a_definition(), **broken), now=NOON + HOUR, active=0)


# Any sequence of clocks and limits

schedules = st.sampled_from(["* * * * *", "*/7 * * * *", "0 * * * *", "every 90s", "every 25m", "30 2 * * *"])
# How far the clock goes from round to round: mostly forward, sometimes back, sometimes over a long outage.
jumps = st.integers(-3600, 7200) | st.integers(0, 120) | st.integers(-20_000, 20_000)


@settings(max_examples=60, deadline=None)
@given(
    schedule=schedules,
    recovery=st.sampled_from(["all", "last", "skip"]),
    overlap=st.sampled_from(["skip", "allow"]),
    rounds=st.lists(st.tuples(jumps, st.integers(1, 40), st.integers(0, 2), st.booleans()), min_size=1, max_size=12),
    zone=st.sampled_from(["UTC", "America/New_York"]),
)
def test_every_instant_is_decided_exactly_once_whatever_the_clock_does(
    schedule: str, recovery: str, overlap: str, rounds: list[tuple[int, int, int, bool]], zone: str
) -> None:
    definition = a_definition(schedule=schedule, recovery=recovery, overlap=overlap, timezone=zone)
    decided: list[datetime] = []
    now = latest = NOON
    for jump, limit, active, paused in rounds:
        now += jump * SECOND
        latest = max(latest, now)
        made = plan(replace(definition, paused=paused), now=now, active=active, limit=limit)
        assert made.planned_until >= definition.planned_until
        assert all(decision.scheduled_at <= now for decision in made.decisions)
        assert not (paused and any(decision.runs for decision in made.decisions))
        decided += [decision.scheduled_at for decision in made.decisions]
        definition = advanced(definition, made)
    for _ in range(20):  # more rounds than the longest outage above takes
        made = plan(definition, now=latest, active=0)
        decided += [decision.scheduled_at for decision in made.decisions]
        definition = advanced(definition, made)

    assert decided == list(definition.rule.between(NOON, latest))
    assert all(earlier < later for earlier, later in pairwise(decided))
    assert definition.next_run_at == definition.rule.next_after(max([NOON, *decided]))


@settings(max_examples=60, deadline=None)
@given(schedule=schedules, seconds=st.integers(0, 100_000), limit=st.integers(1, 50), active=st.integers(0, 1))
def test_two_beats_that_plan_the_same_make_the_same_rows(schedule: str, seconds: int, limit: int, active: int) -> None:
    definition, now = a_definition(schedule=schedule), NOON + seconds * SECOND

    one, other = (plan(definition, now=now, active=active, limit=limit) for _ in range(2))

    assert one == other
    assert [occurrence_of(definition, d).id for d in one.decisions] == [
        occurrence_of(definition, d).id for d in other.decisions
    ]


# Rows


def test_an_occurrence_keeps_the_instant_the_version_and_what_was_decided() -> None:
    definition = replace(a_definition(), version=7)
    decision = Decision(scheduled_at=NOON, state=OccurrenceState.MISSED, reason="why", is_recovery=True)
    row = occurrence_of(definition, decision)

    assert (row.id, row.definition, row.version) == (occurrence_id("definition", NOON), "definition", 7)
    assert (row.scheduled_at, row.state, row.reason, row.is_recovery) == (NOON, OccurrenceState.MISSED, "why", True)


def test_an_occurrence_that_runs_begins_as_pending() -> None:
    assert occurrence_of(a_definition(), Decision(scheduled_at=NOON)).state is OccurrenceState.PENDING


def test_the_job_of_an_occurrence_carries_what_the_definition_states() -> None:
    definition = a_definition(
        schedule="every 10m", args=[1, "a"], kwargs={"b": 2}, queue="mail", priority=5, max_retries=7, timeout="5m",
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
