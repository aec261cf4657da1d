"""Which steps a replay runs again, and its run as it begins: the others are done already, as the original left them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..errors import InvalidValue, UnknownStep, nearest
from .ids import occurrence_job_id
from .run import RunStep
from .workflow import OPEN, StepState, downstream


def chosen_steps(steps: Sequence[RunStep], *, step: str | None = None, from_step: str | None = None) -> set[str]:
    """Return the names of the steps that run again: one, or one and all that wait for it, or all."""
    if step is not None and from_step is not None:
        raise InvalidValue("replay", "step= and from_step= are two replays", "give one of them")
    known = {one.name: (one.waits_for, one.feeds) for one in steps}
    first = step if step is not None else from_step
    if first is None:
        return set(known)
    if first not in known:
        raise UnknownStep(first, nearest(first, known))
    return {first} if step is not None else downstream(known, first)


def begun_again(steps: Sequence[RunStep], run: str, again: set[str]) -> tuple[list[RunStep], list[int]]:
    """Return the steps of a replay as it begins, and what is left of its joins before the kept ones are counted down."""
    made = [_waiting(step, run) if step.name in again else _kept(step, run) for step in steps]
    fed = Counter(join for step in steps for join in step.feeds)
    return made, [fed[join] for join in range(1 + max(fed))]


def _waiting(step: RunStep, run: str) -> RunStep:
    return RunStep(
        workflow=run, name=step.name, number=step.number, task=step.task, args=step.args, kwargs=step.kwargs,
        settings=step.settings, regardless=step.regardless, waits_for=step.waits_for, feeds=step.feeds,
        state=StepState.WAITING, job=occurrence_job_id(run, step.name),
    )  # fmt: skip


def _kept(step: RunStep, run: str) -> RunStep:
    kept = replace(step, workflow=run, kept_from=step.kept_from or step.workflow)
    if step.state in OPEN:  # nothing to wait for here
        kept = replace(kept, state=StepState.CANCELLED, cancelled_by="it had not ended in the run that this one repeats")
    return kept
