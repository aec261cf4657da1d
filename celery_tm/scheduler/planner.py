"""Turns definitions whose instant has come into occurrences and jobs, in bulk.

A row lock makes one beat plan a definition at a time; the occurrence's id makes an instant decided once, whoever plans it.
Everything about a batch of definitions is one transaction: a beat that dies in the middle has done nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from .. import events
from ..domain.definition import Definition
from ..domain.overlap import Overlap
from ..domain.planning import Plan, job_of, occurrence_of, plan
from ..installation import Installation
from ..store import definitions, jobs, occurrences
from ..store.database import Transaction
from ..store.definitions import Broken

BATCH = 200
TRY_BROKEN_AGAIN = timedelta(minutes=5)


class Planner:
    """Plans the definitions of one installation."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation

    def plan_due(self, *, limit: int = BATCH) -> int:
        """Decide the due instants of up to `limit` definitions and return how many definitions there were."""
        plans = self.installation.database.run(lambda tx: self._plan(tx, limit))
        running = sum(decision.runs for made in plans for decision in made.decisions)
        if plans:
            self._tell(plans, running)
        return len(plans)

    def catch_up(self, tx: Transaction, definition: Definition, *, now: datetime) -> Definition:
        """Decide all that is due of one locked definition, and return it as it stands afterwards."""
        while definition.next_run_at is not None and definition.next_run_at <= now:
            [made] = self._decide(tx, [definition], now)
            definition = replace(
                definition, planned_until=made.planned_until, next_run_at=made.next_run_at, last_run_at=made.last_run_at
            )
        return definition

    def _plan(self, tx: Transaction, limit: int) -> list[Plan]:
        due, broken = definitions.lock_due(tx, limit=limit)
        for row in broken:
            self._set_aside(tx, row)
        return self._decide(tx, due, tx.read_now()) if due else []

    def _decide(self, tx: Transaction, due: Sequence[Definition], now: datetime) -> list[Plan]:
        exclusive = [definition.id for definition in due if definition.overlap is not Overlap.ALLOW]
        active = occurrences.count_active(tx, exclusive)
        plans = []
        for definition in due:
            try:
                plans.append(plan(definition, now=now, active=active.get(definition.id, 0)))
            except (
                Exception
            ) as error:  # one that cannot be planned, say for a zone this node lacks, must not stop the others
                self._set_aside(tx, Broken(id=definition.id, name=definition.name, error=str(error)))
        self._write(tx, plans, now)
        return plans

    def _set_aside(self, tx: Transaction, broken: Broken) -> None:
        """Leave a definition that cannot be planned alone for a while; its instants stay to be decided."""
        definitions.postpone(tx, broken.id, TRY_BROKEN_AGAIN)
        events.emit(self.installation.app, events.DefinitionBroken(name=broken.name, error=broken.error))

    def _write(self, tx: Transaction, plans: Sequence[Plan], now: datetime) -> None:
        """Write what was decided; an instant that is in the ledger already is left as it is."""
        decided = [(made.definition, decision) for made in plans for decision in made.decisions]
        rows = [(occurrence_of(definition, decision), definition, decision) for definition, decision in decided]
        known = occurrences.known(tx, [row.id for row, _, _ in rows])
        fresh = [entry for entry in rows if entry[0].id not in known]
        occurrences.insert_many(tx, [row for row, _, _ in fresh])
        defaults = {task: self.installation.task_defaults(task) for task in {made.definition.task for made in plans}}
        jobs.insert_many(
            tx,
            [
                job_of(definition, decision, now=now, defaults=defaults[definition.task])
                for _, definition, decision in fresh
                if decision.runs
            ],
        )
        definitions.advance(tx, [(p.definition.id, p.planned_until, p.next_run_at, p.last_run_at) for p in plans])

    def _tell(self, plans: Sequence[Plan], running: int) -> None:
        app = self.installation.app
        decided = sum(len(made.decisions) for made in plans)
        oldest = min((d.scheduled_at for made in plans for d in made.decisions), default=None)
        latest = max((made.planned_until for made in plans), default=None)
        behind = (latest - oldest).total_seconds() if oldest and latest else 0.0
        events.emit(
            app,
            events.InstantsPlanned(definitions=len(plans), running=running, not_running=decided - running, behind=behind),
            verbose=self.installation.settings.tm_verbose,
        )
        for made in plans:
            if made.definition.task not in app.tasks:
                events.emit_seldom(app, events.TaskUnknown(task=made.definition.task, name=made.definition.name))
