"""Jobs where `task_always_eager` is set: run at once, in this process, with no database, as Celery runs its calls then."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from celery.result import EagerResult

from ..domain.codec import decode
from ..domain.effective import CASCADED
from ..domain.steps import read_steps
from ..domain.workflow import TASK, Mode, Strategy, in_order
from ..errors import UnknownTask
from ..installation import Installation
from .handle import JobHandle
from .inserting import handle_of
from .request import Request

_results: ContextVar[Mapping[str, Any]] = ContextVar("celery_tm_eager_results")


def results_so_far() -> Mapping[str, Any]:
    """Return what the steps of a workflow that runs eagerly have returned."""
    return _results.get({})


def run_eagerly(installation: Installation, request: Request) -> JobHandle:
    """Run a job's task now, whatever its time, and return a handle that knows how it ended."""
    job, app = request.job, installation.app
    if job.task == TASK:
        result = _run_steps(app, job.id, decode(job.kwargs))
    else:
        _known(app, job.task)
        options = {name: value for name, value in job.options.items() if name in ("link", "link_error", "headers")}
        result = app.tasks[job.task].apply(decode(job.args), decode(job.kwargs), task_id=job.id, **options)
    return replace(handle_of(installation, job, created=True), eager=result)


def _known(app: Any, task: str) -> None:
    if task not in app.tasks:
        raise UnknownTask(task, None)


def _run_steps(app: Any, id: str, stated: Mapping[str, Any]) -> Any:
    """Run the steps of a workflow one after the other; the first failure that stops it is its own."""
    results: dict[str, Any] = {}
    failed: Any = None
    stopped = False
    token = _results.set(results)
    try:
        for step in in_order(read_steps(stated["steps"]), Mode(stated.get("mode", Mode.SEQUENTIAL))):
            if stopped and not step.runs_regardless:
                continue
            _known(app, step.task)
            ended = app.tasks[step.task].apply(decode(step.args), decode(step.kwargs))
            if ended.successful():
                results[step.name] = ended.result
                continue
            failed = failed or ended
            common = stated.get("failure_strategy", CASCADED["failure_strategy"])
            stopped = stopped or step.own.get("failure_strategy", common) != Strategy.CONTINUE
    finally:
        _results.reset(token)
    return failed or EagerResult(id, dict(results), "SUCCESS")
