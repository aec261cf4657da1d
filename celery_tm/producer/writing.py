"""The transaction that `defer` and `cancel` write in: the caller's, or one of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..installation import Installation
from ..store import outside
from ..store.database import Transaction

AfterCommit = Callable[[Callable[[], None]], None]


@contextmanager
def transaction(installation: Installation, session: Any) -> Iterator[tuple[Transaction, AfterCommit | None]]:
    """Yield the transaction to write in, and how to act after its commit (None where the caller's commit is unseen)."""
    if session is not None:
        joined = outside.join(installation.database, session)
        yield joined.tx, joined.after_commit
        return
    actions: list[Callable[[], None]] = []
    with installation.database.transaction() as tx:
        yield tx, actions.append
    for action in actions:
        action()
