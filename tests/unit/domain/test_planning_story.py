"""The life of a definition, told at random: clocks that go forwards and backwards, rounds, edits, pauses.

Whatever happens, each instant that the version in force yields is decided once, and no other.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from celery_tm.domain.definition import Definition, edited, new_definition
from celery_tm.domain.overlap import Active
from celery_tm.domain.planning import Plan, plan
from celery_tm.domain.recovery import Decision

NOON = datetime(2026, 3, 28, 12, tzinfo=UTC)  # clocks in Europe change in the night that follows
SECOND = timedelta(seconds=1)
CALENDARS = {"holidays": ("2026-03-29", "12-25"), "lunch": ("2026-03-28T12:30/2026-03-28T13:30",)}

schedules = st.sampled_from(
    ["*/10 * * * *", "7 * * * *", "every 7m", "every 25m", "30 2 * * *", "every 20m from 22:00 until 04:00", "0 */2 * * *"]
)
zones = st.sampled_from(["UTC", "Europe/Warsaw", "Asia/Kathmandu", "America/New_York"])
excluded = st.lists(
    st.sampled_from(["sun", "03-29", "2026-03-28T14:00/2026-03-28T16:00", "2026-03-30/2026-04-02"]), max_size=2
)
policies = [{"policy": name} for name in ("all", "last", "skip", "compressed")]
recoveries = st.sampled_from([*policies, {"policy": "bounded", "count": 3}])
edits = st.fixed_dictionaries(
    {},
    optional={
        "schedule": schedules,
        "timezone": zones,
        "gap": st.sampled_from(["shift", "skip"]),
        "fold": st.sampled_from([None, "first", "second", "both"]),
        "starts_at": st.sampled_from([None, NOON - timedelta(days=1), NOON + timedelta(hours=3)]),
        "ends_at": st.sampled_from([None, NOON + timedelta(hours=30)]),
        "excluded": excluded,
        "calendars": st.lists(st.sampled_from(sorted(CALENDARS)), unique=True, max_size=2),
        "paused": st.booleans(),
        "enabled": st.booleans(),
        "recovery": recoveries,
        "overlap": st.sampled_from(["skip", "allow", "queue", "queue_one", "replace"]),
        "jitter": st.sampled_from([None, "30s"]),
        "queue": st.sampled_from([None, "mail"]),
    },
)
actives = st.sampled_from([Active(), Active(1, 0), Active(1, 1), Active(3, 1)])


class Story(RuleBasedStateMachine):
    """Does to a definition what beats and people do, as `scheduler.planner` and `scheduler.editing` do it."""

    definition: Definition

    def __init__(self) -> None:
        super().__init__()
        self.now = NOON
        self.decided: dict[datetime, tuple[int, Decision]] = {}

    @initialize(schedule=schedules, zone=zones, recovery=recoveries)
    def begin(self, schedule: str, zone: str, recovery: Any) -> None:
        values = {"task": "shop.sync", "schedule": schedule, "timezone": zone, "recovery": recovery}
        self.definition = new_definition(id="id", name="sync", values=values, now=NOON, actor=None)

    @rule(seconds=st.integers(1, 900) | st.integers(-7200, 7200) | st.integers(0, 100_000))
    def time_goes_on_or_the_clock_is_put_back(self, seconds: int) -> None:
        self.now += seconds * SECOND

    @rule(limit=st.integers(1, 30), active=actives)
    def a_beat_plans(self, limit: int, active: Active) -> None:
        if self.definition.next_run_at is not None and self.definition.next_run_at <= self.now:
            self.plan(limit, active)

    @rule(values=edits, active=actives)
    def somebody_edits(self, values: dict[str, Any], active: Active) -> None:
        if self.edit(values) is self.definition:
            return
        self.catch_up(active)
        before = self.definition
        self.definition = self.edit(values)
        if self.definition is not before:
            assert self.definition.version == before.version + 1
        assert self.definition.planned_until >= before.planned_until

    @precondition(lambda self: self.definition.next_edit is None)
    @rule(values=edits, active=actives)
    def somebody_edits_for_later(self, values: dict[str, Any], active: Active) -> None:
        self.catch_up(active)
        after = self.definition.next_run_at
        if after is not None and self.edit(values) is not self.definition:
            edit = {"values": values, "after": after.isoformat(), "actor": "bob", "reason": None}
            self.definition = replace(self.definition, next_edit=edit)

    @invariant()
    def the_next_run_is_the_next_instant_to_decide_unless_rounds_are_left(self) -> None:
        if not hasattr(self, "definition"):
            return
        following, next_run_at = self.definition.following, self.definition.next_run_at
        assert next_run_at == following or (following is not None and following <= (next_run_at or NOON))

    def teardown(self) -> None:
        if hasattr(self, "definition"):
            self.catch_up(Active())
            assert self.definition.next_run_at is None or self.definition.next_run_at > self.now

    def edit(self, values: dict[str, Any]) -> Definition:
        return edited(self.definition, values=values, now=self.now, actor="bob", calendars=CALENDARS)

    def catch_up(self, active: Active) -> None:
        while self.definition.next_run_at is not None and self.definition.next_run_at <= self.now:
            self.plan(50, active)

    def plan(self, limit: int, active: Active) -> None:
        before = self.definition
        made = plan(before, now=self.now, active=active, limit=limit)
        self.check(before, made)
        for decision in made.decisions:
            assert decision.scheduled_at not in self.decided
            self.decided[decision.scheduled_at] = (before.version, decision)
        self.definition = self.switched(made.after) if made.is_complete else made.after

    def check(self, before: Definition, made: Plan) -> None:
        """All that this version yields up to where it has planned is decided, in order, and nothing else."""
        until = made.after.planned_until
        assert [one.scheduled_at for one in made.decisions] == list(before.timeline.between(before.planned_until, until))
        assert before.planned_until <= until <= max(before.planned_until, self.now)
        if made.is_complete:
            edit = before.waiting_edit
            due_until = min(self.now, edit.after) if edit else self.now
            assert list(before.timeline.between(until, due_until)) == []
        if before.paused or not before.enabled:
            assert not any(one.runs for one in made.decisions)
        assert all(one.runs or one.reason for one in made.decisions)

    def switched(self, definition: Definition) -> Definition:
        edit = definition.waiting_edit
        if edit is None or self.now < edit.after:
            return definition
        plain = replace(definition, next_edit=None)
        return edited(plain, values=edit.values, now=edit.after, actor=edit.actor, calendars=CALENDARS)


TestStory = Story.TestCase
TestStory.settings = settings(max_examples=80, stateful_step_count=20, deadline=None)
