"""Making very many objects at once without being stopped on the way to look for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Leave the collector of cycles off in this block.

    It looks through all that lives each time some share more of it is made, which takes as long as all the rest of
    `defer_many`, and finds nothing: what is made here is kept. Reference counts go on freeing what is dropped.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
