"""Adding, changing and loading definitions: checked first, written with their audit, seen by beat at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from .. import events
from ..clock import parse_duration
from ..domain.checks import choice, count, text
from ..domain.definition import Definition, Standing, edited, new_definition, stated
from ..domain.ids import new_id
from ..domain.job import MAX_TASK
from ..domain.paging import Page, checked_limit
from ..domain.restoring import restored
from ..domain.schedule import Zone, seldom
from ..domain.stating import check_values
from ..domain.timeline import INSTANT
from ..domain.waiting_edits import coming, taken_back
from ..domain.workflow import TASK
from ..errors import DefinitionNotFound, InvalidValue, StaleVersion, nearest, shown
from ..installation import Installation
from ..scheduler import editing, horizon
from ..scheduler.celery_schedules import default_zone
from ..scheduler.editing import Policy
from ..scheduler.horizon import Difference
from ..scheduler.planner import run_edit
from ..store import definitions, versions
from ..store.database import Database, Transaction
from ..store.versions import Version
from .importing import Imported, Place, Wishes, read_source, write
from .loading import Loaded, events_of, load_file
from .workflows import refuse_new_unknown, refuse_unknown

MAX_COMPARED = 10_000
MAX_VERSION = 2**31 - 1
_version = count("version", MAX_VERSION)


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

    @property
    def _database(self) -> Database:
        return self._installation.database

    def add(self, *, name: str, actor: str | None = None, reason: str | None = None, **values: Any) -> Definition:
        """Add a definition; its first instant is the next one from now.

        Without `timezone` it is in the app's, which is kept with it: a later change of that setting does not move it.
        """
        values = self._in_zone(self._given(values))

        def work(tx: Transaction) -> Definition:
            added = editing.add(tx, name=name, values=values, actor=actor, reason=reason)
            refuse_unknown(self._installation, added)
            tx.wake()
            return added

        return self._told(run_edit(self._installation, work))

    def update(
        self,
        name: str,
        *,
        version: int | None = None,
        policy: str | None = None,
        at: datetime | str | None = None,
        actor: str | None = None,
        reason: str | None = None,
        **values: Any,
    ) -> Definition:
        """Change what is stated and return the definition; an edit made on another version is refused.

        `policy` says when it counts: "immediate" from now on, "graceful" after the next planned run, "windowed" from now on
        with what is planned ahead compared and told in the audit; unset: `tm_update_policy`. With `at` it takes over at that
        time: instants before it are decided by the old values, from it on by the new ones.
        """
        when, values = self._policy(policy, at), self._given(values)
        version = _version(version)
        return self.change(name, values, version=version, actor=actor, reason=reason, action="edit", policy=when, at=at)

    def restore(
        self,
        name: str,
        *,
        version: int,
        policy: str | None = None,
        at: datetime | str | None = None,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Definition:
        """Make a new version that says what a stored one did; whether it is enabled or paused stays as it is."""
        number = _version(version)
        with self._database.transaction(write=False) as tx:
            kept = None if number is None else versions.find(tx, self._find(tx, name).id, number)
        if kept is None:
            remedy = "tm.definitions.versions(name) lists them"
            raise InvalidValue("version", f"no version {shown(version)} of {name!r} is kept", remedy)
        why = reason or f"version {version} restored"
        when, values = self._policy(policy, at), restored(kept.stated)
        return self.change(name, values, actor=actor, reason=why, action="restore", policy=when, at=at)

    def _policy(self, policy: str | None, at: Any) -> Policy:
        if policy is not None and at is not None:
            raise InvalidValue("policy", "at= says already when the edit counts", "leave one of them out")
        return editing.read_policy(self._installation.settings.tm_update_policy if policy is None else policy)

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
        at: datetime | str | None = None,
    ) -> Definition:
        """Change a definition under the name of an action, for the audit."""

        def work(tx: Transaction) -> Definition:
            before = self._find(tx, name, lock=True)
            if version is not None and before.version != version:
                raise self._stale(tx, before, version, values)
            time = editing.read_time(at, now=tx.read_now())
            after = editing.change(
                self._installation, tx, before, values, action=action, actor=actor, reason=reason, policy=policy, at=time
            )
            refuse_new_unknown(self._installation, before, after)
            tx.wake()
            return after

        return self._told(run_edit(self._installation, work))

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

        return run_edit(self._installation, work)

    def preview(
        self,
        name: str,
        *,
        within: timedelta | float | str = "7d",
        policy: str | None = None,
        at: datetime | str | None = None,
        **values: Any,
    ) -> Difference:
        """Return the instants that an edit would add, remove and keep in the time to come; nothing is written.

        For a name that is not there yet, return what adding it would bring.
        """
        span, when, values = parse_duration(within, field="within"), self._policy(policy, at), self._given(values)
        with self._database.transaction(write=False) as tx:
            now = tx.read_now()
            before = definitions.find(tx, name)
            known = editing.known_calendars(tx, values)
            if before is None:
                made = new_definition(
                    id=new_id(), name=name, values=self._in_zone(values), now=now, actor=None, calendars=known
                )
                return Difference(added=horizon.compare(made, made, since=now, until=now + span, most=MAX_COMPARED).kept)
            time = editing.read_time(at, now=now)
            edit = self._previewed(tx, before, values, now=now, time=time, is_graceful=when is Policy.GRACEFUL)
            return horizon.compare(before, edit, since=now, until=now + span, most=MAX_COMPARED)

    def _previewed(
        self,
        tx: Transaction,
        before: Definition,
        values: Mapping[str, Any],
        *,
        now: datetime,
        time: datetime | None,
        is_graceful: bool,
    ) -> Definition:
        """Return a definition as an edit would leave it, without writing anything; `time` is when that would take over."""
        known, plain = editing.known_calendars(tx, values), taken_back(before, values)
        after = edited(plain, values=values, now=now, actor=None, calendars=known)
        following = next(coming(replace(before, next_edit=None), since=now), None) if is_graceful else None
        until = time - INSTANT if time else following
        if after is not plain and until is not None:
            return editing.let_wait(tx, plain, after, values, until=until)
        editing.refuse_misfits(tx, plain, after)
        return after

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
        most = count("limit", MAX_VERSION)(limit) or MAX_VERSION
        with self._database.transaction(write=False) as tx:
            return versions.of_definition(tx, self._find(tx, name).id, limit=most)

    def remove(self, name: str, *, actor: str | None = None, reason: str | None = None) -> None:
        """Delete a definition; its history stays, and a job of it that is owed still runs."""

        def work(tx: Transaction) -> None:
            editing.remove(self._installation, tx, self._find(tx, name, lock=True), actor=actor, reason=reason)

        run_edit(self._installation, work)

    def export(self, *, group: str | None = None) -> dict[str, Any]:
        """Return the definitions and calendars as a file would state them, for `load` to take back."""
        with self._database.transaction(write=False) as tx:
            found = definitions.select_definitions(tx, group=group, retired=False)
            named = {name for definition in found for name in definition.calendars}
            days = {name: entries for definition in found for name, entries in definition.closed.items()}
        # The zone also where it is UTC: another app may have another default.
        entries = [{"name": one.name, **stated(one), "timezone": one.timezone} for one in found]
        wanted = [{"name": name, "dates": list(days[name])} for name in sorted(named)]
        return {"calendars": wanted, "definitions": entries} if wanted else {"definitions": entries}

    def load(self, path: str | Path, *, only_new: bool = False, force: bool = False, actor: str | None = None) -> Loaded:
        """Add or change the definitions of a TOML or YAML file; what it does not state stays. One bad entry: no change.

        What a person has changed since the file was loaded last stays: `conflicts` of the answer are the fields that the
        file has changed too. With `force` the file wins, with `only_new` nothing that is there is changed.
        """
        loaded, written = load_file(self._installation, Path(path), only_new=only_new, force=force, actor=actor)
        for definition in written:
            self._told(definition)
        for conflict in events_of(loaded.conflicts):
            events.emit(self._installation.app, conflict)
        return loaded

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

    def _in_zone(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {"timezone": default_zone(self._installation.app), **values} if "timezone" not in values else dict(values)

    def _given(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return what a caller states; a value that was hidden from whoever sends it back is refused."""
        self._installation.redaction_now().refuse_hidden(values)
        return values

    def _stale(self, tx: Transaction, current: Definition, given: int, values: Mapping[str, Any]) -> StaleVersion:
        """Return the refusal of an edit made on an older version, with both values of what it would change."""
        check_values(values, zone=Zone(), name=current.name, present=current)  # what is malformed is refused as such
        redaction = self._installation.redaction_now()
        yours, there = redaction.stated(values, current.task), redaction.stated(stated(current), current.task)
        both = {field: (shown(yours[field]), shown(there.get(field))) for field in values}
        made = versions.find(tx, current.id, current.version)
        return StaleVersion(current.name, given, current.version, made.actor if made else None, both)

    def _find(self, tx: Transaction, name: str, *, lock: bool = False) -> Definition:
        found = definitions.find(tx, name, lock=lock)
        if found is None:
            raise DefinitionNotFound(name, nearest(name, definitions.names(tx)))
        return found

    def _told(self, definition: Definition) -> Definition:
        """Warn about what is no error but probably not meant: a task that this app does not have, and long silence."""
        app = self._installation.app
        if definition.task not in app.tasks and definition.task != TASK:
            app.loader.import_default_modules()
            if definition.task not in app.tasks:
                events.emit_seldom(app, events.TaskUnknown(task=definition.task, name=definition.name))
        if definition.problem is None and seldom(definition.rule, definition.planned_until) is not None:
            following = definition.next_run_at
            seen = events.DefinitionSeldom(name=definition.name, schedule=definition.schedule, next_run_at=following)
            events.emit(app, seen)
        return definition
