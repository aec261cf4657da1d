"""Pausing a definition whose runs fail one after the other, in the transaction of the last failure."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import select

from ..domain.audit_line import SYSTEM
from ..domain.occurrence import OccurrenceState
from . import audit, definitions, occurrences, tables, versions
from .database import Transaction


def pause_if_failing(tx: Transaction, occurrence: str) -> None:
    """Pause the occurrence's definition if its last `pause_after` runs have failed; SYSTEM does it, with the reason."""
    ledger, rule = tables.occurrence, tables.definition
    wanted = select(rule.c.id).join(ledger, ledger.c.definition == rule.c.id)
    wanted = wanted.where(ledger.c.id == occurrence, rule.c.pause_after.is_not(None), rule.c.paused.is_(False))
    id = tx.execute(wanted).scalar()
    before = definitions.find_by_id(tx, id, lock=True) if id else None
    if before is None or before.paused or before.pause_after is None:
        return
    ends = occurrences.last_ended(tx, before.id, count=before.pause_after)
    if len(ends) < before.pause_after or OccurrenceState.COMPLETED in ends:
        return
    reason = f"its last {before.pause_after} runs have failed"
    after = replace(before, paused=True, version=before.version + 1, updated_by=SYSTEM)
    if definitions.pause(tx, after, version=before.version):
        versions.keep(tx, after, action="pause", actor=None, reason=reason)
        now = {"paused": True, "version": after.version}
        audit.note(tx, "pause", f"definition:{before.name}", reason=reason, before={"paused": False}, after=now)
