"""Adding, changing and loading definitions: checked first, written with their audit, seen by beat at once."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import events
from ..domain.definition import COLUMNS, Definition, edited, new_definition
from ..domain.ids import new_id
from ..errors import DefinitionExists, DefinitionNotFound, InvalidValue, StaleVersion, TmError, nearest
from ..installation import Installation
from ..scheduler.planner import Planner
from ..store import audit, definitions
from ..store.database import Transaction

OWN = frozenset({"id", "name", "version", "planned_until", "next_run_at", "last_run_at", "created_at", "updated_at"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """What loading a file did, by name."""

    added: Sequence[str] = field(default_factory=list)
    changed: Sequence[str] = field(default_factory=list)
    unchanged: Sequence[str] = field(default_factory=list)


class Definitions:
    """The recurring definitions of one installation."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._database = installation.database

    def add(self, *, name: str, actor: str | None = None, **values: Any) -> Definition:
        """Add a definition; its first instant is the next one from now."""

        def work(tx: Transaction) -> Definition:
            added = self._insert(tx, name, values, actor)
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
        **values: Any,
    ) -> Definition:
        """Change what is stated and return the new version; an edit made on another version is refused."""
        if policy != "immediate":
            raise InvalidValue("policy", f"{policy!r} is unknown", "use 'immediate'")
        return self.change(name, values, version=version, actor=actor, action="edit")

    def change(
        self,
        name: str,
        values: Mapping[str, Any],
        *,
        action: str,
        version: int | None = None,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Definition:
        """Change a definition under the name of an action, for the audit."""

        def work(tx: Transaction) -> Definition:
            before = self._find(tx, name, lock=True)
            if version is not None and before.version != version:
                raise StaleVersion(name, version, before.version)
            after = self._save(tx, before, values, actor, action, reason)
            tx.wake()
            return after

        return self._told(self._database.run(work))

    def get(self, name: str) -> Definition:
        """Return the definition of this name."""
        with self._database.transaction(write=False) as tx:
            return self._find(tx, name)

    def list(self, *, group: str | None = None) -> list[Definition]:
        """Return the definitions by name."""
        with self._database.transaction(write=False) as tx:
            return definitions.select_definitions(tx, group=group)

    def remove(self, name: str, *, actor: str | None = None, reason: str | None = None) -> None:
        """Delete a definition; its history stays, and a job of it that is owed still runs."""

        def work(tx: Transaction) -> None:
            found = self._find(tx, name, lock=True)
            definitions.remove(tx, found.id)
            audit.note(tx, "remove", _object(name), actor=actor, before=_plain(found), reason=reason)

        self._database.run(work)

    def load(self, path: str | Path, *, actor: str | None = None) -> Loaded:
        """Add or change the definitions of a TOML or YAML file; what it does not state stays. One bad entry: no change."""
        entries = read_file(Path(path))

        def work(tx: Transaction) -> Loaded:
            loaded: dict[str, list[str]] = {"added": [], "changed": [], "unchanged": []}
            for entry in entries:
                loaded[self._load_one(tx, dict(entry), actor)].append(entry["name"])
            tx.wake()
            return Loaded(**loaded)

        return self._database.run(work)

    def _load_one(self, tx: Transaction, entry: dict[str, Any], actor: str | None) -> str:
        name = entry.pop("name")
        try:
            before = definitions.find(tx, name, lock=True)
            if before is None:
                self._told(self._insert(tx, name, entry, actor))
                return "added"
            after = self._save(tx, before, entry, actor, "load", None)
        except (InvalidValue, TmError) as error:
            raise InvalidValue(f"definition {name!r}", str(error), "nothing of the file was loaded") from error
        return "unchanged" if after.version == before.version else "changed"

    def _insert(self, tx: Transaction, name: str, values: Mapping[str, Any], actor: str | None) -> Definition:
        added = new_definition(id=new_id(), name=name, values=values, now=tx.read_now(), actor=actor)
        if not definitions.add(tx, added):
            raise DefinitionExists(name)
        audit.note(tx, "add", _object(name), actor=actor, after=_plain(added))
        return added

    def _save(
        self,
        tx: Transaction,
        before: Definition,
        values: Mapping[str, Any],
        actor: str | None,
        action: str,
        reason: str | None,
    ) -> Definition:
        now = tx.read_now()
        after = edited(before, values=values, now=now, actor=actor)
        if after.version == before.version:
            return before
        # What was due before the edit is decided by the rule and the switches that were in force then.
        planned = Planner(self._installation).catch_up(tx, before, now=now)
        after = edited(planned, values=values, now=now, actor=actor)
        if not definitions.save(tx, after, version=before.version):
            raise StaleVersion(before.name, before.version, before.version + 1)
        old, new = _plain(before), _plain(after)
        changed = [key for key in new if old[key] != new[key]]
        audit.note(
            tx,
            action,
            _object(before.name),
            actor=actor,
            before={key: old[key] for key in changed},
            after={key: new[key] for key in changed},
            reason=reason,
        )
        return after

    def _find(self, tx: Transaction, name: str, *, lock: bool = False) -> Definition:
        found = definitions.find(tx, name, lock=lock)
        if found is None:
            raise DefinitionNotFound(name, nearest(name, definitions.names(tx)))
        return found

    def _told(self, definition: Definition) -> Definition:
        """Warn about a task that this app does not have: the workers may, so it is no error."""
        app = self._installation.app
        if definition.task not in app.tasks:
            app.loader.import_default_modules()
            if definition.task not in app.tasks:
                events.emit_seldom(app, events.TaskUnknown(task=definition.task, name=definition.name))
        return definition


def read_file(path: Path) -> list[Mapping[str, Any]]:
    """Return the entries of a file's `definitions` list."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(str(path), f"it cannot be read ({error})", "give the path of a .toml or .yaml file") from None
    content = _parse(path, text)
    entries = content.get("definitions") if isinstance(content, Mapping) else None
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise InvalidValue(str(path), "it has no list of definitions", "start each one with [[definitions]]")
    names = [entry.get("name") for entry in entries]
    for name in names:
        if not isinstance(name, str) or not name:
            raise InvalidValue(str(path), "a definition has no name", 'add name = "…"')
        if names.count(name) > 1:
            raise InvalidValue(str(path), f"{name!r} is there twice", "rename or remove one of them")
    return entries


def _parse(path: Path, text: str) -> Any:
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InvalidValue(str(path), f"it is not TOML ({error})", "fix that line") from None
    if path.suffix in (".yaml", ".yml"):
        try:
            import yaml
        except ImportError:
            raise InvalidValue(str(path), "reading YAML needs PyYAML", "run `pip install 'celery-tm[yaml]'`") from None
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise InvalidValue(str(path), f"it is not YAML ({error})", "fix that line") from None
    raise InvalidValue(str(path), "its name ends in neither .toml nor .yaml", "rename it")


def _object(name: str) -> str:
    return f"definition:{name}"


def _plain(definition: Definition) -> dict[str, Any]:
    """Return what a person stated, as JSON."""
    values = {name: getattr(definition, name) for name in COLUMNS if name not in OWN}
    return {
        name: value if isinstance(value, (int, float, dict, type(None))) else str(value) for name, value in values.items()
    }
