"""Who changed what: people by name, background work as SYSTEM, in the transaction of the change itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, insert, select

from ..domain.audit_line import SYSTEM
from ..domain.execution import MAX_MESSAGE, cut
from ..domain.facts import Noted
from ..domain.job import checked_actor
from . import rows, tables
from .database import Transaction


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
    tells: bool = True,
) -> None:
    """Write one line of the audit; a line of somebody else's is not told as an event of ours."""
    values = {"action": action, "object": object, "before": before, "after": after, "reason": cut(reason, MAX_MESSAGE)}
    who = checked_actor(actor) or SYSTEM
    # Inline: nobody asks for its number, so whoever writes need not be allowed to read.
    tx.execute(insert(tables.audit).inline().values(at=tx.now, actor=who, **values))
    if tells:
        tx.tell(Noted(action, object, who, reason, after))


def lines(
    tx: Transaction,
    object: str,
    *,
    actions: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 100,
) -> list[dict[str, Any]]:
    """Return what was written about an object, the latest first: these actions, in [since, until]."""
    audit = tables.audit
    query = select(audit).where(audit.c.object == object)
    query = query.where(audit.c.action.in_(actions)) if actions else query
    query = query if since is None else query.where(audit.c.at >= since)
    query = query if until is None else query.where(audit.c.at <= until)
    return rows.read_all(tx, query.order_by(audit.c.id.desc()).limit(limit), lambda row: dict(row._mapping), audit)


def read_line(row: Row[Any]) -> AuditLine:
    """Return a row as a value."""
    return AuditLine(**row._mapping)
