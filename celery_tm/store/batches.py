"""Many rows in one transaction, and in halves where one of them spoils it for the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..errors import OUT_OF_REACH, DatabaseBusy
from .database import Database, Transaction

logger = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")


def run_parts(
    database: Database,
    items: Sequence[T],
    work: Callable[[Transaction, Sequence[T]], R],
    *,
    failed: Callable[[T, Exception], Any],
    seconds: float | None = None,
) -> list[R]:
    """Do `work` for all items in one transaction; if that fails for each half of them, down to the ones that fail alone.

    So a few bad rows among many cost a few more transactions, not one for each row. `failed` gets those that fail alone.
    What is not tried after `seconds` is left to the next call; only a database that is out of reach raises.
    """
    parts, done, moved = [items] if items else [], [], False
    until = None if seconds is None else time.monotonic() + seconds
    while parts:
        if moved and until is not None and time.monotonic() >= until:
            break
        part = parts.pop()
        try:
            done.append(database.run(lambda tx, part=part: work(tx, part)))  # type: ignore[misc]
            moved = True
        except Exception as error:
            if is_out_of_reach(error):
                raise
            if len(part) == 1:
                failed(part[0], error)
                moved = True
            else:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
    return done


def run_each(
    database: Database,
    items: Sequence[T],
    work: Callable[[Transaction, T], R],
    *,
    failed: Callable[[T, Exception], Any],
    together: bool = True,
) -> list[R]:
    """Do `work` for each item, as many as possible in one transaction; if not `together`, each in one of its own.

    `failed` gets those that fail alone; what needs a row that another transaction holds is passed over. Only a database
    that is out of reach raises.
    """

    def pass_over(item: T, error: Exception) -> None:
        if isinstance(error, DatabaseBusy):
            logger.debug("%s is passed over: another transaction holds what it needs", item)
        else:
            failed(item, error)

    done: list[R] = []
    for part in [items] if together else [[item] for item in items]:
        for some in run_parts(database, part, lambda tx, part: [work(tx, item) for item in part], failed=pass_over):
            done += some
    return done


def is_out_of_reach(error: BaseException) -> bool:
    """Say whether nothing can be written at present, as opposed to: this row cannot, or another transaction holds it."""
    return isinstance(error, OUT_OF_REACH) and not isinstance(error, DatabaseBusy)
