"""What rows are asked for, in words. States are literals, as in the partial indexes: a parameter would hide those."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, literal_column

from ..domain.job import JobState
from ..domain.occurrence import ACTIVE, OccurrenceState
from . import tables

job, occurrence = tables.job, tables.occurrence


def is_state(state: JobState) -> ColumnElement[bool]:
    """Return the condition that a job is in `state`, as a literal."""
    return job.c.state == literal_column(f"'{state.value}'")


IS_PENDING = is_state(JobState.PENDING)
IS_DISPATCHED = is_state(JobState.DISPATCHED)
IS_RUNNING = is_state(JobState.RUNNING)
NEEDS_NO_SLOT = job.c.slot.is_(None)
MAY_TAKE_SLOT = job.c.slot == literal_column("'open'")
WAITS_FOR_SLOT = job.c.slot == literal_column("'held'")
IS_OWED = job.c.ended.is_(None)  # its body has not ended; what follows an end is not the work itself
IS_STEP = and_(job.c.step.is_not(None), job.c.occurrence.is_not(None))
IS_LEASED = job.c.state != literal_column("'pending'")
# Owed: decided to run and not ended. What is only planned ahead has not been decided.
IS_ACTIVE = and_(
    occurrence.c.state.in_([literal_column(f"'{state.value}'") for state in ACTIVE]), occurrence.c.decided_at.is_not(None)
)
IS_PLANNED_AHEAD = and_(
    occurrence.c.state == literal_column(f"'{OccurrenceState.PENDING.value}'"), occurrence.c.decided_at.is_(None)
)
IS_OCCURRING = occurrence.c.state == literal_column(f"'{OccurrenceState.RUNNING.value}'")
