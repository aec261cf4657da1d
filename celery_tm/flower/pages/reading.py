"""What several pages read: the last instants of some definitions, one occurrence with what it belongs to, the present."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ...domain.definition import Definition
from ...domain.execution import Execution
from ...domain.job import Job
from ...domain.occurrence import Occurrence, OccurrenceState
from ...errors import OccurrenceNotFound
from ...management import TimeManagement
from ...store import definitions, executions, jobs, occurrences

ENDED = (OccurrenceState.COMPLETED, OccurrenceState.FAILED, OccurrenceState.STALE)


@dataclass(frozen=True, kw_only=True, slots=True)
class OneRun:
    """An occurrence, the definition that it is an instant of while that is there, its attempts and what is still owed."""

    occurrence: Occurrence
    definition: Definition | None
    attempts: Sequence[Execution]
    owed: Sequence[Job]

    @property
    def name(self) -> str | None:
        """Return the definition's name, also after that was removed."""
        if self.definition is not None:
            return self.definition.name
        names = [one.definition for one in self.attempts] + [one.definition for one in self.owed]
        return next((name for name in names if name), None)


def present(tm: TimeManagement) -> datetime:
    """Return the database's time, which all that is due and leased goes by."""
    with tm.installation.database.transaction(write=False) as tx:
        return tx.read_now()


def latest_of(tm: TimeManagement, found: Sequence[Definition], *, count: int) -> dict[str, list[Occurrence]]:
    """Return the last decided instants of each definition by its id, the oldest first."""
    if not found:
        return {}
    with tm.installation.database.transaction(write=False) as tx:
        latest = occurrences.latest_of_each(tx, [one.id for one in found], count=count)
    return {id: list(reversed(some)) for id, some in latest.items()}


def one_run(tm: TimeManagement, id: str) -> OneRun:
    """Return an occurrence with what it belongs to."""
    with tm.installation.database.transaction(write=False) as tx:
        found = occurrences.find(tx, id) if id.isprintable() else None
        if found is None:
            raise OccurrenceNotFound(id)
        return OneRun(
            occurrence=found,
            definition=definitions.find_by_id(tx, found.definition),
            attempts=executions.of_occurrence(tx, id),
            owed=jobs.of_occurrence(tx, id),
        )


def success_rate(states: Sequence[OccurrenceState]) -> tuple[int, int]:
    """Return how many runs completed and how many ended in all; what never ran is neither."""
    ended = [state for state in states if state in ENDED]
    return sum(state is OccurrenceState.COMPLETED for state in ended), len(ended)
