"""The tasks that come with celery_tm: pruning old rows, and hooks. Every app whose tasks are ours has them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..domain.run import HOOK_TASK
from ..errors import UnknownHook, nearest
from ..installation import Installation
from ..producer import defer
from ..recovery.pruner import prune

PRUNE = "celery_tm.prune"


def register(app: Any, base: Any) -> None:
    """Give the app its built-in tasks, once."""
    if app.__dict__.get("_celery_tm_builtin"):
        return
    app.__dict__["_celery_tm_builtin"] = True

    @app.task(name=PRUNE, base=base, shared=False, max_retries=3)
    def prune_old_rows() -> dict[str, Any]:
        """Delete executions, occurrences, log lines, keys and audit lines that are too old or too many.

        One pass is bounded, so that a worker can stop; while there is more, another one follows.
        """
        installation = Installation.of(app)
        pruned = prune(installation.database, installation.settings)
        if not pruned.finished:
            defer(prune_old_rows.s(), concurrency_key=PRUNE, app=app)
        return asdict(pruned)

    @app.task(name=HOOK_TASK, base=base, shared=False, max_retries=3)
    def call_hook(name: str, occurrence: dict[str, Any], report: dict[str, Any]) -> Any:
        """Call a registered hook of a run."""
        hooks = Installation.of(app).hooks
        if name not in hooks:
            raise UnknownHook(name, nearest(name, hooks))
        return hooks[name](occurrence, report)
