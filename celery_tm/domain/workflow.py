"""A workflow: steps, what each waits for, and what the end of one means for the others. Pure: tests need no database.

Steps are held together by joins. A join is a set of steps that others wait for, with a number of how many of them have not
ended; when it comes to zero, what waits for it starts. A group of a thousand steps before another thousand is one join. The
join number 0 is all steps: when that comes to zero, the run is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from ..errors import InvalidValue, UnknownStep, nearest

TASK = "celery_tm.workflow"  # what a job is called that stands for a whole run
MAX_STEPS = 5_000
MAX_WAITS = 100_000  # of all `after` lists together
ALL = 0  # the join of all steps


class Mode(StrEnum):
    """In which order steps run that do not say what they wait for."""

    SEQUENTIAL = "sequential"  # one after the other; the steps of a list inside the list at the same time
    PARALLEL = "parallel"  # all at the same time, clean-up steps when the others have ended


class Strategy(StrEnum):
    """What the failure of a step means."""

    FAIL_FAST = "fail_fast"  # the first failure is final, and stops the run
    CONTINUE = "continue"  # the first failure is final; the other steps run all the same
    RETRY_ON_FAILURE = "retry_on_failure"  # it is tried again as its task says; when its tries are used up, the run stops


class StepState(StrEnum):
    """Where a step of a run stands."""

    WAITING = "waiting"  # for other steps
    OWED = "owed"  # it has a job, which says more
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


OPEN = (StepState.WAITING, StepState.OWED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step as it was stated: a task, its arguments as JSON text, and only what differs from its workflow."""

    name: str
    task: str
    args: str = "[]"
    kwargs: str = "{}"
    after: tuple[str, ...] | None = None  # None: as the mode has it
    cleanup: bool = False
    own: Mapping[str, Any] = field(default_factory=dict)

    @property
    def runs_regardless(self) -> bool:
        """Say whether it runs though the run was stopped: it is a clean-up, or says `continue` itself."""
        return self.cleanup or self.own.get("failure_strategy") == Strategy.CONTINUE


Stages = Sequence[Sequence[Step]]  # in the order in which they were stated; a stage of several is a parallel group


@dataclass(frozen=True, kw_only=True, slots=True)
class Woven:
    """How the steps of a run hang together: the join each waits for, those it counts into, and how many each waits for."""

    waits_for: Mapping[str, int | None]
    feeds: Mapping[str, Sequence[int]]
    left: Sequence[int]


def weave(stages: Stages, mode: Mode) -> Woven:
    """Return how steps hang together; refuse names that are not there and steps that wait for each other."""
    before = predecessors(stages, mode)
    _sorted(before)
    joins: dict[frozenset[str], int] = {frozenset(before): ALL}
    waits_for: dict[str, int | None] = {}
    for name, needed in before.items():
        # Steps that wait for all the others would close a circle, so this is never the join of all steps.
        waits_for[name] = joins.setdefault(needed, len(joins)) if needed else None
    feeds: dict[str, list[int]] = {name: [] for name in before}
    for needed, number in joins.items():
        for name in needed:
            feeds[name].append(number)
    return Woven(waits_for=waits_for, feeds=feeds, left=[len(needed) for needed in joins])


def predecessors(stages: Stages, mode: Mode) -> dict[str, frozenset[str]]:
    """Return the names of the steps that each step waits for directly."""
    steps = [step for stage in stages for step in stage]
    known = {step.name for step in steps}
    others = frozenset(step.name for step in steps if not step.cleanup)
    found: dict[str, frozenset[str]] = {}
    earlier: frozenset[str] = frozenset()
    for stage in stages:
        for step in stage:
            if step.after is not None:
                found[step.name] = _named(step, known)
            elif mode is Mode.PARALLEL:
                found[step.name] = others if step.cleanup else frozenset()
            else:
                found[step.name] = earlier
        earlier = frozenset(step.name for step in stage)
    return found


def led_by(first: Step, stages: Stages, mode: Mode) -> Stages:
    """Return stages in which every step that waits for none waits for `first`."""
    before = predecessors(stages, mode)
    after = (first.name,)
    later = [[step if before[step.name] else replace(step, after=after) for step in stage] for stage in stages]
    return [[first], *later]


def _named(step: Step, known: set[str]) -> frozenset[str]:
    for name in step.after or ():
        if name not in known:
            raise UnknownStep(name, nearest(name, known))
    return frozenset(step.after or ())


def in_order(stages: Stages, mode: Mode) -> list[Step]:
    """Return steps such that none comes before one that it waits for."""
    steps = {step.name: step for stage in stages for step in stage}
    return [steps[name] for name in _sorted(predecessors(stages, mode))]


def _sorted(before: Mapping[str, frozenset[str]]) -> list[str]:
    """Return names such that none comes before one that it waits for; raise if some wait for each other, and name them."""
    left = dict(before)
    after: dict[str, list[str]] = {name: [] for name in before}
    for name, needed in before.items():
        for earlier in needed:
            after[earlier].append(name)
    waiting = {name: len(needed) for name, needed in before.items()}
    ready = deque(name for name, count in waiting.items() if not count)
    order = []
    while ready:
        name = ready.popleft()
        order.append(name)
        del left[name]
        for later in after[name]:
            waiting[later] -= 1
            if not waiting[later]:
                ready.append(later)
    if left:
        circle = " → ".join(_circle(left))
        raise InvalidValue("steps", f"they wait for each other: {circle}", "leave one of these out of `after`")
    return order


def _circle(left: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the steps of one circle, in the order in which they wait."""
    seen: list[str] = []
    name = min(left)
    while name not in seen:
        seen.append(name)
        name = min(needed for needed in left[name] if needed in left)
    return [*seen[seen.index(name) :], name]


def downstream(stages: Mapping[str, tuple[int | None, Sequence[int]]], first: str) -> set[str]:
    """Return a step and all that wait for it, directly or not; each comes with the join it waits for and those it feeds."""
    waiting: dict[int, list[str]] = {}
    for name, (waits_for, _) in stages.items():
        if waits_for is not None:
            waiting.setdefault(waits_for, []).append(name)
    found, ahead = {first}, [first]
    while ahead:
        for join in stages[ahead.pop()][1]:
            fresh = [name for name in waiting.get(join, ()) if name not in found]
            found.update(fresh)
            ahead += fresh
    return found


def count_down(left: Sequence[int], ended: Iterable[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Return what is left of each join after steps that feed these have ended, and the joins that came to zero by it."""
    after = list(left)
    for feeds in ended:
        for join in feeds:
            after[join] -= 1
    return after, [join for join, count in enumerate(after) if count == 0 and left[join] > 0]
