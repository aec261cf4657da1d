"""Definitions that code states: `beat_schedule`, Celery's own clean-up and our pruning, seeded when beat starts.

Code wins for what it states; the database wins for the rest, and for whether a definition is enabled or paused. An entry
that is no longer there is retired: it keeps its history and fires no more.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from celery.schedules import crontab

from .. import events
from ..errors import DefinitionExists, InvalidValue
from ..installation import Installation
from ..store import definitions
from ..store.database import Transaction
from . import editing
from .celery_schedules import name_of, read_entry

logger = logging.getLogger(__name__)

CLEANUP = "celery.backend_cleanup"
PRUNE = "celery_tm.prune"
BUILT_IN = "celery_tm"
# Plain Celery lets runs overlap and, after downtime, runs what was missed once.
AS_IN_CELERY: Mapping[str, Any] = {"overlap": "allow", "recovery": "last"}


class Seeder:
    """Seeds the definitions of one app, once in a process."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self._done = False

    def seed_once(self) -> None:
        """Seed, unless that is done."""
        if not self._done:
            self.installation.database.run(self.seed)
            self._done = True

    def seed(self, tx: Transaction) -> None:
        """Make the definitions what the code states, in one transaction."""
        app = self.installation.app
        origin = origin_of(app)
        entries = {name_of(key): entry for key, entry in entries_of(app).items()}
        for name, entry in entries.items():
            try:
                self._seed_one(tx, name, read_entry(app, entry), origin)
            except (InvalidValue, ValueError) as error:  # the others are not to suffer for it
                events.emit(app, events.EntryRefused(name=name, error=str(error)))
        for gone in definitions.select_definitions(tx, origin=origin, retired=False):
            # Locked, and read again: another beat may be planning it.
            definition = definitions.find(tx, gone.name, lock=True) if gone.name not in entries else None
            if definition is not None and definition.retired_at is None:
                editing.retire(self.installation, tx, definition, reason="beat_schedule no longer has it")
        # Where no task is ours, nobody could run it: then pruning is `celery -A app tm prune`.
        if PRUNE in app.tasks and definitions.find(tx, PRUNE) is None:
            self._seed_one(tx, PRUNE, {"task": PRUNE, "schedule": "H H * * *", "recovery": "last"}, BUILT_IN)
        tx.wake()

    def _seed_one(self, tx: Transaction, name: str, values: Mapping[str, Any], origin: str) -> None:
        before = definitions.find(tx, name, lock=True)
        if before is None:
            try:
                editing.add(tx, name=name, values={**AS_IN_CELERY, **values}, origin=origin, reason=f"seeded by {origin}")
            except DefinitionExists:
                logger.debug("%s was seeded by another beat at the same moment", name)
            return
        if before.retired_at is not None:
            before = editing.bring_back(tx, before, reason=f"{origin} has it again")
        editing.change(self.installation, tx, before, values, action="seed", reason=f"seeded by {origin}")


def origin_of(app: Any) -> str:
    """Return what the definitions of an app's `beat_schedule` are known by."""
    return f"beat_schedule:{app.main or ''}"[:100]


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
