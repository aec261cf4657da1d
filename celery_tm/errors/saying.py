"""What may be said of a value that somebody else made, whatever it is: never an error in place of one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 300  # characters; no name may have more


def shown(value: object, most: int = 80) -> str:
    """Return a value as an error may show it: short, and whatever it is."""
    try:
        text = repr(value)
    except Exception:  # a number too long to write, an object that cannot be shown
        text = f"<{type(value).__name__}>"
    return text if len(text) <= most else text[: most - 3] + "…"


def named(name: object) -> str:
    """Return a name as an error may show it: whole, unless it is longer than any name may be."""
    return shown(name, LONGEST)


def spelled(name: object) -> str:
    """Return a name as it was given, also one that is no text."""
    return name if isinstance(name, str) else shown(name)


def said(value: object) -> str:
    """Return what an object says of itself; one that cannot say anything is named by its class."""
    try:
        return str(value)
    except Exception:  # a body's own error may be broken in any way
        return f"<{type(value).__name__}>"


def nearest(name: object, known: Iterable[str]) -> str | None:
    """Return the known name that `name` was probably meant to be; none for what is no text, or longer than any name."""
    if not isinstance(name, str) or len(name) > LONGEST:
        return None
    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None
