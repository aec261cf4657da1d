"""Contradictions between the fields of a definition: each is valid alone, but together they never fire or say two things."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import InvalidValue
from .overlap import TAKING_TURNS
from .recovery import Recovery
from .workflow import TASK

if TYPE_CHECKING:
    from .definition import Definition

# The fields that can contradict each other.
BOUNDS = frozenset({"starts_at", "ends_at"})
RECOVERY = frozenset({"recovery", "recovery_count", "recovery_within", "recovery_spacing"})
HOOK = frozenset({"on_start", "on_start_blocking"})
WORK = frozenset({"task", "args", "kwargs", "steps", "mode"})
LANE = frozenset({"overlap", "concurrency_key", "concurrency"})


def refuse_contradictions(definition: Definition) -> None:
    """Raise `InvalidValue` for the first contradiction in a definition."""
    for _, error in contradictions(definition):
        raise error


def contradictions(definition: Definition) -> Iterator[tuple[frozenset[str], InvalidValue]]:
    """Yield each contradiction in a definition, with the fields among which it is."""
    if definition.starts_at and definition.ends_at and definition.ends_at < definition.starts_at:
        yield BOUNDS, InvalidValue("ends_at", "it is before starts_at, so it never fires", "give a later ends_at")
    bounds = (definition.recovery_count, definition.recovery_within)
    if definition.recovery is Recovery.BOUNDED and bounds == (None, None):
        remedy = "add recovery_count=10, recovery_within='2h', or both"
        yield RECOVERY, InvalidValue("recovery", "bounded needs a bound", remedy)
    if definition.recovery is not Recovery.BOUNDED and bounds != (None, None):
        problem = f"{str(definition.recovery)!r} knows no count and no duration"
        remedy = "use recovery='bounded' with them, or set recovery_count and recovery_within to None"
        yield RECOVERY, InvalidValue("recovery", problem, remedy)
    if definition.on_start_blocking and not definition.on_start:
        yield HOOK, InvalidValue("on_start_blocking", "there is no on_start hook to wait for", "state on_start too")
    yield from ((WORK, error) for error in _in_work(definition))
    if definition.concurrency_key and definition.overlap in TAKING_TURNS:
        problem = f"overlap={str(definition.overlap)!r} has a lane of its own"
        yield LANE, InvalidValue("concurrency_key", problem, "use overlap='allow' or 'skip'")


def _in_work(definition: Definition) -> Iterator[InvalidValue]:
    if definition.steps and definition.task != TASK:
        yield InvalidValue("task", "each step has a task of its own", "drop task=, or set steps to None")
    if not definition.steps and definition.task == TASK:
        yield InvalidValue("task", "it has no steps left to run", "name a task, or give steps=[…]")
    if definition.steps and (definition.args, definition.kwargs) != ("[]", "{}"):
        yield InvalidValue("args", "each step has arguments of its own", "state args and kwargs in the steps")
