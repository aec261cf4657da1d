"""What is planned ahead: the coming instants of a definition as rows, so that people and programs can read them.

A row of the horizon decides nothing. When its instant comes it is decided like any other; when the definition is edited,
the horizon is compared with what the new version yields, in the transaction of the edit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice, takewhile

from ..domain.definition import Definition
from ..domain.ids import occurrence_id
from ..domain.occurrence import Occurrence, OccurrenceState
from ..domain.planning import ahead
from ..domain.waiting_edits import coming
from ..store import occurrences
from ..store.database import Transaction


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How coming instants differ: those that come to it, those that go, and those that stay."""

    added: Sequence[datetime] = field(default_factory=list)
    removed: Sequence[datetime] = field(default_factory=list)
    kept: Sequence[datetime] = field(default_factory=list)
    until: datetime | None = None  # how far was looked, where that is not as far as was asked


def extend(tx: Transaction, definition: Definition, *, now: datetime) -> Difference:
    """Make the horizon of a locked definition what it yields now, and return how it differed."""
    there = occurrences.planned_ahead(tx, definition.id)
    wanted = {occurrence_id(definition.id, instant): instant for instant in ahead(definition, now=now)}
    gone = [id for id in there if id not in wanted]
    occurrences.remove_planned(tx, gone)
    taken = occurrences.known(tx, [id for id in wanted if id not in there])  # by a run at that very instant
    new = {id: instant for id, instant in wanted.items() if id not in there and id not in taken}
    occurrences.insert_many(tx, [_planned(definition, id, instant) for id, instant in new.items()])
    return Difference(
        added=sorted(new.values()),
        removed=sorted(there[id].scheduled_at for id in gone),
        kept=sorted(instant for id, instant in wanted.items() if id in there),
    )


def check(definition: Definition, *, now: datetime) -> None:
    """Raise if the horizon of a definition cannot be computed; nothing is read or written."""
    ahead(definition, now=now)


def _planned(definition: Definition, id: str, instant: datetime) -> Occurrence:
    return Occurrence(
        id=id,
        definition=definition.id,
        version=definition.version,
        scheduled_at=instant,
        state=OccurrenceState.PENDING,
        reason="planned ahead",
    )


def compare(before: Definition, after: Definition, *, since: datetime, until: datetime, most: int) -> Difference:
    """Return how the instants of two versions differ between two instants, without writing anything."""
    sides = [_some(version, since, until, most + 1) for version in (before, after)]
    # Where one side has more than can be shown, both end with the same instant.
    cut = min((instants[most - 1] for instants in sides if len(instants) > most), default=None)
    old, new = ({instant for instant in instants if cut is None or instant <= cut} for instants in sides)
    return Difference(added=sorted(new - old), removed=sorted(old - new), kept=sorted(old & new), until=cut)


def _some(definition: Definition, since: datetime, until: datetime, most: int) -> list[datetime]:
    return list(islice(takewhile(lambda instant: instant <= until, coming(definition, since=since)), most))
