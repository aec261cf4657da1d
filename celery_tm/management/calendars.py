"""Named calendars: set, listed and removed; the definitions that name one follow it at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from ..domain.calendar import checked_entries
from ..domain.definition import Definition
from ..domain.job import checked_actor, checked_text
from ..errors import InvalidValue, named, nearest
from ..installation import Installation
from ..scheduler import horizon
from ..scheduler.planner import Planner
from ..store import audit, calendars, definitions
from ..store.calendars import Calendar
from ..store.database import Transaction


class Calendars:
    """The named calendars of one installation."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._database = installation.database

    def set(self, name: str, dates: Sequence[Any], *, actor: str | None = None, reason: str | None = None) -> None:
        """Write a calendar: dates, ranges, days of every year or week on which definitions that name it do not fire."""

        def work(tx: Transaction) -> None:
            put(self._installation, tx, name, dates, actor=actor, reason=reason)
            tx.wake()

        self._database.run(work)

    def get(self, name: str) -> Calendar:
        """Return one calendar."""
        found = {calendar.name: calendar for calendar in self.list()}
        if name not in found:
            near = nearest(name, found)
            hint = f"did you mean {near!r}?" if near else "tm.calendars.list() shows them"
            raise InvalidValue("calendar", f"there is no calendar {named(name)}", hint)
        return found[name]

    def list(self) -> Sequence[Calendar]:
        """Return the calendars by name."""
        with self._database.transaction(write=False) as tx:
            return calendars.select_calendars(tx)

    def remove(self, name: str, *, actor: str | None = None, reason: str | None = None) -> None:
        """Delete a calendar that no definition names."""

        def work(tx: Transaction) -> None:
            users = [definition.name for definition in definitions.select_using(tx, name)]
            if users:
                raise InvalidValue("calendar", f"{named(name)} is named by {', '.join(users[:5])}", "change them first")
            if not calendars.remove(tx, name):
                raise InvalidValue("calendar", f"there is no calendar {named(name)}", "tm.calendars.list() shows them")
            audit.note(tx, "remove", f"calendar:{name}", actor=actor, reason=reason)

        self._database.run(work)


def put(
    installation: Installation,
    tx: Transaction,
    name: str,
    dates: Sequence[Any],
    *,
    actor: str | None,
    reason: str | None = None,
) -> bool:
    """Write a calendar and set the next run of those that name it anew; False if it says the same already."""
    checked_text(name, field="calendar", limit=100)
    checked_actor(actor)
    entries = checked_entries(dates, field="dates")
    before = calendars.entries(tx, {name}).get(name)
    if before == entries:
        return False
    now = tx.read_now()
    # What was due before is decided by the calendar as it was.
    users = [Planner(installation).catch_up(tx, user, now=now) for user in definitions.select_using(tx, name)]
    calendars.put(tx, name, entries, actor=actor)
    definitions.advance(tx, [_replanned(tx, user, name, entries, now=now) for user in users])
    audit.note(tx, "set", f"calendar:{name}", actor=actor, reason=reason,
               before=None if before is None else {"dates": list(before)}, after={"dates": list(entries)})  # fmt: skip
    return True


def _replanned(tx: Transaction, definition: Definition, name: str, entries: tuple[str, ...], *, now: datetime) -> Definition:
    """Return a definition with its next run by the new calendar; a past day that is opened again is not made up for."""
    planned_until = max(definition.planned_until, now)
    after = replace(definition, closed={**definition.closed, name: entries}, planned_until=planned_until)
    after = replace(after, planned_offset=after.offset_at(planned_until))
    after = replace(after, next_run_at=after.following)
    if after.plan_ahead:
        horizon.extend(tx, after, now=now)
    return after
