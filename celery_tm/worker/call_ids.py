"""Tells a signature that is applied again from a message that is delivered again.

The id of a call says what is called, not how often: a frozen signature has the same one each time it is applied, and Celery
runs it each time. A redelivered message, and callbacks that are published again after a worker died, have the same id too,
and must run once. So a frozen signature is sent with the header `tm_call`: a new value each time it is applied, and the same
value in every copy of that call. A call with `task_id=` has none: whoever chooses an id means one call.

Callbacks have the value of the call that publishes them. The calls of a chord's header share one, so that the chord's body
has the same, whichever of them publishes it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ..domain.ids import named_id, new_id
from ..domain.job import CALL, read_call
from . import context as contexts
from .signatures import parts_of

MOST = 10_000  # calls that are remembered
DEEPEST = 100


class Calls:
    """Counts how often each id was called from one place: this process, or one run of a body."""

    def __init__(self, name: str | None = None) -> None:
        self._is_fixed = name is not None
        self._name = name or new_id()
        self._counts: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def next(self, id: str, scope: str) -> str:
        """Return the value for one more call of this id; others that are made with it have the same scope."""
        with self._lock:
            if (scope, id) not in self._counts and len(self._counts) >= MOST:
                if self._is_fixed:  # a body that calls so many is not watched for one it calls twice
                    return named_id(f"call/{self._name}/{scope}/0")
                self._begin_anew()
            count = self._counts[scope, id] = self._counts.get((scope, id), -1) + 1
            return named_id(f"call/{self._name}/{scope}/{count}")

    def forget(self) -> None:
        """Begin anew after a call that was not sent: those that belong to it may not be made either."""
        with self._lock:
            if not self._is_fixed:
                self._begin_anew()

    def _begin_anew(self) -> None:
        self._name, self._counts = new_id(), {}


of_process = Calls()


def is_signature(options: Mapping[str, Any]) -> bool:
    """Say whether a call with a chosen id is a frozen signature that is applied, or published by Celery after a body."""
    return "root_id" in options or "reply_to" in options


def with_call(app: Any, id: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a signature's call, with the header that tells it from other calls with this id."""
    headers = options.get("headers") or {}
    if CALL in headers:
        return dict(options)
    return {**options, "headers": {**headers, CALL: _value(app, id, options)}}


def _value(app: Any, id: str, options: Mapping[str, Any]) -> str:
    context = contexts.peek()
    if context is not None and context.installation is not None and context.entered and not context.settled:
        # A body that runs again after its worker died makes the same calls again.
        if context.calls is None:
            context.calls = Calls(f"{context.id}/{context.job.call or ''}")
        return str(context.calls.next(id, _scope(id, options)))
    task = app.current_worker_task
    request = task.request if task is not None else None
    if request is not None and request.id and request.hostname and not request.is_eager:
        return read_call(getattr(request, CALL, None)) or str(request.id)  # Celery publishes what follows a body
    return of_process.next(id, _scope(id, options))


def _scope(id: str, options: Mapping[str, Any]) -> str:
    """Return the id of the outermost chord's body that a call has a part in, else the call's own."""
    found, chord = id, _chord_of({"options": options})
    for _ in range(DEEPEST):
        if chord is None:
            break
        found = str((chord.get("options") or {}).get("task_id") or found)
        chord = _chord_of(chord)
    return found


def _chord_of(signature: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the body of the chord that the end of a signature counts for."""
    while parts := parts_of(signature):
        signature = parts[-1]
    options = signature.get("options") or {}
    chain = options.get("chain")
    if chain and isinstance(chain[0], Mapping):  # the step that comes last
        return _chord_of(chain[0])
    chord = options.get("chord")
    return chord if isinstance(chord, Mapping) else None
