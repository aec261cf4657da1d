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
from functools import partial
from typing import Any

from .. import events
from ..domain.job import Job
from ..domain.queues import blocked_error, unpublished_error
from ..errors import DatabaseBusy
from ..installation import Installation
from ..store import claims, lanes, settlement
from ..store.batches import run_each
from ..store.database import Transaction
from .batch import Batch
from .contents import ANNOUNCED, HEADER, RENAMED, contract
from .refusal import BlockedRoutes, Route, bounded, route_of
from .sending import Sender

# A broker that is down is noticed at once; kombu alone would keep trying to connect for several seconds.
CONNECT: Mapping[str, Any] = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
ONE_MORE_TRY: Mapping[str, Any] = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """What became of a batch: jobs on their way, jobs the broker refused, and jobs that make no message at all.

    `blocked` jobs go to a queue that cannot be used at present; the others are not concerned.
    """

    sent: Sequence[Job] = field(default_factory=list)
    refused: Sequence[Job] = field(default_factory=list)
    unsendable: Sequence[tuple[Job, str]] = field(default_factory=list)
    blocked: Sequence[tuple[Job, str]] = field(default_factory=list)
    error: str | None = None


def publish(
    installation: Installation,
    outgoing: Sequence[Job],
    *,
    policy: Mapping[str, Any] | None = None,
    replies: bool = False,
    routes: BlockedRoutes | None = None,
) -> Published:
    """Publish jobs over one connection; if the broker goes, give back the rest.

    With `replies` this process may wait for the results of what it sends. `routes` are those that cannot be used at present.
    """
    policy = installation.settings.tm_publish_retry if policy is None else policy
    batch, error = Batch(installation, BlockedRoutes() if routes is None else routes), None
    try:
        with installation.app.producer_or_acquire() as producer, bounded(producer.connection) as bounds:
            sender = Sender(installation, producer, {**policy, **bounds}, replies=replies)
            try:
                sender.connect(CONNECT)
                batch.send(outgoing, sender)
            except Exception:
                producer.connection.collect()  # in the middle of who knows what: the next one begins anew
                raise
    except Exception as refusal:  # whatever the transport raises: the jobs are safe in their rows
        error = f"{type(refusal).__name__}: {installation.hidden(refusal)}"
    return Published(error=error, **batch.sorted(outgoing))


def hand_over(installation: Installation, sent: Sequence[Job]) -> None:
    """Settle tasks that have no gate and report nothing: for them, as for Celery's own beat, sent is done."""
    plain = [job for job in sent if installation.is_plain(job.task)]

    def settle(tx: Transaction, job: Job) -> None:
        settlement.hand_over(tx, job, message=HANDED_OVER)

    def set_aside(job: Job, error: Exception) -> None:
        installation.skip_row(JOBS, job.id, error, name=job.task)

    run_each(installation.database, plain, settle, failed=set_aside)


def put_back(installation: Installation, published: Published, routes: BlockedRoutes | None = None) -> None:
    """Let jobs wait again that the broker did not take: at once, or later if it is their queue that cannot be used.

    Each keeps the error that its message was not published for.
    """
    if published.refused:
        error = unpublished_error(published.error) if published.error else None
        installation.database.run(lambda tx: claims.release(tx, published.refused, error=error))
    by_route: dict[Route, list[tuple[Job, str]]] = {}
    for job, error in published.blocked:
        by_route.setdefault(route_of(job), []).append((job, error))
    routes = BlockedRoutes() if routes is None else routes
    for route, blocked in by_route.items():
        _postpone(installation, [job for job, _ in blocked], blocked[0][1], delay=timedelta(seconds=routes.pause_of(route)))


def put_back_unsendable(installation: Installation, published: Published) -> None:
    """Let jobs wait again that make no message, each with its error: beat counts it as a failed attempt."""
    for job, wrong in published.unsendable:
        error = unpublished_error(f"it makes no message: {wrong}")
        installation.database.run(partial(claims.release, claimed=[job], error=error))


def _postpone(installation: Installation, blocked: Sequence[Job], error: str, *, delay: timedelta) -> None:
    first = blocked[0]
    exchange = str(first.options.get("exchange") or "") or None
    # A job that states an exchange goes there, whatever queue it states.
    queue = None if exchange else str(first.queue or first.options.get("queue") or installation.app.conf.task_default_queue)
    said = blocked_error(error, queue=queue, exchange=exchange)

    def work(tx: Transaction, *, frees: bool = True) -> None:
        claims.postpone(tx, blocked, delay=delay, error=said)
        if frees:
            lanes.free_all(tx, [job for job in blocked if job.occurrence is None])  # an occurrence keeps its slot

    try:
        installation.database.run(work)
    except DatabaseBusy:  # another transaction holds a concurrency key: beat looks after what waits for it
        installation.database.run(partial(work, frees=False))
    events.emit_seldom(installation.app, events.QueueBlocked(queue=queue, exchange=exchange, task=first.task, error=error))


JOBS = "tm_job"
HANDED_OVER = "handed to the broker; its task is no celery_tm.Task, so its end is not seen"

__all__ = [
    "ANNOUNCED", "HEADER", "JOBS", "ONE_MORE_TRY", "RENAMED", "BlockedRoutes", "Published", "contract",
    "hand_over", "publish", "put_back", "put_back_unsendable",
]  # fmt: skip
