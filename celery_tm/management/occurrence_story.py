"""One occurrence with all that is known of it: what was decided, its attempts and, of a workflow, its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..domain.execution import Execution
from ..domain.occurrence import Occurrence
from ..errors import OccurrenceNotFound
from ..installation import Installation
from ..store import definitions, executions, occurrences, tables
from ..store.rows import readable
from .workflows import report_in


@dataclass(frozen=True, kw_only=True, slots=True)
class OccurrenceStory:
    """One occurrence's life so far."""

    occurrence: Occurrence
    definition: str | None  # its name; None: it was removed, or the run was deferred
    executions: Sequence[Execution]
    report: Mapping[str, Any] | None  # of a workflow that has begun


def occurrence_story(installation: Installation, id: str) -> OccurrenceStory:
    """Return what is known of an occurrence."""
    with installation.database.transaction(write=False) as tx:
        with readable(tables.occurrence, id):
            found = occurrences.find(tx, id)
        if found is None:
            raise OccurrenceNotFound(id)
        definition = definitions.find_by_id(tx, found.definition)
        return OccurrenceStory(
            occurrence=found,
            definition=None if definition is None else definition.name,
            executions=executions.of_occurrence(tx, id),
            report=report_in(tx, found),
        )
