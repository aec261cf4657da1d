"""Tells the bodies of a worker that it has begun to shut down: `job.stopping`.

In a warm shutdown a pool process gets no signal, so the flag is one byte of memory that the worker's main process shares
with the processes it forks. Pool processes that are not forked (spawn) do not see it.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from celery.signals import celeryd_after_setup, worker_shutting_down

_shared = mmap.mmap(-1, 1)
_own: list[bool] = []
RUNS, STOPS = 0, 1


def is_shutting_down() -> bool:
    """Say whether the worker that this process belongs to has begun to shut down."""
    return bool(_own) or _shared[0] == STOPS or is_stopping()


def tell_bodies() -> None:
    """Tell the bodies of this very process, which has no pool processes, that it shuts down."""
    _own.append(True)


def is_stopping() -> bool:
    """Say whether this process is a worker that was told to stop."""
    state = sys.modules.get("celery.worker.state")  # whoever has not imported it is no worker
    if state is None:
        return False
    # Either is None, or the exit code, which may be 0.
    return any(flag is not None and flag is not False for flag in (state.should_stop, state.should_terminate))


# What a worker calls first in a soft shutdown, whose signal Celery sends only after its wait, and whenever it stops, also
# by remote control, where it sends none.
BEGINNINGS = ("wait_for_soft_shutdown", "signal_consumer_close")


@celeryd_after_setup.connect(weak=False, dispatch_uid="celery_tm.worker.shutdown_flag")
def _set_up(instance: Any = None, **_: Any) -> None:
    """Clear the flag before the pool forks, and see every way in which this worker may begin to stop."""
    _shared[0] = RUNS  # an earlier worker of this process may have set it
    for name in BEGINNINGS:
        begin = getattr(instance, name, None)
        if begin is not None:
            setattr(instance, name, partial(_note_and, begin))


def _note_and(begin: Callable[[], Any]) -> Any:
    _note()
    return begin()


@worker_shutting_down.connect(weak=False, dispatch_uid="celery_tm.worker.shutdown_flag")
def _note(**_: Any) -> None:
    _shared[0] = STOPS
