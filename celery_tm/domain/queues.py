"""Which queue a job goes to (B1): its own, an alias' queue, or the default."""

from __future__ import annotations

from collections.abc import Mapping


def resolve_queue(queue: str | None, *, aliases: Mapping[str, str], default: str | None) -> str | None:
    """Return the queue's name, or None where Celery's own routing decides."""
    if not queue:
        return default
    return aliases.get(queue, queue)
