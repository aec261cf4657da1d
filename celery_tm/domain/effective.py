"""The settings that a step runs with: its own, else its workflow's, its task's or the default, each with its origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ..clock import format_duration, parse_duration
from .planning import TaskDefaults
from .retry import Never, write_policy
from .workflow import Step, Strategy

# What steps have from their workflow unless they say otherwise, with what holds where nobody says anything.
CASCADED: Mapping[str, Any] = {
    "failure_strategy": str(Strategy.RETRY_ON_FAILURE),
    "queue": None,
    "priority": None,
    "max_retries": None,
    "retry": None,
    "task_timeout": None,
}
OWN = ("key", "concurrency_key", "concurrency", "options")  # of a step alone


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting that is in force, and who states it: `step`, `definition`, `workflow`, `task`, `strategy` or `default`."""

    value: Any
    origin: str


Effective = Mapping[str, Setting]


def effective(step: Step, common: Mapping[str, Any], defaults: TaskDefaults, *, level: str = "definition") -> Effective:
    """Return the settings of a step as plain JSON. `common` is what its workflow states, which is called by its `level`."""
    by_task = _of_task(defaults)
    found: dict[str, Setting] = {}
    for name, default in CASCADED.items():
        if name in step.own:
            found[name] = Setting(step.own[name], "step")
        elif common.get(name) is not None:
            found[name] = Setting(common[name], level)
        elif by_task.get(name) is not None:
            found[name] = Setting(by_task[name], "task")
        else:
            found[name] = Setting(default, "default")
    if _is_final_at_once(found):
        found["retry"] = Setting(write_policy(Never()), "strategy")
    found |= {name: Setting(step.own[name], "step") for name in OWN if name in step.own}
    return found


def _of_task(defaults: TaskDefaults) -> Mapping[str, Any]:
    timeout = None if defaults.timeout is None else format_duration(defaults.timeout)
    return {"max_retries": defaults.max_retries, "retry": defaults.retry, "task_timeout": timeout}


def _is_final_at_once(found: Effective) -> bool:
    """Say whether the first failure of the body is final: the strategy says so, and nobody but the task says how to retry.

    An attempt whose worker died did not fail, and is made again.
    """
    if found["failure_strategy"].value == Strategy.RETRY_ON_FAILURE:
        return False
    return not any(found[name].origin not in ("task", "default") for name in ("max_retries", "retry"))


def values_of(settings: Effective) -> dict[str, Any]:
    """Return settings without their origins, as a run keeps them."""
    return {name: setting.value for name, setting in settings.items() if setting.value is not None}


def limit_of(settings: Mapping[str, Any], execution_timeout: timedelta | None) -> timedelta | None:
    """Return how long one attempt of a step may take: its own timeout, and never longer than the whole run."""
    own = settings.get("task_timeout")
    limits = [parse_duration(own, field="task_timeout")] if own else []
    return min([*limits, *([execution_timeout] if execution_timeout else [])], default=None)
