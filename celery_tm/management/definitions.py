"""Adding, changing and loading definitions: checked first, written with their audit, seen by beat at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from .. import events
from ..clock import parse_duration
from ..domain.checks import choice, text
from ..domain.definition import Definition, Standing, edited, new_definition, stated
from ..domain.ids import new_id
from ..domain.job import MAX_TASK
from ..domain.paging import Page, checked_limit
from ..domain.schedule import seldom
from ..domain.steps import HOOKS
from ..domain.workflow import TASK
from ..errors import DefinitionNotFound, InvalidValue, StaleVersion, TmError, named, nearest, shown
from ..installation import Installation
from ..scheduler import editing, horizon
from ..scheduler.editing import Policy
from ..scheduler.horizon import Difference
from ..store import definitions, versions
from ..store.database import Transaction
from ..store.versions import Version
from . import calendars as calendar_writing
from .files import place_of, read_file
from .importing import Imported, Place, Wishes, read_source, write
from .workflows import refuse_unknown

MAX_COMPARED = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """What loading a file did, by name."""

    added: Sequence[str] = field(default_factory=list)
    changed: Sequence[str] = field(default_factory=list)
    unchanged: Sequence[str] = field(default_factory=list)
    calendars: Sequence[str] = field(default_factory=list)


def _checked_filters(*, search: Any, standing: Any, task: Any) -> dict[str, Any]:
    return {
        "search": text("search", MAX_TASK)(search),
        "standing": choice(Standing, "standing", optional=True)(standing),
        "task": text("task", MAX_TASK)(task),
    }


class Definitions:
    """The recurring definitions of one installation."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._database = installation.database

    def add(self, *, name: str, actor: str | None = None, reason: str | None = None, **values: Any) -> Definition:
        """Add a definition; its first instant is the next one from now."""

        def work(tx: Transaction) -> Definition:
            added = editing.add(tx, name=name, values=values, actor=actor, reason=reason)
            refuse_unknown(self._installation, added)
            tx.wake()
            return added

        return self._told(self._database.run(work))

    def update(
        self,
        name: str,
        *,
        version: int | None = None,
        policy: str = "immediate",
        actor: str | None = None,
        reason: str | None = None,
        **values: Any,
    ) -> Definition:
        """Change what is stated and return the definition; an edit made on another version is refused.

        `policy` says when it counts: "immediate" from now on, "graceful" after the next planned run, "windowed" from now on
        with what is planned ahead compared and told in the audit.
        """
        when = editing.read_policy(policy)
        return self.change(name, values, version=version, actor=actor, reason=reason, action="edit", policy=when)

    def change(
        self,
        name: str,
        values: Mapping[str, Any],
        *,
        action: str,
        version: int | None = None,
        actor: str | None = None,
        reason: str | None = None,
        policy: Policy = Policy.IMMEDIATE,
    ) -> Definition:
        """Change a definition under the name of an action, for the audit."""

        def work(tx: Transaction) -> Definition:
            before = self._find(tx, name, lock=True)
            if version is not None and before.version != version:
                raise self._stale(tx, before, version, values)
            after = editing.change(
                self._installation, tx, before, values, action=action, actor=actor, reason=reason, policy=policy
            )
            self._refuse_new_unknown(before, after)
            tx.wake()
            return after

        return self._told(self._database.run(work))

    def change_group(
        self, group: str, values: Mapping[str, Any], *, action: str, actor: str | None = None, reason: str | None = None
    ) -> list[Definition]:
        """Change every definition of a group, all or none."""

        def work(tx: Transaction) -> list[Definition]:
            names = [definition.name for definition in definitions.select_definitions(tx, group=group)]
            if not names:
                raise InvalidValue("group", f"no definition is in {shown(group)}", "`tm definitions list` shows the groups")
            changed = []
            for name in names:
                before = self._find(tx, name, lock=True)
                changed.append(
                    editing.change(self._installation, tx, before, values, action=action, actor=actor, reason=reason)
                )
            tx.wake()
            return changed

        return self._database.run(work)

    def preview(
        self, name: str, *, within: timedelta | float | str = "7d", policy: str = "immediate", **values: Any
    ) -> Difference:
        """Return the instants that an edit would add, remove and keep in the time to come; nothing is written.

        For a name that is not there yet, return what adding it would bring.
        """
        span, when = parse_duration(within, field="within"), editing.read_policy(policy)
        with self._database.transaction(write=False) as tx:
            now = tx.read_now()
            before = definitions.find(tx, name)
            known = editing.known_calendars(tx, values)
            if before is None:
                made = new_definition(id=new_id(), name=name, values=values, now=now, actor=None, calendars=known)
                return Difference(added=horizon.compare(made, made, since=now, until=now + span, most=MAX_COMPARED).kept)
            start = before.next_run_at if when is Policy.GRACEFUL and before.next_run_at else now
            after = edited(before, values=values, now=max(start, now), actor=None, calendars=known)
            if start > now:  # the next planned run stays, whatever the edit
                later = horizon.compare(before, after, since=start, until=now + span, most=MAX_COMPARED)
                return replace(later, kept=[start, *later.kept]) if start <= now + span else later
            return horizon.compare(before, after, since=now, until=now + span, most=MAX_COMPARED)

    def get(self, name: str) -> Definition:
        """Return the definition of this name."""
        with self._database.transaction(write=False) as tx:
            return self._find(tx, name)

    def list(
        self,
        group: str | None = None,
        *,
        search: str | None = None,
        standing: str | None = None,
        task: str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> Page[Definition]:
        """Return the definitions by name, those that never ran and those retired included; a page of them with `limit`.

        `search` is a part of the name or of the task, `standing` one of on, paused, disabled and retired.
        """
        wanted = _checked_filters(search=search, standing=standing, task=task)
        more = None if limit is None else checked_limit(limit) + 1
        with self._database.transaction(write=False) as tx:
            found = definitions.select_definitions(tx, group=group, after=after, limit=more, **wanted)
        page = found if limit is None else found[:limit]
        return Page(page, next=page[-1].name if len(found) > len(page) else None)

    def groups(self) -> dict[str, int]:
        """Return the groups with how many definitions each has, by name."""
        with self._database.transaction(write=False) as tx:
            return definitions.count_by_group(tx)

    def versions(self, name: str, *, limit: int = 100) -> Sequence[Version]:
        """Return the versions of a definition, the latest first."""
        with self._database.transaction(write=False) as tx:
            return versions.of_definition(tx, self._find(tx, name).id, limit=limit)

    def remove(self, name: str, *, actor: str | None = None, reason: str | None = None) -> None:
        """Delete a definition; its history stays, and a job of it that is owed still runs."""

        def work(tx: Transaction) -> None:
            editing.remove(self._installation, tx, self._find(tx, name, lock=True), actor=actor, reason=reason)

        self._database.run(work)

    def export(self, *, group: str | None = None) -> dict[str, Any]:
        """Return the definitions and calendars as a file would state them, for `load` to take back."""
        with self._database.transaction(write=False) as tx:
            found = definitions.select_definitions(tx, group=group, retired=False)
            named = {name for definition in found for name in definition.calendars}
            days = {name: entries for definition in found for name, entries in definition.closed.items()}
        entries = [{"name": definition.name, **stated(definition)} for definition in found]
        wanted = [{"name": name, "dates": list(days[name])} for name in sorted(named)]
        return {"calendars": wanted, "definitions": entries} if wanted else {"definitions": entries}

    def load(self, path: str | Path, *, actor: str | None = None) -> Loaded:
        """Add or change the definitions of a TOML or YAML file; what it does not state stays. One bad entry: no change."""
        path = Path(path)
        days, entries = read_file(path)
        told: list[Definition] = []

        def work(tx: Transaction) -> Loaded:
            told.clear()
            loaded: dict[str, list[str]] = {"added": [], "changed": [], "unchanged": [], "calendars": []}
            for day in days:
                if self._loaded(path, "calendar", day, lambda day=day: self._load_calendar(tx, day, actor)):  # type: ignore[misc]
                    loaded["calendars"].append(day["name"])
            for entry in entries:
                how, definition = self._loaded(
                    path,
                    "definition",
                    entry,
                    lambda entry=entry: self._load_one(tx, dict(entry), actor),  # type: ignore[misc]
                )
                loaded[how].append(entry["name"])
                told.append(definition)
            tx.wake()
            return Loaded(**loaded)

        done = self._database.run(work)
        for definition in told:
            self._told(definition)
        return done

    def import_from(
        self,
        source: str,
        *,
        url: str | None = None,
        dry_run: bool = False,
        update: bool = False,
        paused: bool = False,
        group: str | None = None,
        catch_up: timedelta | float | str = "1d",
        schema: str | None = None,
        key_prefix: str | None = None,
        timezone: str | None = None,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Imported:
        """Take over the entries of another scheduler, in one transaction, and return what became of each.

        `source` is "beat", "django-celery-beat", "redbeat" or "sqlalchemy-celery-beat"; without `url` the app's settings
        say where it keeps them. A definition that is there already is changed only with `update`. Each goes on after its
        last run there; of what was missed since then, but not longer ago than `catch_up`, the latest instant is run.
        """
        wishes = Wishes(
            source=source, dry_run=dry_run, update=update, paused=paused, group=group, actor=actor, reason=reason,
            catch_up=parse_duration(catch_up, field="catch_up"),
        )  # fmt: skip
        place = Place(url=url, schema=schema, key_prefix=key_prefix, timezone=timezone)
        contents = read_source(self._installation.app, source, place)
        imported, written = write(self._installation, contents, wishes)
        for definition in written:
            self._told(definition)
        return imported

    def _loaded(self, path: Path, kind: str, entry: Mapping[str, Any], work: Callable[[], Any]) -> Any:
        try:
            return work()
        except TmError as error:
            what = f"{kind} {named(entry['name'])}"
            raise InvalidValue(what, str(error), f"nothing of {place_of(path)} was loaded") from error

    def _load_calendar(self, tx: Transaction, entry: Mapping[str, Any], actor: str | None) -> bool:
        unknown = set(entry) - {"name", "dates"}
        if unknown or "dates" not in entry:
            raise InvalidValue(
                "calendar", f"{sorted(unknown) or 'no dates'} is not right", 'give name and dates = ["2026-12-25"]'
            )
        return calendar_writing.put(self._installation, tx, entry["name"], entry["dates"], actor=actor)

    def _load_one(self, tx: Transaction, entry: dict[str, Any], actor: str | None) -> tuple[str, Definition]:
        name = entry.pop("name")
        before = definitions.find(tx, name, lock=True)
        if before is None:
            added = editing.add(tx, name=name, values=entry, actor=actor)
            refuse_unknown(self._installation, added)
            return "added", added
        if before.retired_at is not None:
            before = editing.bring_back(tx, before, reason="loaded from a file again")
        after = editing.change(self._installation, tx, before, entry, action="load", actor=actor)
        self._refuse_new_unknown(before, after)
        return ("unchanged" if after.version == before.version else "changed"), after

    def _stale(self, tx: Transaction, current: Definition, given: int, values: Mapping[str, Any]) -> StaleVersion:
        """Return the refusal of an edit made on an older version, with both values of what it would change."""
        there = stated(current)
        both = {field: (shown(value), shown(there.get(field))) for field, value in values.items()}
        made = versions.find(tx, current.id, current.version)
        return StaleVersion(current.name, given, current.version, made.actor if made else None, both)

    def _find(self, tx: Transaction, name: str, *, lock: bool = False) -> Definition:
        found = definitions.find(tx, name, lock=lock)
        if found is None:
            raise DefinitionNotFound(name, nearest(name, definitions.names(tx)))
        return found

    def _refuse_new_unknown(self, before: Definition, after: Definition) -> None:
        """Raise if an edit names a task for a step, or a hook, that this app does not have; what was there may stay."""
        waiting = after.waiting_edit.values if after.waiting_edit else {}  # it is checked now, while somebody can be told
        wanted = {name: waiting.get(name, getattr(after, name)) for name in ("steps", *HOOKS)}
        if any(getattr(before, name) != value for name, value in wanted.items()):
            refuse_unknown(self._installation, replace(after, **wanted))

    def _told(self, definition: Definition) -> Definition:
        """Warn about what is no error but probably not meant: a task that this app does not have, and long silence."""
        app = self._installation.app
        if definition.task not in app.tasks and definition.task != TASK:
            app.loader.import_default_modules()
            if definition.task not in app.tasks:
                events.emit_seldom(app, events.TaskUnknown(task=definition.task, name=definition.name))
        if seldom(definition.rule, definition.planned_until) is not None:
            following = definition.next_run_at
            seen = events.DefinitionSeldom(name=definition.name, schedule=definition.schedule, next_run_at=following)
            events.emit(app, seen)
        return definition
