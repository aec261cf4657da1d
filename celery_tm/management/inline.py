"""One round of everything in this process: sweep, plan, claim, run. For tests, cron-like set-ups and small installations.

Bodies run through Celery's own tracer, the gate and the recorder, exactly as a worker would run them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import states
from celery.app.trace import build_tracer

from .. import clock
from ..domain.codec import decode
from ..domain.execution import Failure
from ..domain.job import Job
from ..domain.retry import TryAgain
from ..errors import OUT_OF_REACH
from ..installation import Installation, node_name
from ..recovery.reaper import reap
from ..recovery.sweeper import sweep
from ..scheduler.adoption import adopt_all
from ..scheduler.dispatcher import Dispatcher
from ..scheduler.planner import Planner
from ..store import claims
from ..worker import gate, outcome_texts, recorder
from ..worker.chunk import request_of
from ..worker.context import JobContext
from ..worker.lease import keeper_of


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
        swept = _sweep(installation, limit)
        swept += len(reap(installation.database, limit=limit, aside=installation))
        adopt_all(installation)
        planned = _plan(Planner(installation))
        claimed, live, ended = 0, 0, list[str]()
        while taken := _round(installation, node, limit - claimed):
            claimed, live, ended = claimed + taken.claimed, live + taken.live, ended + taken.ended
            if not taken.goes_on:
                break
    counts = {name: ended.count(name) for name in ("succeeded", "retried", "failed", "skipped")}
    return RunSummary(planned=planned, claimed=claimed, swept=swept, expired=claimed - live, **counts)


def _sweep(installation: Installation, limit: int) -> int:
    """Put back jobs whose lease has ended; running ones only if their workers had the time of a lease to renew it."""
    lease, up_for = installation.settings.tm_lease.total_seconds(), installation.database.up_for()
    swept = sweep(
        installation.database, default=installation.default_policy, limit=limit, aside=installation,
        running=up_for is None or up_for >= lease, dispatch_lease=installation.settings.tm_dispatch_lease,
    )  # fmt: skip
    return len(swept)


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
    dispatcher.relieve(at_once=True)
    claimed, live = dispatcher.claim(limit)
    sent = dispatcher.take_over(limit - claimed) if claimed < limit else []
    claimed, live = claimed + len(sent), [*live, *sent]
    single = dispatcher.expand(live)
    ended = _run_all(installation, dispatcher, single)
    goes_on = len(single) < len(live) or any(job.is_step for job in single)
    return _Round(claimed=claimed, live=len(live), ended=ended, goes_on=goes_on)


def _run_all(installation: Installation, dispatcher: Dispatcher, claimed: Sequence[Job]) -> list[str]:
    """Run claimed jobs, and say how each ended; one that cannot be run has failed, and what was not reached waits again."""
    ended = list[str]()
    try:
        for job in claimed:
            try:
                ended.append(run_job(installation, job, dispatcher.node))
            except OUT_OF_REACH:
                raise
            except Exception as wrong:  # with this job; the others run
                has_failed = dispatcher.fail(job, f"it cannot run: {type(wrong).__name__}: {installation.hidden(wrong)}")
                ended.append("failed" if has_failed else "skipped")
    finally:
        if left := claimed[len(ended) :]:
            with suppress(*OUT_OF_REACH):  # then their leases end
                installation.database.run(lambda tx: claims.release(tx, left))
    return ended


def _plan(planner: Planner) -> int:
    total, more = 0, True
    while more:
        planned = planner.plan_due()
        total, more = total + planned.definitions, planned.more
    return total


def run_job(installation: Installation, job: Job, node: str) -> str:
    """Run one claimed job and say how it ended."""
    task = installation.app.tasks.get(job.task)
    if task is None:
        admitted = gate.admit_job(installation, job.id, job.attempt, worker=node, occurring=job.occurrence is not None).job
        if admitted is not None and admitted.ended is None:
            recorder.record_failure(installation, admitted, Failure(error=f"NotRegistered: no task {job.task!r} here"))
        return "failed"
    if installation.is_plain(job.task):
        return _run_plain(installation, task, job, node)
    traced = _trace(installation, task, job, node)
    if (info := traced.info) is None:
        return "succeeded"
    return {states.RETRY: "retried", states.FAILURE: "failed"}.get(info.state, "skipped")


def _trace(installation: Installation, task: Any, job: Job, node: str) -> Any:
    tracer = build_tracer(task.name, task, app=installation.app, hostname=node)
    args, kwargs = decode(job.args), decode(job.kwargs)
    if not isinstance(args, (list, tuple)) or not isinstance(kwargs, dict):
        raise TypeError("its args are no list, or its kwargs no mapping")
    traced = tracer(job.id, args, kwargs, request_of(job, node, args, kwargs))
    if traced.info is None and isinstance(traced.retval, ExceptionInfo):  # the tracer itself failed
        raise traced.retval.exception
    return traced


def _run_plain(installation: Installation, task: Any, job: Job, node: str) -> str:
    """Run a task that has no gate of its own between ours: here its end is seen."""
    admitted = gate.admit_job(installation, job.id, job.attempt, worker=node, occurring=job.occurrence is not None).job
    if admitted is None:
        return "skipped"
    context = JobContext(admitted, installation)
    if clock.moved_time() is None:
        keeper_of(installation).hold(context)
    try:
        traced = _trace(installation, task, admitted, node)
    finally:
        keeper_of(installation).let_go(context)
    if traced.info is None or traced.info.state not in (states.RETRY, states.FAILURE):
        recorder.record_success(installation, admitted, traced.retval)
        return "succeeded"
    then = recorder.record_failure(installation, admitted, outcome_texts.failure_of(traced.info.retval))
    return "retried" if isinstance(then, TryAgain) else "failed"
