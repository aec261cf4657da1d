"""Contradictions between the fields of a definition: each is valid alone, but together they never fire or say two things."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InvalidValue
from .overlap import TAKING_TURNS
from .recovery import Recovery
from .workflow import TASK

if TYPE_CHECKING:
    from .definition import Definition


def refuse_contradictions(definition: Definition) -> None:
    """Raise `InvalidValue` for the first contradiction in a definition."""
    if definition.starts_at and definition.ends_at and definition.ends_at < definition.starts_at:
        raise InvalidValue("ends_at", "it is before starts_at, so it never fires", "give a later ends_at")
    bounds = (definition.recovery_count, definition.recovery_within)
    if definition.recovery is Recovery.BOUNDED and bounds == (None, None):
        raise InvalidValue("recovery", "bounded needs a bound", "add recovery_count=10, recovery_within='2h', or both")
    if definition.recovery is not Recovery.BOUNDED and bounds != (None, None):
        raise InvalidValue(
            "recovery",
            f"{str(definition.recovery)!r} knows no count and no duration",
            "use recovery='bounded' with them, or set recovery_count and recovery_within to None",
        )
    _refuse_contradictory_steps(definition)
    if definition.concurrency_key and definition.overlap in TAKING_TURNS:
        raise InvalidValue(
            "concurrency_key", f"overlap={str(definition.overlap)!r} has a lane of its own", "use overlap='allow' or 'skip'"
        )


def _refuse_contradictory_steps(definition: Definition) -> None:
    if definition.on_start_blocking and not definition.on_start:
        raise InvalidValue("on_start_blocking", "there is no on_start hook to wait for", "state on_start too")
    if definition.steps and definition.task != TASK:
        raise InvalidValue("task", "each step has a task of its own", "drop task=, or set steps to None")
    if not definition.steps and definition.task == TASK:
        raise InvalidValue("task", "it has no steps left to run", "name a task, or give steps=[…]")
    if definition.steps and (definition.args, definition.kwargs) != ("[]", "{}"):
        raise InvalidValue("args", "each step has arguments of its own", "state args and kwargs in the steps")
