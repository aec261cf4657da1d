"""The only code that talks to the broker.

A job travels as an ordinary Celery message: its id is the task id, its arguments are the body, and one header, `tm`,
carries what the gate needs (docs/reference/message.md). Jobs of a task with `chunk=` share a message. The dispatcher
publishes in bulk, the producer right after commit. What the broker does not take is given back, so that the row can go back
to pending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kombu.exceptions import OperationalError

from ..domain.job import Job
from ..domain.loads import in_loads
from ..installation import Installation
from ..store import settlement
from .bulk import Collected, collector_for
from .contents import ANNOUNCED, HARD_LIMIT_GRACE, HEADER, RENAMED, contract
from .sending import Sender

# A broker that is down is noticed at once; kombu alone would keep trying to connect for several seconds.
CONNECT: Mapping[str, Any] = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
ONE_MORE_TRY: Mapping[str, Any] = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """What became of a batch: jobs on their way, jobs the broker refused, and jobs that make no message at all."""

    sent: Sequence[Job] = field(default_factory=list)
    refused: Sequence[Job] = field(default_factory=list)
    unsendable: Sequence[tuple[Job, str]] = field(default_factory=list)
    error: str | None = None


def publish(
    installation: Installation, jobs: Sequence[Job], *, policy: Mapping[str, Any] | None = None, replies: bool = False
) -> Published:
    """Publish jobs over one connection; after the first one that the broker refuses, give back the rest.

    With `replies` this process may wait for the results of what it sends.
    """
    policy = installation.settings.tm_publish_retry if policy is None else policy
    batch, error = _Batch(), None
    try:
        with installation.app.producer_or_acquire() as producer:
            producer.connection.ensure_connection(**CONNECT)
            batch.send(in_loads(jobs, installation.chunk_of), Sender(installation, producer, policy, replies=replies))
    except Exception as refusal:  # whatever the transport raises: the jobs are safe in their rows
        error = f"{type(refusal).__name__}: {installation.hidden(refusal)}"
    return batch.published(jobs, error)


class _Batch:
    """Keeps count of what became of each job of a batch, wherever its sending ends."""

    def __init__(self) -> None:
        self.handled: list[Job] = []
        self.unsendable: list[tuple[Job, str]] = []
        self.collected: Collected | None = None

    def send(self, loads: Sequence[Sequence[Job]], sender: Sender) -> None:
        """Send messages; raise what says that the broker takes no more."""
        connection = sender.producer.connection
        away = (OSError, OperationalError, *connection.connection_errors, *connection.channel_errors)
        self.collected = collector_for(sender.producer.channel)
        for load in loads:
            try:
                sender.send(load, self.collected)
                self.handled += load
            except away:
                raise
            except Exception as wrong:  # this one makes no message; the others do
                self.unsendable += [(job, f"{type(wrong).__name__}: {wrong}") for job in load]
            if self.collected is not None and self.collected.is_full:
                self.collected.push(away, sender.policy)
        if self.collected is not None:
            self.collected.push(away, sender.policy)

    def published(self, jobs: Sequence[Job], error: str | None) -> Published:
        """Return what became of the jobs: what was only collected when the broker went has not been sent."""
        waiting = self.collected.waiting if self.collected is not None else set()
        sent = [job for job in self.handled if job.id not in waiting]
        settled = {job.id for job in sent} | {job.id for job, _ in self.unsendable}
        refused = [job for job in jobs if job.id not in settled]
        return Published(sent=sent, refused=refused, unsendable=self.unsendable, error=error)


def hand_over(installation: Installation, sent: Sequence[Job]) -> None:
    """Settle tasks that have no gate and report nothing: for them, as for Celery's own beat, sent is done."""
    plain = [job for job in sent if installation.is_plain(job.task)]
    if plain:
        installation.database.run(lambda tx: [settlement.hand_over(tx, job, message=HANDED_OVER) for job in plain])


HANDED_OVER = "handed to the broker; its task is no celery_tm.Task, so its end is not seen"

__all__ = [
    "ANNOUNCED", "HARD_LIMIT_GRACE", "HEADER", "ONE_MORE_TRY", "RENAMED", "Published", "contract", "hand_over", "publish",
]  # fmt: skip
