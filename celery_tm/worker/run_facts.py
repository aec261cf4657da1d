"""What a body asks about the run that it is part of: the version of the definition, and when it last succeeded.

Looked up when a body asks, and once: the gate asks nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ..domain.job import Job
from ..domain.run import DEFERRED
from ..installation import Installation
from ..store import occurrences


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The version that a run was planned with, and when the run before it that succeeded began."""

    version: int | None = None
    last_run_at: datetime | None = None


def facts_of(job: Job, installation: Installation | None) -> RunFacts:
    """Look up the facts of a job's run; a job without a definition has none."""
    if installation is None or job.occurrence is None:
        return RunFacts()
    with installation.database.transaction(write=False) as tx:
        found = occurrences.find(tx, job.occurrence)
        if found is None or found.definition == DEFERRED:
            return RunFacts()
        return RunFacts(found.version, occurrences.last_success(tx, found))
