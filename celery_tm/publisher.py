"""The only code that talks to the broker.

A job travels as an ordinary Celery message: its id is the task id, its arguments are the body, and one header, `tm`,
carries what the gate needs (docs/reference/message.md). Jobs of a task with `chunk=` share a message. The dispatcher
publishes in bulk, the producer right after commit. What the broker does not take is given back, so that the row can go back
to pending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kombu.exceptions import OperationalError

from .domain.codec import decode
from .domain.ids import execution_id, new_id
from .domain.job import Job
from .domain.loads import in_loads
from .domain.queues import resolve_queue
from .installation import Installation
from .store import settlement

HEADER = "tm"
HARD_LIMIT_GRACE = timedelta(seconds=10)  # between the soft limit, which a body may catch, and the hard one
# A broker that is down is noticed at once; kombu alone would keep trying to connect for several seconds.
CONNECT: Mapping[str, Any] = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
ONE_MORE_TRY: Mapping[str, Any] = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
# Options of a message that `send_task` takes under other names than a message's headers carry them.
RENAMED = {"callbacks": "link", "errbacks": "link_error"}
OURS = frozenset({"retry", "retry_policy", "producer", "publisher", "connection", "router", "countdown", "eta"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """What became of a batch: jobs on their way, jobs the broker refused, and jobs that make no message at all."""

    sent: Sequence[Job] = field(default_factory=list)
    refused: Sequence[Job] = field(default_factory=list)
    unsendable: Sequence[tuple[Job, str]] = field(default_factory=list)
    error: str | None = None


def publish(installation: Installation, jobs: Sequence[Job], *, policy: Mapping[str, Any] | None = None) -> Published:
    """Publish jobs over one connection; after the first one that the broker refuses, give back the rest."""
    sent: list[Job] = []
    unsendable: list[tuple[Job, str]] = []
    error = None
    app, settings = installation.app, installation.settings
    try:
        with app.producer_or_acquire() as producer:
            connection = producer.connection
            away = (OSError, OperationalError, *connection.connection_errors, *connection.channel_errors)
            connection.ensure_connection(**CONNECT)
            for load in in_loads(jobs, installation.chunk_of):
                try:
                    _send(installation, load, producer, settings.tm_publish_retry if policy is None else policy)
                    sent += load
                except away:
                    raise
                except Exception as wrong:  # this one makes no message; the others do
                    unsendable += [(job, f"{type(wrong).__name__}: {wrong}") for job in load]
    except Exception as refusal:  # whatever the transport raises: the jobs are safe in their rows
        error = f"{type(refusal).__name__}: {refusal}"
    settled = {job.id for job in sent} | {job.id for job, _ in unsendable}
    refused = [job for job in jobs if job.id not in settled]
    return Published(sent=sent, refused=refused, unsendable=unsendable, error=error)


def hand_over(installation: Installation, sent: Sequence[Job]) -> None:
    """Settle tasks that have no gate and report nothing: for them, as for Celery's own beat, sent is done."""
    plain = [job for job in sent if installation.is_plain(job.task)]
    if plain:
        installation.database.run(lambda tx: [settlement.hand_over(tx, job, message=HANDED_OVER) for job in plain])


HANDED_OVER = "handed to the broker; its task is no celery_tm.Task, so its end is not seen"


class _Insisting:
    """A producer whose messages carry the headers that their job was created with, whatever is added on the way.

    Receivers of `before_task_publish` and tracing have had their say where the call was made; here they would speak of beat.
    """

    def __init__(self, producer: Any, headers: Mapping[str, Any]) -> None:
        self._producer, self._headers = producer, headers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **properties: Any) -> Any:
        """Publish."""
        headers = {**(properties.get("headers") or {}), **self._headers}
        if "headers" in headers and "headers" not in self._headers:  # one level deeper, where some tracers look
            own = {name: value for name, value in self._headers.items() if name != HEADER}
            headers["headers"] = {**headers["headers"], **own}
        properties["headers"] = headers
        return self._producer.publish(body, **properties)


def _send(installation: Installation, load: Sequence[Job], producer: Any, policy: Mapping[str, Any]) -> None:
    message = _message(installation, load[0]) if len(load) == 1 else _shared_message(installation, load)
    insisting = _Insisting(producer, message["headers"])
    installation.app.send_task(load[0].task, producer=insisting, retry=True, retry_policy=dict(policy), **message)


def _shared_message(installation: Installation, load: Sequence[Job]) -> dict[str, Any]:
    """Return jobs that travel together as arguments of `send_task`; their arguments stay in their rows."""
    message = _message(installation, load[0])
    for name in ("time_limit", "soft_time_limit"):
        if message.get(name):
            message[name] = message[name] * len(load)
    return message | {
        "args": [],
        "kwargs": {},
        "task_id": new_id(),
        "argsrepr": f"({len(load)} jobs)",
        "ignore_result": True,
        "expires": installation.message_defaults(load[0].task).get("expires"),  # each job's own is in its row
        "headers": {HEADER: {"chunk": [[job.id, job.attempt] for job in load]}},
    }


def _message(installation: Installation, job: Job) -> dict[str, Any]:
    """Return a job as arguments of `send_task`: what its task says, what its call said, what its row says."""
    settings = installation.settings
    options = dict(installation.message_defaults(job.task))
    options |= {RENAMED.get(name, name): v for name, v in job.options.items() if name not in OURS}
    queue = resolve_queue(
        job.queue or options.get("queue"), aliases=settings.tm_queue_aliases, default=settings.tm_default_queue
    )
    if queue and "exchange" not in job.options:
        options["queue"] = queue
    if job.priority is not None:
        options["priority"] = job.priority
    if job.expires_at is not None:
        options["expires"] = job.expires_at
    if job.timeout is not None:
        options["soft_time_limit"] = job.timeout.total_seconds()
        options["time_limit"] = (job.timeout + HARD_LIMIT_GRACE).total_seconds()
    return options | {
        "args": decode(job.args),
        "kwargs": decode(job.kwargs),
        "task_id": job.id,
        "retries": job.retries,
        "headers": {**(options.get("headers") or {}), HEADER: contract(job, queue)},
        "add_to_parent": False,
    }


def contract(job: Job, queue: str | None) -> Mapping[str, Any]:
    """Return the message contract (B7): plain JSON, documented in docs/reference/message.md."""
    return {
        "job": job.id,
        "execution": execution_id(job.id, job.attempt),
        "attempt": job.attempt,
        "queue": queue,
        "scheduled_at": (job.scheduled_at or job.run_at).isoformat(),
        "source": str(job.source),
        "metadata": {
            "occurrence": job.occurrence,
            "entity_id": job.entity_id,
            "key": job.dedupe_key,
            "scope": job.scope,
        },
    }
