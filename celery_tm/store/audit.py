"""Who changed what: people by name, background work as SYSTEM, in the transaction of the change itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, insert, select

from ..domain.execution import MAX_MESSAGE, cut
from ..domain.facts import Noted
from ..domain.job import checked_actor
from . import tables
from .database import Transaction

SYSTEM = "SYSTEM"


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditLine:
    """One row of `tm_audit`: who did what to which object, when and why."""

    id: int
    at: datetime
    actor: str
    action: str
    object: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    reason: str | None


def note(
    tx: Transaction,
    action: str,
    object: str,
    *,
    actor: str | None = None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    reason: str | None = None,
) -> None:
    """Write one line of the audit."""
    values = {"action": action, "object": object, "before": before, "after": after, "reason": cut(reason, MAX_MESSAGE)}
    who = checked_actor(actor) or SYSTEM
    # Inline: nobody asks for its number, so whoever writes need not be allowed to read.
    tx.execute(insert(tables.audit).inline().values(at=tx.now, actor=who, **values))
    tx.tell(Noted(action, object, who, reason, after))


def lines(tx: Transaction, object: str, *, limit: int = 100) -> list[dict[str, Any]]:
    """Return what was written about an object, the latest first."""
    query = select(tables.audit).where(tables.audit.c.object == object).order_by(tables.audit.c.id.desc()).limit(limit)
    return [dict(row._mapping) for row in tx.execute(query)]


def read_line(row: Row[Any]) -> AuditLine:
    """Return a row as a value."""
    return AuditLine(**row._mapping)
