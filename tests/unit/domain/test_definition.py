"""Definitions: what may be stated, what is refused by name, and what an edit leaves alone."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.definition import FIELDS, Definition, check_values, edited, new_definition
from celery_tm.domain.dst import Fold, Gap
from celery_tm.domain.overlap import Overlap
from celery_tm.domain.planning import plan
from celery_tm.domain.recovery import Recovery
from celery_tm.domain.schedule import Zone
from celery_tm.errors import InvalidValue, TmError, UnknownOption

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def a_definition(**values: Any) -> Definition:
    defaults = {"task": "shop.sync", "schedule": "0 * * * *"}
    return new_definition(id="id", name="sync", values=defaults | values, now=NOON, actor="ann")


def edit(definition: Definition, *, now: datetime = NOON + DAY, actor: str = "bob", **values: Any) -> Definition:
    return edited(definition, values=values, now=now, actor=actor)


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
        queue="mail", priority=3, max_retries=0, retry={"kind": "linear", "base": 5}, overlap="allow", recovery="all",
        timeout="90s", options={"headers": {"x": 1}},
    )  # fmt: skip

    assert (definition.args, definition.kwargs) == ("[1, 2]", '{"a": "b"}')
    assert (definition.schedule_kind, definition.schedule, definition.timezone) == ("interval", "every 5m", "Europe/Warsaw")
    assert (definition.gap, definition.fold) == (Gap.SKIP, Fold.BOTH)
    assert (definition.starts_at, definition.ends_at) == (datetime(2026, 1, 1, 23, tzinfo=UTC), NOON + 9 * DAY)
    assert (definition.enabled, definition.paused, definition.group) == (False, True, "night")
    assert (definition.queue, definition.priority, definition.max_retries) == ("mail", 3, 0)
    assert definition.retry == {"kind": "linear", "base": "5s", "cap": "1d"}
    assert (definition.overlap, definition.recovery) == (Overlap.ALLOW, Recovery.ALL)
    assert (definition.timeout, definition.options) == (90 * timedelta(seconds=1), {"headers": {"x": 1}})
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


# What is refused


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("shedule", "schedule"),
        ("time_zone", "timezone"),
        ("max_retry", "max_retries"),
        ("kwarg", "kwargs"),
        ("pause", "paused"),
    ],
)
def test_an_unknown_option_is_refused_with_the_one_that_was_meant(name: str, meant: str) -> None:
    with pytest.raises(UnknownOption, match=f"unknown option '{name}', did you mean '{meant}'"):
        check_values({name: 1}, zone=Zone())


@pytest.mark.parametrize("name", ["id", "version", "planned_until", "schedule_kind", "created_by", "name"])
def test_what_only_the_database_sets_cannot_be_stated(name: str) -> None:
    with pytest.raises(UnknownOption, match=name):
        check_values({name: "x"}, zone=Zone())


def test_an_option_whose_name_is_no_text_is_refused_as_unknown() -> None:
    with pytest.raises(UnknownOption, match="5"):
        check_values({5: "x"}, zone=Zone())  # type: ignore[dict-item]


MALFORMED = [
    ("task", "", "empty"),
    ("task", None, "not text"),
    ("task", "x" * 256, "256 characters"),
    ("args", "abc", "'abc' is not a list"),
    ("args", {"a": 1}, "not a list"),
    ("args", [object()], r"args\[0\]"),
    ("kwargs", [1], "not a mapping"),
    ("kwargs", {"a": [float("nan")]}, r"kwargs\['a'\]\[0\]"),
    ("schedule", "61 * * * *", "'61' is not valid for the minute"),
    ("schedule", "every 0s", "too short"),
    ("schedule", None, "None is not a schedule"),
    ("timezone", "Europe/Warsav", "did you mean 'Europe/Warsaw'"),
    ("timezone", None, "None is not text"),
    ("gap", "jump", "'jump' is not one of its values; use one of 'shift', 'skip'"),
    ("gap", None, "None"),
    ("fold", "third", "use one of 'first', 'second', 'both'"),
    ("starts_at", "tomorrow", "'tomorrow' is not a date and time"),
    ("starts_at", datetime(2026, 1, 1), "no time zone"),
    ("starts_at", "2026-01-01", "no time zone"),
    ("starts_at", date(2026, 1, 1), "not a datetime"),
    ("ends_at", 5, "5 is not a datetime"),
    ("ends_at", "2026-13-01T00:00:00+00:00", "not a date and time"),
    ("enabled", "yes", "'yes' is not true or false"),
    ("enabled", 1, "1 is not true or false"),
    ("paused", None, "None is not true or false"),
    ("group", "x" * 101, "101 characters"),
    ("group", 5, "not text"),
    ("queue", "", "empty"),
    ("queue", "x" * 256, "256 characters"),
    ("priority", 256, "256 is not a priority"),
    ("priority", "high", "'high' is not a priority"),
    ("max_retries", -1, "-1 is not a number of retries"),
    ("retry", "often", "unknown kind 'often'"),
    ("retry", {"kind": "fixed", "delay": "x"}, r"retry\.delay"),
    ("overlap", "maybe", "use one of 'skip', 'allow'"),
    ("recovery", "some", "use one of 'all', 'last', 'skip'"),
    ("recovery", [], "recovery"),
    ("timeout", "soon", "'soon' is not a duration"),
    ("timeout", -1, "-1 is negative"),
    ("options", [1], "not a mapping"),
    ("options", {"headers": object()}, r"options\['headers'\]"),
]


@pytest.mark.parametrize(("field", "value", "words"), MALFORMED)
def test_a_malformed_field_is_refused_by_its_name(field: str, value: Any, words: str) -> None:
    with pytest.raises(TmError, match=words) as refusal:
        check_values({field: value}, zone=Zone())

    assert field in str(refusal.value) or (field == "timezone" and "time zone" in str(refusal.value))


def test_every_field_that_may_be_stated_is_checked() -> None:
    assert {field for field, _, _ in MALFORMED} == set(FIELDS)


def test_a_timeout_that_leaves_no_time_is_refused_as_defer_does() -> None:
    with pytest.raises(InvalidValue, match="timeout"):
        check_values({"timeout": 0}, zone=Zone())


@pytest.mark.parametrize("field", ["starts_at", "ends_at"])
def test_an_instant_that_no_calendar_has_is_refused(field: str) -> None:
    with pytest.raises(InvalidValue, match=field):
        check_values({field: datetime(1, 1, 1, tzinfo=timezone(14 * HOUR))}, zone=Zone())


def test_options_that_are_taken_can_be_kept_as_plain_json() -> None:
    options: Any = {}
    with suppress(InvalidValue):  # a refusal is fine, too
        options = check_values({"options": {"headers": {"at": NOON}}}, zone=Zone())["options"]

    assert json.dumps(options)


def test_what_may_be_left_open_can_be_said_to_be_open() -> None:
    open_ones = ("fold", "starts_at", "ends_at", "group", "queue", "priority", "retry", "timeout", "max_retries")

    assert check_values(dict.fromkeys(open_ones), zone=Zone()) == dict.fromkeys(open_ones)


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


timings = st.fixed_dictionaries(
    {},
    optional={
        "schedule": st.sampled_from(["* * * * *", "0 * * * *", "every 7m", "30 2 * * *"]),
        "timezone": st.sampled_from(["UTC", "Europe/Warsaw", "Asia/Kathmandu"]),
        "gap": st.sampled_from(["shift", "skip"]),
        "fold": st.sampled_from([None, "first", "second", "both"]),
        "starts_at": st.sampled_from([None, NOON - DAY, NOON + HOUR]),
        "paused": st.booleans(),
    },
)


@settings(max_examples=60, deadline=None)
@given(story=st.lists(st.tuples(st.integers(-600, 7200), timings), min_size=1, max_size=8))
def test_through_any_edits_and_clocks_no_instant_is_decided_twice(
    story: list[tuple[int, dict[str, Any]]],
) -> None:
    definition, now = a_definition(schedule="*/10 * * * *"), NOON
    decided: list[datetime] = []
    for seconds, values in story:
        now += timedelta(seconds=seconds)
        made = plan(definition, now=now, active=0)
        decided += [decision.scheduled_at for decision in made.decisions]
        planned = replace(definition, planned_until=made.planned_until, next_run_at=made.next_run_at)
        definition = edit(planned, now=now, **values)
        assert definition.planned_until >= planned.planned_until
        assert definition.version - planned.version == (definition is not planned)

    assert decided == sorted(set(decided))
