"""What happens to instants that came while nobody was planning, per definition, as data.

An instant that is only a moment late is on time: beat needs a moment too. From `GRACE` on it is a recovery, and the
definition's policy decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from .occurrence import OccurrenceState

GRACE = timedelta(seconds=10)


class Recovery(StrEnum):
    """What to do with missed instants."""

    ALL = "all"  # run each of them
    LAST = "last"  # run the last one for all of them
    SKIP = "skip"  # run none, record them as missed


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What becomes of one instant. `state is None` means that it runs."""

    scheduled_at: datetime
    state: OccurrenceState | None = None
    reason: str | None = None
    is_recovery: bool = False

    @property
    def runs(self) -> bool:
        """Say whether a job is created for the instant."""
        return self.state is None


def decide(instants: Sequence[datetime], *, now: datetime, policy: Recovery, more_to_come: bool = False) -> list[Decision]:
    """Decide about instants up to `now`, in order.

    `more_to_come` says that later due instants follow in another round, so the last one here is not the last of all.
    """
    late = [instant for instant in instants if now - instant > GRACE]
    on_time = [Decision(scheduled_at=instant) for instant in instants[len(late) :]]
    if not late:
        return on_time
    return [*_RULES[policy](late, bool(on_time) or more_to_come), *on_time]


def _run_all(late: Sequence[datetime], newer: bool) -> list[Decision]:  # noqa: ARG001
    return [Decision(scheduled_at=instant, is_recovery=True) for instant in late]


def _run_last(late: Sequence[datetime], newer: bool) -> list[Decision]:
    why = "missed; recovery=last runs only the newest of the missed instants"
    coalesced = [Decision(scheduled_at=i, state=OccurrenceState.COALESCED, reason=why, is_recovery=True) for i in late]
    return coalesced if newer else [*coalesced[:-1], Decision(scheduled_at=late[-1], is_recovery=True)]


def _run_none(late: Sequence[datetime], newer: bool) -> list[Decision]:  # noqa: ARG001
    why = "missed; recovery=skip runs none of the missed instants"
    return [Decision(scheduled_at=i, state=OccurrenceState.MISSED, reason=why, is_recovery=True) for i in late]


_RULES: Mapping[Recovery, Callable[[Sequence[datetime], bool], list[Decision]]] = {
    Recovery.ALL: _run_all,
    Recovery.LAST: _run_last,
    Recovery.SKIP: _run_none,
}
