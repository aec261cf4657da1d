"""An edit that waits for its moment: how a later one joins it, and what the definition is when it has taken over. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from typing import Any

from ..errors import InvalidValue
from .definition import Calendars, Definition, WaitingEdit, edited
from .jitter import refuse_long_jitter
from .timeline import INSTANT

NOT_READ = (ValueError, TypeError, KeyError)  # a waiting edit that nobody can read never takes over


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The fields of a waiting edit that one person stated at one time."""

    fields: tuple[str, ...]
    actor: str | None = None
    reason: str | None = None


def parts_of(edit: WaitingEdit) -> list[Part]:
    """Return who stated which fields of a waiting edit, in the order of their edits."""
    if not edit.parts:
        return [Part(fields=tuple(edit.values), actor=edit.actor, reason=edit.reason)]
    return [Part(**{**part, "fields": tuple(part["fields"])}) for part in edit.parts]


def joined(
    definition: Definition,
    values: Mapping[str, Any],
    *,
    after: datetime,
    actor: str | None = None,
    reason: str | None = None,
) -> Definition:
    """Return a definition whose edit of these values waits until all up to `after` is decided, besides one that waits."""
    earlier = definition.waiting_edit
    parts = [_without(part, values) for part in (parts_of(earlier) if earlier else ())]
    parts = [part for part in parts if part.fields] + [Part(fields=tuple(values), actor=actor, reason=reason)]
    return _waits(definition, {**(earlier.values if earlier else {}), **values}, after, parts)


def taken_back(definition: Definition, values: Mapping[str, Any]) -> Definition:
    """Return a definition without what its waiting edit says about the same fields.

    One that nobody can read goes as a whole.
    """
    try:
        edit = definition.waiting_edit
        parts = parts_of(edit) if edit else []
    except NOT_READ:
        return _looked_at(replace(definition, next_edit=None))
    if edit is None or not edit.values.keys() & values.keys():
        return definition
    left = {name: value for name, value in edit.values.items() if name not in values}
    parts = [part for part in (_without(part, values) for part in parts) if part.fields]
    return _waits(definition, left, edit.after, parts) if left else _looked_at(replace(definition, next_edit=None))


def _without(part: Part, values: Mapping[str, Any]) -> Part:
    return replace(part, fields=tuple(name for name in part.fields if name not in values))


def _waits(definition: Definition, values: Mapping[str, Any], after: datetime, parts: list[Part]) -> Definition:
    last = parts[-1]
    edit: dict[str, Any] = {"values": dict(values), "after": after.isoformat(), "actor": last.actor, "reason": last.reason}
    if len(parts) > 1:
        edit["parts"] = [{"fields": list(one.fields), "actor": one.actor, "reason": one.reason} for one in parts]
    return _looked_at(replace(definition, next_edit=edit))


def _looked_at(definition: Definition) -> Definition:
    return definition if definition.problem is not None else replace(definition, next_run_at=definition.looked_at)


def successor(definition: Definition, calendars: Calendars | None = None) -> Definition | None:
    """Return the definition as its waiting edit leaves it, or None if none waits; raise if it cannot take over."""
    edit = definition.waiting_edit
    if edit is None:
        return None
    plain = replace(definition, next_edit=None)
    after = edited(plain, values=edit.values, now=edit.after, actor=edit.actor, calendars=calendars)
    if edit.values.keys() & {"jitter", "schedule", "overlap"}:
        refuse_long_jitter(after)
    return after


def refuse_misfit(definition: Definition, calendars: Calendars | None = None) -> None:
    """Raise if the waiting edit of a definition could not take over from what the definition is now."""
    edit = definition.waiting_edit
    try:
        successor(definition, calendars)
    except InvalidValue as error:
        fields = ", ".join(sorted(edit.values)) if edit else ""
        problem = f"{error.problem}, together with the edit of {fields} that waits"
        remedy = f"{error.remedy}; or state one of those fields again, which takes it out of that edit"
        raise InvalidValue(error.field, problem, remedy) from error


def fits(definition: Definition, calendars: Calendars | None = None) -> bool:
    """Say whether the waiting edit of a definition, if there is one, could take over."""
    try:
        successor(definition, calendars)
    except Exception:  # a calendar, a kind or a package is gone, or nobody can read it
        return False
    return True


def version_at(definition: Definition, instant: datetime) -> Definition:
    """Return the definition as it is for an instant: with its waiting edit applied, if that has taken over by then."""
    edit = definition.waiting_edit
    if edit is None or instant <= edit.after:
        return definition
    try:
        return successor(definition) or definition
    except Exception:  # it will be dropped
        return replace(definition, next_edit=None)


def next_after(definition: Definition, instant: datetime) -> datetime | None:
    """Return the first instant later than `instant` within the bounds of the definition, and of its waiting edit."""
    edit = definition.waiting_edit
    if edit is None:
        return definition.next_after(instant)
    if instant < edit.after:
        following = definition.next_after(instant)
        if following is not None and following <= edit.after:
            return following
    return version_at(definition, edit.after + INSTANT).next_after(max(instant, edit.after))


def coming(definition: Definition, *, since: datetime | None = None) -> Iterator[datetime]:
    """Yield the instants that are still to be decided, and later than `since`: what is to run, as far as it is known now.

    Up to the moment of a waiting edit by the definition as it is, from then on by that edit.
    """
    start, edit = max(since or definition.resumes_after, definition.resumes_after), definition.waiting_edit
    if edit is None:
        yield from _instants(definition, start)
    elif definition.retired_at is None:
        yield from takewhile(lambda instant: instant <= edit.after, _instants(definition, start))
        yield from _instants(version_at(definition, edit.after + INSTANT), max(start, edit.after))


def _instants(definition: Definition, start: datetime) -> Iterator[datetime]:
    over = definition.is_spent or definition.retired_at is not None
    instant = None if over else definition.next_after(start)
    while instant is not None:
        yield instant
        instant = definition.next_after(instant)
