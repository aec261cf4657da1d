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


def first_calls(sig: Mapping[str, Any]) -> list[Any]:
    """Return the calls that are published when a signature is sent; its others follow these."""
    parts = parts_of(sig)
    if sig.get("task") == "celery.chain":
        parts = parts[:1]
    elif sig.get("task") == "celery.chord":
        parts = parts[:-1]  # its body comes last
    return [call for part in parts for call in first_calls(part)] if parts else [sig]
