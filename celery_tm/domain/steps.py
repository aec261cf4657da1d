"""What people state about steps, in calls, files and commands: read, checked, and written back.

A list of mappings; a list inside it is a group whose steps run at the same time. What is kept is what was stated, in plain
JSON: a step has only what differs from its workflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..clock import format_duration
from ..errors import InvalidValue, UnknownOption, nearest, shown, spelled
from .checks import checked_options, choice, duration, flag, json_text, text
from .codec import decode, dumped
from .job import MAX_KEY, MAX_TASK, checked_concurrency, checked_priority, checked_retries, checked_text
from .retry import read_policy, write_policy
from .workflow import MAX_STEPS, MAX_WAITS, Mode, Stages, Step, Strategy, weave

MAX_STEP_NAME = 100
MAX_STEPS_TEXT = 900_000  # characters: they are kept as one text, here and in what is told of an edit
HOOKS = ("on_start", "on_complete")
# What a step may say differently from its workflow.
OVERRIDES = (
    "failure_strategy", "queue", "priority", "max_retries", "retry", "task_timeout", "key", "concurrency_key",
    "concurrency", "options",
)  # fmt: skip
STEP_FIELDS = ("name", "task", "args", "kwargs", "after", "cleanup", *OVERRIDES)


def check_steps(value: Any, mode: Mode) -> list[Any] | None:
    """Return stated steps in plain JSON as they are kept; refuse what is malformed, twice there or waits in a circle."""
    if value is None:
        return None
    if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
        raise InvalidValue("steps", f"{shown(value)} is not a list", "give e.g. [{'name': 'fetch', 'task': 'shop.fetch'}]")
    if not value:
        raise InvalidValue("steps", "there are none", "give at least one, or leave steps out and name a task")
    plain = [_check_item(item, f"steps[{place}]", mode) for place, item in enumerate(value)]
    stages = read_steps(plain)
    _refuse_too_many(plain, stages)
    weave(stages, mode)
    return plain


def read_steps(plain: Sequence[Any]) -> Stages:
    """Return kept steps as values, group by group."""
    stages = [[_read(step) for step in (item if isinstance(item, list) else [item])] for item in plain]
    taken: set[str] = set()
    for step in (step for stage in stages for step in stage):
        if step.name in taken:
            raise InvalidValue("steps", f"two are called {step.name!r}", "give each a name of its own")
        if step.name in HOOKS:
            raise InvalidValue("steps", f"{step.name!r} is the name of a hook", "call the step something else")
        taken.add(step.name)
    return stages


def _check_item(item: Any, field: str, mode: Mode) -> Any:
    if isinstance(item, Mapping):
        return _check_step(item, field)
    if isinstance(item, str) or not isinstance(item, Sequence):
        raise InvalidValue(field, f"{shown(item)} is not a step", "give a mapping with a name and a task, or a list of such")
    if mode is Mode.PARALLEL:
        raise InvalidValue(field, "all steps run at the same time already", "use mode='sequential', or `after` in the steps")
    if not item:
        raise InvalidValue(field, "the group has no steps", "leave it out")
    for place, inner in enumerate(item):
        if not isinstance(inner, Mapping):
            raise InvalidValue(f"{field}[{place}]", f"{shown(inner)} is not a step", "groups hold steps and no groups")
    return [_check_step(inner, f"{field}[{place}]") for place, inner in enumerate(item)]


def _check_step(value: Mapping[str, Any], field: str) -> dict[str, Any]:
    for name in value:
        if name not in STEP_FIELDS:
            raise UnknownOption(f"{field}.{spelled(name)}", nearest(name, STEP_FIELDS))
    stated = {name: item for name, item in value.items() if item is not None}
    if "task" not in stated:
        raise InvalidValue(field, "it has no task", "add task=…")
    stated.setdefault("name", str(stated["task"]).rpartition(".")[2])
    try:
        plain = {name: _CHECKS[name](stated[name]) for name in STEP_FIELDS if name in stated and name in _CHECKS}
        key, limit = checked_concurrency(stated.get("concurrency_key"), stated.get("concurrency"))
    except InvalidValue as error:
        raise InvalidValue(f"{field}.{error.field}", error.problem, error.remedy) from None
    if key is not None:
        plain |= {"concurrency_key": key, "concurrency": limit}
    if not plain.get("cleanup", True):
        del plain["cleanup"]
    return plain


def _read(plain: Mapping[str, Any]) -> Step:
    return Step(
        name=plain["name"],
        task=plain["task"],
        args=_ARGS(plain.get("args", [])),
        kwargs=_KWARGS(plain.get("kwargs", {})),
        after=None if "after" not in plain else tuple(plain["after"]),
        cleanup=plain.get("cleanup", False),
        own={name: plain[name] for name in OVERRIDES if name in plain},
    )


def _refuse_too_many(plain: Sequence[Any], stages: Stages) -> None:
    steps = [step for stage in stages for step in stage]
    if len(steps) > MAX_STEPS:
        raise InvalidValue("steps", f"{len(steps):,} are too many", f"stay within {MAX_STEPS:,}")
    waits = sum(len(step.after or ()) for step in steps)
    if waits > MAX_WAITS:
        raise InvalidValue("steps", f"`after` names {waits:,} steps in all", f"stay within {MAX_WAITS:,}, or use groups")
    if (size := len(dumped(plain))) > MAX_STEPS_TEXT:
        raise InvalidValue("steps", f"they are {size:,} characters of JSON", f"stay within {MAX_STEPS_TEXT:,}, pass ids")


def _after(value: Any) -> list[str]:
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, (list, tuple)):
        raise InvalidValue("after", f"{shown(value)} is not a list of names", "give e.g. ['fetch']")
    return list(dict.fromkeys(checked_text(item, field="after", limit=MAX_STEP_NAME) for item in value))


def _task_timeout(value: Any) -> str:
    return format_duration(_DURATION(value))


_ARGS, _KWARGS = json_text("args", list, "list"), json_text("kwargs", dict, "mapping")
_DURATION = duration("task_timeout", "5m")
_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "name": lambda value: checked_text(value, field="name", limit=MAX_STEP_NAME),
    "task": lambda value: checked_text(value, field="task", limit=MAX_TASK),
    "args": lambda value: decode(_ARGS(value)),
    "kwargs": lambda value: decode(_KWARGS(value)),
    "after": _after,
    "cleanup": flag("cleanup"),
    "failure_strategy": lambda value: str(choice(Strategy, "failure_strategy")(value)),
    "queue": text("queue", 255),
    "priority": checked_priority,
    "max_retries": checked_retries,
    "retry": lambda value: write_policy(read_policy(value)),
    "task_timeout": _task_timeout,
    "key": text("key", MAX_KEY),
    "options": checked_options,
}
