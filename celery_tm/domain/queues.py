"""Which queue a job goes to: its own, an alias' queue, or the default; and why its message was not published."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .execution import MAX_ERROR, cut
from .job import Job, JobState


def resolve_queue(queue: str | None, *, aliases: Mapping[str, str], default: str | None) -> str | None:
    """Return the queue's name, or None where Celery's own routing decides."""
    if not queue:
        return default
    return aliases.get(queue, queue)


_BLOCKED = re.compile(r"((?:queue|exchange) .+?) cannot be used: (.*)", re.DOTALL)
BLOCKED_LIKE = ("queue % cannot be used: %", "exchange % cannot be used: %")  # as SQL finds it

UNBLOCKING: Mapping[str, str] = {
    "queue": "declare the queue as the broker has it (task_queues), or delete it there if it is empty",
    "exchange": "declare the exchange at the broker, or correct it in the options of the task, the call or the definition",
}


def blocked_error(error: str, *, queue: str | None, exchange: str | None = None) -> str:
    """Return the last error of a job whose queue, or exchange, the broker does not let us use."""
    return f"{f'exchange {exchange}' if exchange else f'queue {queue}'} cannot be used: {error}"


_NOT_PUBLISHED = "not published: "


def unpublished_error(error: str) -> str:
    """Return the last error of a job whose message the broker did not take, or that makes no message."""
    return cut(f"{_NOT_PUBLISHED}{error}", MAX_ERROR)


def publish_error(job: Job) -> str | None:
    """Return why the message of a pending job was not published; None: nobody has tried, or its last attempt has failed."""
    error = job.last_error
    if error is None or job.state is not JobState.PENDING or not _is_of_publishing(error):
        return None
    return error.removeprefix(_NOT_PUBLISHED)


def error_of(job: Job) -> str | None:
    """Return the last error of a job as it stands: one of publishing is over once its message is on the way."""
    error = job.last_error
    is_over = error is not None and job.state is not JobState.PENDING and _is_of_publishing(error)
    return None if is_over else error


def _is_of_publishing(error: str) -> bool:
    return error.startswith(_NOT_PUBLISHED) or read_blocked(error) is not None


def read_blocked(error: str) -> tuple[str, str] | None:
    """Return which queue or exchange it is and what the broker answered, from such an error."""
    found = _BLOCKED.fullmatch(error)
    return (found[1], found[2]) if found else None
