"""Revokes that last: Celery's live in the memory of the workers that hear them, ours in the job table.

`app.control.revoke`, and so `AsyncResult.revoke`, cancels the job's row before it tells the workers. A worker that hears a
revoke does the same, for callers whose app knows nothing of the table.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery
from celery.app.control import Control as CeleryControl
from kombu.utils.functional import maybe_list

from ..installation import Installation
from ..producer.cancelling import revoke_all

logger = logging.getLogger(__name__)


class Control(CeleryControl):
    """Celery's remote control, with revokes that are written down."""

    def revoke(self, task_id: Any, *args: Any, **kwargs: Any) -> Any:
        """Cancel the jobs of these ids, and tell the workers."""
        _write(self.app, task_id)
        return super().revoke(task_id, *args, **kwargs)


def make_revokes_durable(app: Any) -> None:
    """Give an app this control, unless it has one of its own."""
    if app.control_cls == Celery.control_cls:
        app.control_cls = "celery_tm.worker.control:Control"
        made = app.__dict__.get("control")
        if type(made) is CeleryControl:
            made.__class__ = Control


def listen() -> None:
    """Let this worker write down the revokes that it hears."""
    from celery.worker.control import Panel

    plain = Panel.data["revoke"]
    if getattr(plain, "tm_durable", False):
        return

    def revoke(state: Any, task_id: Any, terminate: bool = False, signal: Any = None, **kwargs: Any) -> Any:
        answer = plain(state, task_id, terminate=terminate, signal=signal, **kwargs)
        _write(state.app, task_id)
        return answer

    revoke.tm_durable = True  # type: ignore[attr-defined]
    revoke.__doc__ = plain.__doc__
    Panel.data["revoke"] = revoke


def _write(app: Any, task_id: Any) -> None:
    ids = [str(id) for id in maybe_list(task_id) or ()]
    try:
        revoke_all(Installation.of(app), ids)
    except Exception as error:  # the workers are to hear of it whatever happens here
        logger.warning("%d revokes are known to the workers that hear them, but are not written: %s", len(ids), error)
