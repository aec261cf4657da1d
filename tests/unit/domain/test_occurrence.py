"""An occurrence's states: which may follow which, and which are final."""

from __future__ import annotations

import pytest

from celery_tm.domain.occurrence import ACTIVE, OCCURRENCE_NEXT, OccurrenceState

DECIDED = {OccurrenceState.SKIPPED, OccurrenceState.MISSED, OccurrenceState.COALESCED}  # of which skipped stands for all
ENDED_BADLY = (OccurrenceState.FAILED, OccurrenceState.STALE)


def reachable(start: OccurrenceState) -> set[OccurrenceState]:
    seen: set[OccurrenceState] = set()
    todo = [start]
    while todo:
        state = todo.pop()
        if state not in seen:
            seen.add(state)
            todo.extend(OCCURRENCE_NEXT.get(state, ()))
    return seen


def test_from_pending_every_state_can_be_reached() -> None:
    """Also those that mean that it did not run: it may have been planned ahead."""
    assert reachable(OccurrenceState.PENDING) | DECIDED == set(OccurrenceState)
    assert "missed and coalesced" in OCCURRENCE_NEXT[OccurrenceState.PENDING][OccurrenceState.SKIPPED]


def test_only_what_is_pending_can_be_found_not_to_run() -> None:
    assert [state for state, following in OCCURRENCE_NEXT.items() if DECIDED & set(following)] == [OccurrenceState.PENDING]


def test_every_change_says_why() -> None:
    assert all(isinstance(why, str) and why for following in OCCURRENCE_NEXT.values() for why in following.values())
    assert [state for state, following in OCCURRENCE_NEXT.items() if state in following] == []


def test_only_what_runs_can_fail_or_be_given_up() -> None:
    assert [state for state, following in OCCURRENCE_NEXT.items() if {*ENDED_BADLY} & set(following)] == [
        OccurrenceState.RUNNING
    ]


@pytest.mark.parametrize("state", sorted(DECIDED))
def test_an_instant_decided_not_to_run_never_runs(state: OccurrenceState) -> None:
    assert state not in OCCURRENCE_NEXT


@pytest.mark.parametrize("state", [OccurrenceState.COMPLETED, OccurrenceState.CANCELLED])
def test_an_occurrence_that_ended_well_or_was_stopped_stays_ended(state: OccurrenceState) -> None:
    assert state not in OCCURRENCE_NEXT


@pytest.mark.parametrize("state", ENDED_BADLY)
def test_an_occurrence_that_failed_or_was_given_up_runs_again_only_when_revived(state: OccurrenceState) -> None:
    assert OCCURRENCE_NEXT[state] == {OccurrenceState.PENDING: "its dead letter was revived"}


def test_what_is_active_is_what_is_still_owed() -> None:
    assert set(ACTIVE) == set(OccurrenceState) - DECIDED - {*ENDED_BADLY} - {
        OccurrenceState.COMPLETED, OccurrenceState.CANCELLED,
    }  # fmt: skip


@pytest.mark.parametrize("state", ACTIVE)
def test_what_is_active_can_still_end(state: OccurrenceState) -> None:
    assert OccurrenceState.COMPLETED in reachable(state)
    assert OccurrenceState.CANCELLED in OCCURRENCE_NEXT[state]
