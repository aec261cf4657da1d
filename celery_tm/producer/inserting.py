"""Writing jobs: one INSERT each or for all, the key's answer, and the publish right after commit."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from .. import clock
from ..domain.facts import Created
from ..domain.job import Job, JobState, Status
from ..domain.workflow import TASK
from ..errors import DatabaseUnavailable, DuplicateId, DuplicateKey, TmError
from ..installation import Installation, node_name
from ..publisher import ONE_MORE_TRY, hand_over, publish, put_back, put_back_unsendable
from ..store import claims, dead_letters, executions, insertion, jobs, keys, lanes
from ..store.body import joined_by
from ..store.database import Transaction
from ..store.dead_letters import DeadLetter
from .handle import JobHandle
from .request import Request
from .writing import AfterCommit, write

logger = logging.getLogger(__name__)
T = TypeVar("T")


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
        is_callers = tx.freed is not None
        after_commit(lambda: _publish(installation, [request.job for request in outgoing], check=is_callers))
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
    if request.on_failed == "return" and key is not None and (letter := _find_letter(tx, task, key)):
        return _taken(installation, request, letter.id, letter.job.run_at, Status.FAILED)
    if key is not None and tx.dialect.asks_key_first:
        if done := _find_kept(installation, tx, task, key):
            return _taken(installation, request, done.job, done.done_at, done.status)
        returns, body = request.on_duplicate != "replace", joined_by(installation.database, None)
        known = _find_owed(installation, tx, task, key) if returns or body is not None else None
        if known is not None and (returns or (body is not None and body.job == known.id)):  # it runs: nothing replaces it
            return _taken(installation, request, known.id, known.run_at, known.status)
    written = insertion.insert_one(tx, draft, fresh=key is None and not request.names_id)
    if written is None:
        return _met(installation, tx, request, tries)
    if request.names_id and not _is_new_call(tx, request):
        _take_back(tx, [draft])
        return _taken(installation, request, draft["id"], written.run_at(draft), Status.SCHEDULED)
    # Asked after the insert: if that waited for the success of the same key to commit, it shows here.
    done = _find_kept(installation, tx, task, key) if key is not None else None
    if done is None:
        return _handle(installation, request, written.run_at(draft))
    _take_back(tx, [draft])
    return _taken(installation, request, done.job, done.done_at, done.status)


def _find_letter(tx: Transaction, task: str, key: str) -> DeadLetter | None:
    """Return the dead letter that has a key, unless a later job has it, or has succeeded with it."""
    if jobs.find_by_key(tx, task, key, locking=False) or keys.find_kept(tx, task, key, locking=False):
        return None
    return dead_letters.find_by_key(tx, task, key)


def _find_kept(installation: Installation, tx: Transaction, task: str, key: str) -> keys.DoneKey | None:
    """Return how a key ended that is still kept.

    In a caller's transaction nothing is locked on MySQL: at its default isolation level a locking read that finds nothing
    locks the gap around it, where others have keys to write. What the caller's snapshot does not show, another one does.
    """
    if tx.freed is None or not tx.dialect.asks_key_first:
        return keys.find_kept(tx, task, key, any_end=True)
    found = keys.find_kept(tx, task, key, locking=False, any_end=True)
    return found or _aside(installation, lambda own: keys.find_kept(own, task, key, locking=False, any_end=True))


def _find_owed(installation: Installation, tx: Transaction, task: str, key: str) -> Job | None:
    """Return the job that has a key, for a caller's transaction: an insert that meets it would lock it until the commit."""
    if tx.freed is None:
        return None
    found = jobs.find_by_key(tx, task, key, locking=False)
    return found or _aside(installation, lambda own: jobs.find_by_key(own, task, key, locking=False))


def _note_locked(installation: Installation, tx: Transaction, ids: Collection[str]) -> None:
    """Note that a body's transaction has locked the row of its own job, where an insert locks the row that it meets."""
    body = joined_by(installation.database, None)
    if body is not None and tx.dialect.asks_key_first and body.job in ids:
        body.holds_row = True


def _aside(installation: Installation, ask: Callable[[Transaction], T | None]) -> T | None:
    """Ask in a transaction of our own, beside the caller's; if there is no connection for it, the gate finds out later."""
    try:
        with installation.database.transaction(write=False) as own:
            return ask(own)
    except DatabaseUnavailable:
        return None


def _is_new_call(tx: Transaction, request: Request) -> bool:
    """Say whether a call with a chosen id has not run yet; other calls with that id may have, as of a frozen signature."""
    id = request.draft["id"]
    return not executions.is_recorded(tx, id) or executions.next_attempt(tx, id, request.job.call) is not None


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
        _note_locked(installation, tx, [existing.id])
        if (
            request.names_id
            and existing.id == id
            and None not in (calls := {existing.call, request.job.call})
            and len(calls) > 1
        ):
            raise DuplicateId(task, id)
        return _taken(installation, request, existing.id, existing.run_at, existing.status)
    if key and (done := keys.find_kept(tx, task, key, any_end=True)):
        return _taken(installation, request, done.job, done.done_at, done.status)
    # It was there and is gone: cancelled or buried this moment. Now the key is free.
    if tries:
        return _insert_one(installation, tx, request, tries - 1)
    raise DuplicateKey(task, key or id, "another transaction's")


def _insert_many(installation: Installation, tx: Transaction, requests: Sequence[Request]) -> list[JobHandle]:
    if any(_goes_alone(request) for request in requests):
        return [_insert_one(installation, tx, request) for request in requests]
    drafts = [request.draft for request in requests]
    written = insertion.insert_many(tx, drafts)
    wanted = [(draft["task"], key) for draft in drafts if (key := draft.get("dedupe_key")) is not None]
    done = keys.find_all_kept(tx, wanted, any_end=True)  # after the insert, as for one
    if not done and written.new is None:
        return [_handle(installation, request, written.run_at(request.draft)) for request in requests]
    _take_back(tx, [draft for draft in drafts if _pair(draft) in done and written.is_new(draft)])
    met = {_pair(one) for one in drafts if not written.is_new(one)} - done.keys()
    owed = jobs.find_by_keys(tx, sorted(met))
    _note_locked(installation, tx, {one.id for one in owed.values()})
    handles = []
    for request, draft in zip(requests, drafts, strict=True):
        pair = _pair(draft)
        if pair in done:
            handles.append(_taken(installation, request, done[pair].job, done[pair].done_at, done[pair].status))
        elif written.is_new(draft):
            handles.append(_handle(installation, request, written.run_at(draft)))
        elif pair in owed:
            handles.append(_taken(installation, request, owed[pair].id, owed[pair].run_at, owed[pair].status))
        else:
            handles.append(_met(installation, tx, request))
    return handles


def _goes_alone(request: Request) -> bool:
    """Say whether a request needs questions of its own, so that it is not written with the others."""
    asks = request.on_duplicate == "replace" or request.on_failed == "return"
    return request.names_id or (asks and _is_keyed(request))


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


def _publish(installation: Installation, outgoing: Sequence[Job], *, check: bool) -> None:
    """Publish after commit. Nothing here may raise: the rows are written, and beat is the safety net.

    `check`: the transaction was the caller's, so some of the rows may not have been committed with it.
    """
    if check:
        outgoing = _committed(installation, outgoing)
    published = publish(installation, outgoing, policy=ONE_MORE_TRY, replies=True)
    try:
        hand_over(installation, published.sent)
        put_back(installation, published)
        put_back_unsendable(installation, published)
    except TmError:
        logger.warning("%d jobs were not settled; beat looks after them when their lease ends", len(outgoing))


def _committed(installation: Installation, outgoing: Sequence[Job]) -> Sequence[Job]:
    """Return the jobs without plain tasks whose rows are gone.

    A caller may cancel in the same transaction, roll back a savepoint that its Session does not know, or commit after
    MySQL rolled back a deadlock. The gate refuses such messages, but a plain task has no gate.
    """
    plain = [job.id for job in outgoing if installation.is_plain(job.task)]
    if not plain:
        return outgoing
    try:
        with installation.database.transaction(write=False) as tx:
            there = claims.still_dispatched(tx, plain, node=node_name("producer"))
    except Exception as error:
        logger.warning("%d plain tasks are not published now; beat publishes them: %s", len(plain), error)
        there = set()
    return [job for job in outgoing if job.id not in plain or job.id in there]
