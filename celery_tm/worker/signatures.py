"""Reads Celery's signatures: the parts that a chain, a group or a chord is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def parts_of(sig: Mapping[str, Any]) -> list[Any]:
    """Return the signatures that a chain, a group or a chord is made of; none for a single task's."""
    inner = sig.get("kwargs")
    if not str(sig.get("task") or "").startswith("celery.") or not isinstance(inner, Mapping):
        return []
    found: list[Any] = []
    for name in ("tasks", "header", "body"):
        part = inner.get(name)
        listed = part if isinstance(part, Sequence) and not isinstance(part, (str, bytes)) else [part]
        found += [one for one in listed if isinstance(one, dict)]
    return found
