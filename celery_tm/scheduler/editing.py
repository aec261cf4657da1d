"""Adding, changing and retiring definitions inside a transaction: with their versions, their audit and their horizon.

What was due before an edit is decided by the version that was in force then; an edit never repeats an instant and never
loses one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from ..domain import definition as domain
from ..domain.audit_line import SYSTEM
from ..domain.checks import instant
from ..domain.declared import Earlier, Merged, damaged_fields, declare, forget, inherited, merge
from ..domain.definition import Calendars, Definition, Past, edited, new_definition, stated
from ..domain.ids import new_id
from ..domain.jitter import refuse_long_jitter
from ..domain.stating import FIELDS, spread, write_fields, write_value
from ..domain.timeline import INSTANT
from ..domain.waiting_edits import NOT_READ, fits, joined, refuse_misfit, taken_back
from ..errors import DefinitionExists, InvalidValue, StaleVersion, nearest, shown
from ..installation import Installation
from ..store import audit, calendars, definitions, occurrences, versions
from ..store.database import Transaction
from . import horizon
from .planner import Planner, is_far_behind


class Policy(StrEnum):
    """When an edit takes over."""

    IMMEDIATE = "immediate"  # from now on
    GRACEFUL = "graceful"  # after the next planned run
    WINDOWED = "windowed"  # from now on, with what is planned ahead compared and told


def read_time(value: Any, *, now: datetime) -> datetime | None:
    """Return the time at which an edit is to take over; None: it does not wait for one."""
    at: datetime | None = instant("at")(value)
    if at is not None and at <= now:
        raise InvalidValue("at", f"{at.isoformat()} is not to come", "give a later time, or none to change it now")
    return at.replace(microsecond=0) if at is not None else None


def read_policy(value: Any) -> Policy:
    """Return an update policy, or say which there are."""
    try:
        return Policy(value if isinstance(value, str) else "")
    except ValueError:
        near = nearest(value, [str(policy) for policy in Policy])
        hint = f"; did you mean {near!r}?" if near else ""
        choices = ", ".join(repr(str(policy)) for policy in Policy)
        raise InvalidValue("policy", f"{shown(value)} is unknown", f"use one of {choices}{hint}") from None


def add(
    tx: Transaction,
    *,
    name: str,
    values: Mapping[str, Any],
    actor: str | None = None,
    origin: str | None = None,
    reason: str | None = None,
    past: Past | None = None,
    source: str | None = None,
) -> Definition:
    """Add a definition; its first instant is the next one from now, or from where its past ends.

    `source` is the file or the code that declares it, where it is not a person.
    """
    now = tx.read_now()
    known = known_calendars(tx, values)
    added = new_definition(
        id=new_id(), name=name, values=values, now=now, actor=actor, origin=origin, calendars=known, past=past
    )
    added = replace(added, app=tx.app, declared=declare(values, source=source, name=name) if source else {})
    refuse_long_jitter(added)
    if not definitions.add(tx, added):
        raise DefinitionExists(name)
    versions.keep(tx, added, action="add", actor=actor, reason=reason)
    audit.note(tx, "add", object_of(name), actor=actor, after=stated(added), reason=reason)
    if added.plan_ahead:
        horizon.extend(tx, added, now=now)
    return added


def change(
    installation: Installation,
    tx: Transaction,
    before: Definition,
    values: Mapping[str, Any],
    *,
    action: str,
    actor: str | None = None,
    reason: str | None = None,
    policy: Policy = Policy.IMMEDIATE,
    at: datetime | None = None,
    at_once: bool = False,
) -> Definition:
    """Change a locked definition and return it; the same one if nothing differs.

    To be run by `run_edit`, or `at_once`: all that is due is decided in this transaction, however much that is.
    """
    now = tx.read_now()
    known = known_calendars(tx, values)
    planned = before
    # What was due before the edit is decided by the rule and the switches that were in force then. But where somebody
    # switches off what is far behind, that is the end of its catch-up: beat records the rest as skipped.
    if not (_switches_off(values) and is_far_behind(before, now=now)):
        planned = Planner(installation).catch_up(tx, before, now=now, at_once=at_once)
    planned = _overruled(tx, planned, values, actor=actor, reason=reason)
    after = edited(planned, values=values, now=now, actor=actor, calendars=known)
    if values.keys() & {"jitter", "schedule", "overlap"}:
        refuse_long_jitter(after)
    if after is planned:
        return planned
    if at is not None:
        return _let_wait(tx, planned, after, values, until=at - INSTANT, actor=actor, reason=reason)
    if policy is Policy.GRACEFUL and planned.following is not None:
        return _let_wait(tx, planned, after, values, until=planned.following, actor=actor, reason=reason)
    refuse_misfits(tx, planned, after)
    _save(tx, before, planned, after, action=action, actor=actor, reason=reason, now=now)
    return after


def _switches_off(values: Mapping[str, Any]) -> bool:
    return values.keys() <= domain.SWITCHES and (values.get("enabled") is False or values.get("paused") is True)


def apply_source(
    installation: Installation,
    tx: Transaction,
    before: Definition,
    values: Mapping[str, Any],
    *,
    source: str,
    action: str,
    actor: str | None = None,
    reason: str | None = None,
    force: bool = False,
    dropped: Mapping[str, Any] | None = None,
) -> tuple[Definition, Merged]:
    """Change a locked definition to what a file or the code declares, except for what people have changed since.

    `dropped` are fields that the source no longer declares, with what they become.
    """
    merged = merge_source(tx, before, values, source=source, force=force)
    wanted = {**(dropped or {}), **merged.values}
    after = before
    if wanted:
        after = change(installation, tx, before, wanted, action=action, actor=actor, reason=reason)
    kept = forget(merged.declared, list(dropped or {}), source=source)
    if after.declared != kept:
        after = replace(after, declared=kept)
        definitions.declare(tx, after)
    return after, merged


def merge_source(
    tx: Transaction, before: Definition, values: Mapping[str, Any], *, source: str, force: bool = False
) -> Merged:
    """Return what a file or the code changes of a definition, and where people have changed the same."""
    earlier = _earlier(tx, before) if before.declared is None else None
    last = versions.find(tx, before.id, before.version) if before.problem is not None else None
    damaged = damaged_fields(before, last.stated if last else None)
    return merge(before, values, source=source, earlier=earlier, force=force, damaged=damaged)


def _earlier(tx: Transaction, before: Definition) -> Earlier:
    """Return what the versions tell of a definition that an earlier release wrote."""
    declared = versions.latest_declared(tx, before.id)
    if declared is not None:
        return Earlier(stated=declared.stated)
    last = versions.find(tx, before.id, before.version)
    return Earlier(by_person=last is not None and last.actor != SYSTEM)


def _overruled(
    tx: Transaction, before: Definition, values: Mapping[str, Any], *, actor: str | None, reason: str | None
) -> Definition:
    """Return the definition without what a waiting edit says about the same fields: the later word counts."""
    after = taken_back(before, values)
    if after is before:
        return before
    if not definitions.save(tx, after, version=before.version):
        raise StaleVersion(before.name, before.version, before.version + 1)
    taken = {"taken back": sorted(_waiting_fields(before) - _waiting_fields(after))}
    audit.note(tx, "edit later", object_of(before.name), actor=actor, after=taken, reason=reason)
    return after


def _waiting_fields(definition: Definition) -> set[str]:
    try:
        edit = definition.waiting_edit
        return set(edit.values) if edit else set()
    except NOT_READ:
        return {"edit"}


def refuse_misfits(tx: Transaction, before: Definition, after: Definition) -> None:
    """Refuse an edit that would keep the one that waits from taking over; one that could not before may be left so."""
    edit = after.waiting_edit if after.problem is None else None
    if edit is None:
        return
    known = known_calendars(tx, edit.values)
    if before.waiting_edit is None or fits(before, known):
        refuse_misfit(after, known)


def _let_wait(
    tx: Transaction,
    planned: Definition,
    after: Definition,
    values: Mapping[str, Any],
    *,
    until: datetime,
    actor: str | None,
    reason: str | None,
) -> Definition:
    """Keep an edit until all instants up to `until` have been decided."""
    waiting = let_wait(tx, planned, after, values, until=until, actor=actor, reason=reason)
    if not definitions.save(tx, waiting, version=planned.version):
        raise StaleVersion(planned.name, planned.version, planned.version + 1)
    audit.note(tx, "edit later", object_of(planned.name), actor=actor, after=waiting.next_edit, reason=reason)
    return waiting


def let_wait(
    tx: Transaction,
    planned: Definition,
    after: Definition,
    values: Mapping[str, Any],
    *,
    until: datetime,
    actor: str | None = None,
    reason: str | None = None,
) -> Definition:
    """Return a definition of which an edit waits until all instants up to `until` have been decided; nothing is written."""
    plain, named = write_fields(_columns(after)), spread(values)
    wanted = {name: plain[name] for name in FIELDS if name in named}
    earlier = planned.waiting_edit
    if earlier is not None and earlier.after != until and (earlier.at or until.microsecond == (-INSTANT).microseconds):
        when = f"at {earlier.at.isoformat()}" if earlier.at else f"after the run at {earlier.after.isoformat()}"
        problem = f"an edit of {', '.join(sorted(earlier.values))} takes over {when} already"
        raise InvalidValue("at", problem, "give the same time, or state those fields again to take that edit back")
    waiting = joined(planned, wanted, after=until, actor=actor, reason=reason)
    known = known_calendars(tx, waiting.waiting_edit.values if waiting.waiting_edit else {})
    refuse_misfit(waiting, known)
    return replace(waiting, closed={**planned.closed, **known})


def _columns(definition: Definition) -> dict[str, Any]:
    return {name: getattr(definition, name) for name in ("schedule_kind", "groups", *FIELDS)}


def _plain(definition: Definition, name: str) -> Any:
    return write_value(name, getattr(definition, name))


def move_on(tx: Transaction, before: Definition, past: Past, *, actor: str | None, reason: str | None) -> Definition:
    """Take over what a locked definition has behind it elsewhere; it never goes back, and the rule stays as it is."""
    later = max(past.planned_until, before.planned_until)
    after = replace(before, planned_until=later, planned_offset=before.offset_at(later), runs=max(past.runs, before.runs))
    last = max((at for at in (past.last_run_at, before.last_run_at) if at), default=None)
    after = replace(after, last_run_at=last, catching_up_from=None)
    after = replace(after, next_run_at=after.looked_at)
    definitions.advance(tx, [after])
    if after.plan_ahead:
        horizon.extend(tx, after, now=tx.read_now())
    both = ({"planned_until": _plain(one, "planned_until"), "runs": one.runs} for one in (before, after))
    audit.note(tx, "move on", object_of(before.name), actor=actor, before=next(both), after=next(both), reason=reason)
    return after


def retire(installation: Installation, tx: Transaction, before: Definition, *, reason: str) -> Definition:
    """Let a definition rest that what seeded it no longer names; what was due before is decided."""
    now = tx.read_now()
    planned = Planner(installation).catch_up(tx, before, now=now)
    after = domain.retired(planned, now=now)
    _save(tx, before, planned, after, action="retire", actor=None, reason=reason, now=now)
    return after


def release(
    tx: Transaction, before: Definition, *, heirs: Collection[str], actor: str | None = None, reason: str | None = None
) -> Definition:
    """Let a locked definition belong to other sources that declare it, since its origin no longer does."""
    after = replace(before, origin=None, declared=inherited(before, before.origin or "", heirs))
    definitions.declare(tx, after)
    was, now = {"origin": before.origin}, {"origin": None}
    audit.note(tx, "release", object_of(before.name), actor=actor, before=was, after=now, reason=reason)
    return after


def bring_back(tx: Transaction, before: Definition, *, reason: str, actor: str | None = None) -> Definition:
    """Let a retired definition go on from now."""
    now = tx.read_now()
    after = domain.unretired(before, now=now)
    _save(tx, before, before, after, action="bring back", actor=actor, reason=reason, now=now)
    return after


def _save(
    tx: Transaction,
    before: Definition,
    planned: Definition,
    after: Definition,
    *,
    action: str,
    actor: str | None,
    reason: str | None,
    now: datetime,
) -> None:
    if not definitions.save(tx, after, version=planned.version):
        raise StaleVersion(before.name, before.version, before.version + 1)
    versions.keep(tx, after, action=action, actor=actor, reason=reason)
    old, new = stated(before), stated(after)
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    told: dict[str, Any] = {key: new.get(key) for key in changed} | {"version": after.version}
    if (before.plan_ahead or after.plan_ahead) and after.problem is None:
        told |= {"horizon": _told(horizon.extend(tx, after, now=now))}
    audit.note(
        tx,
        action,
        object_of(before.name),
        actor=actor,
        before={key: old.get(key) for key in changed} | {"version": before.version},
        after=told,
        reason=reason,
    )


def _told(difference: horizon.Difference) -> dict[str, Any]:
    return {
        "added": [instant.isoformat() for instant in difference.added],
        "removed": [instant.isoformat() for instant in difference.removed],
        "kept": len(difference.kept),
    }


def remove(
    installation: Installation, tx: Transaction, definition: Definition, *, actor: str | None, reason: str | None
) -> None:
    """Delete a locked definition; its history stays, and what it owes still runs."""
    definition = Planner(installation).catch_up(tx, definition, now=tx.read_now())  # what was due is owed
    occurrences.remove_planned(tx, list(occurrences.planned_ahead(tx, definition.id)))
    definitions.remove(tx, definition.id)
    before = {**stated(definition), "id": definition.id, "app": definition.app, "version": definition.version}
    audit.note(tx, "remove", object_of(definition.name), actor=actor, before=before, reason=reason)


def known_calendars(tx: Transaction, values: Mapping[str, Any]) -> Calendars:
    """Return all calendars, if the stated values name any."""
    if not values.get("calendars"):
        return {}
    return {one.name: one.entries for one in calendars.select_calendars(tx)}


def object_of(name: str) -> str:
    """Return how the audit names a definition."""
    return f"definition:{name}"
