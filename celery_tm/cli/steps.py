"""The steps of a definition as people read them: what runs, after what, and what is different about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from ..domain.codec import decode
from ..domain.steps import read_steps
from ..domain.workflow import Mode, Step, predecessors
from .output import show

COLUMNS = ("step", "task", "arguments", "after", "else")
MOST_NAMES = 3


def number_of(steps: Sequence[Any]) -> str:
    """Return how many steps are stated, those of groups included."""
    count = sum(len(item) if isinstance(item, list) else 1 for item in steps)
    return "1 step" if count == 1 else f"{count} steps"


def show_steps(steps: Sequence[Any] | None, mode: Mode) -> None:
    """Print the steps of a definition, if it has any."""
    if not steps:
        return
    stages = read_steps(steps)
    before = predecessors(stages, mode)
    click.echo("steps:")
    rows = [_row(step, before[step.name], stage) for stage in stages for step in stage]
    show(rows, columns=COLUMNS, json_wanted=False, empty="")


def _row(step: Step, after: Iterable[str], stage: Sequence[Step]) -> dict[str, Any]:
    group = [one.name for one in stage if one.name != step.name]
    said = {"cleanup": True} if step.cleanup else {}
    also = {"at the same time as": _names(group)} if group else {}
    return {
        "step": step.name,
        "task": step.task,
        "arguments": _arguments(decode(step.args), decode(step.kwargs)),
        "after": _names(sorted(after)) or None,
        "else": ", ".join(f"{name}: {value}" for name, value in {**said, **also, **step.own}.items()) or None,
    }


def _arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    return ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]) or None


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
