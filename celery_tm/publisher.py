"""The only code that talks to the broker.

A job travels as an ordinary Celery message: its id is the task id, its arguments are the body, and one header, `tm`,
carries what the gate needs (docs/reference/message.md). The dispatcher publishes in bulk, the producer right after commit.
What the broker does not take is given back, so that the row can go back to pending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kombu.exceptions import OperationalError

from .domain.codec import decode
from .domain.ids import execution_id
from .domain.job import Job
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
            for job in jobs:
                try:
                    _send(installation, job, producer, settings.tm_publish_retry if policy is None else policy)
                    sent.append(job)
                except away:
                    raise
                except Exception as wrong:  # this one makes no message; the others do
                    unsendable.append((job, f"{type(wrong).__name__}: {wrong}"))
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


def _send(installation: Installation, job: Job, producer: Any, policy: Mapping[str, Any]) -> None:
    message = _message(installation, job)
    installation.app.send_task(job.task, producer=producer, retry=True, retry_policy=dict(policy), **message)


def _message(installation: Installation, job: Job) -> dict[str, Any]:
    """Return a job as arguments of `send_task`."""
    settings = installation.settings
    options: dict[str, Any] = {RENAMED.get(name, name): v for name, v in job.options.items() if name not in OURS}
    queue = resolve_queue(job.queue, aliases=settings.tm_queue_aliases, default=settings.tm_default_queue)
    if queue and "queue" not in options:
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
        "headers": {**options.get("headers", {}), HEADER: contract(job, queue)},
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
