"""Breaks celery_tm in a stated way, to see that a run would notice: TM_CHAOS_SABOTAGE=no-fencing and the like."""

from __future__ import annotations

from collections.abc import Callable, Mapping

VARIABLE = "TM_CHAOS_SABOTAGE"

WAYS: dict[str, Callable[[], None]] = {}


def break_as_told(environ: Mapping[str, str]) -> None:
    """Break what the environment names, if it names anything."""
    name = environ.get(VARIABLE)
    if name:
        WAYS[name]()
