"""Refuses jitter that moves a run past the next one."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice, pairwise

from ..clock import format_duration
from ..errors import InvalidValue
from .definition import Definition
from .overlap import Overlap

LOOKED_AT = 5  # coming runs
SKIPPING = (Overlap.SKIP, Overlap.QUEUE_ONE, Overlap.REPLACE)


def refuse_long_jitter(definition: Definition) -> None:
    """Raise where jitter is longer than the time between runs: an overlap would leave runs out without an error."""
    if not definition.jitter or definition.overlap not in SKIPPING:
        return
    coming = islice(definition.timeline.between(definition.updated_at, datetime.max.replace(tzinfo=UTC)), LOOKED_AT)
    for first, second in pairwise(coming):
        if definition.jitter > second - first:
            apart = format_duration(second - first)
            problem = f"{format_duration(definition.jitter)} is longer than the {apart} between runs, so some are skipped"
            raise InvalidValue("jitter", problem, "give a shorter one, or overlap='allow' or 'queue'")
