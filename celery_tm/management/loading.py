"""Loading a file of definitions and calendars in one transaction, without reverting what people have changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import events
from ..domain.declared import FILE, Conflict
from ..domain.definition import Definition
from ..domain.schedule import Zone
from ..domain.stating import check_values
from ..domain.steps import HOOKS
from ..errors import InvalidValue, TmError, named
from ..installation import Installation
from ..scheduler import editing
from ..scheduler.celery_schedules import default_zone
from ..scheduler.planner import run_edit
from ..store import calendars, definitions
from ..store.database import Transaction
from . import calendars as calendar_writing
from .files import place_of, read_file
from .workflows import refuse_new_unknown, refuse_unknown

WORK = ("task", "args", "kwargs", "steps", "mode", *HOOKS)  # what a definition runs


def _what_holds(definition: Definition) -> tuple[int, Mapping[str, Any] | None]:
    """Return what tells that a definition was changed: its version, and the edit that waits to take over."""
    return definition.version, definition.next_edit


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """What loading a file did, by name, and the fields that it did not change because a person had."""

    added: Sequence[str] = field(default_factory=list)
    changed: Sequence[str] = field(default_factory=list)
    unchanged: Sequence[str] = field(default_factory=list)
    calendars: Sequence[str] = field(default_factory=list)
    conflicts: Sequence[Conflict] = field(default_factory=list)


def events_of(conflicts: Sequence[Conflict]) -> list[events.DefinitionConflict]:
    """Return conflicts as events, one for each definition or calendar."""
    fields: dict[str, list[str]] = {}
    for one in conflicts:
        fields.setdefault(one.name, []).append(one.field)
    return [events.DefinitionConflict(name=name, source=FILE, fields=found) for name, found in fields.items()]


def load_file(
    installation: Installation, path: Path, *, only_new: bool = False, force: bool = False, actor: str | None = None
) -> tuple[Loaded, list[Definition]]:
    """Load a file; return what that did, and the definitions as they are then."""
    if only_new and force:
        raise InvalidValue("force", "only_new= leaves alone what force= would overwrite", "give one of them")
    days, entries = read_file(path)

    def work(tx: Transaction) -> tuple[Loaded, list[Definition]]:
        loader = _Loader(installation, tx, only_new=only_new, force=force, actor=actor)
        for kind, found, load in (("calendar", days, loader.calendar), ("definition", entries, loader.definition)):
            for entry in found:
                _load(path, kind, entry, load)
        tx.wake()
        return Loaded(**loader.loaded), loader.written

    return run_edit(installation, work)


def _load(path: Path, kind: str, entry: Mapping[str, Any], load: Callable[[dict[str, Any]], None]) -> None:
    try:
        load(dict(entry))
    except TmError as error:
        what = f"{kind} {named(entry['name'])}"
        raise InvalidValue(what, str(error), f"nothing of {place_of(path)} was loaded") from error


class _Loader:
    """Writes the entries of one file in one transaction."""

    def __init__(
        self, installation: Installation, tx: Transaction, *, only_new: bool, force: bool, actor: str | None
    ) -> None:
        self.installation, self.tx, self.actor = installation, tx, actor
        self.only_new, self.force = only_new, force
        self.redaction = installation.redaction_now()
        self.loaded: dict[str, list[Any]] = {"added": [], "changed": [], "unchanged": [], "calendars": [], "conflicts": []}
        self.written: list[Definition] = []

    def definition(self, entry: dict[str, Any]) -> None:
        """Add a definition, or change what the file has changed and nobody else has."""
        name = entry.pop("name")
        self.redaction.refuse_hidden(entry)
        before = definitions.find(self.tx, name, lock=True)
        if before is None:
            if "timezone" not in entry:
                entry["timezone"] = default_zone(self.installation.app)
            after, how = editing.add(self.tx, name=name, values=entry, actor=self.actor, source=FILE), "added"
            refuse_unknown(self.installation, after)
        elif self.only_new:
            after, how = before, "unchanged"
        else:
            after = self._change(before, entry)
            how = "unchanged" if _what_holds(after) == _what_holds(before) else "changed"
        self.loaded[how].append(name)
        self.written.append(after)

    def _change(self, before: Definition, entry: Mapping[str, Any]) -> Definition:
        if before.retired_at is not None:
            before = editing.bring_back(self.tx, before, reason="loaded from a file again", actor=self.actor)
            if before.origin is not None:  # the code has dropped it, so from now on it is the file's
                reason = f"{before.origin} no longer has it"
                before = editing.release(self.tx, before, heirs=[FILE], actor=self.actor, reason=reason)
        after, merged = editing.apply_source(
            self.installation,
            self.tx,
            before,
            entry,
            source=FILE,
            action="load",
            actor=self.actor,
            force=self.force,
        )
        self.loaded["conflicts"] += merged.conflicts
        refuse_new_unknown(self.installation, before, after)
        work = {name: value for name, value in entry.items() if name in WORK}
        if work and merged.conflicts:  # what is wrong is refused, also where the file may not change anything
            steps = {"steps": None} if "task" in work else {}
            wanted = replace(before, **check_values({**steps, **work}, zone=Zone(), name=before.name, present=before))
            refuse_new_unknown(self.installation, before, wanted)
        return after

    def calendar(self, entry: dict[str, Any]) -> None:
        """Write a calendar, unless a person has changed it since."""
        unknown = set(entry) - {"name", "dates"}
        if unknown or "dates" not in entry:
            raise InvalidValue(
                "calendar", f"{sorted(unknown) or 'no dates'} is not right", 'give name and dates = ["2026-12-25"]'
            )
        name, dates = entry["name"], entry["dates"]
        if self.only_new and name in calendars.entries(self.tx, {name}):
            return
        done = calendar_writing.load(self.installation, self.tx, name, dates, force=self.force, actor=self.actor)
        if isinstance(done, Conflict):
            self.loaded["conflicts"].append(done)
        elif done:
            self.loaded["calendars"].append(name)
