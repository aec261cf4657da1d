"""Writing what a source holds: each entry is added, changed, left as it is or refused, all in one transaction.

A dry run does the very same and rolls it back, so what it shows is what would be.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from ...domain.definition import Definition, Past, edited, new_definition, stated
from ...domain.ids import new_id
from ...domain.stating import write_value
from ...domain.timeline import INSTANT
from ...errors import InvalidValue, NoInstantLeft, TmError
from ...installation import Installation
from ...scheduler import editing
from ...scheduler.celery_schedules import name_of
from ...scheduler.seeding import AS_IN_CELERY
from ...store import definitions
from ...store.database import Transaction
from .entry import Contents, Entry, Unreadable

SKEW = timedelta(minutes=1)  # how far the clock of the old beat may be ahead of the database's


class Outcome(StrEnum):
    """What became of an entry."""

    ADDED = "added"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    DIFFERS = "differs"  # a definition of that name says something else, and was not to be changed
    LEFT_OUT = "left out"  # it will not fire again
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedEntry:
    """One entry: what became of it, what changed (or would) as field → (before, after), and what is to be known."""

    name: str
    outcome: Outcome
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    notes: Sequence[str] = field(default_factory=list)
    error: str | None = None
    task: str | None = None
    schedule: str | None = None
    timezone: str | None = None
    enabled: bool | None = None
    planned_until: datetime | None = None
    next_run_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """What an import did, or in a dry run would do, entry by entry."""

    source: str
    where: str
    dry_run: bool
    entries: Sequence[ImportedEntry]
    notes: Sequence[str] = field(default_factory=list)

    def names(self, outcome: str) -> list[str]:
        """Return the names of the entries with this outcome."""
        return [entry.name for entry in self.entries if entry.outcome == outcome]

    @property
    def refused(self) -> list[ImportedEntry]:
        """Return the entries that were not taken over and should have been."""
        return [entry for entry in self.entries if entry.outcome is Outcome.REFUSED]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """How to import."""

    source: str
    dry_run: bool = False
    update: bool = False
    paused: bool = False
    group: str | None = None
    catch_up: timedelta = timedelta(days=1)
    actor: str | None = None
    reason: str | None = None


class _Undo(Exception):
    """Ends a dry run's transaction without a commit."""


def write(installation: Installation, contents: Contents, wishes: Wishes) -> tuple[Imported, list[Definition]]:
    """Write the entries and return what became of them, and the definitions that were added or changed."""
    made: list[tuple[list[ImportedEntry], list[Definition]]] = []

    def work(tx: Transaction) -> None:
        made[:] = [_Writer(installation, tx, wishes).write_all(contents.entries)]
        tx.wake()
        if wishes.dry_run:
            raise _Undo

    with contextlib.suppress(_Undo):
        installation.database.run(work)
    [(entries, written)] = made
    imported = Imported(
        source=wishes.source, where=contents.where, dry_run=wishes.dry_run, entries=entries, notes=contents.notes
    )
    return imported, [] if wishes.dry_run else written


class _Writer:
    """Writes entries in one transaction."""

    def __init__(self, installation: Installation, tx: Transaction, wishes: Wishes) -> None:
        self.installation, self.tx, self.wishes = installation, tx, wishes
        self.now = tx.read_now()
        self.reason = wishes.reason or f"imported from {wishes.source}"
        self.written: list[Definition] = []

    def write_all(self, entries: Sequence[Entry | Unreadable]) -> tuple[list[ImportedEntry], list[Definition]]:
        """Write one after the other; one that is refused does not stop the others."""
        told: list[ImportedEntry] = []
        taken: dict[str, str] = {}
        for entry in entries:
            if isinstance(entry, Unreadable):
                told.append(ImportedEntry(name=entry.name, outcome=Outcome.REFUSED, error=entry.error))
                continue
            name = name_of(entry.name)
            try:
                if name in taken:
                    problem = f"{taken[name]!r} and {entry.name!r} are one name here"
                    raise InvalidValue("name", problem, "rename one of them in the source")
                taken[name] = entry.name
                told.append(self._write_one(name, entry))
            except (TmError, ValueError) as error:
                told.append(ImportedEntry(name=name, outcome=Outcome.REFUSED, notes=entry.notes, error=str(error)))
        return told, self.written

    def _write_one(self, name: str, entry: Entry) -> ImportedEntry:
        if name != entry.name:
            entry = replace(entry, notes=(*entry.notes, f"it was called {entry.name!r}"))
        if self.wishes.group is not None:
            entry = replace(entry, values={**entry.values, "group": self.wishes.group})
        before = definitions.find(self.tx, name, lock=True)
        if before is not None:
            return self._compare(entry, before)
        if entry.over:
            return ImportedEntry(name=name, outcome=Outcome.LEFT_OUT, notes=[*entry.notes, entry.over])
        try:
            return self._add(name, entry)
        except NoInstantLeft:
            if entry.awaited:
                problem = f"it was to run once, at {_words(entry.awaited)}, and has not"
                raise InvalidValue("schedule", problem, "run it by hand, or reach back to it with --catch-up") from None
            notes = [*entry.notes, "none of its instants is still to come"]
            return ImportedEntry(name=name, outcome=Outcome.LEFT_OUT, notes=notes)

    # A definition that is new

    def _add(self, name: str, entry: Entry) -> ImportedEntry:
        values = {**AS_IN_CELERY, **entry.values}
        if self.wishes.paused:
            values["paused"] = True
        past, notes = self._past(name, entry, values)
        added = editing.add(
            self.tx, name=name, values=values, actor=self.wishes.actor, origin=self._origin(entry), reason=self.reason,
            past=past, source=self._origin(entry),
        )  # fmt: skip
        self.written.append(added)
        return self._told(Outcome.ADDED, added, entry, notes=notes)

    def _past(self, name: str, entry: Entry, values: Mapping[str, Any]) -> tuple[Past, list[str]]:
        """Return from where on a new definition plans: from now, or so that it makes up for one missed instant."""
        past = Past(planned_until=self._since(entry, values), last_run_at=entry.last_run_at, runs=entry.runs)
        if values.get("max_runs"):
            past = replace(past, runs=0)  # one that is to run once, and has not
        made = new_definition(id=new_id(), name=name, values=values, now=self.now, actor=None, past=past)
        return self._settled(made, entry, past)

    def _settled(self, made: Definition, entry: Entry, past: Past) -> tuple[Past, list[str]]:
        """Return the past such that of all missed instants the latest is made up for, as beat does it."""
        floor, notes = past.planned_until, []
        reach = self.now - floor
        missed = made.timeline.latest_until(self.now, reach=reach) if reach > timedelta(0) else None
        if missed is not None and missed > floor:
            notes.append(f"it was due at {_words(missed)} and did not run: it runs once when beat starts")
            return replace(past, planned_until=missed - INSTANT), notes
        if entry.since and made.enabled and not made.paused and floor < self.now:
            lost = made.timeline.next_after(entry.since)
            if lost and lost <= floor:
                notes.append(f"it was due at {_words(lost)} and did not run; that is too long ago to make up for")
        ahead = entry.last_run_at - self.now if entry.last_run_at else timedelta(0)
        if ahead > SKEW:
            notes.append(f"its last run, {_words(self.now + ahead)}, is still to come: check --timezone and the clocks")
        return replace(past, planned_until=self.now + ahead if timedelta(0) < ahead <= SKEW else self.now), notes

    def _since(self, entry: Entry, values: Mapping[str, Any]) -> datetime:
        """Return the instant up to which nothing is made up for."""
        off = not values.get("enabled", True) or values.get("paused", False)
        if off or entry.since is None:
            return self.now
        if entry.every and entry.since + entry.every > self.now:
            return self.now  # by the old beat's count it is not due yet
        return min(max(entry.since, self.now - self.wishes.catch_up), self.now)

    def _origin(self, entry: Entry) -> str:
        return entry.origin or f"import:{self.wishes.source}"

    # A definition that is there

    def _compare(self, entry: Entry, before: Definition) -> ImportedEntry:
        """Tell what differs, and change it if that is wanted. What ran in the source since then counts as decided."""
        after = edited(before, values=entry.values, now=self.now, actor=self.wishes.actor)
        changes = _differences(before, after)
        moved, notes = self._moved_on(entry, before)
        if not changes and before.retired_at is None:
            return self._told(Outcome.UNCHANGED, moved, entry, notes=notes)
        if not self.wishes.update:
            return self._told(Outcome.DIFFERS, moved, entry, notes=notes, changes=changes)
        if moved.retired_at is not None:
            changes = {"retired": (True, False), **changes}
            moved = editing.bring_back(self.tx, moved, reason=self.reason, actor=self.wishes.actor)
        after = editing.change(
            self.installation, self.tx, moved, entry.values, action="import", actor=self.wishes.actor, reason=self.reason,
            at_once=True,  # it goes on from where the source is, which is written in this transaction
        )  # fmt: skip
        self.written.append(after)
        return self._told(Outcome.CHANGED, after, entry, notes=notes, changes=changes)

    def _moved_on(self, entry: Entry, before: Definition) -> tuple[Definition, list[str]]:
        """Return a definition that an import made earlier past what the source has run since then."""
        last = entry.last_run_at
        if last is None or last > self.now + SKEW or last <= before.planned_until or before.origin != self._origin(entry):
            return before, []
        past = Past(planned_until=self._since(entry, {"enabled": before.enabled, "paused": before.paused}))
        # One that is to run once counts its runs by hand: there it has run, or has not.
        runs = entry.runs if entry.over or not before.max_runs else before.runs
        past = replace(past, last_run_at=last, runs=runs)
        past, notes = self._settled(before, entry, past)
        moved = editing.move_on(self.tx, before, past, actor=self.wishes.actor, reason=self.reason)
        return moved, [f"it ran there at {_words(last)}, later than was decided here: it goes on from there", *notes]

    def _told(
        self,
        outcome: Outcome,
        definition: Definition,
        entry: Entry,
        *,
        notes: Sequence[str] = (),
        changes: Mapping[str, tuple[Any, Any]] | None = None,
    ) -> ImportedEntry:
        said = [*entry.notes, *notes]
        if definition.retired_at is not None:
            said.append("it is retired here")
        if not self._has_task(definition.task):
            said.append(f"this app has no task {definition.task!r}; its workers need it")
        return ImportedEntry(
            name=definition.name,
            outcome=outcome,
            changes=changes or {},
            notes=said,
            task=definition.task,
            schedule=definition.schedule,
            timezone=definition.timezone,
            enabled=definition.enabled,
            planned_until=definition.planned_until,
            next_run_at=definition.next_run_at,
        )

    def _has_task(self, name: str) -> bool:
        app = self.installation.app
        if name not in app.tasks:
            app.loader.import_default_modules()
        return name in app.tasks


def _differences(before: Definition, after: Definition) -> dict[str, tuple[Any, Any]]:
    old, new = stated(before), stated(after)
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return {name: (_said(before, old, name), _said(after, new, name)) for name in changed}


def _said(definition: Definition, said: Mapping[str, Any], name: str) -> Any:
    """Return a field's value, also where it is the default and so is not stated."""
    return said[name] if name in said else write_value(name, getattr(definition, name))


def _words(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"
