"""What earlier steps of a run returned, as a body reads it: `job.results["fetch"]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..domain.codec import MAX_BYTES, decode
from ..domain.job import Job
from ..domain.workflow import StepState
from ..errors import StepResultMissing
from ..installation import Installation
from ..producer.eager import results_so_far
from ..store import workflows


class Results(Mapping[str, Any]):
    """The results of the steps of a run that have succeeded, by name."""

    def __init__(self, run: str, known: Mapping[str, tuple[StepState, str | None]]) -> None:
        self._run = run
        self._known = known

    def __getitem__(self, name: str) -> Any:
        state, text = self._known.get(name, (None, None))
        if state is StepState.SUCCEEDED and text is not None:
            return decode(text)
        if state is StepState.SUCCEEDED:
            why = f"is not kept, for it is not JSON, has more than {MAX_BYTES:,} characters, or was another job's"
        else:
            why = "is not there: no such step" if state is None else f"is not there: the step is {state}"
        raise StepResultMissing(name, why)

    def __iter__(self) -> Iterator[str]:
        return (name for name, (state, text) in self._known.items() if state is StepState.SUCCEEDED and text is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"Results({', '.join(self)})"


def results_of(job: Job, installation: Installation | None) -> Mapping[str, Any]:
    """Ask for the results of a step's run; a job that is no step has none."""
    if installation is None or not job.is_step or job.occurrence is None:
        return results_so_far()
    with installation.database.transaction(write=False) as tx:
        return Results(job.occurrence, workflows.results_of(tx, job.occurrence))
