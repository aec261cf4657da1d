"""Turns definitions whose instant has come into occurrences and jobs, in bulk.

A row lock makes one beat plan a definition at a time; the occurrence's id makes an instant decided once, whoever plans it.
Everything about a batch of definitions is one transaction: a beat that dies in the middle has done nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import events
from ..domain.definition import Definition
from ..domain.overlap import Overlap
from ..domain.planning import Plan, job_of, occurrence_of, plan
from ..errors import TmError
from ..installation import Installation
from ..store import definitions, jobs, occurrences
from ..store.database import Transaction

BATCH = 200


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

    def _plan(self, tx: Transaction, limit: int) -> list[Plan]:
        due = definitions.lock_due(tx, limit=limit)
        if not due:
            return []
        now = tx.read_now()
        exclusive = [definition.id for definition in due if definition.overlap is not Overlap.ALLOW]
        active = occurrences.count_active(tx, exclusive)
        plans = []
        for definition in due:
            try:
                plans.append(plan(definition, now=now, active=active.get(definition.id, 0)))
            except TmError as error:  # one broken definition must not stop the others
                self._set_aside(tx, definition, error)
        _write(tx, plans)
        return plans

    def _set_aside(self, tx: Transaction, definition: Definition, error: TmError) -> None:
        """Take a definition that cannot be planned out of the way until somebody edits it."""
        definitions.advance(tx, [(definition.id, definition.planned_until, None, definition.last_run_at)])
        events.emit(self.installation.app, events.DefinitionBroken(name=definition.name, error=str(error)))

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


def _write(tx: Transaction, plans: Sequence[Plan]) -> None:
    """Write what was decided; an instant that is in the ledger already is left as it is."""
    decided = [(made.definition, decision) for made in plans for decision in made.decisions]
    rows = [(occurrence_of(definition, decision), definition, decision) for definition, decision in decided]
    known = occurrences.known(tx, [row.id for row, _, _ in rows])
    fresh = [entry for entry in rows if entry[0].id not in known]
    now = tx.read_now()
    occurrences.insert_many(tx, [row for row, _, _ in fresh])
    jobs.insert_many(tx, [job_of(definition, decision, now=now) for _, definition, decision in fresh if decision.runs])
    definitions.advance(tx, [(p.definition.id, p.planned_until, p.next_run_at, p.last_run_at) for p in plans])
