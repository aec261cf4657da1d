"""Whether an instant may run while an earlier one of the same definition still does, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from .occurrence import OccurrenceState
from .recovery import Decision


class Overlap(StrEnum):
    """What to do with an instant that comes while an earlier one is still owed."""

    SKIP = "skip"
    ALLOW = "allow"


def apply_overlap(decisions: Sequence[Decision], *, policy: Overlap, active: int) -> list[Decision]:
    """Return the decisions with those skipped that would overlap; `active` counts what is owed already."""
    if policy is Overlap.ALLOW:
        return list(decisions)
    settled = []
    for decision in decisions:
        if decision.runs and active:
            decision = replace(
                decision,
                state=OccurrenceState.SKIPPED,
                reason="an earlier occurrence was still in process; overlap=skip",
            )
        active += decision.runs
        settled.append(decision)
    return settled
