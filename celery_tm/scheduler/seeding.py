"""Definitions that code states: `beat_schedule`, Celery's own clean-up and our pruning, seeded when beat starts.

A change of the code is seeded, and what a person has changed stays: see `domain.declared`. Where both have changed the same
field, the database's value stays and the conflict is reported. An entry that is no longer there is retired, unless a
file declares it: it keeps its history and fires no more.

Entries are compared first, and only what differs is touched, one entry in a transaction, a little in each tick: neither a
due job nor a signal waits for it. A definition that is far behind is changed when the planner has caught up with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from celery.schedules import crontab

from .. import events
from ..domain.audit_line import SYSTEM
from ..domain.declared import declared_elsewhere, dropped, inherited
from ..domain.definition import Definition, stated
from ..errors import DatabaseBusy, DefinitionExists, InvalidValue
from ..installation import Installation
from ..store import apps, definitions, versions
from ..store.database import UNNAMED, Transaction
from . import editing
from .celery_schedules import name_of, read_entry
from .planner import OUTAGES, run_edit

logger = logging.getLogger(__name__)

CLEANUP = "celery.backend_cleanup"
PRUNE = "celery_tm.prune"
BUILT_IN = "celery_tm"
SEEDED = "beat_schedule:"
OPTIONS = ("queue", "priority", "expires", "ends_at", "options")  # of a message, where `read_entry` puts them
# Plain Celery lets runs overlap and, after downtime, runs what was missed once.
AS_IN_CELERY: Mapping[str, Any] = {"overlap": "allow", "recovery": "last"}
BUDGET = 0.2  # seconds of seeding in one tick
AGAIN_AFTER = 0.5  # seconds until entries are tried again that others hold or that are far behind
FAR_BEHIND = 200  # instants to decide; more are left to the planner
Step = Callable[[Transaction], bool]  # False: not now


class Seeder:
    """Seeds the definitions of one app, once in a process."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self._left: dict[str, Step] | None = None  # what is still to be done, by name
        self._next_at = 0.0
        self._is_patient = True
        self._conflicts: dict[str, list[str]] = {}  # fields that a person has changed too, by name

    def seed_once(self) -> None:
        """Seed all there is in one go, for a process that has nothing else to do."""
        self._is_patient = False
        while self._left is None or self._left:
            self._seed(None)

    def seed_some(self) -> None:
        """Seed for a moment, unless that is done."""
        if (self._left is None or self._left) and time.monotonic() >= self._next_at:
            self._seed(time.monotonic() + BUDGET)

    def _seed(self, until: float | None) -> None:
        if self._left is None:
            self._left = self.installation.database.run(self._differing)
        for name, step in list(self._left.items()):
            if self._do(name, step):
                del self._left[name]
            if until is not None and time.monotonic() > until:
                return
        self._next_at = time.monotonic() + AGAIN_AFTER

    def _do(self, name: str, step: Step) -> bool:
        """Take one step in a transaction of its own; the other entries are not to suffer for one that fails."""
        self._conflicts.clear()
        try:
            done = run_edit(self.installation, step)
            for one, fields in self._conflicts.items():
                conflict = events.DefinitionConflict(name=one, source=origin_of(self.installation.app), fields=fields)
                events.emit(self.installation.app, conflict)
            return done
        except DatabaseBusy:
            return False
        except OUTAGES:
            raise
        except Exception as error:
            events.emit(self.installation.app, events.EntryRefused(name=name, error=str(error) or type(error).__name__))
            return True

    def _differing(self, tx: Transaction) -> dict[str, Step]:
        """Return what has to be done so that the definitions are what the code states."""
        app = self.installation.app
        origin, steps = origin_of(app), dict[str, Step]()
        entries = {name_of(key): entry for key, entry in entries_of(app).items()}
        seeded = definitions.select_definitions(tx, origin=SEEDED)
        rows = {one.name: one for one in (*definitions.find_all(tx, [*entries, PRUNE]), *seeded)}
        known = {name: _renamed(tx, one, origin) for name, one in rows.items()}
        for name, entry in entries.items():
            try:
                values = read_entry(app, entry)
            except Exception as error:  # an entry is whatever the code has made; the others are seeded
                events.emit(app, events.EntryRefused(name=name, error=str(error) or type(error).__name__))
                continue
            there = known.get(name)
            gone = {} if there is None or there.unread else _taken_out(tx, there, values, origin)
            if gone or there is not rows.get(name) or self._differs(tx, there, values, origin):
                steps[name] = partial(self._seed_one, name=name, values=values, origin=origin)
        for one in known.values():
            if one.origin == origin and one.retired_at is None and one.name not in entries:
                steps[one.name] = partial(self._retire, id=one.id, origin=origin)
        # Where no task is ours, nobody could run it: then pruning is `celery -A app tm prune`.
        if PRUNE in app.tasks and PRUNE not in known:
            values = {"task": PRUNE, "schedule": "H H * * *", "recovery": "last"}
            steps[PRUNE] = partial(self._seed_one, name=PRUNE, values=values, origin=BUILT_IN)
        return steps

    def _differs(self, tx: Transaction, known: Definition | None, values: Mapping[str, Any], origin: str) -> bool:
        if known is None or known.retired_at is not None or known.unread or known.origin not in (origin, None):
            return True
        try:
            merged = editing.merge_source(tx, known, values, source=origin)
        except Exception:  # what is wrong with it is found out, and reported, by its own step
            return True
        return bool(merged.values or merged.conflicts) or merged.declared != known.declared

    def _seed_one(self, tx: Transaction, *, name: str, values: Mapping[str, Any], origin: str) -> bool:
        """Add or change one definition; False if that has to wait."""
        known, app = definitions.find(tx, name), self.installation.app
        if known is None and apps.awaits_adoption(tx, name, tasks=app.tasks):
            apps.adopt(tx, origin=origin_of(app), tasks=app.tasks)
            return False  # it is changed when it is ours, and nothing is added beside it
        if known is None:
            try:
                values = {**AS_IN_CELERY, **values}
                editing.add(tx, name=name, values=values, origin=origin, source=origin, reason=f"seeded by {origin}")
            except DefinitionExists:
                logger.debug("%s was seeded by another beat at the same moment", name)
            tx.wake()
            return True
        known = _renamed(tx, known, origin)
        if (known.origin or "").startswith(SEEDED) and known.origin != origin:
            raise InvalidValue("name", f"{name!r} is seeded by {known.origin}", "give the entry, or the app, another name")
        before = self._free(tx, known.id, origin)
        if before is None:
            return False
        if before.retired_at is not None:
            before = editing.bring_back(tx, before, reason=f"{origin} has it again")
        gone = {} if before.unread else _taken_out(tx, before, values, origin)
        why = f"seeded by {origin}"
        _, merged = editing.apply_source(
            self.installation, tx, before, values, source=origin, action="seed", reason=why, dropped=gone
        )
        if merged.conflicts:
            self._conflicts[name] = [one.field for one in merged.conflicts]
        tx.wake()
        return True

    def _retire(self, tx: Transaction, *, id: str, origin: str) -> bool:
        before = self._free(tx, id, origin)
        if before is None:
            return definitions.find_by_id(tx, id) is None
        if before.retired_at is None and (others := declared_elsewhere(before, origin)):
            reason = f"{origin} no longer has it, and it is declared by: {', '.join(others)}"
            editing.release(tx, before, heirs=others, reason=reason)
        elif before.retired_at is None:
            editing.retire(self.installation, tx, before, reason="beat_schedule no longer has it")
        return True

    def _free(self, tx: Transaction, id: str, origin: str) -> Definition | None:
        """Lock a definition; None if somebody else holds it, or if the planner has to catch up with it first."""
        found = definitions.lock_free(tx, [id])
        if not found or (self._is_patient and _is_far_behind(tx, found[0])):
            return None
        ours = _renamed(tx, found[0], origin)
        if ours is not found[0]:
            definitions.declare(tx, ours)
        return ours


def _is_far_behind(tx: Transaction, definition: Definition) -> bool:
    if definition.retired_at is not None or definition.problem is not None or definition.is_spent:
        return False
    due = definition.timeline.between(definition.resumes_after, tx.read_now())
    return next(islice(due, FAR_BEHIND, None), None) is not None


def _taken_out(tx: Transaction, known: Definition, values: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return the options that an entry declared last and no longer does, as they become; what a person has set stays."""
    if known.declared is not None:
        gone: Iterable[str] = dropped(known, values, OPTIONS, source=origin)
    else:
        gone = _taken_out_of_versions(tx, known, values)
    return {name: {} if name == "options" else None for name in gone}


def _taken_out_of_versions(tx: Transaction, known: Definition, values: Mapping[str, Any]) -> list[str]:
    """Return the options that the last seeded version had, of a definition that an earlier release seeded."""
    left = {name: now for name in OPTIONS if name not in values and (now := stated(known).get(name)) is not None}
    seeded = versions.latest_declared(tx, known.id) if left and known.problem is None else None
    if seeded is None or seeded.actor != SYSTEM:
        return []
    return [name for name, now in left.items() if seeded.stated.get(name) == now]


def origin_of(app: Any) -> str:
    """Return what the definitions of an app's `beat_schedule` are known by: the app's name among those on the tables."""
    installation = Installation.of(app)
    return f"{SEEDED}{installation.settings.tm_app or installation.name}"


def _renamed(tx: Transaction, known: Definition, origin: str) -> Definition:
    """Return a definition of this app as its present name makes it, where its code seeded it under another one."""
    if known.app != tx.app or tx.app == UNNAMED or not isinstance(known.declared or {}, Mapping):
        return known
    for source in [one for one in known.declared or {} if one.startswith(SEEDED) and one != origin]:
        known = replace(known, declared=inherited(known, source, [origin]))
    is_former = known.origin is not None and known.origin.startswith(SEEDED) and known.origin != origin
    return replace(known, origin=origin) if is_former else known


def entries_of(app: Any) -> dict[str, Any]:
    """Return the app's entries, with the clean-up of results that Celery's own beat adds."""
    entries = dict(app.conf.beat_schedule or {})
    if CLEANUP not in entries and app.conf.result_expires and not _expires_by_itself(app):
        entries[CLEANUP] = {"task": CLEANUP, "schedule": crontab("0", "4", "*"), "options": {"expires": 12 * 3600}}
    return entries


def _expires_by_itself(app: Any) -> bool:
    try:
        return bool(app.backend.supports_autoexpire)
    except Exception as error:  # a backend that cannot be made needs no cleaning up
        logger.debug("no result backend: %s", error)
        return True
