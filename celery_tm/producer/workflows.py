"""`workflow([...])`: several calls as one job, read from signatures or from mappings as definitions have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from celery import Celery
from celery.canvas import Signature

from ..domain.checks import duration
from ..domain.run import HOOK_PREFIX
from ..domain.schedule import Zone
from ..domain.stating import check_values, spread, write_value
from ..domain.steps import HOOKS, STEP_FIELDS, read_steps
from ..domain.workflow import Step
from ..errors import InvalidValue, UnknownHook, UnknownOption, UnknownTask, nearest, shown, spelled
from ..installation import Installation

COMMON = (
    "mode", "failure_strategy", "max_parallel", "terminate", "queue", "priority", "max_retries", "retry", "task_timeout",
    *HOOKS, "on_start_blocking",
)  # fmt: skip
OPTIONS = (*COMMON, "execution_timeout")
BY_STEP = frozenset(STEP_FIELDS) - {"task", "args", "kwargs", "options"}
LATER = ("countdown", "eta", "expires", "task_id", "link", "chain", "chord")  # of a signature that stands alone


@dataclass(frozen=True, kw_only=True)
class Workflow:
    """Steps and what they have in common, checked; `defer` makes a job of it."""

    stated: Mapping[str, Any]
    execution_timeout: timedelta | None = None
    app: Celery | None = None

    @property
    def steps(self) -> Sequence[Step]:
        """Return the steps, as they were stated."""
        return [step for stage in read_steps(self.stated["steps"]) for step in stage]


def workflow(steps: Sequence[Any], /, **options: Any) -> Workflow:
    """Return several calls as one piece of work: `defer(workflow([a.s(1), [b.s(2), c.s(3)], d.s(4)]), delay="10s")`.

    Steps run one after the other, those of a list inside the list at the same time; `mode="parallel"` runs all at the same
    time. A step is a signature, a pair of a signature and what differs for it (`(a.s(1), {"name": "fetch"})`), or a mapping
    as in a definition. A later step reads the results of earlier ones as `job.results["fetch"]`.
    """
    for name in options:
        if name not in OPTIONS:
            raise UnknownOption(name, nearest(name, OPTIONS))
    if isinstance(steps, (str, Mapping, Signature)) or not isinstance(steps, Sequence):
        raise InvalidValue("steps", f"{shown(steps)} is not a list", "give e.g. [fetch.s(), load.s()]")
    found: list[Signature] = []
    taken: dict[str, int] = {}
    plain = [_item(item, found, taken) for item in steps]
    stated = {name: value for name, value in spread(options).items() if name in COMMON and value is not None}
    if stated.get("on_start_blocking") and "on_start" not in stated:
        raise InvalidValue("on_start_blocking", "there is no on_start hook to wait for", "state on_start too")
    columns = check_values({**stated, "steps": plain}, zone=Zone())
    kept = {name: write_value(name, columns[name]) for name in ("steps", *stated)}
    limit = duration("execution_timeout", "1h")(options.get("execution_timeout"))
    app = next((sig._app for sig in found if sig._app is not None), None)
    return Workflow(stated=kept, execution_timeout=limit, app=app)


def _item(item: Any, found: list[Signature], taken: dict[str, int]) -> Any:
    if isinstance(item, list):
        return [_step(inner, found, taken) for inner in item]
    return _step(item, found, taken)


def _step(item: Any, found: list[Signature], taken: dict[str, int]) -> Any:
    own: Mapping[str, Any] = {}
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], Mapping):
        item, own = item
    if not isinstance(item, Signature) and hasattr(item, "signature") and hasattr(item, "name"):
        item = item.signature()
    if not isinstance(item, Signature):
        return {**item, **own} if isinstance(item, Mapping) else item  # read like a definition's
    found.append(item)
    for name in own:
        if name not in BY_STEP:
            raise UnknownOption(spelled(name), nearest(name, sorted(BY_STEP)))
    return {"name": _free_name(item, own, taken), **_of_signature(item), **own}


def _of_signature(signature: Signature) -> dict[str, Any]:
    task = str(signature.get("task"))
    if task.startswith("celery."):
        raise InvalidValue("steps", f"a {task.removeprefix('celery.')} is several tasks", "list its tasks as steps")
    said = {name: value for name, value in (signature.get("options") or {}).items() if value is not None}
    for name in LATER:
        if said.get(name):
            raise InvalidValue("steps", f"{task} says {name}=, which the workflow decides", "leave it out of the signature")
    kept = {name: said.pop(name) for name in ("queue", "priority") if name in said}
    args, kwargs = list(signature.get("args") or ()), dict(signature.get("kwargs") or {})
    return {"task": task, "args": args, "kwargs": kwargs, **kept, **({"options": said} if said else {})}


def _free_name(signature: Signature, own: Mapping[str, Any], taken: dict[str, int]) -> str:
    """Return the name that is given, or one after the task: the second `shop.fetch` is `fetch-2`."""
    if own.get("name"):
        return str(own["name"])
    short = str(signature.get("task")).rpartition(".")[2][:90]
    taken[short] = taken.get(short, 0) + 1
    return short if taken[short] == 1 else f"{short}-{taken[short]}"


def refuse_plain(step: str, task: Any) -> None:
    """Raise if a step's task is known and none of ours: when it ends is not seen, so nothing could follow it."""
    if task is not None and not getattr(task, "tm_gated", False):
        problem = f"{task.name} is a plain Celery task, whose end is not seen"
        raise InvalidValue(f"step {step!r}", problem, "give the task base=celery_tm.Task")


def refuse_unknown_hooks(installation: Installation, stated: Mapping[str, Any]) -> None:
    """Raise if a hook is stated that is neither a task nor a callable of this app."""
    app = installation.app
    for hook in (stated[name] for name in HOOKS if stated.get(name)):
        if hook.startswith(HOOK_PREFIX):
            name = hook.removeprefix(HOOK_PREFIX)
            if name not in installation.hooks:
                raise UnknownHook(name, nearest(name, installation.hooks))
        elif hook not in app.tasks:
            raise UnknownTask(hook, nearest(hook, own_tasks(app)))
    if stated.get("on_start_blocking") and stated.get("on_start"):
        refuse_plain("on_start", app.tasks.get(stated["on_start"]))


def own_tasks(app: Celery) -> list[str]:
    """Return the names of the tasks that are neither Celery's nor ours."""
    return [name for name in app.tasks if not name.startswith(("celery.", "celery_tm."))]
