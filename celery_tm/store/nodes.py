"""Running beats and workers, by when they were last seen."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import delete, select

from ..version import __version__
from . import tables
from .database import Transaction

node = tables.node
FORGET_AFTER = timedelta(days=1)  # a node that died could not sign off


def see(tx: Transaction, name: str, kind: str, *, started_ago: timedelta) -> None:
    """Note that a node is alive."""
    values: dict[str, Any] = {
        "name": name, "kind": kind, "seen_at": tx.now, "started_at": tx.later(-started_ago), "version": __version__,
    }  # fmt: skip
    tx.execute(tx.dialect.upsert(node, values, ("name", "kind")))
    tx.execute(delete(node).where(node.c.seen_at < tx.later(-FORGET_AFTER)))


def forget(tx: Transaction, name: str, kind: str) -> None:
    """Note that a node has stopped."""
    tx.execute(delete(node).where(node.c.name == name, node.c.kind == kind))


def select_nodes(tx: Transaction) -> list[dict[str, Any]]:
    """Return the nodes, the freshest first."""
    return [dict(row._mapping) for row in tx.execute(select(node).order_by(node.c.seen_at.desc()))]
