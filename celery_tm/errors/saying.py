"""What may be said of a value that somebody else made, whatever it is: never an error in place of one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def shown(value: object) -> str:
    """Return a value as an error may show it: short, and whatever it is."""
    try:
        text = repr(value)
    except Exception:  # a number too long to write, an object that cannot be shown
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "…"


def said(value: object) -> str:
    """Return what an object says of itself; one that cannot say anything is named by its class."""
    try:
        return str(value)
    except Exception:  # a body's own error may be broken in any way
        return f"<{type(value).__name__}>"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` was probably meant to be."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None
