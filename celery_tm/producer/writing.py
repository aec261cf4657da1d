"""The transaction that `defer` and `cancel` write in: the caller's, or one of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..installation import Installation
from ..store import body, outside
from ..store.database import Transaction

T = TypeVar("T")
AfterCommit = Callable[[Callable[[], None]], None]


def write(
    installation: Installation,
    session: Any,
    work: Callable[[Transaction, AfterCommit | None], T],
    *,
    alone: bool = False,
) -> T:
    """Do `work` in the caller's transaction, in that of the body it is called from, or in one of its own.

    `work` gets a way to act after the commit; None where the caller's commit is not seen here. `alone`: it is one prepared
    statement, and nothing else.
    """
    session = body.ambient(installation.database) if session is None else session
    if session is not None:
        joined = outside.join(installation.database, session)
        with installation.database.explained_refusals():
            result = work(joined.tx, joined.after_commit)
        if joined.after_commit is not None and joined.tx.facts:
            joined.after_commit(lambda: installation.database.tell(joined.tx.facts))
        return result
    actions: list[Callable[[], None]] = []

    def once(tx: Transaction) -> T:
        actions.clear()  # of a try that was rolled back
        return work(tx, actions.append)

    result = installation.database.run(once, alone=alone)
    for action in actions:
        action()
    return result
