"""Which instants of a range in the past are to run now, and how. Pure: what the ledger knows is passed in.

A backfill is a person's act. It runs what did not run, each instant once, and moves nothing of the definition: not where
planning stands, not what is counted by `max_runs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from ..clock import as_utc
from ..errors import InvalidValue, nearest, shown
from .definition import Definition
from .execution import MAX_MESSAGE, cut
from .occurrence import ACTIVE, Occurrence, OccurrenceState
from .overlap import Overlap
from .recovery import GRACE, Decision, Recovery, spaced
from .timeline import BEGINNING, INSTANT

MAX_BACKFILL = 10_000
WORD = "backfill"  # how the reason of every occurrence of one begins
# What ran is not run again unless that is asked for.
RAN: Mapping[OccurrenceState, str] = {
    OccurrenceState.COMPLETED: "it completed",
    OccurrenceState.FAILED: "it failed",
    OccurrenceState.STALE: "it ran and became stale",
}
Ledger = Mapping[datetime, Collection[OccurrenceState]]  # by instant: how it and its replays stand


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """The instants from `since` on and before `until`."""

    since: datetime
    until: datetime

    def __str__(self) -> str:
        return f"from {self.since.isoformat()} until {self.until.isoformat()}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One instant, the time to the next one, and where a run that compresses ends."""

    at: datetime
    period: timedelta
    covers_until: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Backfilled:
    """What a backfill did, or with `dry_run` would do: its runs in the order of their instants, and what was left out."""

    name: str
    range: Range
    instants: Sequence[datetime] = field(default_factory=list)  # those that `created` stands for, one by one
    created: Sequence[Occurrence] = field(default_factory=list)
    left_out: Sequence[tuple[datetime, str]] = field(default_factory=list)
    dry_run: bool = False

    @property
    def counts(self) -> Mapping[str, int]:
        """Return how many instants the range has, how many of them run, and how many were left out."""
        created, left_out = len(self.created), len(self.left_out)
        return {"instants": created + left_out, "created": created, "left_out": left_out}

    @property
    def reasons(self) -> Mapping[str, int]:
        """Return why instants were left out, and how many for each reason."""
        return Counter(why for _, why in self.left_out)

    def __str__(self) -> str:
        count = self.counts
        if not count["instants"]:
            return f"{self.name!r} has no instant {self.range}"
        would = "would run" if self.dry_run else "are to run" if count["created"] != 1 else "is to run"
        told = f"{count['created']:,} of {count['instants']:,} instants of {self.name!r} {self.range} {would}"
        why = "; ".join(f"{number:,}: {reason}" for reason, number in self.reasons.items())
        return f"{told}; left out {why}" if why else told


def read_range(since: Any, until: Any, *, now: datetime) -> Range:
    """Return the range that is meant, up to now where no end is given."""
    start = as_utc(since, field="since")
    end = now if until is None else as_utc(until, field="until")
    if end > now + GRACE:  # the clock of whoever asks may be a little ahead of the database's
        raise InvalidValue(
            "until",
            f"{end.isoformat()} is still to come, and so are instants before it that come by themselves",
            "give a time in the past, or none for now",
        )
    end = min(end, now)
    if start >= end:
        remedy = "give a since that is earlier than until" if until is not None else "give a since in the past"
        raise InvalidValue("since", f"{start.isoformat()} is not before {end.isoformat()}", remedy)
    return Range(since=start, until=end)


_CANNOT = {
    Overlap.SKIP: "would run one instant and skip all the others",
    Overlap.QUEUE_ONE: "would run two instants and skip all the others",
    Overlap.REPLACE: "would run the latest instant and cancel all the others",
}


def read_overlap(value: Any) -> Overlap | None:
    """Return how the runs of a backfill go with each other; None leaves that to the definition."""
    if value is None:
        return None
    use = "use 'queue' for one at a time, or 'allow' for all at once"
    try:
        overlap = Overlap(value)
    except ValueError:
        near = nearest(value, ["queue", "allow"])
        raise InvalidValue(
            "overlap", f"{shown(value)} is unknown", use + (f"; did you mean {near!r}?" if near else "")
        ) from None
    if overlap in _CANNOT:
        raise InvalidValue("overlap", f"{str(overlap)!r} {_CANNOT[overlap]}", use)
    return overlap


def overlap_of(definition: Definition, asked: Overlap | None) -> Overlap:
    """Return how the runs of a backfill go with each other: in turns, unless somebody says otherwise."""
    slots = definition.concurrency or 1
    if asked is Overlap.QUEUE and definition.concurrency_key and slots > 1:
        raise InvalidValue(
            "overlap",
            f"runs of {definition.name!r} take the {slots} slots of its concurrency_key {definition.concurrency_key!r}, "
            "and cannot wait in a second line",
            "leave overlap out, then they go by that key",
        )
    free = definition.overlap is Overlap.ALLOW or definition.concurrency_key
    return asked or (Overlap.ALLOW if free else Overlap.QUEUE)


def refuse_unfit(definition: Definition, overlap: Overlap, *, outside: bool) -> None:
    """Refuse to take turns with a run in process that stands `outside` of every line: nobody would wait for its end."""
    if outside and overlap is Overlap.QUEUE and definition.overlap is not Overlap.ALLOW and not definition.concurrency_key:
        raise InvalidValue(
            "name",
            f"a run of {definition.name!r} is in process, and overlap={str(definition.overlap)!r} lets none start beside it",
            "wait for its end (pause the definition if the next one would follow at once), or give overlap='allow'",
        )


def spans_of(definition: Definition, wanted: Range) -> list[Span]:
    """Return the instants of a range; too many are refused as soon as there is one too many, however many there are."""
    timeline, compresses = definition.timeline, definition.recovery is Recovery.COMPRESSED
    start = wanted.since - INSTANT if wanted.since > BEGINNING else BEGINNING
    found: list[Span] = []
    for at in islice(timeline.between(start, wanted.until - INSTANT), MAX_BACKFILL + 1):
        until = (timeline.next_after(at) or at + timedelta(seconds=1)) if compresses else None
        found.append(Span(at=at, period=timeline.period_at(at), covers_until=until))
    if len(found) > MAX_BACKFILL:
        raise InvalidValue(
            "since",
            f"{definition.name!r} has more than {MAX_BACKFILL:,} instants {wanted}, and a backfill takes no more at once",
            f"give a shorter range, e.g. until={found[-1].at.isoformat()} first, and go on from there",
        )
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which instants run, and why the others do not; both in order."""

    chosen: Sequence[Span] = field(default_factory=list)
    left_out: Sequence[tuple[datetime, str]] = field(default_factory=list)


def choose(definition: Definition, spans: Sequence[Span], ledger: Ledger, *, again: bool) -> Choice:
    """Divide the instants of a range: those that did not run, or with `again` all that have ended, are to run."""
    why = [(span, _why_not(definition, span.at, ledger.get(span.at, ()), again=again)) for span in spans]
    left_out = [(span.at, reason) for span, reason in why if reason is not None]
    return Choice(chosen=[span for span, reason in why if reason is None], left_out=left_out)


def _why_not(definition: Definition, at: datetime, states: Collection[OccurrenceState], *, again: bool) -> str | None:
    if at > definition.resumes_after:
        if definition.is_spent:
            return f"max_runs={definition.max_runs} was reached before it"
        return "it is not decided yet; a beat does that by itself"
    for state in ACTIVE:
        if state in states:
            return f"it is still {state}"
    return None if again else next((words for state, words in RAN.items() if state in states), None)


def decisions_of(definition: Definition, chosen: Sequence[Span], *, now: datetime, reason: str | None) -> list[Decision]:
    """Return the decisions to run these instants now, as far apart as the definition wants recovered runs."""
    why = cut(f"{WORD}: {reason}" if reason else WORD, MAX_MESSAGE)
    # What waits in line goes by when it is due: the oldest instant comes first, and all are due now.
    first = now - INSTANT * (len(chosen) - 1)
    decisions = [
        Decision(
            scheduled_at=span.at,
            is_recovery=True,
            reason=why,
            run_at=first + INSTANT * place,
            covers_from=span.at if span.covers_until else None,
            covers_until=span.covers_until,
        )
        for place, span in enumerate(chosen)
    ]
    return spaced(decisions, now=now, spacing=definition.recovery_spacing, last=definition.spaced_until)
