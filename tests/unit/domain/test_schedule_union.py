"""Several schedules as one: a union in which each instant comes once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from celery_tm.domain.definition import new_definition, stated
from celery_tm.domain.schedule import Union, Zone, load_schedule, read_schedule, rules_at
from celery_tm.errors import InvalidValue

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)  # a Monday
NESTED = '["@daily", "@hourly"]'
BOTH = ["0 8 * * *", "0 20 * * 6"]


def test_it_fires_when_one_of_its_parts_does_and_each_instant_once() -> None:
    rule = read_schedule(["0 */2 * * *", "0 */3 * * *"], Zone())
    hours = [at.hour for at in rule.between(NOON, NOON + timedelta(hours=12))]
    assert hours == [14, 15, 16, 18, 20, 21, 22, 0]
    assert rules_at(rule, NOON + timedelta(hours=6)) == ["0 */2 * * *", "0 */3 * * *"]
    assert rules_at(rule, NOON + timedelta(hours=3)) == ["0 */3 * * *"]
    assert rules_at(read_schedule("@daily", Zone()), NOON) == []


@pytest.mark.parametrize(
    "given",
    [
        BOTH,
        ["0 8 * * *", "every 90m", "at 2026-12-24T18:00:00", "R/2026-01-01T00:00:00/P1D"],
        ["0 8 * * *", {"kind": "crontab", "expression": "0 9 1 * 1"}],
        ["0 8 * * *", {"kind": "window", "every": "15m", "from": "08:00", "until": "18:00", "days": "mon-fri"}],
        ["0 8 * * *", timedelta(minutes=7)],
        ["H H * * *", "DTSTART:20260101T090000 RRULE:FREQ=WEEKLY;BYDAY=MO"],
    ],
)
def test_what_is_kept_reads_back_the_same(given: Any) -> None:
    zone = Zone(name="Europe/Warsaw")
    rule = read_schedule(given, zone, name="sync")
    again = load_schedule(rule.kind, rule.expression, zone, name="sync")
    assert again == rule
    assert list(again.between(NOON, NOON + timedelta(days=9))) == list(rule.between(NOON, NOON + timedelta(days=9)))
    parts = [read_schedule(part, zone, name="sync") for part in given]
    expected = sorted({at for part in parts for at in part.between(NOON, NOON + timedelta(days=9))})
    assert list(rule.between(NOON, NOON + timedelta(days=9))) == expected


def test_local_parts_follow_the_clocks() -> None:
    zone = ZoneInfo("Europe/Warsaw")
    rule = read_schedule(["30 2 * * *", "every 6h"], Zone(name="Europe/Warsaw"))
    day = datetime(2026, 3, 29, tzinfo=zone)  # clocks go from 02:00 to 03:00
    found = [f"{at.astimezone(zone):%H:%M}" for at in rule.between(day, day + timedelta(hours=12))]
    assert found == ["01:00", "03:00", "08:00"]


def test_it_says_in_words_when_it_fires() -> None:
    assert read_schedule(BOTH, Zone()).describe() == "at 08:00 every day in UTC and also at 20:00 on Saturday in UTC"


def test_one_alone_is_itself_and_one_twice_counts_once() -> None:
    assert read_schedule(["0 8 * * *"], Zone()).kind == "cron"
    assert read_schedule(["0 8 * * *", "0 8 * * *"], Zone()).kind == "cron"


@pytest.mark.parametrize(
    "given", [[], [[]], ["0 8 * * *", BOTH], ["0 8 * * *", NESTED], ["61 * * * *"], [None], ["@daily"] * 21]
)
def test_what_is_no_list_of_schedules_is_refused(given: Any) -> None:
    with pytest.raises(InvalidValue, match="schedule"):
        read_schedule(given, Zone())


@pytest.mark.parametrize("text", ["[", "[1", "{}", "[]", "null", "[" * 5000])
def test_a_text_that_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="schedule"):
        Union.load(text, Zone())


def test_a_definition_states_a_list() -> None:
    made = new_definition(id="id", name="sync", values={"task": "t", "schedule": BOTH}, now=NOON, actor=None)
    assert (made.schedule_kind, stated(made)["schedule"], made.is_local) == ("any", BOTH, True)
    often = new_definition(
        id="id", name="x", values={"task": "t", "schedule": ["every 2h", "every 3h"]}, now=NOON, actor=None
    )
    assert often.is_local is False


@pytest.mark.parametrize(
    ("values", "group", "groups", "told"),
    [
        ({"group": "a"}, "a", (), "a"),
        ({"group": ["a"]}, "a", (), "a"),
        ({"group": ["a", "b", "a"]}, "a", ("a", "b"), ["a", "b"]),
        ({"groups": ["b", "a"]}, "b", ("b", "a"), ["b", "a"]),
        ({"group": []}, None, (), None),
    ],
)
def test_a_definition_may_be_in_several_groups(values: Any, group: Any, groups: Any, told: Any) -> None:
    made = new_definition(id="id", name="sync", values={"task": "t", "schedule": "@daily", **values}, now=NOON, actor=None)
    assert (made.group, made.groups, stated(made).get("group")) == (group, groups, told)


@pytest.mark.parametrize(
    "values", [{"group": [1]}, {"group": {"a": 1}}, {"groups": ["a"], "group": "a"}, {"group": ["x"] * 21}, {"group": [""]}]
)
def test_groups_that_are_none_are_refused(values: Any) -> None:
    with pytest.raises(InvalidValue, match="group"):
        new_definition(id="id", name="sync", values={"task": "t", "schedule": "@daily", **values}, now=NOON, actor=None)
