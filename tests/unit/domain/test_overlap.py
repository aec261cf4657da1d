"""Overlap: whether an instant runs while an earlier one of its definition is still owed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.occurrence import OccurrenceState
from celery_tm.domain.overlap import Overlap, apply_overlap
from celery_tm.domain.recovery import Decision

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
RUNS = [Decision(scheduled_at=NOON), Decision(scheduled_at=NOON + MINUTE)]
MISSED = Decision(scheduled_at=NOON - MINUTE, state=OccurrenceState.MISSED, reason="missed", is_recovery=True)


def states(decisions: list[Decision]) -> list[str]:
    return [str(decision.state or "runs") for decision in decisions]


def test_skip_lets_an_instant_run_when_nothing_of_its_definition_is_owed() -> None:
    assert apply_overlap(RUNS[:1], policy=Overlap.SKIP, active=0) == RUNS[:1]


@pytest.mark.parametrize("active", [1, 2, 50])
def test_skip_skips_an_instant_while_an_earlier_one_is_owed_and_says_so(active: int) -> None:
    (decision,) = apply_overlap(RUNS[:1], policy=Overlap.SKIP, active=active)

    assert decision.state is OccurrenceState.SKIPPED
    assert decision.reason == "an earlier occurrence was still in process; overlap=skip"
    assert decision.scheduled_at == NOON


def test_skip_runs_one_of_two_instants_that_are_decided_together() -> None:
    assert states(apply_overlap(RUNS, policy=Overlap.SKIP, active=0)) == ["runs", "skipped"]


def test_an_instant_that_does_not_run_anyway_keeps_its_reason_and_stands_in_nobody_s_way() -> None:
    assert apply_overlap([MISSED, RUNS[0]], policy=Overlap.SKIP, active=0) == [MISSED, RUNS[0]]
    assert apply_overlap([MISSED], policy=Overlap.SKIP, active=1) == [MISSED]


@pytest.mark.parametrize("active", [0, 1, 50])
def test_allow_lets_everything_run(active: int) -> None:
    assert apply_overlap([MISSED, *RUNS], policy=Overlap.ALLOW, active=active) == [MISSED, *RUNS]


def test_a_skipped_recovery_is_still_marked_as_one() -> None:
    late = Decision(scheduled_at=NOON, is_recovery=True)

    assert apply_overlap([late], policy=Overlap.SKIP, active=1)[0].is_recovery


@settings(max_examples=100, deadline=None)
@given(runs=st.lists(st.booleans(), max_size=20), active=st.integers(0, 3))
def test_skip_never_has_two_owed_at_once(runs: list[bool], active: int) -> None:
    decisions = [RUNS[0] if run else MISSED for run in runs]

    settled = apply_overlap(decisions, policy=Overlap.SKIP, active=active)

    assert len(settled) == len(decisions)
    assert sum(decision.runs for decision in settled) == (1 if any(runs) and not active else 0)
