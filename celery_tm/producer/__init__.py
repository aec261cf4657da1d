"""Creating jobs: `defer`, `defer_many` and `cancel`, in the caller's transaction or their own.

`defer` is one INSERT and never looks first; only a key that is given asks afterwards whether it has succeeded already.
A job that is due at once is written as dispatched and published right after commit; if this process dies in between, its
lease ends and beat dispatches it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from celery.canvas import Signature

from ..domain.ids import new_ids
from ..errors import InvalidValue
from ..installation import Installation
from ..tracing import describe, span
from .bulk import uncollected
from .cancelling import cancel
from .eager import run_eagerly
from .handle import JobHandle
from .inserting import write_requests
from .request import NOTHING, Reader, Request, installation_for
from .workflows import Workflow, workflow

__all__ = ["JobHandle", "Workflow", "cancel", "defer", "defer_many", "workflow"]


def defer(what: Signature | Workflow | str | Any, /, **options: Any) -> JobHandle:
    """Create one job and return its handle; the same key twice returns the job that has it, with `created=False`.

    `what` is a signature (`task.s(42)`), a task, a task's name with `args=` and `kwargs=`, or a `workflow`. When: `delay=`
    (timedelta, seconds or "15m") or `run_at=` (aware datetime); neither means at once. `session=` is a SQLAlchemy Session
    or Connection whose transaction the job commits or rolls back with.
    """
    installation = installation_for(what, options.get("app"))
    with span("defer"):  # around all of it: the headers that carry the trace on are made when the call is read
        request = Reader(installation, options).read(what)
        describe(job=request.draft["id"], task=request.draft["task"])
        return _write(installation, [request], options.get("session"))[0]


def defer_many(items: Iterable[Any], /, **common: Any) -> list[JobHandle]:
    """Create many jobs in one statement: signatures, or pairs of a signature and its own options. Order is kept."""
    with uncollected(), span("defer"):
        requests: list[Request] = []
        reader: Reader | None = None
        for item in items:
            what, own = item if _is_pair(item) else (item, NOTHING)
            if "session" in own or "app" in own:
                raise InvalidValue(
                    "session", "one transaction holds all the jobs", "pass session= and app= to defer_many itself"
                )
            if reader is None:
                reader = Reader(installation_for(what, common.get("app")), common, next_id=new_ids().__next__)
            reader.refuse_foreign(what)
            requests.append(reader.read(what, own))
        describe(count=len(requests))
        return [] if reader is None else _write(reader.installation, requests, common.get("session"))


def _is_pair(item: Any) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], Mapping)


def _write(installation: Installation, requests: list[Request], session: Any) -> list[JobHandle]:
    """Write jobs, or run them at once where Celery is told to (`task_always_eager`), as `apply_async` would."""
    if installation.app.conf.task_always_eager:
        return [run_eagerly(installation, request) for request in requests]
    return write_requests(installation, requests, session)
