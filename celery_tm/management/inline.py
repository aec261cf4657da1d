"""One round of everything in this process: sweep, plan, claim, run. For tests, cron-like set-ups and small installations.

Bodies run through Celery's own tracer, the gate and the recorder, exactly as a worker would run them.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery import states
from celery.app.trace import build_tracer

from .. import clock
from ..domain.codec import decode
from ..domain.execution import Failure
from ..domain.job import Job
from ..domain.retry import TryAgain
from ..installation import Installation, node_name
from ..recovery.reaper import reap
from ..recovery.sweeper import sweep
from ..scheduler.dispatcher import Dispatcher
from ..scheduler.planner import Planner
from ..worker import gate, recorder
from ..worker.chunk import request_of


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """What one round did."""

    planned: int = 0
    claimed: int = 0
    succeeded: int = 0
    retried: int = 0
    failed: int = 0
    skipped: int = 0
    expired: int = 0
    swept: int = 0


def run_due(installation: Installation, *, now: datetime | None, limit: int) -> RunSummary:
    """Do one round, as if it were `now`."""
    node = node_name("inline")
    with clock.moved_to(now) if now is not None else nullcontext():
        swept = len(sweep(installation.database, default=installation.default_policy, limit=limit))
        swept += len(reap(installation.database, limit=limit))
        planned = _plan(Planner(installation))
        claimed, live, ended = 0, 0, list[str]()
        while taken := _round(installation, node, limit - claimed):
            claimed, live, ended = claimed + taken.claimed, live + taken.live, ended + taken.ended
            if not taken.goes_on:
                break
    counts = {name: ended.count(name) for name in ("succeeded", "retried", "failed", "skipped")}
    return RunSummary(planned=planned, claimed=claimed, swept=swept, expired=claimed - live, **counts)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Round:
    """What was claimed at once. It goes on if runs were started, or steps have ended: others may be due by that."""

    claimed: int
    live: int
    ended: list[str]
    goes_on: bool


def _round(installation: Installation, node: str, limit: int) -> _Round | None:
    if limit < 1:
        return None
    dispatcher = Dispatcher(installation, node)
    claimed, live = dispatcher.claim(limit)
    single = dispatcher.expand(live)
    ended = [_run(installation, job, node) for job in single]
    goes_on = len(single) < len(live) or any(job.is_step for job in single)
    return _Round(claimed=claimed, live=len(live), ended=ended, goes_on=goes_on)


def _plan(planner: Planner) -> int:
    total, more = 0, True
    while more:
        planned = planner.plan_due()
        total, more = total + planned.definitions, planned.more
    return total


def _run(installation: Installation, job: Job, node: str) -> str:
    """Run one claimed job and say how it ended."""
    task = installation.app.tasks.get(job.task)
    if task is None:
        admitted = gate.admit_job(installation, job.id, job.attempt, worker=node, occurring=job.occurrence is not None).job
        if admitted is not None and admitted.ended is None:
            recorder.record_failure(installation, admitted, Failure(error=f"NotRegistered: no task {job.task!r} here"))
        return "failed"
    if installation.is_plain(job.task):
        return _run_plain(installation, task, job, node)
    info = _trace(installation, task, job, node).info
    if info is None:
        return "succeeded"
    return {states.RETRY: "retried", states.FAILURE: "failed"}.get(info.state, "skipped")


def _trace(installation: Installation, task: Any, job: Job, node: str) -> Any:
    tracer = build_tracer(task.name, task, app=installation.app, hostname=node)
    args, kwargs = decode(job.args), decode(job.kwargs)
    return tracer(job.id, args, kwargs, request_of(job, node, args, kwargs))


def _run_plain(installation: Installation, task: Any, job: Job, node: str) -> str:
    """Run a task that has no gate of its own between ours: here its end is seen."""
    admitted = gate.admit_job(installation, job.id, job.attempt, worker=node, occurring=job.occurrence is not None).job
    if admitted is None:
        return "skipped"
    traced = _trace(installation, task, admitted, node)
    if traced.info is None or traced.info.state not in (states.RETRY, states.FAILURE):
        recorder.record_success(installation, admitted, traced.retval)
        return "succeeded"
    then = recorder.record_failure(installation, admitted, recorder.failure_of(traced.info.retval))
    return "retried" if isinstance(then, TryAgain) else "failed"
