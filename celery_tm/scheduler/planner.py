"""Turns definitions whose instant has come into occurrences and jobs, in bulk.

A row lock makes one beat plan a definition at a time; the occurrence's id makes an instant decided once, whoever plans it.
Everything about a batch of definitions is one transaction: a beat that dies in the middle has done nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from .. import events
from ..domain.definition import Definition
from ..domain.facts import Closed
from ..domain.overlap import Active, Overlap, replaced_by
from ..domain.planning import MAX_INSTANTS, Plan, job_of, occurrence_of, plan
from ..domain.recovery import GRACE
from ..domain.workflow import TASK
from ..installation import Installation
from ..store import definitions, jobs, occurrences, settlement
from ..store.database import Transaction
from ..store.definitions import Broken
from . import horizon, switching

BATCH = 500
ROUND = 5000  # instants decided in one transaction, shared among the definitions that are due
FEWEST = 20  # of one definition, however many are due
TRY_BROKEN_AGAIN = timedelta(minutes=5)


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """What one round did: how many definitions it moved on, and whether more is due."""

    definitions: int = 0
    more: bool = False


class Planner:
    """Plans the definitions of one installation."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self._at_work_since: datetime | None = None  # while one round follows the other
        self._last_round_at: datetime | None = None

    def plan_due(self, *, limit: int = BATCH) -> Planned:
        """Decide due instants of up to `limit` definitions, the one that has waited longest first."""
        plans, found = self.installation.database.run(lambda tx: self._plan(tx, limit))
        if plans:
            self._tell(plans)
        more = found >= limit or any(not made.is_complete or made.definition.next_edit for made in plans)
        if not more:
            self._at_work_since = None
        return Planned(definitions=len(plans), more=more)

    def catch_up(self, tx: Transaction, definition: Definition, *, now: datetime) -> Definition:
        """Decide all that is due of one locked definition, and return it as it stands afterwards."""
        # Not by next_run_at: of one that is catching up, that is when it was looked at, and the clock may have gone back.
        while (due := definition.following) is not None and due <= now:
            made = plan(definition, now=now, active=self._active(tx, [definition]).get(definition.id, Active()))
            self._write(tx, [made], now)
            definition = switching.switched(self.installation, tx, made.after, now=now) if made.is_complete else made.after
        return definition

    def _plan(self, tx: Transaction, limit: int) -> tuple[list[Plan], int]:
        due, broken = definitions.lock_due(tx, limit=limit)
        for row in broken:
            self._set_aside(tx, row)
        return self._decide(tx, due, tx.read_now()) if due else [], len(due) + len(broken)

    def _since(self, now: datetime) -> datetime:
        """Return when this run of rounds began: what becomes due while it lasts is late, but not missed."""
        last = self._last_round_at
        if self._at_work_since is None or last is None or not timedelta(0) <= now - last <= GRACE:
            self._at_work_since = now
        self._last_round_at = now
        return self._at_work_since

    def _decide(self, tx: Transaction, due: Sequence[Definition], now: datetime) -> list[Plan]:
        since = self._since(now)
        active = self._active(tx, due)
        share = min(max(ROUND // len(due), FEWEST), MAX_INSTANTS)
        plans = []
        for definition in due:
            try:
                owed = active.get(definition.id, Active())
                plans.append(plan(definition, now=now, since=since, active=owed, limit=share))
            except Exception as error:  # one that cannot be planned, say for a zone this node lacks, must not stop others
                self._set_aside(tx, Broken(id=definition.id, name=definition.name, error=str(error)))
        self._write(tx, plans, now)
        for made in plans:
            if made.is_complete:
                switching.switched(self.installation, tx, made.after, now=now)
        return plans

    def _active(self, tx: Transaction, due: Sequence[Definition]) -> dict[str, Active]:
        exclusive = [definition.id for definition in due if definition.overlap is not Overlap.ALLOW]
        return occurrences.count_active(tx, exclusive)

    def _set_aside(self, tx: Transaction, broken: Broken) -> None:
        """Leave a definition that cannot be planned alone for a while; its instants stay to be decided."""
        definitions.postpone(tx, broken.id, TRY_BROKEN_AGAIN)
        events.emit(self.installation.app, events.DefinitionBroken(name=broken.name, error=broken.error))

    def _write(self, tx: Transaction, plans: Sequence[Plan], now: datetime) -> None:
        """Write what was decided; an instant that is in the ledger already is left as it is."""
        for made in plans:
            if made.replaces is not None:
                owed = occurrences.active_of(tx, made.definition.id)
                settlement.make_room(tx, owed, reason=replaced_by(made.replaces))
        decided = [(made.definition, decision) for made in plans for decision in made.decisions]
        rows = [(occurrence_of(definition, decision, now=now), definition, decision) for definition, decision in decided]
        known = occurrences.known(tx, [row.id for row, _, _ in rows])
        fresh = [entry for entry in rows if entry[0].id not in known]
        occurrences.remove_planned(tx, [row.id for row, definition, _ in fresh if definition.plan_ahead])
        occurrences.insert_many(tx, [row for row, _, _ in fresh])
        left_out = Counter((definition.name, row.state) for row, definition, decision in fresh if not decision.runs)
        for (name, state), count in left_out.items():
            tx.tell(Closed(name, state, count=count))
        defaults = {task: self.installation.task_defaults(task) for task in {made.definition.task for made in plans}}
        jobs.insert_many(
            tx,
            [
                job_of(definition, decision, now=now, defaults=defaults[definition.task])
                for _, definition, decision in fresh
                if decision.runs
            ],
        )
        definitions.advance(tx, [made.after for made in plans])
        for made in plans:
            if made.definition.plan_ahead:
                horizon.extend(tx, made.after, now=now)

    def _tell(self, plans: Sequence[Plan]) -> None:
        app = self.installation.app
        running = sum(decision.runs for made in plans for decision in made.decisions)
        decided = sum(len(made.decisions) for made in plans)
        oldest = min((d.scheduled_at for made in plans for d in made.decisions), default=None)
        latest = max((made.after.planned_until for made in plans), default=None)
        behind = (latest - oldest).total_seconds() if oldest and latest else 0.0
        events.emit(
            app,
            events.InstantsPlanned(
                definitions=len(plans),
                running=running,
                recovering=sum(decision.runs and decision.is_recovery for made in plans for decision in made.decisions),
                not_running=decided - running,
                behind=behind,
            ),
            verbose=self.installation.settings.tm_verbose,
        )
        for made in plans:
            if made.definition.task not in app.tasks and made.definition.task != TASK:
                events.emit_seldom(app, events.TaskUnknown(task=made.definition.task, name=made.definition.name))
