"""An edit that waited for its moment takes over: in the transaction that decides the last instant of the old version."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from .. import events
from ..domain.definition import Definition, edited
from ..installation import Installation
from ..store import audit, calendars, definitions, versions
from ..store.database import Transaction
from . import horizon


def switched(installation: Installation, tx: Transaction, definition: Definition, *, now: datetime) -> Definition:
    """Return the definition with its waiting edit applied, if its moment has come; else as it is."""
    edit = definition.waiting_edit
    if edit is None or now < edit.after:
        return definition
    plain = replace(definition, next_edit=None)
    named = edit.values.get("calendars")
    known = calendars.entries(tx, {name for name in named if isinstance(name, str)} if isinstance(named, list) else ())
    try:
        after = edited(plain, values=edit.values, now=edit.after, actor=edit.actor, calendars=known)
        horizon.check(after, now=now)
    except Exception as error:  # it was checked when it was made; a calendar, a kind or a package may be gone since
        events.emit(installation.app, events.DefinitionBroken(name=definition.name, error=f"its edit was dropped: {error}"))
        after = replace(plain, version=plain.version + 1, updated_at=now)
    if not definitions.save(tx, after, version=definition.version):
        return definition
    if after.version != plain.version:
        versions.keep(tx, after, action="edit", actor=edit.actor, reason=edit.reason)
    audit.note(tx, "edit takes over", f"definition:{definition.name}", actor=edit.actor, reason=edit.reason,
               after={**edit.values, "version": after.version})  # fmt: skip
    if after.plan_ahead:
        horizon.extend(tx, after, now=now)
    return after
