"""Running beats and workers, by when they were last seen."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import delete, func, select

from ..version import __version__
from . import rows, tables
from .database import Transaction

node = tables.node
FORGET_AFTER = timedelta(days=1)  # a node that died could not sign off
AHEAD = timedelta(days=1)  # no clock is off by more: what was seen later is no instant at all


def see(tx: Transaction, name: str, kind: str, *, started_ago: timedelta) -> None:
    """Note that a node is alive."""
    values: dict[str, Any] = {
        "name": name, "kind": kind, "seen_at": tx.now, "started_at": tx.later(-started_ago), "version": __version__,
    }  # fmt: skip
    tx.execute(tx.dialect.upsert(node, values, ("name", "kind")))
    # Read first: a DELETE by time would wait, on MySQL, for every row that somebody has locked, however fresh.
    is_stale = node.c.seen_at < tx.later(-FORGET_AFTER)
    for row in tx.execute(select(node.c.name, node.c.kind).where(is_stale)).all():
        tx.execute(delete(node).where(node.c.name == row.name, node.c.kind == row.kind, is_stale))


def forget(tx: Transaction, name: str, kind: str) -> None:
    """Note that a node has stopped."""
    tx.execute(delete(node).where(node.c.name == name, node.c.kind == kind))


def select_nodes(tx: Transaction) -> list[dict[str, Any]]:
    """Return the nodes, the freshest first."""
    return rows.read_all(tx, select(node).order_by(node.c.seen_at.desc()), lambda row: dict(row._mapping), node)


def silence(tx: Transaction) -> float | None:
    """Return how many seconds ago any node was last seen; None where there is none."""
    latest = select(func.max(node.c.seen_at, type_=node.c.seen_at.type))
    plausible = node.c.seen_at.between(tx.later(-FORGET_AFTER), tx.later(AHEAD))
    seen_at = tx.execute(latest.where(plausible)).scalar()
    if seen_at is None and tx.execute(select(node.c.name).limit(1)).first() is not None:
        return FORGET_AFTER.total_seconds()
    return None if seen_at is None else (tx.read_now() - seen_at).total_seconds()
