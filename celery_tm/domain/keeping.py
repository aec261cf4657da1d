"""How long the key of a job is kept after each outcome: by its call, else its task, else the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..settings import Settings, read_keep_key

COLUMNS = {"succeeded": "keep_key", "failed": "keep_failed", "cancelled": "keep_cancelled"}


def keep_columns(stated: Any, settings: Settings) -> Mapping[str, Any]:
    """Return the columns of a job that say how long its key is kept; what is not stated for a success is left to its end."""
    own = {} if stated is None else read_keep_key(stated)
    defaults = {outcome: kept for outcome, kept in settings.keep_keys.items() if outcome != "succeeded"}
    return {COLUMNS[outcome]: kept for outcome, kept in {**defaults, **own}.items()}
