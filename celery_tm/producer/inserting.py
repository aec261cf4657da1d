"""Writing jobs: one INSERT each or for all, the key's answer, and the publish right after commit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from .. import clock
from ..domain.job import Job, JobState, Status
from ..errors import DuplicateKey, TmError
from ..installation import Installation, node_name
from ..publisher import ONE_MORE_TRY, hand_over, publish
from ..store import executions, jobs, keys, lanes
from ..store.database import Transaction
from .handle import JobHandle
from .request import Request
from .writing import AfterCommit, write

logger = logging.getLogger(__name__)


def write_requests(installation: Installation, requests: Sequence[Request], session: Any) -> list[JobHandle]:
    """Write checked requests in one transaction and return their handles, in order."""
    return write(installation, session, lambda tx, after_commit: _write(installation, requests, tx, after_commit))


def _write(
    installation: Installation, requests: Sequence[Request], tx: Transaction, after_commit: AfterCommit | None
) -> list[JobHandle]:
    publishes = after_commit is not None and installation.settings.tm_max_in_flight is None
    ready = [_prepared(request, publishes=publishes) for request in requests]
    if len(ready) == 1:
        handles = [_insert_one(installation, tx, ready[0])]
    else:
        handles = _insert_many(installation, tx, ready)
    created = {handle.id for handle in handles if handle.created}
    mine = [request for request in ready if request.job.id in created]
    if any(request.job.state is JobState.PENDING and _is_soon(installation, request) for request in mine):
        tx.wake()
    outgoing = [request.job for request in mine if request.job.state is JobState.DISPATCHED]
    if outgoing and after_commit is not None:
        after_commit(lambda: _publish(installation, outgoing))
    return handles


def _prepared(request: Request, *, publishes: bool) -> Request:
    """Write what is due at once as dispatched, if this process will know when to publish it and nothing limits it."""
    if not (request.is_immediate and publishes) or request.job.slot or clock.moved_time() is not None:
        return request
    job = replace(request.job, state=JobState.DISPATCHED, claimed_by=node_name("producer"), dispatches=1)
    return replace(request, job=job)


def _is_soon(installation: Installation, request: Request) -> bool:
    """Say whether the job may be due before the next poll; later ones are seen in time anyway."""
    wait = request.delay if request.delay is not None else request.job.original_delay
    return wait < installation.settings.tm_poll_interval


def _lease(installation: Installation, request: Request) -> timedelta | None:
    return installation.settings.tm_dispatch_lease if request.job.state is JobState.DISPATCHED else None


def _insert_one(installation: Installation, tx: Transaction, request: Request, tries: int = 3) -> JobHandle:
    task, key = request.job.task, request.job.dedupe_key
    if key is not None and tx.dialect.asks_key_first and (done := keys.find_kept(tx, task, key)):
        return _taken(installation, request, done.job, done.done_at, Status.SUCCEEDED)
    written = jobs.insert_after(tx, request.job, delay=request.delay, lease=_lease(installation, request))
    if written is None:
        return _met(installation, tx, request, tries)
    if request.names_id and executions.is_recorded(tx, request.job.id):
        jobs.remove_waiting(tx, written.id, written.attempt)
        return _taken(installation, request, written.id, written.run_at, Status.SCHEDULED)
    # Asked after the insert: if that waited for the success of the same key to commit, it shows here.
    done = keys.find_kept(tx, task, key) if key is not None else None
    if done is None:
        return handle_of(installation, written, created=True)
    jobs.remove_waiting(tx, written.id, written.attempt)
    return _taken(installation, request, done.job, done.done_at, Status.SUCCEEDED)


def _met(installation: Installation, tx: Transaction, request: Request, tries: int = 3) -> JobHandle:
    """The key, or the id, is taken: replace, return or raise, as the caller wishes."""
    job = request.job
    if request.on_duplicate == "replace" and job.dedupe_key is not None:
        before = jobs.find_by_key(tx, job.task, job.dedupe_key)
        replaced = jobs.replace_pending(tx, replace(job, state=JobState.PENDING), delay=request.delay)
        if replaced:
            if before is not None:
                lanes.free(tx, before)  # it may have been its turn, and now it comes later
            tx.wake()
            return handle_of(installation, replaced, created=False)
    existing = jobs.find_by_key(tx, job.task, job.dedupe_key) if job.dedupe_key else jobs.find(tx, job.id)
    if existing is not None:
        return _taken(installation, request, existing.id, existing.run_at, existing.status)
    if job.dedupe_key and (done := keys.find_kept(tx, job.task, job.dedupe_key)):
        return _taken(installation, request, done.job, done.done_at, Status.SUCCEEDED)
    # It was there and is gone: cancelled or buried this moment. Now the key is free.
    if tries:
        return _insert_one(installation, tx, request, tries - 1)
    raise DuplicateKey(job.task, job.dedupe_key or job.id, "another transaction's")


def _insert_many(installation: Installation, tx: Transaction, requests: Sequence[Request]) -> list[JobHandle]:
    if any(request.on_duplicate == "replace" or request.names_id for request in requests):
        return [_insert_one(installation, tx, request) for request in requests]
    now = tx.read_now()
    rows = [_timed(installation, request, now) for request in requests]
    new = jobs.insert_many(tx, rows)
    pairs = [(row.task, row.dedupe_key) for row in rows if row.dedupe_key is not None]
    done = keys.find_all_kept(tx, pairs)
    owed = jobs.find_by_keys(tx, [pair for pair in pairs if pair not in done]) if pairs else {}
    handles = []
    for request, row in zip(requests, rows, strict=True):
        pair = (row.task, row.dedupe_key or "")
        if pair in done:
            if row.id in new:
                jobs.remove_waiting(tx, row.id, row.attempt)
            handles.append(_taken(installation, request, done[pair].job, done[pair].done_at, Status.SUCCEEDED))
        elif row.id in new:
            handles.append(handle_of(installation, row, created=True))
        elif pair in owed:
            handles.append(_taken(installation, request, owed[pair].id, owed[pair].run_at, owed[pair].status))
        else:
            handles.append(_met(installation, tx, request))
    return handles


def _timed(installation: Installation, request: Request, now: datetime) -> Job:
    lease = _lease(installation, request)
    job = replace(request.job, created_at=now, run_at=request.job.run_at if request.delay is None else now + request.delay)
    return job if lease is None else replace(job, claimed_at=now, lease_until=now + lease)


def handle_of(installation: Installation, job: Job, *, created: bool) -> JobHandle:
    """Return the handle of a job."""
    return JobHandle(
        id=job.id,
        task=job.task,
        created=created,
        run_at=job.run_at,
        key=job.dedupe_key,
        installation=installation,
        known=job.status,
    )


def _taken(installation: Installation, request: Request, id: str, run_at: datetime, known: Status) -> JobHandle:
    job = request.job
    if request.on_duplicate == "raise":
        raise DuplicateKey(job.task, job.dedupe_key or job.id, id)
    return replace(handle_of(installation, job, created=False), id=id, run_at=run_at, known=known)


def _publish(installation: Installation, outgoing: Sequence[Job]) -> None:
    """Publish after commit. Nothing here may raise: the rows are written, and beat is the safety net."""
    published = publish(installation, outgoing, policy=ONE_MORE_TRY, replies=True)
    try:
        hand_over(installation, published.sent)
        if published.refused:
            installation.database.run(lambda tx: jobs.release(tx, published.refused))
    except TmError:
        logger.warning("%d jobs were not settled; beat looks after them when their lease ends", len(outgoing))
