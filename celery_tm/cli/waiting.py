"""Something that moves while a command works: on a terminal only, and on stderr, so that what is printed stays clean."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .output import console


@contextmanager
def working(on: str) -> Iterator[None]:
    """Turn a spinner while the block runs."""
    if not sys.stderr.isatty():
        yield
        return
    with console(stderr=True).status(f"{on} …"):
        yield
