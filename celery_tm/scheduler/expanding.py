"""Starting a run: the job that stands for a whole workflow is claimed like any other, and then gives way to its steps.

It stays as running, without a lease, until the last step has ended: so what takes turns with it waits, and its key is taken.
If beat dies before this is written, the job's dispatch lease ends and it is claimed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..domain.codec import decode, encode
from ..domain.definition import Definition, stated
from ..domain.effective import Effective, effective
from ..domain.facts import RunMoved
from ..domain.job import Job
from ..domain.occurrence import Occurrence, OccurrenceState
from ..domain.overrides import stated_with
from ..domain.replaying import begun_again, chosen_steps
from ..domain.run import DEFERRED, ON_START, Run, RunStep, hook_call, report_of, settings_of, shortened, steps_of
from ..domain.steps import read_steps
from ..domain.workflow import Mode, Stages, Step, StepState, led_by
from ..errors import InvalidValue
from ..installation import Installation
from ..store import claims, definitions, occurrences, progress, settlement, versions, workflows
from ..store.database import Transaction

# What a workflow states as a whole and its run keeps.
COMMON = (
    "failure_strategy", "queue", "priority", "max_retries", "retry", "task_timeout", "mode", "max_parallel", "terminate",
    "on_start", "on_start_blocking", "on_complete",
)  # fmt: skip
ONLY_STEP = "main"  # the name of the step of a definition that has hooks and one task


def expand(installation: Installation, root: Job) -> bool:
    """Start the run that a claimed job stands for; False if somebody was faster."""
    return installation.database.run(lambda tx: _expand(tx, installation, root))


def _expand(tx: Transaction, installation: Installation, root: Job) -> bool:
    id = root.occurrence or root.id
    if not claims.begin_run(tx, root.id, root.attempt, occurrence=id):
        return False
    run, steps = _planned(tx, installation, replace(root, occurrence=id))
    if root.occurrence is None:
        occurrences.insert_many(tx, [_occurrence_of(root, run)])
    occurrences.start(tx, id, deadline=tx.later(root.execution_timeout or installation.settings.tm_stuck_after))
    report = shortened(report_of(run, steps, [], ending=None, now=run.created_at))
    told = [run.told(OccurrenceState.RUNNING), report]
    workflows.insert_run(tx, run, [_told_hook(run, step, told) for step in steps])
    tx.tell(RunMoved(root.definition, id, OccurrenceState.RUNNING, len(steps)))
    if not run.settings.get("on_start_blocking"):  # one that blocks is the first step
        progress.call_hook(tx, run, ON_START, told)
    settlement.close_if_over(tx, progress.begin(tx, run))
    return True


def _told_hook(run: Run, step: RunStep, told: Sequence[Any]) -> RunStep:
    """Return the step of a hook that blocks with its arguments; any other as it is."""
    if step.name != ON_START or step.state is not StepState.WAITING:
        return step
    return replace(step, args=encode(hook_call(run.settings[ON_START], told)[1], field=ON_START))


def _occurrence_of(root: Job, run: Run) -> Occurrence:
    return Occurrence(
        id=run.id, definition=DEFERRED, version=0, scheduled_at=root.run_at, state=OccurrenceState.RUNNING,
        decided_at=run.created_at, replay_of=(run.settings.get("replay") or {}).get("of"),
    )  # fmt: skip


def _planned(tx: Transaction, installation: Installation, root: Job) -> tuple[Run, list[RunStep]]:
    """Return the run, and its steps with the settings that are in force for each."""
    said: Mapping[str, Any] = decode(root.kwargs) or {}
    if "replay" in said:
        return _replayed(tx, root, said["replay"])
    level = "workflow" if "steps" in said else "definition"
    values = said if "steps" in said else _stated(tx, root)
    stages = read_steps(stated_steps(values))
    common = {name: values[name] for name in COMMON if values.get(name) is not None}
    settings, mode = settings_by_step(installation, stages, common, level=level), Mode(common.get("mode", Mode.SEQUENTIAL))
    if common.get("on_start_blocking"):
        hook = Step(name=ON_START, task=hook_call(common[ON_START], ())[0])
        # It is tried again as its own task says, whatever the strategy of the steps.
        settings[ON_START] = effective(hook, {}, installation.task_defaults(hook.task))
        stages = led_by(hook, stages, mode)
    steps, remaining = steps_of(root.occurrence or "", stages, mode, settings)
    return _run(tx, root, settings_of(root, common), remaining), steps


def _run(tx: Transaction, root: Job, settings: Mapping[str, Any], remaining: Sequence[int]) -> Run:
    return Run(
        id=root.occurrence or "",
        job=root.id,
        attempt=root.attempt,
        remaining=remaining,
        settings=settings,
        created_at=tx.read_now(),
        app=root.app,
    )


def settings_by_step(
    installation: Installation, stages: Stages, common: Mapping[str, Any], *, level: str
) -> dict[str, Effective]:
    """Return the settings in force for each step."""
    found = {}
    for step in (step for stage in stages for step in stage):
        found[step.name] = effective(step, common, installation.task_defaults(step.task), level=level)
    return found


def stated_steps(values: Mapping[str, Any]) -> Sequence[Any]:
    """Return the steps that a definition states; one that has only hooks has a single step."""
    if values.get("steps"):
        return list(values["steps"])
    only = {"name": ONLY_STEP, "task": values["task"], "args": values.get("args", []), "kwargs": values.get("kwargs", {})}
    return [only | ({"options": values["options"]} if values.get("options") else {})]


def _stated(tx: Transaction, root: Job) -> Mapping[str, Any]:
    """Return what the definition stated when this occurrence was decided: an edit affects those that come after it."""
    occurrence = occurrences.find(tx, root.occurrence or "")
    definition: Definition | None = definitions.find_by_id(tx, occurrence.definition) if occurrence else None
    if occurrence is None:
        raise InvalidValue("workflow", "its occurrence is gone", "trigger its definition again")
    return stated_with(_of_version(tx, occurrence, definition), occurrence.overrides)


def _of_version(tx: Transaction, occurrence: Occurrence, definition: Definition | None) -> Mapping[str, Any]:
    if definition is not None and definition.version == occurrence.version:
        return stated(definition)
    kept = versions.find(tx, occurrence.definition, occurrence.version)
    if kept is None and definition is None:
        raise InvalidValue("workflow", "its definition was removed", "add the definition again and trigger it")
    return kept.stated if kept is not None else stated(definition)  # type: ignore[arg-type]


def _replayed(tx: Transaction, root: Job, wanted: Mapping[str, Any]) -> tuple[Run, list[RunStep]]:
    """Return a run of the same steps as an earlier one, in which those that are not to run again are done already."""
    original, steps = workflows.find(tx, wanted["of"]), workflows.steps_of(tx, wanted["of"])
    # Steps are pruned after their occurrence is gone, so they are all here if it still is.
    if original is None or occurrences.find(tx, original.id) is None:
        raise InvalidValue("replay", f"the run {wanted['of']} was pruned", "trigger its definition instead")
    again = chosen_steps(steps, step=wanted.get("step"), from_step=wanted.get("from_step"))
    made, remaining = begun_again(steps, root.occurrence or "", again)
    settings = {**original.settings, **settings_of(root, {}), "replay": dict(wanted)}
    return _run(tx, root, settings, remaining), made
