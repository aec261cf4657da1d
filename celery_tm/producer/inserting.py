"""Writing jobs: one INSERT each or for all, the key's answer, and the publish right after commit."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from .. import clock
from ..domain.facts import Created
from ..domain.job import Job, JobState, Status
from ..domain.workflow import TASK
from ..errors import DuplicateKey, TmError
from ..installation import Installation, node_name
from ..publisher import ONE_MORE_TRY, hand_over, publish
from ..store import executions, insertion, jobs, keys, lanes
from ..store.database import Transaction
from .handle import JobHandle
from .request import Request
from .writing import AfterCommit, write

logger = logging.getLogger(__name__)


def write_requests(installation: Installation, requests: Sequence[Request], session: Any) -> list[JobHandle]:
    """Write checked requests in one transaction and return their handles, in order."""

    def work(tx: Transaction, after_commit: AfterCommit | None) -> list[JobHandle]:
        return _write(installation, requests, tx, after_commit)

    return write(installation, session, work, alone=_is_single(installation, requests))


def _is_single(installation: Installation, requests: Sequence[Request]) -> bool:
    """Say whether one statement is all it takes: nothing to ask afterwards, and nobody to wake."""
    if len(requests) > 1 and not installation.database.dialect.takes_tables:
        return False
    return not any(
        request.names_id
        or _is_keyed(request)
        or (_is_soon(installation, request) and not _may_leave_at_once(installation, request))
        for request in requests
    )


def _write(
    installation: Installation, requests: Sequence[Request], tx: Transaction, after_commit: AfterCommit | None
) -> list[JobHandle]:
    if after_commit is not None:
        requests = _leaving(installation, requests)
    if len(requests) == 1:
        handles = [_insert_one(installation, tx, requests[0])]
    else:
        handles = _insert_many(installation, tx, requests)
    mine = [request for request, handle in zip(requests, handles, strict=True) if handle.created]
    _tell(tx, mine)
    outgoing = [request for request in mine if "lease" in request.draft]
    if any("lease" not in request.draft and _is_soon(installation, request) for request in mine):
        tx.wake()
    if outgoing and after_commit is not None:
        after_commit(lambda: _publish(installation, [request.job for request in outgoing]))
    return handles


def _tell(tx: Transaction, created: Sequence[Request]) -> None:
    if len(created) == 1:
        tx.tell(Created(created[0].draft["task"], 1, created[0].draft["id"]))
        return
    for task, count in Counter(request.draft["task"] for request in created).items():
        tx.tell(Created(task, count))


def _leaving(installation: Installation, requests: Sequence[Request]) -> Sequence[Request]:
    """Return the requests with those that this process publishes right after commit as dispatched."""
    if not any(request.is_immediate for request in requests):
        return requests
    lease = installation.settings.tm_dispatch_lease
    sent = {"state": JobState.DISPATCHED, "claimed_by": node_name("producer"), "dispatches": 1, "lease": lease}
    return [
        request._replace(draft={**request.draft, **sent}) if _may_leave_at_once(installation, request) else request
        for request in requests
    ]


def _is_keyed(request: Request) -> bool:
    return request.draft.get("dedupe_key") is not None


def _may_leave_at_once(installation: Installation, request: Request) -> bool:
    """Say whether a job is due at once and nothing limits it."""
    is_limited = request.draft.get("slot") is not None or installation.settings.tm_max_in_flight is not None
    is_several = request.draft["task"] == TASK  # beat starts its steps
    return request.is_immediate and not is_limited and not is_several and clock.moved_time() is None


def _is_soon(installation: Installation, request: Request) -> bool:
    """Say whether the job may be due before the next poll; later ones are seen in time anyway."""
    wait: Any = request.draft.get("delay")
    return bool((request.draft["original_delay"] if wait is None else wait) < installation.settings.tm_poll_interval)


def _insert_one(installation: Installation, tx: Transaction, request: Request, tries: int = 3) -> JobHandle:
    draft = request.draft
    task, key = draft["task"], draft.get("dedupe_key")
    if key is not None and tx.dialect.asks_key_first and (done := keys.find_kept(tx, task, key)):
        return _taken(installation, request, done.job, done.done_at, Status.SUCCEEDED)
    written = insertion.insert_one(tx, draft, fresh=key is None and not request.names_id)
    if written is None:
        return _met(installation, tx, request, tries)
    if request.names_id and executions.is_recorded(tx, draft["id"]):
        _take_back(tx, [draft])
        return _taken(installation, request, draft["id"], written.run_at(draft), Status.SCHEDULED)
    # Asked after the insert: if that waited for the success of the same key to commit, it shows here.
    done = keys.find_kept(tx, task, key) if key is not None else None
    if done is None:
        return _handle(installation, request, written.run_at(draft))
    _take_back(tx, [draft])
    return _taken(installation, request, done.job, done.done_at, Status.SUCCEEDED)


def _met(installation: Installation, tx: Transaction, request: Request, tries: int = 3) -> JobHandle:
    """The key, or the id, is taken: replace, return or raise, as the caller wishes."""
    id, task, key = request.draft["id"], request.draft["task"], request.draft.get("dedupe_key")
    if request.on_duplicate == "replace" and key is not None:
        before = jobs.find_by_key(tx, task, key)
        replaced = jobs.replace_pending(tx, replace(request.job, state=JobState.PENDING), delay=request.draft.get("delay"))
        if replaced:
            if before is not None:
                lanes.free(tx, before)  # it may have been its turn, and now it comes later
            tx.wake()
            return handle_of(installation, replaced, created=False)
    existing = jobs.find_by_key(tx, task, key) if key else jobs.find(tx, id)
    if existing is not None:
        return _taken(installation, request, existing.id, existing.run_at, existing.status)
    if key and (done := keys.find_kept(tx, task, key)):
        return _taken(installation, request, done.job, done.done_at, Status.SUCCEEDED)
    # It was there and is gone: cancelled or buried this moment. Now the key is free.
    if tries:
        return _insert_one(installation, tx, request, tries - 1)
    raise DuplicateKey(task, key or id, "another transaction's")


def _insert_many(installation: Installation, tx: Transaction, requests: Sequence[Request]) -> list[JobHandle]:
    if any(request.names_id or (request.on_duplicate == "replace" and _is_keyed(request)) for request in requests):
        return [_insert_one(installation, tx, request) for request in requests]
    drafts = [request.draft for request in requests]
    written = insertion.insert_many(tx, drafts)
    wanted = [(draft["task"], key) for draft in drafts if (key := draft.get("dedupe_key")) is not None]
    done = keys.find_all_kept(tx, wanted)  # after the insert, as for one
    if not done and written.new is None:
        return [_handle(installation, request, written.run_at(request.draft)) for request in requests]
    _take_back(tx, [draft for draft in drafts if _pair(draft) in done and written.is_new(draft)])
    met = {_pair(one) for one in drafts if not written.is_new(one)} - done.keys()
    owed = jobs.find_by_keys(tx, sorted(met))
    handles = []
    for request, draft in zip(requests, drafts, strict=True):
        pair = _pair(draft)
        if pair in done:
            handles.append(_taken(installation, request, done[pair].job, done[pair].done_at, Status.SUCCEEDED))
        elif written.is_new(draft):
            handles.append(_handle(installation, request, written.run_at(draft)))
        elif pair in owed:
            handles.append(_taken(installation, request, owed[pair].id, owed[pair].run_at, owed[pair].status))
        else:
            handles.append(_met(installation, tx, request))
    return handles


def _take_back(tx: Transaction, drafts: Sequence[insertion.Draft]) -> None:
    """Remove what was just written, for its work is done already."""
    jobs.remove_all_waiting(tx, [(draft["id"], 1) for draft in drafts])


def _pair(draft: insertion.Draft) -> tuple[str, str]:
    return draft["task"], draft.get("dedupe_key") or ""


def _handle(installation: Installation, request: Request, run_at: datetime) -> JobHandle:
    """Return the handle of a job that was created."""
    draft = request.draft
    key = draft.get("dedupe_key")
    return JobHandle.made(
        id=draft["id"], task=draft["task"], created=True, run_at=run_at, key=key, installation=installation
    )


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
    task, key = request.draft["task"], request.draft.get("dedupe_key")
    if request.on_duplicate == "raise":
        raise DuplicateKey(task, key or request.draft["id"], id)
    return JobHandle(id=id, task=task, created=False, run_at=run_at, key=key, installation=installation, known=known)


def _publish(installation: Installation, outgoing: Sequence[Job]) -> None:
    """Publish after commit. Nothing here may raise: the rows are written, and beat is the safety net."""
    published = publish(installation, outgoing, policy=ONE_MORE_TRY, replies=True)
    try:
        hand_over(installation, published.sent)
        if published.refused:
            installation.database.run(lambda tx: jobs.release(tx, published.refused))
    except TmError:
        logger.warning("%d jobs were not settled; beat looks after them when their lease ends", len(outgoing))
