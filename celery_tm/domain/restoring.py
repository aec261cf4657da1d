"""Restoring a stored version of a definition: what has to be stated so that a new version says the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .definition import DEFAULTS, SWITCHES


def restored(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields as a version had them, those at their defaults included; on and off are not among them."""
    derived = {"task", "args", "kwargs"} if stated.get("steps") else set()  # of one with steps
    return {name: value for name, value in {**DEFAULTS, **stated}.items() if name not in SWITCHES | derived}
