"""What follows an attempt's end: links, the rest of a chain, a chord's count, errbacks, a replacement.

Celery hands these on itself, after the body, and this only makes sure that it happens: the end is written first, the row
stays, and goes when Celery is done. If the worker dies in between, another one gets the job, does not run the body, and lets
Celery hand on what follows again. Each call that follows has the same id both times, so its gate lets it in once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from celery.canvas import signature
from celery.exceptions import Ignore
from celery.signals import task_failure, task_postrun, task_success

from .. import answers, clock
from ..domain.codec import encode
from ..domain.execution import Outcome
from ..domain.ids import NAMESPACE
from ..domain.job import Job
from ..errors import InvalidValue, TmError
from ..producer.capturing import wait_of
from ..store import executions, following, jobs
from ..store.database import Transaction
from ..store.following import KEEPS_KEY, STAYS
from . import context as contexts
from . import recorder
from .context import JobContext
from .delivery import REPLACES
from .lease import keeper_of
from .signatures import first_calls, parts_of

logger = logging.getLogger(__name__)
LONGEST_WAIT = timedelta(minutes=10)  # between two tries to hand on what follows; doubles from two seconds
LONGEST_HOLD = timedelta(days=1)  # between two messages of a replacement; doubles from the dispatch lease
WHEN = ("eta", "countdown")
NOT_BEFORE = "not_before"  # in `ended`: when a replacement is to be sent
CAME = "came"  # in `ended`: the first calls of a replacement have passed the gate; it is not sent again
JOINS_GROUP = "celery.accumulate"  # what Celery adds to a group that replaces a task
GOES_ON = frozenset({Outcome.SUCCEEDED, Outcome.DEDUPLICATED, Outcome.REPLACED})


class RecordedFailure(TmError):
    """An attempt that failed earlier; it was not run again, only told."""


def worth_keeping(request: Any, context: JobContext, **ended: Any) -> Mapping[str, Any] | None:
    """Return how an attempt ended as its row keeps it while something follows; None where nothing does."""
    follows = request.chain or request.chord or (request.errbacks if "error" in ended else request.callbacks)
    if not follows:
        return None
    listen()
    if "error" in ended:
        name_chord_errbacks(request, context.job)
    return _as_json({**ended, "attempt": context.attempt})


def _as_json(ended: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return an end that a row can keep; one that is not JSON is handed on as plain Celery does, once."""
    try:
        encode(ended, field="ended")
    except InvalidValue:
        return None
    return ended


def hand_on(task: Any, context: JobContext) -> Any:
    """Return, or raise, what the body did when it ran, so that Celery hands on what follows."""
    listen()
    ended = context.ended = context.job.ended or {}
    context.settled = True
    if "replaced" in ended:
        _send_again(context, ended, task.app)
    if _chord_is_claimed(task, context):
        raise Ignore("a chord that it is part of is claimed")  # published again later, as what could not be published
    if "revoked" in ended:
        context.followed = answers.revoked(task, task.request, reason=ended["revoked"])
        raise Ignore(f"it has {ended['revoked']}")
    if "error" in ended:
        name_chord_errbacks(task.request, context.job)
        raise RecordedFailure(ended["error"])
    return ended.get("result")


def _chord_is_claimed(task: Any, context: JobContext) -> bool:
    """Say whether a process holds Celery's claim on a chord that this call is part of.

    Celery 5.7 counts a part on Redis and leaves the chord's body to the process with the claim. If that was killed,
    nobody publishes the body before the claim has expired and a part is counted again.
    """
    backend, request = task.backend, task.request
    if not hasattr(type(backend), "_chord_publish_claim_expires"):
        return False
    groups = [request.group] if request.chord else []
    later = [one.get("options") or {} for one in request.chain or () if isinstance(one, dict)]
    groups += [options.get("group_id") for options in later if options.get("chord")]
    try:
        claims = [backend.client.get(backend.get_key_for_group(group, ".c")) for group in groups if group]
    except Exception as error:  # whatever Redis raises: Celery is about to meet it too
        assert context.installation is not None
        logger.warning("cannot ask for claims on the chord of job %s: %s", context.id, context.installation.hidden(error))
        return False
    return any(claim not in (None, b"done", "done") for claim in claims)


def replace(context: JobContext, sig: Any) -> Any:
    """Write that this attempt is replaced, then send what is put in its place. Always raises Ignore."""
    assert context.installation is not None
    listen()
    last = _with_id(sig, context.id) or sig
    last["options"]["headers"] = {**(last["options"].get("headers") or {}), REPLACES: context.attempt}
    context.finishing = True
    ended = _kept_replacement(context, sig)
    told = f"replaced by {sig.get('task')}"
    recorder.record_replaced(context.installation, context.job, ended, message=told, body=context.body)
    context.roll_back()  # a transactional body that never used its session is over too: what replaces it is no part of it
    context.settled, context.ended = True, ended
    _send(context, sig)


def _kept_replacement(context: JobContext, sig: Any) -> Mapping[str, Any] | None:
    """Return a replacement as the row of the replaced attempt keeps it; None if it is not JSON and there is no key to keep.

    One that is far ahead waits in this row, and is sent without its time when that has come.
    """
    assert context.installation is not None
    installation, firsts = context.installation, first_calls(sig)
    may_stay = all(_may_be_sent_again(installation.app.tasks, one) for one in _all_of(sig))
    if [_id_of(one) for one in firsts] != [context.id]:
        return _as_json({"replaced": dict(sig), **({STAYS: True} if may_stay else {})})
    [first] = firsts
    options = first["options"]
    own_key = may_stay and context.key is not None and first.get("task") == context.job.task
    kept = {KEEPS_KEY: True} if own_key else {STAYS: True} if may_stay else {}
    wait = wait_of(installation.app, options.get("eta"), options.get("countdown"))
    if wait > installation.settings.tm_capture_eta_after:
        timing = {name: options.pop(name) for name in WHEN if name in options}
        ended = _as_json({"replaced": dict(sig), **kept, NOT_BEFORE: (clock.now() + wait).isoformat()})
        if ended is not None:
            return ended
        options.update(timing)
    return _as_json({"replaced": dict(sig), **kept}) or ({"replaced": None, **kept} if own_key else None)


def _may_be_sent_again(tasks: Mapping[str, Any], sig: Mapping[str, Any]) -> bool:
    """Say whether a call that is sent twice runs once, and comes to a gate at last; what comes too late comes to none."""
    if (sig.get("options") or {}).get("expires") is not None:
        return False
    return bool(parts_of(sig)) or sig.get("task") == JOINS_GROUP or (_id_of(sig) is not None and _is_gated(tasks, sig))


def _is_gated(tasks: Mapping[str, Any], sig: Mapping[str, Any]) -> bool:
    return bool(getattr(tasks.get(str(sig.get("task"))), "tm_gated", False))


def _id_of(sig: Mapping[str, Any]) -> Any:
    return (sig.get("options") or {}).get("task_id")


def _all_of(sig: Any) -> list[Any]:
    """Return a signature with all that it is made of."""
    return [sig, *(inner for part in parts_of(sig) for inner in _all_of(part))]


def _send_again(context: JobContext, ended: Mapping[str, Any], app: Any) -> None:
    """Send a replacement that is due, whose worker died, or that has not come to the gate for long. Always raises Ignore."""
    if ended["replaced"] is None:
        logger.warning("what replaces job %s cannot be sent again: its arguments are not JSON, or too long", context.id)
        _let_row_go(context)  # the key is free
    elif STAYS in ended and _has_come(context, ended):
        context.ended, context.followed = {**ended, CAME: True}, True
        if not _leads_to_id(context, ended["replaced"]):
            _let_row_go(context)
    else:
        _send(context, signature(ended["replaced"], app=app))
    raise Ignore("replaced by another call")


def _let_row_go(context: JobContext) -> None:
    context.ended, context.followed = {}, True


def _has_come(context: JobContext, ended: Mapping[str, Any]) -> bool:
    """Say whether each call that sending the replacement publishes has come to the gate: its row has what follows it."""
    ids = [_id_of(one) for one in first_calls(ended["replaced"])]
    if CAME in ended:
        return True
    if context.id in ids:  # else its gate had deleted this row
        return False
    assert context.installation is not None
    return context.installation.database.run(lambda tx: all(_is_known(tx, id) for id in ids))


def _is_known(tx: Transaction, id: str) -> bool:
    return jobs.find(tx, id) is not None or executions.is_recorded(tx, id)


def _leads_to_id(context: JobContext, sig: Mapping[str, Any]) -> bool:
    """Say whether the call with the job's id is still to come to a gate, which lets the row go.

    Not if it has no gate, as what joins a group's results, or if a call before it has ended without success.
    """
    assert context.installation is not None
    calls = [one for one in _all_of(sig) if not parts_of(one)]
    if any(one.get("task") == JOINS_GROUP for one in calls):
        return False
    before = [id for one in calls if (id := _id_of(one)) != context.id]
    return context.installation.database.run(lambda tx: not any(_has_failed(tx, id) for id in before))


def _has_failed(tx: Transaction, id: str) -> bool:
    """Say whether the last attempt of a call failed, or was cancelled, and no other one follows."""
    if jobs.find(tx, id) is not None:
        return False
    last = next(iter(executions.of_job(tx, id)), None)
    return last is not None and last.outcome not in GOES_ON


def _send(context: JobContext, sig: Any) -> None:
    """Send what was put in a job's place. Always raises Ignore: if it could not be sent, another worker tries again."""
    if _wait_left(context.ended or {}) <= timedelta(0):
        try:
            sig.delay()
            context.followed = True
        except Exception as error:
            if context.ended is None or context.ended["replaced"] is None:
                raise
            assert context.installation is not None
            logger.warning("what replaces job %s is not sent: %s", context.id, context.installation.hidden(error))
    raise Ignore("replaced by another call")


def _wait_left(ended: Mapping[str, Any]) -> timedelta:
    """Return how long a replacement is still to wait in the row of the attempt that it replaces."""
    return datetime.fromisoformat(ended[NOT_BEFORE]) - clock.now() if NOT_BEFORE in ended else timedelta(0)


def _with_id(sig: Mapping[str, Any], id: str) -> Any:
    """Return the part of a signature that has this id, looked for from the end."""
    for part in reversed(parts_of(sig)):
        found = _with_id(part, id)
        if found is not None:
            return found
    return sig if (sig.get("options") or {}).get("task_id") == id else None


def name_links(request: Any, job: Job) -> None:
    """Give the calls that follow an attempt ids that are the same each time it is handed on: none is let in twice."""
    attempt = (job.ended or {}).get("attempt", job.attempt)  # handing on has attempts of its own
    for kind in ("callbacks", "errbacks"):
        for number, sig in enumerate(getattr(request, kind) or ()):
            if isinstance(sig, dict):
                _name(sig, uuid5(NAMESPACE, f"{kind}/{job.id}/{attempt}/{number}"))


def name_chord_errbacks(request: Any, job: Job) -> None:
    """Do the same for the errbacks of the chord that a failed attempt counts for; a success may yet publish its body."""
    attempt = (job.ended or {}).get("attempt", job.attempt)
    open_parts = [request.chord] if isinstance(request.chord, dict) else []
    found: list[dict[str, Any]] = []
    while open_parts:
        part = open_parts.pop()
        errbacks = (part.get("options") or {}).get("link_error") or ()
        found += [one for one in ([errbacks] if isinstance(errbacks, dict) else errbacks) if isinstance(one, dict)]
        open_parts += parts_of(part)
    for number, sig in enumerate(found):
        _name(sig, uuid5(NAMESPACE, f"chord/{job.id}/{attempt}/{number}"))


def _name(sig: dict[str, Any], id: UUID) -> None:
    options = sig.get("options")
    if not isinstance(options, dict):
        options = sig["options"] = dict(options or {})
    options.setdefault("task_id", str(id))
    for number, part in enumerate(parts_of(sig)):
        _name(part, uuid5(id, str(number)))


def listen() -> None:
    """Listen to what Celery does after a body; that costs every task of the process, so not before it is of use."""
    for signal, receiver in (
        (task_success, success_is_published),
        (task_failure, failure_is_published),
        (task_postrun, _over),
    ):
        signal.connect(receiver, weak=False, dispatch_uid=receiver.__qualname__)


def success_is_published(**_: Any) -> None:
    """Celery has published what follows a success, and stored the result."""
    context = contexts.peek()
    if context is not None and context.ended is not None and "result" in context.ended:
        context.followed = True


def failure_is_published(**_: Any) -> None:
    """Celery has told of a failure; of a success only, that what follows it could not be published."""
    context = contexts.peek()
    if context is not None and context.ended is not None and "error" in context.ended:
        context.followed = True


def _over(task_id: str | None = None, **_: Any) -> None:
    """Let the row go, or have what follows handed on once more if that failed."""
    context = contexts.peek()
    if context is None or not context.following or context.id != task_id:
        return
    installation, job = context.installation, context.job
    assert installation is not None
    keeper_of(installation).let_go(context)
    contexts.leave()
    try:
        ended = dict(context.ended or {})
        if context.followed and not ended.keys() & {KEEPS_KEY, STAYS}:
            installation.database.run(lambda tx: following.forget(tx, job))
            return
        delay = _wait_left(ended)
        if delay <= timedelta(0):
            first = installation.settings.tm_dispatch_lease
            delay = _next_try(job, ended, published=context.followed, first=first)
        installation.database.run(lambda tx: following.carry_on(tx, job, delay=delay, ended=ended))
    except TmError as error:  # its lease ends, and another worker hands it on again
        logger.warning("what follows job %s is handed on, but that is not written: %s", job.id, error)


def _next_try(job: Job, ended: dict[str, Any], *, published: bool, first: timedelta) -> timedelta:
    """Return when callbacks are to be published again, and count that.

    A replacement that is published takes its row's place at the gate, and the key with it; until then the row is kept, and
    the replacement sent again when it has not come for `first`, and for twice as long each time.
    """
    tried = ended["tried"] = int(ended.get("tried", 0)) + 1
    if published:
        return min(first * 2 ** min(tried - 1, 10), LONGEST_HOLD)
    delay = min(timedelta(seconds=2 ** min(tried, 20)), LONGEST_WAIT)
    logger.warning("what follows job %s could not be handed on; it is tried again in %s", job.id, delay)
    return delay
