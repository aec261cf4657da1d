"""An edit that waited for its moment takes over: in the transaction that decides the last instant of the old version."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from .. import events
from ..domain.definition import Definition
from ..domain.waiting_edits import parts_of, successor
from ..installation import Installation
from ..store import audit, calendars, definitions, versions
from ..store.database import Transaction
from . import horizon


def switched(installation: Installation, tx: Transaction, definition: Definition, *, now: datetime) -> Definition:
    """Return the definition with its waiting edit applied, if its moment has come; else as it is."""
    edit = definition.waiting_edit
    if edit is None or now < edit.after:
        return definition
    named = edit.values.get("calendars")
    known = calendars.entries(tx, {name for name in named if isinstance(name, str)} if isinstance(named, list) else ())
    try:
        after = successor(definition, known) or definition
        horizon.check(after, now=now)
    except Exception as error:  # it was checked when it was made; a calendar, a kind or a package may be gone since
        return _dropped(installation, tx, definition, error, now=now)
    if not definitions.save(tx, after, version=definition.version):
        return definition
    parts = parts_of(edit)
    if after.version != definition.version:
        why = "; ".join(dict.fromkeys(part.reason for part in parts if part.reason)) or None
        versions.keep(tx, after, action="edit", actor=edit.actor, reason=why)
    for part in parts:
        values = {name: edit.values[name] for name in part.fields if name in edit.values}
        audit.note(tx, "edit takes over", f"definition:{definition.name}", actor=part.actor, reason=part.reason,
                   after={**values, "version": after.version})  # fmt: skip
    if after.plan_ahead:
        horizon.extend(tx, after, now=now)
    return after


def _dropped(
    installation: Installation, tx: Transaction, definition: Definition, error: Exception, *, now: datetime
) -> Definition:
    """Drop a waiting edit that cannot take over: the definition stays as it is, and the audit has what was lost and why."""
    why = str(error) or type(error).__name__
    events.emit(installation.app, events.DefinitionBroken(name=definition.name, error=f"its edit was dropped: {why}"))
    after = replace(definition, next_edit=None)
    after = after if after.problem is not None else replace(after, next_run_at=after.looked_at)
    if not definitions.save(tx, after, version=definition.version):
        return definition
    audit.note(tx, "edit dropped", f"definition:{definition.name}", before=definition.next_edit, reason=why)
    if after.plan_ahead and after.problem is None:
        horizon.extend(tx, after, now=now)
    return after
