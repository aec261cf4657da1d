"""A worker that stops hands back what it cannot finish, at once and without using up a try."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from celery.app.control import Control as CeleryControl

from ..domain.job import Job
from ..errors import TmError
from ..installation import Installation
from ..store import workflows
from . import release
from .context import JobContext
from .shutdown_flag import is_stopping

logger = logging.getLogger(__name__)

STOPS = "its worker was shut down"


def is_terminated(installation: Installation, job: Job) -> bool:
    """Say whether the run of a step that was asked to stop wants it to be terminated."""
    try:
        with installation.database.transaction(write=False) as tx:
            run = workflows.find(tx, job.occurrence or "")
    except TmError:
        return False
    return run is not None and bool(run.settings.get("terminate"))


def terminate_aside(installation: Installation, job: Job) -> None:
    """Have a thread of its own end a job's pool process: a broker may never answer, and the leases are to be renewed."""
    threading.Thread(target=terminate, args=[installation, job], name="celery_tm-terminate", daemon=True).start()


def terminate(installation: Installation, job: Job) -> None:
    """Let this worker end the pool process that runs a job, as Celery's `revoke(terminate=True)` does."""
    worker = (job.claimed_by or "").rpartition(":")[0]
    try:
        CeleryControl(installation.app).revoke(job.id, terminate=True, destination=[worker])
    except Exception as error:  # it was asked to stop, and its time limit holds
        logger.warning("job %s could not be terminated: %s", job.id, installation.hidden(error))


def hand_back_if_stopping(contexts: Sequence[JobContext]) -> None:
    """Hand back attempts that are cut off because this worker stops; cut off by their own body, they are not."""
    for context in contexts:
        if is_stopping() and context.installation is not None and not context.settled:
            context.roll_back()
            mine = [(context.id, context.attempt)]
            release.record_handed_back(context.installation, mine, STOPS, workers={context.job.claimed_by})
            context.settled = True
