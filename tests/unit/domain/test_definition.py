"""Definitions: what may be stated, what is refused by name, and what an edit leaves alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_tm.domain.definition import Definition, WaitingEdit, edited, new_definition, retired, unretired
from celery_tm.domain.dst import Fold, Gap
from celery_tm.domain.overlap import TAKING_TURNS, Overlap
from celery_tm.domain.recovery import CatchUp, Recovery
from celery_tm.errors import InvalidValue, UnknownOption

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
CALENDARS = {"holidays": ("12-25",), "inventory": ("2026-01-02",)}


def a_definition(**values: Any) -> Definition:
    defaults = {"task": "shop.sync", "schedule": "0 * * * *"}
    return new_definition(id="id", name="sync", values=defaults | values, now=NOON, actor="ann", calendars=CALENDARS)


def edit(definition: Definition, *, now: datetime = NOON + DAY, actor: str = "bob", **values: Any) -> Definition:
    return edited(definition, values=values, now=now, actor=actor, calendars=CALENDARS)


# New ones


def test_a_definition_needs_only_a_task_and_a_schedule() -> None:
    definition = a_definition()

    assert (definition.name, definition.task, definition.schedule_kind, definition.schedule) == (
        "sync", "shop.sync", "cron", "0 * * * *",
    )  # fmt: skip
    assert (definition.args, definition.kwargs, definition.timezone) == ("[]", "{}", "UTC")
    assert (definition.enabled, definition.paused, definition.overlap, definition.recovery) == (
        True, False, Overlap.SKIP, Recovery.LAST,
    )  # fmt: skip
    assert (definition.version, definition.created_by, definition.updated_by) == (1, "ann", "ann")


def test_a_new_definition_plans_from_now_on() -> None:
    definition = a_definition(schedule="0 12 * * *")

    assert (definition.planned_until, definition.next_run_at) == (NOON, NOON + DAY)
    assert definition.last_run_at is None


def test_everything_that_may_be_stated_is_kept() -> None:
    definition = a_definition(
        args=(1, 2), kwargs={"a": "b"}, schedule="every 5m", timezone="Europe/Warsaw", gap="skip", fold="both",
        starts_at="2026-01-02T00:00:00+01:00", ends_at=NOON + 9 * DAY, enabled=False, paused=True, group="night",
        queue="mail", priority=3, max_retries=0, retry={"kind": "linear", "base": 5}, overlap="allow",
        recovery={"policy": "bounded", "count": 3, "within": "2h", "spacing": "10s"}, excluded=["Sat", "2026-12-24"],
        jitter="30s", max_runs=500, concurrency_key="db", concurrency=2, execution_timeout="1h", expires="10m",
        pause_after=5, plan_ahead="1d", calendars=["holidays"],
        task_timeout="90s", options={"headers": {"x": 1}},
    )  # fmt: skip

    assert (definition.args, definition.kwargs) == ("[1, 2]", '{"a": "b"}')
    assert (definition.schedule_kind, definition.schedule, definition.timezone) == ("interval", "every 5m", "Europe/Warsaw")
    assert (definition.gap, definition.fold) == (Gap.SKIP, Fold.BOTH)
    assert (definition.starts_at, definition.ends_at) == (datetime(2026, 1, 1, 23, tzinfo=UTC), NOON + 9 * DAY)
    assert (definition.enabled, definition.paused, definition.group) == (False, True, "night")
    assert (definition.queue, definition.priority, definition.max_retries) == ("mail", 3, 0)
    assert definition.retry == {"kind": "linear", "base": "5s", "cap": "1d"}
    assert definition.overlap is Overlap.ALLOW
    assert definition.catch_up == CatchUp(policy=Recovery.BOUNDED, count=3, within=2 * HOUR, spacing=10 * SECOND)
    assert (definition.excluded, definition.calendars) == (("sat", "2026-12-24"), ("holidays",))
    assert definition.closed == {"holidays": ("12-25",)}
    assert (definition.jitter, definition.max_runs, definition.expires) == (30 * SECOND, 500, 10 * MINUTE)
    assert (definition.concurrency_key, definition.concurrency) == ("db", 2)
    assert (definition.execution_timeout, definition.pause_after, definition.plan_ahead) == (HOUR, 5, DAY)
    assert (definition.task_timeout, definition.options) == (90 * timedelta(seconds=1), {"headers": {"x": 1}})
    assert definition.next_run_at == datetime(2026, 1, 1, 23, tzinfo=UTC)


@pytest.mark.parametrize("missing", ["task", "schedule"])
def test_a_definition_without_a_task_or_a_schedule_is_refused(missing: str) -> None:
    values = {"task": "shop.sync", "schedule": "0 * * * *"}
    del values[missing]

    with pytest.raises(InvalidValue, match=f"{missing}: definition 'sync' has none; add {missing}="):
        new_definition(id="id", name="sync", values=values, now=NOON, actor=None)


@pytest.mark.parametrize(
    ("name", "words"), [("", "empty"), ("x" * 101, "101 characters"), (" x", "blanks"), (None, "not text"), (5, "not text")]
)
def test_a_name_has_one_to_a_hundred_characters(name: Any, words: str) -> None:
    with pytest.raises(InvalidValue, match=f"name: .*{words}"):
        new_definition(id="id", name=name, values={"task": "t", "schedule": "@daily"}, now=NOON, actor=None)


def test_a_name_of_a_hundred_characters_is_taken() -> None:
    values = {"task": "t", "schedule": "@daily"}

    assert new_definition(id="id", name="x" * 100, values=values, now=NOON, actor=None).name == "x" * 100


# Edits


def test_an_edit_that_changes_nothing_keeps_the_version_and_says_nobody_made_it() -> None:
    definition = a_definition(args=[1], retry="fixed", timezone="Europe/Warsaw")

    same = edit(definition, task="shop.sync", schedule=" 0  * * * * ", args=(1,), retry={"kind": "fixed", "delay": 60},
                timezone="Europe/Warsaw", gap="shift")  # fmt: skip

    assert same is definition
    assert edit(definition) is definition


def test_an_edit_makes_the_next_version_and_leaves_the_rest() -> None:
    definition = a_definition(queue="mail")
    after = edit(definition, args=[1])

    assert after == replace(definition, args="[1]", version=2, updated_at=NOON + DAY, updated_by="bob")


def test_an_edit_that_is_refused_names_the_field() -> None:
    with pytest.raises(InvalidValue, match="priority"):
        edit(a_definition(), priority=-1)
    with pytest.raises(UnknownOption, match="did you mean 'queue'"):
        edit(a_definition(), queu="x")


def test_an_edit_of_the_zone_alone_moves_the_next_instant() -> None:
    definition = a_definition(schedule="0 9 * * *")
    after = edit(definition, timezone="America/New_York", now=NOON + MINUTE)

    assert after.schedule == "0 9 * * *"
    assert after.next_run_at == datetime(2026, 1, 1, 14, tzinfo=UTC)


def test_an_edit_of_anything_but_the_timing_leaves_the_place_in_time() -> None:
    definition = a_definition()
    after = edit(definition, now=NOON + 3 * DAY, task="shop.other", paused=True, recovery="all", priority=9)

    assert (after.planned_until, after.next_run_at) == (definition.planned_until, definition.next_run_at)


@pytest.mark.parametrize("when", [NOON - DAY, NOON + DAY])
def test_an_edit_of_the_timing_never_decides_a_past_instant_again(when: datetime) -> None:
    definition = replace(a_definition(), planned_until=NOON + HOUR, next_run_at=NOON + 2 * HOUR)
    after = edit(definition, schedule="*/5 * * * *", now=when)

    assert after.planned_until == max(NOON + HOUR, when)
    assert after.next_run_at == after.planned_until + 5 * MINUTE


def test_an_edit_can_end_a_definition() -> None:
    after = edit(a_definition(), ends_at=NOON + HOUR, now=NOON + HOUR)

    assert after.next_run_at is None


def test_an_edit_can_take_back_what_was_stated() -> None:
    definition = a_definition(
        queue="mail",
        jitter="30s",
        concurrency_key="db",
        concurrency=3,
        excluded=["sat"],
        calendars=["holidays"],
        fold="both",
    )
    after = edit(
        definition, queue=None, jitter=None, concurrency_key=None, excluded=None, calendars=[], fold=None, now=NOON
    )  # fmt: skip

    assert after == replace(a_definition(), version=2, updated_by="bob")


def test_an_edit_of_a_limit_keeps_the_key_that_is_there() -> None:
    after = edit(a_definition(concurrency_key="db"), concurrency=4)

    assert (after.concurrency_key, after.concurrency) == ("db", 4)


def test_an_edit_of_a_key_keeps_the_limit_that_is_there() -> None:
    after = edit(a_definition(concurrency_key="db", concurrency=4), concurrency_key="disk")

    assert (after.concurrency_key, after.concurrency) == ("disk", 4)


def test_an_edit_keeps_the_calendars_it_does_not_name() -> None:
    definition = a_definition(calendars=["holidays"])
    after = edited(definition, values={"queue": "mail"}, now=NOON, actor=None)

    assert after.closed == definition.closed == {"holidays": ("12-25",)}


def test_an_edit_of_exclusions_moves_the_next_instant() -> None:
    definition = a_definition(schedule="0 12 * * *")
    after = edit(definition, excluded=["2026-01-02"], now=NOON + MINUTE)

    assert (definition.next_run_at, after.next_run_at) == (NOON + DAY, NOON + 2 * DAY)


def test_an_edit_that_allows_more_runs_brings_a_spent_definition_back_from_now_on() -> None:
    spent = replace(a_definition(max_runs=3), runs=3, next_run_at=None)
    after = edit(spent, max_runs=5, now=NOON + DAY)

    assert (spent.following, after.is_spent, after.next_run_at) == (None, False, NOON + DAY + HOUR)


def test_an_edit_that_allows_fewer_runs_than_there_were_ends_it() -> None:
    assert edit(replace(a_definition(), runs=3), max_runs=2).next_run_at is None


# What fits no definition


def test_a_definition_that_never_fires_again_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"^schedule: 'at 2020-.*' has no instant after 2026-01-01T12:00:00\+00:00; give"):
        a_definition(schedule="at 2020-01-01T00:00:00+00:00")


@pytest.mark.parametrize(
    "values",
    [
        {"ends_at": NOON},
        {"ends_at": NOON - DAY, "starts_at": NOON - 2 * DAY},
        {"excluded": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]},
        {"schedule": "0 9 * * sat", "excluded": ["sat"]},
        {"schedule": "0 0 25 12 *", "calendars": ["holidays"]},
        {"excluded": ["2026-01-01/9999-12-31"]},
        {"excluded": ["2026-01-01T00:00/9999-12-31T23:59:59"], "timezone": "America/New_York"},
    ],
)
def test_bounds_and_exclusions_that_leave_no_instant_are_refused_at_once(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=r"no instant after .* or other bounds and exclusions"):
        a_definition(**values)


def test_an_edit_may_leave_no_instant() -> None:
    after = edit(a_definition(), excluded=["2026-01-01/9999-12-31"])

    assert (after.next_run_at, after.version) == (None, 2)


def test_an_end_before_the_start_is_refused() -> None:
    with pytest.raises(InvalidValue, match="ends_at: it is before starts_at, so it never fires; give a later ends_at"):
        a_definition(starts_at=NOON + DAY, ends_at=NOON)
    with pytest.raises(InvalidValue, match="ends_at"):
        edit(a_definition(starts_at=NOON + DAY), ends_at=NOON + HOUR)


def test_a_definition_of_one_instant_may_end_when_it_starts() -> None:
    assert a_definition(starts_at=NOON + HOUR, ends_at=NOON + HOUR).next_run_at == NOON + HOUR


@pytest.mark.parametrize("values", [{"recovery": "bounded"}, {"recovery": {"policy": "bounded", "spacing": "10s"}}])
def test_bounded_without_a_bound_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match="recovery: bounded needs a bound; add recovery_count=10, recovery_within='2h'"):
        a_definition(**values)


@pytest.mark.parametrize("bound", [{"recovery_count": 3}, {"recovery_within": "2h"}])
@pytest.mark.parametrize("policy", [str(policy) for policy in Recovery if policy is not Recovery.BOUNDED])
def test_a_bound_without_bounded_is_refused(policy: str, bound: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=f"recovery: '{policy}' knows no count and no duration; use recovery='bounded'"):
        a_definition(recovery=policy, **bound)
    assert a_definition(recovery="bounded", **bound).recovery is Recovery.BOUNDED


def test_an_edit_from_bounded_to_another_policy_says_what_to_do_with_its_bounds() -> None:
    definition = a_definition(recovery={"policy": "bounded", "count": 3})

    with pytest.raises(InvalidValue, match="set recovery_count and recovery_within to None"):
        edit(definition, recovery="last")
    assert edit(definition, recovery={"policy": "last"}).catch_up == CatchUp()
    assert edit(definition, recovery="last", recovery_count=None).catch_up == CatchUp()


@pytest.mark.parametrize("overlap", [str(policy) for policy in TAKING_TURNS])
def test_a_concurrency_key_with_an_overlap_that_takes_turns_is_refused(overlap: str) -> None:
    with pytest.raises(InvalidValue, match=f"concurrency_key: overlap='{overlap}' has a lane of its own; use overlap="):
        a_definition(overlap=overlap, concurrency_key="db")


@pytest.mark.parametrize("overlap", ["skip", "allow"])
def test_a_concurrency_key_goes_with_the_others(overlap: str) -> None:
    assert a_definition(overlap=overlap, concurrency_key="db").concurrency == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("holiday", "there is no calendar 'holiday', did you mean 'holidays'\\?; add it first with tm.calendars.set"),
        ("xyzzy", "there is no calendar 'xyzzy'; add it first"),
    ],
)
def test_a_calendar_that_nobody_knows_is_refused_with_the_one_that_was_meant(name: str, words: str) -> None:
    with pytest.raises(InvalidValue, match=f"^calendars: {words}"):
        a_definition(calendars=["holidays", name])
    with pytest.raises(InvalidValue, match=f"^calendars: {words}"):
        edit(a_definition(), calendars=[name])


def test_a_definition_is_closed_when_one_of_its_calendars_or_its_own_exclusions_is() -> None:
    definition = a_definition(schedule="0 12 * * *", calendars=["holidays", "inventory"], excluded=["2026-01-03"])

    assert definition.next_run_at == datetime(2026, 1, 4, 12, tzinfo=UTC)


# An edit that waits


def test_an_edit_that_waits_is_read_from_what_the_database_keeps() -> None:
    kept = {"values": {"queue": "mail"}, "after": NOON.isoformat(), "actor": "ann", "reason": "quieter"}
    definition = replace(a_definition(), next_edit=kept)

    assert definition.waiting_edit == WaitingEdit(values={"queue": "mail"}, after=NOON, actor="ann", reason="quieter")
    assert a_definition().waiting_edit is None


# Retired and back


def test_a_retired_definition_keeps_its_place_and_fires_no_more() -> None:
    definition = a_definition()
    gone = retired(definition, now=NOON + DAY)

    assert (gone.retired_at, gone.next_run_at, gone.following, gone.version) == (NOON + DAY, None, None, 2)
    assert gone.planned_until == definition.planned_until


def test_a_definition_that_is_named_again_goes_on_from_now() -> None:
    back = unretired(retired(a_definition(), now=NOON + DAY), now=NOON + 5 * DAY)

    assert (back.retired_at, back.version) == (None, 3)
    assert (back.planned_until, back.next_run_at) == (NOON + 5 * DAY, NOON + 5 * DAY + HOUR)


def test_a_definition_that_is_named_again_while_the_clock_was_put_back_repeats_nothing() -> None:
    definition = replace(a_definition(), planned_until=NOON + 9 * DAY)
    back = unretired(retired(definition, now=NOON), now=NOON)

    assert (back.planned_until, back.next_run_at) == (NOON + 9 * DAY, NOON + 9 * DAY + HOUR)


def test_a_definition_that_is_named_again_makes_up_for_nothing_it_was_catching_up_with() -> None:
    catching_up = replace(a_definition(recovery="compressed"), catching_up_from=NOON + HOUR)

    assert unretired(retired(catching_up, now=NOON + DAY), now=NOON + 5 * DAY).catching_up_from is None


def test_an_edit_of_a_retired_definition_does_not_wake_it() -> None:
    gone = retired(a_definition(), now=NOON)

    assert edit(gone, schedule="* * * * *").next_run_at is None
