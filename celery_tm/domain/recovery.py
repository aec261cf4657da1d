"""What happens to instants that came while nobody was planning, per definition, as data.

An instant that is only a moment late is on time: beat needs a moment too. From `GRACE` on it is a recovery, and the
definition's policy decides. Every instant that is dropped is dropped with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from ..clock import format_duration
from .occurrence import OccurrenceState

GRACE = timedelta(seconds=10)


class Recovery(StrEnum):
    """What to do with missed instants."""

    ALL = "all"  # run each of them
    LAST = "last"  # run the last one for all of them
    SKIP = "skip"  # run none, record them as missed
    BOUNDED = "bounded"  # run the last few of them, and those of the last while
    COMPRESSED = "compressed"  # run once for all of them; the run knows the range it stands for


@dataclass(frozen=True, kw_only=True, slots=True)
class CatchUp:
    """A definition's policy with its bounds. `spacing` is the time between two recovered runs."""

    policy: Recovery = Recovery.LAST
    count: int | None = None
    within: timedelta | None = None
    spacing: timedelta | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What becomes of one instant. `state is None` means that it runs, at `run_at` or else at its instant."""

    scheduled_at: datetime
    state: OccurrenceState | None = None
    reason: str | None = None
    is_recovery: bool = False
    run_at: datetime | None = None
    covers_from: datetime | None = None
    covers_until: datetime | None = None
    takes_turns: bool = False  # runs when no other occurrence of the definition does

    @property
    def runs(self) -> bool:
        """Say whether a job is created for the instant."""
        return self.state is None


@dataclass(frozen=True, kw_only=True, slots=True)
class Missed:
    """The missed instants of one round, and what lies beyond it."""

    late: Sequence[datetime]
    now: datetime
    policy: CatchUp
    newer: bool  # a later due instant follows, in this round or another
    oldest_kept: datetime | None = None  # with a count: the first of the last `count` missed instants


def decide(
    instants: Sequence[datetime],
    *,
    now: datetime,
    policy: CatchUp,
    since: datetime | None = None,
    more_to_come: bool = False,
    oldest_kept: datetime | None = None,
) -> list[Decision]:
    """Decide about instants up to `now`, in order.

    `since` is when the planner came to work: what became due while it was busy is on time, however long the queue.
    `more_to_come` says that later due instants follow in another round, so the last one here is not the last of all.
    """
    late = [instant for instant in instants if (since or now) - instant > GRACE]
    on_time = [Decision(scheduled_at=instant) for instant in instants[len(late) :]]
    if not late:
        return on_time
    newer = bool(on_time) or more_to_come
    missed = Missed(late=late, now=now, policy=policy, newer=newer, oldest_kept=oldest_kept)
    return [*_RULES[policy.policy](missed), *on_time]


def spaced(
    decisions: Sequence[Decision], *, now: datetime, spacing: timedelta | None, last: datetime | None
) -> list[Decision]:
    """Return the decisions with recovered runs `spacing` apart; `last` is when the one before them runs."""
    if not spacing:
        return list(decisions)
    settled = []
    for decision in decisions:
        if decision.runs and decision.is_recovery:
            last = now if last is None else max(now, last + spacing)
            decision = replace(decision, run_at=last)
        settled.append(decision)
    return settled


def _run_all(missed: Missed) -> list[Decision]:
    return [_recovered(instant, missed.now) for instant in missed.late]


def _recovered(instant: datetime, now: datetime) -> Decision:
    late = format_duration(timedelta(seconds=(now - instant).total_seconds() // 1))
    return Decision(scheduled_at=instant, is_recovery=True, reason=f"recovered {late} after its instant")


def _run_last(missed: Missed) -> list[Decision]:
    why = "missed; recovery=last runs only the newest of the missed instants"
    return _dropped_but_newest(missed, why)


def _compress(missed: Missed) -> list[Decision]:
    return _dropped_but_newest(missed, "missed; recovery=compressed runs once for all of the missed instants")


def _dropped_but_newest(missed: Missed, why: str) -> list[Decision]:
    coalesced = [_dropped(instant, OccurrenceState.COALESCED, why) for instant in missed.late]
    return coalesced if missed.newer else [*coalesced[:-1], _recovered(missed.late[-1], missed.now)]


def _dropped(instant: datetime, state: OccurrenceState, why: str) -> Decision:
    return Decision(scheduled_at=instant, state=state, reason=why, is_recovery=True)


def _run_none(missed: Missed) -> list[Decision]:
    why = "missed; recovery=skip runs none of the missed instants"
    return [_dropped(instant, OccurrenceState.MISSED, why) for instant in missed.late]


def _run_some(missed: Missed) -> list[Decision]:
    count, within = missed.policy.count, missed.policy.within
    oldest = missed.oldest_kept or (missed.late[-min(count, len(missed.late))] if count else None)
    return [_bounded(instant, missed.now, oldest, count, within) for instant in missed.late]


def _bounded(
    instant: datetime, now: datetime, oldest: datetime | None, count: int | None, within: timedelta | None
) -> Decision:
    if within is not None and now - instant > within:
        why = f"missed; recovery=bounded goes back {format_duration(within)}"
    elif oldest is not None and instant < oldest:
        why = f"missed; recovery=bounded runs the last {count}"
    else:
        return _recovered(instant, now)
    return _dropped(instant, OccurrenceState.MISSED, why)


_RULES: Mapping[Recovery, Callable[[Missed], list[Decision]]] = {
    Recovery.ALL: _run_all,
    Recovery.LAST: _run_last,
    Recovery.SKIP: _run_none,
    Recovery.BOUNDED: _run_some,
    Recovery.COMPRESSED: _compress,
}
