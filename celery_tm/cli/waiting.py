"""Something that moves while a command works: on a terminal only, and on stderr, so that what is printed stays clean."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .output import console

Say = Callable[[str], None]


@contextmanager
def working(on: str) -> Iterator[Say]:
    """Turn a spinner while the block runs; what it yields changes the words beside it."""
    if not sys.stderr.isatty():
        yield lambda said: None
        return
    with console(stderr=True).status(f"{on} …") as status:
        yield lambda said: status.update(f"{on} … {said}")
