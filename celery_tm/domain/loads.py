"""Which jobs travel together: due jobs of a task with `chunk=` share a message, each still its own job."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .job import Job

MAX_CHUNK = 10_000
MAX_LIST = 65_536  # bytes of a message's list of jobs: it is a header, and RabbitMQ takes all headers in one frame of 128 KB
SHAREABLE = frozenset({"headers", "root_id", "parent_id"})  # of a job's options: read from its row, not from the message


def in_loads(jobs: Sequence[Job], chunk_of: Callable[[str], int]) -> list[list[Job]]:
    """Return jobs in the messages they travel in, in order."""
    loads: list[list[Job]] = []
    filling: dict[tuple[object, ...], list[Job]] = {}
    room: dict[tuple[object, ...], int] = {}
    for job in jobs:
        size = chunk_of(job.task) if travels_together(job) else 1
        route = (job.task, job.queue, job.priority, job.timeout)
        load = filling.get(route) if size > 1 else None
        if load is None or len(load) >= size or room[route] < _bytes_of(job):
            load = []
            loads.append(load)
            if size > 1:
                filling[route], room[route] = load, MAX_LIST
        if size > 1:
            room[route] -= _bytes_of(job)
        load.append(job)
    return loads


def _bytes_of(job: Job) -> int:
    """Return at least as many bytes as a job takes in the list of its message."""
    return len(job.id.encode()) + 24


def travels_together(job: Job) -> bool:
    """Say whether a job may share its message.

    What was tried before travels alone, so that a body that brings its worker down does so alone; and so does what is part
    of a canvas, takes turns, belongs to an occurrence, or wants something of its message.
    """
    return (
        job.attempt == 1
        and job.id.isprintable()
        and job.ended is None
        and job.occurrence is None
        and job.slot is None
        and SHAREABLE.issuperset(job.options)
    )
