"""Takes one delivery to the gate: reads what the message says, and copes when the database is away.

A job's delivery that finds no database is dropped: its row is dispatched again. A direct call has no row, so its message
goes back to the broker. Neither counts as a failure.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeGuard

from celery.app.task import Task as CeleryTask
from celery.exceptions import Ignore

from .. import answers, events
from ..domain.codec import decode, encode
from ..domain.job import CALL, Job, read_call
from ..domain.keeping import keep_columns
from ..domain.loads import MAX_CHUNK
from ..errors import OUT_OF_REACH, DatabaseUnavailable, InvalidValue, SchemaMissing, SchemaOutdated, TmError
from ..installation import Installation
from ..producer.capturing import by_rule, instant_of
from ..producer.message import options_of, priority_of, queue_of
from ..publisher import HEADER
from ..store.admission import NO_ANSWER
from ..store.keys import DoneKey
from ..tracing import describe, span
from . import gate
from .decision import Call, Decision, Refusal, Verdict
from .incoming import is_id
from .time_limits import stuck_limit_of

logger = logging.getLogger(__name__)

# The gate gave no answer: not a failure of the call, whatever the database's reason.
UNANSWERED = (*OUT_OF_REACH, SchemaMissing, SchemaOutdated, NO_ANSWER)
PATIENCE = 5.0  # seconds to wait at the gate for a database that restarts
BOUNCES = "tm_bounces"
LONGEST_BOUNCE = 30.0
HOLD = 1.0  # seconds between two tries to give back what nobody takes
REPLACES = "tm_replaces"  # the attempt of the same id that a call was put in the place of


def admit(task: Any, installation: Installation, *, worker: str) -> Job:
    """Return the job this delivery may run, or raise Ignore."""
    header = getattr(task.request, HEADER, None)
    if header is not None:
        id, attempt = _read_header(task, header)
        ask = partial(
            gate.admit_job, installation, id, attempt, worker=worker, occurring=carries_out(header), task=_called(task),
            limit=stuck_limit_of(task),
        )  # fmt: skip
        job = _settle(task, installation, attempt, ask, None)
        _use_row(task, job)
        return job
    call = _call(task)
    return _settle(
        task,
        installation,
        1,
        lambda: gate.admit_call(installation, call, worker=worker),
        lambda: _bounce(task),
    )


def _called(task: Any) -> str:
    """Return the name that a message calls its task by."""
    return str(getattr(task.request, "task", None) or task.name)


def _use_row(task: Any, job: Job) -> None:
    """Let the body get the arguments of its job's row: a message only says which job it carries."""
    args, kwargs = task.request.args, task.request.kwargs
    if job.args is None or (_as_text(args) == job.args and _as_text(kwargs) == job.kwargs):
        return
    own_args, own_kwargs = decode(job.args), decode(job.kwargs)
    if (own_args, own_kwargs) != (args, kwargs):
        logger.warning("%s[%s] came with other arguments than its row has; the row's are used", task.name, job.id)
    args[:] = own_args  # Celery calls the body with these very objects
    kwargs.clear()
    kwargs.update(own_kwargs)


def _as_text(value: Any) -> str | None:
    try:
        return encode(value, field="arguments")
    except InvalidValue:
        return None


def _settle(
    task: Any,
    installation: Installation,
    attempt: int,
    decide: Callable[[], Decision],
    give_back: Callable[[], bool] | None,
) -> Job:
    with span("gate", job=task.request.id, task=task.name, attempt=attempt):
        decision = _decide(installation, decide, give_back)
        describe(definition=decision.job.definition if decision.job else decision.definition, refused=decision.refusal)
    if decision.verdict is Verdict.RUN and decision.job is not None:
        return decision.job
    _tell_refused(task, installation, task.request.id, attempt, decision)
    if decision.done is not None and decision.done.job != task.request.id:
        _answer(task, decision.done)
    if decision.revoked:
        answers.revoked(task, task.request, reason="expired" if decision.refusal is Refusal.EXPIRED else "revoked")
    if decision.fault is not None:
        raise decision.fault
    raise Ignore


def _tell_refused(task: Any, installation: Installation, id: str, attempt: int, decision: Decision) -> None:
    refused = events.DeliveryRefused(
        job=id,
        task=task.name,
        definition=decision.definition,
        attempt=attempt,
        kind=str(decision.refusal),
        reason=decision.reason,
    )
    events.emit(installation.app, refused, verbose=installation.settings.tm_verbose)


def admit_all(task: Any, installation: Installation, *, worker: str) -> Sequence[Job]:
    """Return the jobs of a message that carries many which may run; raise Ignore if there is none."""
    attempts = read_chunk(getattr(task.request, HEADER, None))
    carrier, limit = str(task.request.id), stuck_limit_of(task, jobs=len(attempts))
    decided: list[tuple[Sequence[Job], Sequence[tuple[str, Decision]]]] = []

    def decide() -> Decision:
        decided[:] = [
            gate.admit_all(installation, attempts, carrier=carrier, worker=worker, task=_called(task), limit=limit)
        ]
        return Decision(verdict=Verdict.RUN)

    with span("gate", job=carrier, task=task.name, count=len(attempts)):
        _decide(installation, decide, None)
    admitted, refused = decided[0]
    present = dict(attempts)
    for id, decision in refused:
        _tell_refused(task, installation, id, present[id], decision)
    if not admitted:
        raise Ignore
    return admitted


def read_chunk(header: Any) -> list[tuple[str, int]]:
    """Return the attempts that a message carries; none where it carries no chunk, or one that contradicts itself."""
    listed = header.get("chunk") if isinstance(header, Mapping) else None
    if not isinstance(listed, (list, tuple)):
        return []
    pairs = (pair for pair in listed[:MAX_CHUNK] if isinstance(pair, (list, tuple)) and len(pair) == 2)
    return list(dict.fromkeys((id, attempt) for id, attempt in pairs if is_id(id) and is_attempt(attempt)))


def is_attempt(value: Any) -> TypeGuard[int]:
    """Say whether a number may be that of an attempt."""
    return type(value) is int and 0 < value < 2**31


def _decide(installation: Installation, decide: Callable[[], Decision], give_back: Callable[[], bool] | None) -> Decision:
    """Ask the gate; without a database give the delivery back, or hold on to it as long as that cannot be done either."""
    while True:
        try:
            decision = _patiently(decide)
        except UNANSWERED as error:
            said = installation.hidden(error)
            events.emit_seldom(installation.app, events.OutageBegan(what="database", error=said))
        else:
            if decision.verdict is not Verdict.LATER:
                return decision
            logger.info("a call goes back to the broker: %s", decision.reason)
        if give_back is None or give_back():
            raise Ignore
        # Neither database nor broker: the message is acknowledged and lives only here.
        events.emit_seldom(installation.app, events.OutageBegan(what="broker", error="a direct call cannot be given back"))
        time.sleep(HOLD)


def _answer(task: Any, done: DoneKey) -> None:
    """Give whoever waits for this call the result that its key has already."""
    request, stores, ended = task.request, not task.ignore_result, done.ended
    try:
        if "error" in ended:
            task.backend.mark_as_failure(request.id, TmError(ended["error"]), request=request, store_result=stores)
        else:
            task.backend.mark_as_done(request.id, ended["result"], request=request, store_result=stores)
    except Exception as error:  # the backend is the caller's comfort, not the record
        logger.warning("%s[%s] was not told the result of its key: %s", task.name, task.request.id, _told(task, error))


def _told(task: Any, error: Exception) -> str:
    """Return what a broker or a result backend said, without their passwords."""
    return Installation.of(task.app).hidden(error)


def _patiently(decide: Callable[[], Decision]) -> Decision:
    """Ask the gate, and ask again for a moment if the database does not answer: a restart is soon over."""
    deadline = time.monotonic() + PATIENCE
    wait = 0.1
    while True:
        try:
            return decide()
        except DatabaseUnavailable:
            if time.monotonic() + wait > deadline:
                raise
            time.sleep(wait)
            wait = min(wait * 2, 1.0)


def carries_out(header: Mapping[str, Any]) -> bool:
    """Say whether a message's job carries out an occurrence."""
    metadata = header.get("metadata")
    return isinstance(metadata, Mapping) and metadata.get("occurrence") is not None and not metadata.get("step")


def _read_header(task: Any, header: Any) -> tuple[str, int]:
    """Return job and attempt of a message; one that contradicts itself is never run."""
    id, attempt = task.request.id, header.get("attempt") if isinstance(header, Mapping) else None
    has_arguments = isinstance(task.request.args, list) and isinstance(task.request.kwargs, dict)
    if not is_attempt(attempt) or not is_id(id) or header.get("job") != id or not has_arguments:
        logger.warning("%s[%s] is not run: its header %r contradicts itself", task.name, id, HEADER)
        raise Ignore
    return str(id), attempt


def _call(task: Any) -> Call:
    """Return a direct call with all that is needed to send it again."""
    request = task.request
    info = request.delivery_info or {}
    key, lane, fault = _rules(task)
    replaces = read_replaced(getattr(request, REPLACES, None))
    keep = dict(keep_columns(task.keep_key, Installation.of(task.app).settings))
    return Call(
        id=request.id,
        task=task.name,
        args=request.args or (),
        kwargs=request.kwargs or {},
        attempt=replaces + 1,
        key=key,
        keep_key=keep.pop("keep_key", None),
        keep=keep,
        max_retries=task.max_retries,
        retry=task.retry_policy,
        options=options_of(request, info),
        queue=queue_of(info),
        priority=priority_of(info),
        concurrency_key=lane,
        concurrency=(task.concurrency or 1) if lane else None,
        expires_at=instant_of(task.app, request.expires),
        fault=fault,
        call=read_call(getattr(request, CALL, None)),
        replaces=replaces > 0,
        limit=stuck_limit_of(task),
    )


def _rules(task: Any) -> tuple[str | None, str | None, InvalidValue | None]:
    """Return what the task's rules make of a call, key and concurrency key, or why they make none."""
    args, kwargs = task.request.args, task.request.kwargs
    try:
        return by_rule(task, "key", args, kwargs), by_rule(task, "concurrency_key", args, kwargs), None
    except InvalidValue as fault:
        return None, None, fault


def read_replaced(value: Any) -> int:
    """Return the attempt that a call says it was put in the place of; 0 where it says none, or nonsense."""
    return value if is_attempt(value) and is_attempt(value + 1) else 0


def _bounce(task: Any) -> bool:
    """Send a direct call's message back to the broker, to come again a little later each time; say whether it took it."""
    said = getattr(task.request, BOUNCES, None)
    bounces = said if is_attempt(said) else 0
    signature = task.signature_from_request(
        task.request,
        countdown=min(2.0 ** min(bounces, 10), LONGEST_BOUNCE),
        retries=task.request.retries or 0,
        headers={**(task.request.headers or {}), BOUNCES: bounces + 1},
    )
    try:  # not by the task's own: a message that is given back is no new call, and never waits in the job table
        CeleryTask.apply_async(task, signature.args, signature.kwargs, **signature.options)
    except Exception as error:  # whatever the transport raises
        logger.warning("%s[%s] cannot be given back: %s", task.name, task.request.id, _told(task, error))
        return False
    return True
