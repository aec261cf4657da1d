"""Whether an instant may run while an earlier one of the same definition still does, as data.

Whether one does is a question to the database, answered as `Active`. Taking turns is done by slots: a job that takes turns
waits in its row until the one before it has ended (`store.lanes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from .occurrence import OccurrenceState
from .recovery import Decision


class Overlap(StrEnum):
    """What to do with an instant that comes while an earlier one is still owed."""

    SKIP = "skip"  # do not run it
    QUEUE = "queue"  # run it when the earlier ones have ended
    QUEUE_ONE = "queue_one"  # the same, but let only one wait
    ALLOW = "allow"  # run it at the same time
    REPLACE = "replace"  # cancel the earlier ones, run it when they have stopped


TAKING_TURNS = (Overlap.QUEUE, Overlap.QUEUE_ONE, Overlap.REPLACE)


@dataclass(frozen=True, slots=True)
class Active:
    """How many occurrences of a definition are owed: all of them, and those that are not recovered ones."""

    all: int = 0
    regular: int = 0


def apply_overlap(
    decisions: Sequence[Decision], *, policy: Overlap, active: Active, more_to_come: bool = False
) -> list[Decision]:
    """Return the decisions with those skipped, cancelled or made to take turns that would overlap.

    `more_to_come` says that later due instants follow in another round.
    """
    if policy is Overlap.ALLOW:
        return list(decisions)
    if policy is Overlap.REPLACE:
        return _newest_only(decisions, more_to_come)
    settled, owed, regular = [], active.all, active.regular
    for decision in decisions:
        if decision.runs:
            decision = _settle(decision, policy, owed, regular)
            owed += decision.runs
            regular += decision.runs and not decision.is_recovery
        settled.append(decision)
    return settled


def _settle(decision: Decision, policy: Overlap, owed: int, regular: int) -> Decision:
    if policy is Overlap.SKIP:
        # Recovered instants were each meant to run: they take turns among themselves instead of skipping each other.
        if regular if decision.is_recovery else owed:
            what = "an earlier occurrence was" if regular else "recovered or backfilled ones were"
            return _skipped(decision, f"{what} still in process; overlap=skip")
        return replace(decision, takes_turns=decision.is_recovery)
    if policy is Overlap.QUEUE_ONE and owed > 1:
        return _skipped(decision, "another occurrence was waiting already; overlap=queue_one")
    return replace(decision, takes_turns=True)


def _skipped(decision: Decision, why: str) -> Decision:
    return replace(decision, state=OccurrenceState.SKIPPED, reason=why)


def _newest_only(decisions: Sequence[Decision], more_to_come: bool) -> list[Decision]:
    newest = max((decision.scheduled_at for decision in decisions if decision.runs), default=None)
    newest = None if more_to_come else newest
    return [_replaced(decision, newest) if decision.runs else decision for decision in decisions]


def _replaced(decision: Decision, newest: datetime | None) -> Decision:
    if decision.scheduled_at == newest:
        return replace(decision, takes_turns=True)
    why = replaced_by(newest) if newest else "replaced by a later one; overlap=replace"
    return replace(decision, state=OccurrenceState.CANCELLED, reason=why)


def replaced_by(instant: datetime) -> str:
    """Return the reason of an occurrence that had to make room."""
    return f"replaced by the one of {instant.isoformat()}; overlap=replace"
