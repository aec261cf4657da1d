"""The transaction that `defer` and `cancel` write in: the caller's, or one of their own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..installation import Installation
from ..store import body, lanes, outside
from ..store.database import Transaction

logger = logging.getLogger(__name__)
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
            if joined.may_notify:  # else after the commit, if that is seen here, or beat finds it by its poll
                joined.tx.notify(always=joined.after_commit is None)
        if joined.after_commit is not None and joined.tx.wakes:
            joined.after_commit(lambda: _wake(installation, notified=joined.tx.notified_at is not None))
        if joined.after_commit is not None and joined.tx.facts:
            joined.after_commit(lambda: installation.database.tell(joined.tx.facts))
        if joined.after_commit is not None and joined.tx.freed:
            freed = joined.tx.freed
            joined.after_commit(lambda: _free(installation, freed))
        return result
    actions: list[Callable[[], None]] = []

    def once(tx: Transaction) -> T:
        actions.clear()  # of a try that was rolled back
        return work(tx, actions.append)

    result = installation.database.run(once, alone=alone)
    for action in actions:
        action()
    return result


def _wake(installation: Installation, *, notified: bool) -> None:
    """After a caller's commit: take note of its notification, or send one if beat no longer looks because of another."""
    database = installation.database
    if notified:
        database.throttle.sent()
        return
    if database.throttle.is_open:
        try:
            database.run(lambda tx: tx.wake())
        except Exception as error:
            logger.debug("beat is not woken, and finds by its poll what was written: %s", error)


def _free(installation: Installation, freed: Mapping[str, int]) -> None:
    """Let those go on that wait for the slots which a caller's transaction gave back; if that fails, beat finds them."""
    try:
        installation.database.run(lambda tx: lanes.free_keys(tx, freed))
    except Exception as error:
        logger.warning("the next jobs of %d concurrency keys wait until beat looks after them: %s", len(freed), error)
