"""An occurrence's states: which may follow which, and which are final."""

from __future__ import annotations

import pytest

from celery_tm.domain.occurrence import ACTIVE, OCCURRENCE_NEXT, OccurrenceState

DECIDED = {OccurrenceState.SKIPPED, OccurrenceState.MISSED, OccurrenceState.COALESCED}


def reachable(start: OccurrenceState) -> set[OccurrenceState]:
    seen: set[OccurrenceState] = set()
    todo = [start]
    while todo:
        state = todo.pop()
        if state not in seen:
            seen.add(state)
            todo.extend(OCCURRENCE_NEXT.get(state, ()))
    return seen


def test_from_pending_every_state_can_be_reached_but_those_decided_at_once() -> None:
    assert reachable(OccurrenceState.PENDING) == set(OccurrenceState) - DECIDED - {OccurrenceState.STALE}


@pytest.mark.parametrize("state", sorted(DECIDED))
def test_an_instant_decided_not_to_run_never_runs(state: OccurrenceState) -> None:
    assert state not in OCCURRENCE_NEXT


@pytest.mark.parametrize("state", [OccurrenceState.COMPLETED, OccurrenceState.CANCELLED, OccurrenceState.STALE])
def test_an_occurrence_that_ended_well_or_was_stopped_stays_ended(state: OccurrenceState) -> None:
    assert state not in OCCURRENCE_NEXT


def test_a_failed_occurrence_runs_again_only_when_revived() -> None:
    assert set(OCCURRENCE_NEXT[OccurrenceState.FAILED]) == {OccurrenceState.PENDING}


@pytest.mark.parametrize("state", ACTIVE)
def test_what_is_active_can_still_end(state: OccurrenceState) -> None:
    assert OccurrenceState.COMPLETED in reachable(state)
    assert OccurrenceState.CANCELLED in OCCURRENCE_NEXT[state]
