"""A worker that stops hands back what it cannot finish, at once and without using up a try."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from . import recorder
from .context import JobContext

STOPS = "its worker was shut down"


def is_stopping() -> bool:
    """Say whether this process is a worker that was told to stop."""
    state = sys.modules.get("celery.worker.state")  # whoever has not imported it is no worker
    if state is None:
        return False
    # Either is None, or the exit code, which may be 0.
    return any(flag is not None and flag is not False for flag in (state.should_stop, state.should_terminate))


def hand_back_if_stopping(contexts: Sequence[JobContext]) -> None:
    """Hand back attempts that are cut off because this worker stops; cut off by their own body, they are not."""
    for context in contexts:
        if is_stopping() and context.installation is not None and not context.settled:
            context.roll_back()
            mine = [(context.id, context.attempt)]
            recorder.record_handed_back(context.installation, mine, STOPS, workers={context.job.claimed_by})
            context.settled = True
