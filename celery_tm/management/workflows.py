"""What people ask about workflows: the settings that hold for a step, and the report of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..domain.definition import Definition, stated
from ..domain.effective import Effective
from ..domain.occurrence import Occurrence
from ..domain.run import report_of
from ..domain.steps import HOOKS, read_steps
from ..domain.workflow import TASK
from ..errors import InvalidValue, OccurrenceNotFound, UnknownStep, UnknownTask, nearest
from ..installation import Installation
from ..producer.workflows import own_tasks, refuse_plain, refuse_unknown_hooks
from ..scheduler.expanding import settings_by_step, stated_steps
from ..store import executions, jobs, occurrences, tables, workflows
from ..store.database import Transaction
from ..store.rows import readable


def effective(installation: Installation, definition: Definition, step: str | None) -> Effective | Mapping[str, Effective]:
    """Return the settings in force for a step with who states each, or those of all steps by name."""
    values = stated(definition)
    found = settings_by_step(installation, read_steps(stated_steps(values)), values, level="definition")
    if step is None:
        return found
    if step not in found:
        raise UnknownStep(step, nearest(step, found))
    return found[step]


def report(installation: Installation, occurrence: str) -> Mapping[str, Any]:
    """Return the report of a run: as it was written when it ended, else as it stands now."""
    with installation.database.transaction(write=False) as tx:
        found = occurrences.find(tx, occurrence)
        with readable(tables.job, occurrence):
            deferred = jobs.find(tx, occurrence) if found is None else None
        told = report_in(tx, found) if found is not None else None
        if told is None and TASK in {job.task for job in (deferred, *jobs.of_occurrence(tx, occurrence)) if job}:
            raise InvalidValue("occurrence", f"{occurrence} has not begun", "ask again when it has")
        if found is None:
            raise OccurrenceNotFound(occurrence)
        if told is None:
            raise InvalidValue("occurrence", f"{occurrence} is no run of a workflow", "tm.explain tells what became of it")
        return told


def report_in(tx: Transaction, occurrence: Occurrence) -> Mapping[str, Any] | None:
    """Return the report of an occurrence; None if it is no run of a workflow, or has not begun."""
    with readable(tables.workflow, occurrence.id):
        kept, run = occurrence.report, workflows.find(tx, occurrence.id)
    if run is None or (kept is not None and not kept.get("shortened")):
        return kept
    with readable(tables.step, run.id):
        steps = workflows.steps_of(tx, run.id)
    attempts = executions.of_occurrence(tx, run.id)
    report = report_of(run, steps, attempts, ending=None, now=tx.read_now())
    if kept is None:
        return report
    return {name: value for name, value in kept.items() if name != "shortened"} | {"steps": report["steps"]}


def refuse_unknown(installation: Installation, definition: Definition) -> None:
    """Raise if a step names a task, or a definition a hook, that this app does not have.

    An app without any task of its own only manages definitions, and cannot know.
    """
    app = installation.app
    app.loader.import_default_modules()
    known = own_tasks(app)
    if not known:
        return
    for step in (step for stage in read_steps(definition.steps or []) for step in stage):
        if step.task not in app.tasks:
            raise UnknownTask(step.task, nearest(step.task, known))
        refuse_plain(step.name, app.tasks[step.task])
    refuse_unknown_hooks(installation, {name: getattr(definition, name) for name in (*HOOKS, "on_start_blocking")})


def refuse_new_unknown(installation: Installation, before: Definition, after: Definition) -> None:
    """Raise if an edit names a task for a step, or a hook, that this app does not have; what was there may stay."""
    waiting = after.waiting_edit.values if after.waiting_edit else {}  # it is checked now, while somebody can be told
    wanted = {name: waiting.get(name, getattr(after, name)) for name in ("steps", *HOOKS, "on_start_blocking")}
    if any(getattr(before, name) != value for name, value in wanted.items()):
        refuse_unknown(installation, replace(after, **wanted))
