"""Missed instants: which of them run, by policy, and what is recorded about the others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.occurrence import OccurrenceState
from celery_tm.domain.recovery import GRACE, Decision, Recovery, decide

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
LATE = [NOON - 3 * HOUR, NOON - 2 * HOUR, NOON - HOUR]


def states(decisions: list[Decision]) -> list[str]:
    return [str(decision.state or "runs") for decision in decisions]


def test_what_is_on_time_runs_whatever_the_policy() -> None:
    for policy in Recovery:
        assert decide([NOON], now=NOON, policy=policy) == [Decision(scheduled_at=NOON)]


@pytest.mark.parametrize("policy", Recovery)
def test_an_instant_up_to_the_grace_late_is_on_time_and_no_recovery(policy: Recovery) -> None:
    on_time = decide([NOON], now=NOON + GRACE, policy=policy)
    late = decide([NOON], now=NOON + GRACE + timedelta(microseconds=1), policy=policy)

    assert [(decision.runs, decision.is_recovery) for decision in on_time] == [(True, False)]
    assert [decision.is_recovery for decision in late] == [True]


def test_recovery_all_runs_every_missed_instant_as_a_recovery() -> None:
    decisions = decide(LATE, now=NOON, policy=Recovery.ALL)

    assert decisions == [Decision(scheduled_at=instant, is_recovery=True) for instant in LATE]


def test_recovery_last_runs_the_newest_for_all_of_them() -> None:
    decisions = decide(LATE, now=NOON, policy=Recovery.LAST)

    assert states(decisions) == ["coalesced", "coalesced", "runs"]
    assert [decision.is_recovery for decision in decisions] == [True, True, True]


def test_recovery_skip_records_them_as_missed() -> None:
    assert states(decide(LATE, now=NOON, policy=Recovery.SKIP)) == ["missed", "missed", "missed"]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Recovery.ALL, ["runs", "runs", "runs", "runs"]),
        (Recovery.LAST, ["coalesced", "coalesced", "coalesced", "runs"]),
        (Recovery.SKIP, ["missed", "missed", "missed", "runs"]),
    ],
)
def test_an_instant_on_time_is_newer_than_the_missed_ones(policy: Recovery, expected: list[str]) -> None:
    decisions = decide([*LATE, NOON], now=NOON, policy=policy)

    assert states(decisions) == expected
    assert not decisions[-1].is_recovery


def test_while_more_is_to_come_the_last_one_of_this_round_is_not_the_last_of_all() -> None:
    assert states(decide(LATE, now=NOON, policy=Recovery.LAST, more_to_come=True)) == ["coalesced"] * 3
    assert states(decide(LATE, now=NOON, policy=Recovery.ALL, more_to_come=True)) == ["runs"] * 3


@pytest.mark.parametrize("policy", Recovery)
def test_nothing_missed_needs_no_decision(policy: Recovery) -> None:
    assert decide([], now=NOON, policy=policy) == []


@pytest.mark.parametrize(("policy", "word"), [(Recovery.LAST, "recovery=last"), (Recovery.SKIP, "recovery=skip")])
def test_an_instant_that_does_not_run_has_a_reason_that_names_the_policy(policy: Recovery, word: str) -> None:
    dropped = [decision for decision in decide(LATE, now=NOON, policy=policy) if not decision.runs]

    assert dropped
    assert all(word in (decision.reason or "") for decision in dropped)


@settings(max_examples=100, deadline=None)
@given(
    ages=st.lists(st.integers(0, 100), unique=True, max_size=30).map(lambda ages: sorted(ages, reverse=True)),
    policy=st.sampled_from(Recovery),
    more_to_come=st.booleans(),
)
def test_each_instant_gets_one_decision_in_order_and_only_a_run_has_no_reason(
    ages: list[int], policy: Recovery, more_to_come: bool
) -> None:
    instants = [NOON - age * SECOND for age in ages]

    decisions = decide(instants, now=NOON, policy=policy, more_to_come=more_to_come)

    assert [decision.scheduled_at for decision in decisions] == instants
    assert all(decision.runs == (decision.state is None) == (decision.reason is None) for decision in decisions)
    assert all(decision.runs for decision in decisions if not decision.is_recovery)
    assert {decision.state for decision in decisions} <= {None, OccurrenceState.COALESCED, OccurrenceState.MISSED}
    if policy is Recovery.LAST:
        assert sum(decision.runs for decision in decisions if decision.is_recovery) <= 1
