"""The task that comes with celery_tm: pruning old rows. Every app whose tasks are ours has it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..installation import Installation
from ..recovery.pruner import prune

PRUNE = "celery_tm.prune"


def register(app: Any, base: Any) -> None:
    """Give the app its built-in task, once."""
    if app.__dict__.get("_celery_tm_builtin"):
        return
    app.__dict__["_celery_tm_builtin"] = True

    @app.task(name=PRUNE, base=base, shared=False, max_retries=3)
    def prune_old_rows() -> dict[str, Any]:
        """Delete executions, occurrences, log lines, keys and audit lines that are older than their retention."""
        installation = Installation.of(app)
        return asdict(prune(installation.database, installation.settings))
