"""What a job's message says, as arguments of `Celery.send_task`: what its task, its call and its row say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..domain.codec import decode
from ..domain.ids import new_id
from ..domain.job import WAITS_FOR_KEY, Job
from ..domain.queues import resolve_queue
from ..domain.time_limits import HARD_LIMIT_GRACE
from ..installation import Installation

HEADER = "tm"
ANNOUNCED = "tm_announced"  # among the headers in a row, never in a message: Celery's signals were sent with the call
# Options of a message that `send_task` takes under other names than a message's headers carry them.
RENAMED = {"callbacks": "link", "errbacks": "link_error"}
OURS = frozenset(
    {"retry", "retry_policy", "producer", "publisher", "connection", "router", "countdown", "eta", WAITS_FOR_KEY}
)


class Contents:
    """Makes the messages of one batch; what a task says of itself is asked once."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self._defaults: dict[str, Mapping[str, Any]] = {}

    def of(self, load: Sequence[Job]) -> dict[str, Any]:
        """Return jobs that travel together as arguments of `send_task`."""
        return self._one(load[0]) if len(load) == 1 else self._shared(load)

    def _shared(self, load: Sequence[Job]) -> dict[str, Any]:
        """Return a message of several jobs; their arguments stay in their rows."""
        message = self._one(load[0])
        for name in ("time_limit", "soft_time_limit"):
            if message.get(name):
                message[name] = message[name] * len(load)
        return message | {
            "args": [],
            "kwargs": {},
            "task_id": new_id(),
            "argsrepr": f"({len(load)} jobs)",
            "ignore_result": True,
            "expires": self._said_by_task(load[0].task).get("expires"),  # each job's own is in its row
            "headers": {HEADER: {"chunk": [[job.id, job.attempt] for job in load]}},
        }

    def _one(self, job: Job) -> dict[str, Any]:
        settings = self.installation.settings
        options = dict(self._said_by_task(job.task))
        options |= {RENAMED.get(name, name): value for name, value in job.options.items() if name not in OURS}
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
        headers = {**(options.get("headers") or {}), HEADER: contract(job, queue)}
        headers.pop(ANNOUNCED, None)
        args, kwargs = decode(job.args), decode(job.kwargs)
        return options | {
            **self.installation.described(job.task, args, kwargs),
            "args": args,
            "kwargs": kwargs,
            "task_id": job.id,
            "retries": job.retries,
            "headers": headers,
            "add_to_parent": False,
        }

    def _said_by_task(self, task: str) -> Mapping[str, Any]:
        found = self._defaults.get(task)
        if found is None:
            found = self._defaults[task] = self.installation.message_defaults(task)
        return found


def is_announced(load: Sequence[Job]) -> bool:
    """Say whether everybody was told of a message where its call was made; of one that jobs share, nobody was."""
    return len(load) == 1 and ANNOUNCED in (load[0].options.get("headers") or ())


def contract(job: Job, queue: str | None) -> Mapping[str, Any]:
    """Return the message contract: plain JSON, documented in docs/reference/message.md."""
    ended = {"ended": True} if job.ended is not None and not job.is_replaced else {}  # only its callbacks are published
    return {
        **ended,
        "job": job.id,
        "execution": job.execution_id,
        "attempt": job.attempt,
        "queue": queue,
        "scheduled_at": (job.scheduled_at or job.run_at).isoformat(),
        "source": str(job.source),
        "expires_at": job.expires_at and job.expires_at.isoformat(),
        "metadata": {
            "definition": job.definition,
            "occurrence": job.occurrence,
            "step": job.step,
            "entity_id": job.entity_id,
            "key": job.dedupe_key,
            "scope": job.scope,
        },
    }
