"""Named calendars: set, listed and removed; the definitions that name one follow it at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from ..domain.calendar import checked_entries
from ..domain.declared import Conflict
from ..domain.definition import Definition
from ..domain.job import checked_actor, checked_text
from ..domain.paging import Page
from ..errors import InvalidValue, RowUnreadable, named, nearest
from ..installation import Installation
from ..scheduler import horizon
from ..scheduler.planner import Planner, run_edit
from ..store import audit, calendars, definitions
from ..store.calendars import Calendar
from ..store.database import Database, Transaction


class Calendars:
    """The named calendars of one installation."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation

    @property
    def _database(self) -> Database:
        return self._installation.database

    def set(self, name: str, dates: Sequence[Any], *, actor: str | None = None, reason: str | None = None) -> None:
        """Write a calendar: dates, ranges, days of every year or week on which definitions that name it do not fire."""

        def work(tx: Transaction) -> None:
            put(self._installation, tx, name, dates, actor=actor, reason=reason)
            tx.wake()

        run_edit(self._installation, work)

    def get(self, name: str) -> Calendar:
        """Return one calendar."""
        every = self.list()
        for bad in every.unreadable:
            if bad.id == name:
                raise RowUnreadable(bad.table, bad.id, bad.error)
        found = {calendar.name: calendar for calendar in every}
        if name not in found:
            near = nearest(name, found)
            hint = f"did you mean {near!r}?" if near else "tm.calendars.list() shows them"
            raise InvalidValue("calendar", f"there is no calendar {named(name)}", hint)
        return found[name]

    def list(self) -> Page[Calendar]:
        """Return the calendars by name; `unreadable` of it names those that cannot be read."""
        with self._database.transaction(write=False) as tx:
            return calendars.select_calendars(tx)

    def remove(self, name: str, *, actor: str | None = None, reason: str | None = None) -> None:
        """Delete a calendar that no definition names, nor any edit that waits."""

        def work(tx: Transaction) -> None:
            users = [*definitions.select_using(tx, name), *definitions.select_waiting_for(tx, name)]
            if users:
                raise InvalidValue("calendar", f"{named(name)} is named by {_listed(users)}", "change them first")
            if not calendars.remove(tx, name):
                raise InvalidValue("calendar", f"there is no calendar {named(name)}", "tm.calendars.list() shows them")
            audit.note(tx, "remove", f"calendar:{name}", actor=actor, reason=reason)

        self._database.run(work)


def _listed(users: Sequence[Definition]) -> str:
    return ", ".join(list(dict.fromkeys(user.name for user in users))[:5])


def put(
    installation: Installation,
    tx: Transaction,
    name: str,
    dates: Sequence[Any],
    *,
    actor: str | None,
    reason: str | None = None,
    declared: Sequence[str] | None = None,
) -> bool:
    """Write a calendar and set the next run of those that name it anew; False if it says the same already.

    `declared` is what a file says, where that writes it.
    """
    checked_text(name, field="calendar", limit=100)
    checked_actor(actor)
    entries = checked_entries(dates, field="dates")
    before = calendars.entries(tx, {name}).get(name)
    if before == entries:
        return False
    now = tx.read_now()
    # What was due before is decided by the calendar as it was.
    users = [Planner(installation).catch_up(tx, user, now=now) for user in definitions.select_using(tx, name)]
    users = [user for user in users if user.problem is None]  # beat goes on with the others where they stopped
    if declared is None:  # a person: what a file said before is still what it said
        declared = calendars.declared(tx, name) if before is not None else ()
    calendars.put(tx, name, entries, actor=actor, declared=declared)
    definitions.advance(tx, [_replanned(tx, user, name, entries, now=now) for user in users])
    audit.note(tx, "set", f"calendar:{name}", actor=actor, reason=reason,
               before=None if before is None else {"dates": list(before)}, after={"dates": list(entries)})  # fmt: skip
    return True


def load(
    installation: Installation, tx: Transaction, name: str, dates: Sequence[Any], *, force: bool, actor: str | None
) -> Conflict | bool:
    """Write a calendar that a file states, unless a person has changed it since; say whether it was written."""
    entries = checked_entries(dates, field="dates")
    there, then = calendars.entries(tx, {name}).get(name), calendars.declared(tx, name)
    if there is None or force or then is None or then == there:
        written = put(installation, tx, name, dates, actor=actor, declared=entries)
    elif then == entries or there == entries:
        written = False
    else:
        return Conflict(name=name, field="dates", file=list(entries), database=list(there))
    if not written and then != entries:
        calendars.declare(tx, name, entries)
    return written


def _replanned(tx: Transaction, definition: Definition, name: str, entries: tuple[str, ...], *, now: datetime) -> Definition:
    """Return a definition with its next run by the new calendar; a past day that is opened again is not made up for."""
    planned_until = max(definition.planned_until, now)
    after = replace(definition, closed={**definition.closed, name: entries}, planned_until=planned_until)
    after = replace(after, planned_offset=after.offset_at(planned_until))
    after = replace(after, next_run_at=after.looked_at)
    if after.plan_ahead:
        horizon.extend(tx, after, now=now)
    return after
