"""Turns definitions whose instant has come into occurrences and jobs, in bulk.

A row lock makes one beat plan a definition at a time; the occurrence's id makes an instant decided once, whoever plans it.
Everything about a batch of definitions is one transaction: a beat that dies in the middle has done nothing. A definition
that this process cannot read or plan is set aside here, and its row is left alone: another node may be able to. One whose
plan would change a row that another transaction has locked is left out for a moment; planning waits for no lock.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import TypeVar

from .. import events
from ..domain.definition import Definition
from ..domain.facts import Closed
from ..domain.overlap import Active, Overlap, replaced_by
from ..domain.planning import MAX_INSTANTS, Plan, job_of, occurrence_of, plan
from ..domain.recovery import GRACE
from ..domain.workflow import TASK
from ..errors import OUT_OF_REACH, DatabaseBusy, DriverMissing, SchemaMissing, SchemaOutdated, TableInUse
from ..installation import Installation
from ..store import definitions, jobs, occurrences, preemption
from ..store.batches import run_parts
from ..store.database import Transaction
from . import horizon, switching

T = TypeVar("T")
BATCH = 500
ROUND = 5000  # instants decided in one transaction, shared among the definitions that are due
FEWEST = 20  # of one definition, however many are due
APART = 0.2  # seconds of one round for definitions that could not be planned together; the next round goes on
IN_AN_EDIT = 200  # instants of one definition that are decided in the transaction of an edit; more go before it
TABLE = "tm_definition"
ON_TIME = "none"  # in place of a recovery policy
# Of the database; everything else is about a row.
OUTAGES = (*OUT_OF_REACH, SchemaMissing, SchemaOutdated, DriverMissing, TableInUse)


def is_outage(error: BaseException) -> bool:
    """Say whether an error is about the database and not about a row; a row that others have locked is a row."""
    return isinstance(error, OUTAGES) and not isinstance(error, DatabaseBusy)


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """What one round did: how many definitions it moved on, and whether more is due."""

    definitions: int = 0
    more: bool = False


class FarBehind(Exception):
    """More is due of a definition than one transaction is to decide; `run_edit` sees to it."""

    def __init__(self, definition: str) -> None:
        super().__init__(definition)
        self.definition = definition


class Planner:
    """Plans the definitions of one installation."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self._at_work_since: datetime | None = None  # while one round follows the other
        self._last_round_at: datetime | None = None

    def plan_due(self, *, limit: int = BATCH) -> Planned:
        """Decide due instants of up to `limit` definitions, the one that has waited longest first."""
        plans, found = self._plan_together(limit)
        if plans:
            self.installation.set_aside.discard(TABLE, *(made.definition.id for made in plans))
            self._tell(plans)
        more = found >= limit or any(not made.is_complete or made.definition.next_edit for made in plans)
        if not more:
            self._at_work_since = None
        return Planned(definitions=len(plans), more=more)

    def catch_up(self, tx: Transaction, definition: Definition, *, now: datetime, at_once: bool = False) -> Definition:
        """Decide all that is due of one locked definition, and return it as it stands afterwards.

        Raise `FarBehind` where that is too much for one transaction, unless all of it is to be decided `at_once`;
        `run_edit` does it before in several.
        """
        # Not by next_run_at: of one that is catching up, that is when it was looked at, and the clock may have gone back.
        limit = MAX_INSTANTS if at_once else IN_AN_EDIT
        while (made := self._due_plan(tx, definition, now, limit=limit)) is not None:
            if not made.is_complete and not at_once:
                raise FarBehind(definition.id)
            self._write(tx, [made], now)
            definition = switching.switched(self.installation, tx, made.after, now=now) if made.is_complete else made.after
            if not made.decisions and definition is made.after:  # an edit whose time has come could not take over
                break
        return definition

    def catch_up_before(self, id: str) -> None:
        """Decide all that is due of a definition, each part in a transaction of its own, as beat does."""
        while (made := self.installation.database.run(lambda tx: self._catch_up_some(tx, id))) is not None:
            self._tell([made])
            if made.is_complete:
                return

    def _catch_up_some(self, tx: Transaction, id: str) -> Plan | None:
        definition, now = definitions.find_by_id(tx, id, lock=True), tx.read_now()
        made = self._due_plan(tx, definition, now, limit=MAX_INSTANTS) if definition is not None else None
        if made is not None:
            self._write(tx, [made], now)
            if made.is_complete:
                switching.switched(self.installation, tx, made.after, now=now)
        return made

    def _due_plan(self, tx: Transaction, definition: Definition, now: datetime, *, limit: int) -> Plan | None:
        """Return the next decisions about a locked definition; None if nothing is due, or if nobody can say what is."""
        if definition.problem is not None:
            return None  # what is due stays so, until the definition can be read or is removed
        due = definition.looked_at
        if due is None or due > now:
            return None
        return plan(definition, now=now, active=self._active(tx, [definition]).get(definition.id, Active()), limit=limit)

    def _plan_together(self, limit: int) -> tuple[list[Plan], int]:
        """Plan a batch in one transaction; where that fails for another reason than an outage, find out by which row."""
        database, skip = self.installation.database, self.installation.skipped(TABLE)
        try:
            return database.run(lambda tx: self._plan(tx, limit, skip))
        except Exception as error:
            if is_outage(error):
                raise
            adding, changing = database.run(lambda tx: definitions.due_ids(tx, limit=limit, skip=skip))
            if not adding and not changing:
                raise
            # Those that need no rows of others are not to wait, or run out of time, because of one that does.
            return [*self._plan_apart(adding), *self._plan_apart(changing)], limit  # the next round tries the rest

    def _plan_apart(self, ids: Sequence[str]) -> list[Plan]:
        """Plan definitions that failed together in halves, down to the ones that fail alone: those are set aside."""
        began = time.monotonic()
        some = run_parts(
            self.installation.database,
            ids,
            lambda tx, part: self._plan(tx, len(part), (), part)[0],
            failed=lambda id, error: self._failed_alone(id, error, waited=time.monotonic() - began),
            seconds=APART,
        )
        return [made for plans in some for made in plans]

    def _failed_alone(self, id: str, error: Exception, *, waited: float) -> None:
        if is_outage(error):
            raise error
        if isinstance(error, DatabaseBusy):
            self.installation.hold_row(TABLE, id, waited=waited)
        else:
            self._set_aside(id, None, error)

    def _plan(
        self, tx: Transaction, limit: int, skip: Sequence[str], only: Sequence[str] | None = None
    ) -> tuple[list[Plan], int]:
        found = definitions.lock_due(tx, limit=limit, skip=skip, only=only)
        due = []
        for definition in found:
            if (problem := definition.problem) is None:
                due.append(definition)
            else:
                self._set_aside(definition.id, definition.name, problem)
        return self._decide(tx, due, tx.read_now()) if due else [], len(found)

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
                made = plan(definition, now=now, since=since, active=owed, limit=share)
            except Exception as error:  # one that cannot be planned, say for a zone this node lacks, must not stop others
                self._set_aside(definition.id, definition.name, error)
                continue
            if _may_write(tx, made):
                plans.append(made)
            else:
                self.installation.hold_row(TABLE, definition.id)
        self._write(tx, plans, now)
        for made in plans:
            if made.is_complete:
                switching.switched(self.installation, tx, made.after, now=now)
        return plans

    def _active(self, tx: Transaction, due: Sequence[Definition]) -> dict[str, Active]:
        exclusive = [definition.id for definition in due if definition.overlap is not Overlap.ALLOW]
        return occurrences.count_active(tx, exclusive)

    def _set_aside(self, id: str, name: str | None, error: BaseException | str) -> None:
        """Leave a definition alone that this process cannot plan; its instants stay to be decided, here or elsewhere."""
        if self.installation.skip_row(TABLE, id, error, name=name) and name is not None:
            events.emit(self.installation.app, events.DefinitionBroken(name=name, error=str(error)))

    def _write(self, tx: Transaction, plans: Sequence[Plan], now: datetime) -> None:
        """Write what was decided; an instant that is in the ledger already is left as it is."""
        for made in plans:
            if made.replaces is not None:
                owed = occurrences.active_of(tx, made.definition.id)
                preemption.make_room(tx, owed, reason=replaced_by(made.replaces))
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
                by_recovery=_by_recovery(plans),
                not_running=decided - running,
                behind=behind,
            ),
            verbose=self.installation.settings.tm_verbose,
        )
        for made in plans:
            if made.definition.task not in app.tasks and made.definition.task != TASK:
                events.emit_seldom(app, events.TaskUnknown(task=made.definition.task, name=made.definition.name))


def run_edit(installation: Installation, work: Callable[[Transaction], T]) -> T:
    """Do an edit in a transaction; of a definition that is far behind, decide before it what is due, in several others.

    So neither the edit nor anybody who waits for its locks has to wait for a month of instants in one transaction.
    """
    while True:
        try:
            return installation.database.run(work)
        except FarBehind as behind:
            Planner(installation).catch_up_before(behind.definition)


def is_far_behind(definition: Definition, *, now: datetime) -> bool:
    """Say whether more is due of a definition than an edit decides in its transaction."""
    if definition.problem is not None or definition.is_spent or definition.retired_at is not None:
        return False
    due = definition.timeline.between(definition.resumes_after, now)
    return next(islice(due, IN_AN_EDIT, None), None) is not None


def _may_write(tx: Transaction, made: Plan) -> bool:
    """Lock the rows that a plan changes or deletes, without waiting; False if another transaction holds some of them."""
    if not tx.dialect.skips_locked:  # one lock for everything, and it is ours
        return True
    id = made.definition.id
    if made.definition.plan_ahead and not occurrences.try_lock_planned(tx, id):
        return False
    return made.replaces is None or preemption.may_make_room(tx, occurrences.active_of(tx, id))


def _by_recovery(plans: Sequence[Plan]) -> dict[str, int]:
    """Return how many runs were planned under each recovery policy; those on time under none."""
    return dict(
        Counter(
            str(made.definition.recovery) if decision.is_recovery else ON_TIME
            for made in plans
            for decision in made.decisions
            if decision.runs
        )
    )
