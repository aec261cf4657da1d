"""Every instant between two planned points is in the ledger exactly once, whatever crashes, clocks and edits do.

A state machine drives planners, people who edit, workers and a clock that also goes back; a model that knows only minutes
and the rule in force says what must be in the ledger.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import delete, event
from tmtest.ledger import claim, rows, start

from celery_tm import TimeManagement, clock
from celery_tm.errors import TmError
from celery_tm.scheduler import planner as planning
from celery_tm.scheduler.planner import Planner
from celery_tm.store import tables
from celery_tm.worker import recorder

MIDNIGHT = datetime(2026, 3, 29, tzinfo=UTC)  # clocks are put forward in Warsaw at 01:00 UTC
MINUTE = timedelta(minutes=1)
STEPS = st.sampled_from([1, 2, 3, 5, 10, 15, 20, 30])
ZONES = st.sampled_from(["UTC", "Europe/Warsaw", "Australia/Lord_Howe"])
RECOVERIES: Any = st.sampled_from([
    "all", "last", "skip", "compressed", {"policy": "bounded", "count": 2}, {"policy": "all", "spacing": "7s"},
])  # fmt: skip


class Crash(Exception):
    """The process dies here."""


class Ledger(RuleBasedStateMachine):
    """One definition that fires every so many minutes."""

    tm: TimeManagement

    @initialize(step=STEPS, zone=ZONES, overlap=st.sampled_from(["skip", "queue", "queue_one", "allow", "replace"]))
    def begin(self, step: int, zone: str, overlap: str) -> None:
        database = self.tm.installation.database
        with database.transaction() as tx:
            for table in tables.metadata.sorted_tables:
                tx.execute(delete(table))
        self.now = self.latest = self.point = MIDNIGHT
        self.step = step
        self.later: tuple[int, datetime] | None = None
        self.expected: list[datetime] = []
        with clock.moved_to(self.now):
            self.tm.definitions.add(
                name="d", task="effect", schedule=f"*/{step} * * * *", timezone=zone, overlap=overlap, recovery="all"
            )

    # The model: minutes, and the rule in force

    def due(self, now: datetime | None = None) -> None:
        """Note all instants up to now as expected."""
        now = now or self.now
        while True:
            until = min(now, self.later[1]) if self.later else now
            self.expected += list(self.instants(self.step, until))
            if self.expected:
                self.point = max(self.point, self.expected[-1])
            if self.later is None or now < self.later[1]:
                return
            self.step, self.point, self.later = self.later[0], max(self.point, self.later[1]), None

    def instants(self, step: int, until: datetime) -> list[datetime]:
        first = self.point.replace(second=0, microsecond=0)
        minutes = (first + MINUTE * n for n in range(1, int((until - first) / MINUTE) + 1))
        return [minute for minute in minutes if minute.minute % step == 0 and minute > self.point]

    def planned(self, done: bool) -> None:
        """A round came to its end: all is decided, or as far as the definition says."""
        self.due(None if done else min(self.tm.definitions.get("d").planned_until, self.now))

    # What happens

    @rule(minutes=st.integers(0, 90), seconds=st.integers(0, 59))
    def time_passes(self, minutes: int, seconds: int) -> None:
        self.now += timedelta(minutes=minutes, seconds=seconds)
        self.latest = max(self.latest, self.now)

    @rule(minutes=st.integers(1, 45))
    def the_clock_is_put_back(self, minutes: int) -> None:
        self.now -= MINUTE * minutes

    @rule()
    def a_beat_plans_a_round(self) -> None:
        with clock.moved_to(self.now):
            done = not Planner(self.tm.installation).plan_due().more
        self.planned(done)

    @rule(statement=st.integers(1, 8))
    def a_beat_dies_while_it_plans(self, statement: int) -> None:
        engine, seen = self.tm.installation.database.engine, Counter[str]()

        def die(conn: Any, cursor: Any, text: str, *_: Any) -> None:
            seen["n"] += not text.startswith("BEGIN")  # before that there is nothing to roll back
            if seen["n"] == statement:
                raise Crash

        event.listen(engine, "before_cursor_execute", die)
        try:
            with clock.moved_to(self.now):
                done = not Planner(self.tm.installation).plan_due().more
        except Crash:
            return
        finally:
            event.remove(engine, "before_cursor_execute", die)
        self.planned(done)

    @rule(step=STEPS)
    def somebody_edits_the_schedule(self, step: int) -> None:
        with clock.moved_to(self.now):
            version = self.tm.definitions.get("d").version
            after = self.tm.definitions.update("d", schedule=f"*/{step} * * * *", version=version)
        self.due()
        self.later = None  # the later word counts
        assert after.next_edit is None
        if step != self.step:
            self.step, self.point = step, max(self.point, self.now)

    @rule(step=STEPS)
    def somebody_edits_it_for_later(self, step: int) -> None:
        with clock.moved_to(self.now):
            after = self.tm.definitions.update("d", schedule=f"*/{step} * * * *", policy="graceful")
        self.due()
        waiting = after.waiting_edit
        assert (waiting is None) == (step == self.step)
        self.later = (step, waiting.after) if waiting else None

    @rule(recovery=RECOVERIES, paused=st.booleans(), ahead=st.sampled_from([None, "1h"]))
    def somebody_turns_switches(self, recovery: Any, paused: bool, ahead: str | None) -> None:
        said = {"recovery": recovery} if isinstance(recovery, dict) else {"recovery": {"policy": recovery}}
        with clock.moved_to(self.now):
            self.tm.definitions.update("d", **said, paused=paused, plan_ahead=ahead)
        self.due()

    @rule(count=st.integers(1, 5))
    def workers_run_some(self, count: int) -> None:
        with clock.moved_to(self.now):
            for id in claim(self.tm, limit=count):
                job = start(self.tm, id)
                if job is not None:
                    recorder.record_success(self.tm.installation, job, None)

    # What must hold

    @invariant()
    def nothing_is_there_twice_or_unasked(self) -> None:
        if not hasattr(self, "now"):
            return
        decided = [row for row in rows(self.tm, "d") if row.decided_at is not None]
        instants = [row.scheduled_at for row in decided]
        assert len(instants) == len(set(instants))
        versions = [row.version for row in decided]
        assert versions == sorted(versions)
        assert all(row.reason for row in decided if str(row.state) in ("skipped", "missed", "coalesced"))

    def teardown(self) -> None:
        if not hasattr(self, "now"):
            return
        # A clock that was put back may hold up what was being caught up with, until it is as late as it was.
        self.now = self.latest
        with clock.moved_to(self.now):
            more = True
            while more:
                more = Planner(self.tm.installation).plan_due().more
        self.due()
        decided = [row.scheduled_at for row in rows(self.tm, "d") if row.decided_at is not None]
        assert decided == self.expected
        ahead = [row.scheduled_at for row in rows(self.tm, "d") if row.decided_at is None]
        assert all(instant > self.point for instant in ahead)


def test_every_instant_is_in_the_ledger_exactly_once(tm: TimeManagement, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "ROUND", 12)
    monkeypatch.setattr(planning, "FEWEST", 12)
    machine = type("LedgerHere", (Ledger,), {"tm": tm})
    many = not tm.installation.database.dialect.is_server
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60 if many else 12,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )


def test_the_model_notices_a_planner_that_forgets_an_instant(tm: TimeManagement, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that cannot fail proves nothing: a planner that drops every fifth instant is found out."""
    if tm.installation.database.dialect.is_server:
        pytest.skip("once is enough, on SQLite")
    honest = planning.plan

    def forgetful(*args: Any, **kwargs: Any) -> Any:
        from dataclasses import replace

        made = honest(*args, **kwargs)
        return replace(made, decisions=[d for n, d in enumerate(made.decisions) if n % 5 != 4])

    monkeypatch.setattr(planning, "plan", forgetful)
    machine = type("LedgerBroken", (Ledger,), {"tm": tm})
    with pytest.raises((AssertionError, TmError)):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=60,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                database=None,
                phases=[Phase.generate],  # found is enough
            ),
        )
