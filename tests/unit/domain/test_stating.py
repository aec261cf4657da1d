"""What people state about a definition: what each field takes, what is refused by name, and how it is written back."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.definition import COLUMNS, new_definition, stated
from celery_tm.domain.dst import Fold, Gap
from celery_tm.domain.overlap import Overlap
from celery_tm.domain.recovery import Recovery
from celery_tm.domain.schedule import Zone
from celery_tm.domain.stating import FIELDS, check_values, write_value
from celery_tm.domain.workflow import Mode, Strategy
from celery_tm.errors import InvalidValue, TmError, UnknownOption

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
CALENDARS = {"holidays": ("12-25",), "inventory": ("2026-01-02",)}


# What is taken

TAKEN = [
    ("task", "shop.sync", "shop.sync"),
    ("args", [1, "a"], '[1, "a"]'),
    ("args", (), "[]"),
    ("kwargs", {"a": [1]}, '{"a": [1]}'),
    ("schedule", " 0  9 * * * ", "0 9 * * *"),
    ("schedule", timedelta(minutes=5), "every 5m"),
    ("timezone", "Asia/Kathmandu", "Asia/Kathmandu"),
    ("gap", "skip", Gap.SKIP),
    ("gap", Gap.SHIFT, Gap.SHIFT),
    ("fold", "both", Fold.BOTH),
    ("starts_at", "2026-01-01T13:00:00+01:00", NOON),
    ("ends_at", NOON, NOON),
    ("excluded", ["SUN", date(2026, 12, 24)], ("sun", "2026-12-24")),
    ("excluded", (), ()),
    ("calendars", ["holidays"], ("holidays",)),
    ("jitter", "30s", 30 * SECOND),
    ("jitter", 0, None),
    ("max_runs", 1, 1),
    ("max_runs", 1_000_000_000, 1_000_000_000),
    ("enabled", False, False),
    ("paused", True, True),
    ("group", "night", "night"),
    ("queue", "mail", "mail"),
    ("priority", 0, 0),
    ("priority", 255, 255),
    ("max_retries", 0, 0),
    ("retry", "fixed", {"kind": "fixed", "delay": "1m"}),
    ("overlap", "queue_one", Overlap.QUEUE_ONE),
    ("concurrency_key", "db", "db"),
    ("recovery", "compressed", Recovery.COMPRESSED),
    ("recovery_count", 10_000, 10_000),
    ("recovery_within", "2h", 2 * HOUR),
    ("recovery_spacing", 10, 10 * SECOND),
    ("recovery_spacing", "0s", None),
    ("execution_timeout", "1h 30m", 90 * MINUTE),
    ("task_timeout", 0.5, SECOND / 2),
    ("expires", HOUR, HOUR),
    ("pause_after", 100, 100),
    ("plan_ahead", "30d", 30 * DAY),
    ("plan_ahead", 0, None),
    ("options", {"headers": {"x": [1, None]}}, {"headers": {"x": [1, None]}}),
    (
        "steps",
        [{"task": "shop.fetch", "task_timeout": 90}],
        [{"name": "fetch", "task": "shop.fetch", "task_timeout": "1m 30s"}],
    ),
    ("steps", None, None),
    ("mode", "parallel", Mode.PARALLEL),
    ("failure_strategy", "fail_fast", Strategy.FAIL_FAST),
    ("max_parallel", 8, 8),
    ("terminate", True, True),
    ("on_start", "shop.tell", "shop.tell"),
    ("on_start_blocking", True, True),
    ("on_complete", "hook:tell", "hook:tell"),
]


@pytest.mark.parametrize(("field", "value", "column"), TAKEN)
def test_each_field_is_read_as_what_it_means(field: str, value: Any, column: Any) -> None:
    assert check_values({field: value}, zone=Zone())[field] == column


def test_each_field_that_may_be_stated_has_a_good_value_here() -> None:
    assert {field for field, _, _ in TAKEN} | {"concurrency"} == set(FIELDS)


def test_a_schedule_is_kept_as_its_kind_and_its_expression() -> None:
    assert check_values({"schedule": "every 300s"}, zone=Zone()) == {"schedule_kind": "interval", "schedule": "every 5m"}


def test_nothing_is_a_column_that_was_not_stated() -> None:
    assert check_values({}, zone=Zone()) == {}
    assert set(check_values({"queue": "mail"}, zone=Zone())) == {"queue"}


def test_every_field_is_a_column_of_the_definition() -> None:
    assert set(FIELDS) <= set(COLUMNS)


@pytest.mark.parametrize(
    ("values", "present", "expected"),
    [
        ({"concurrency_key": "db"}, None, ("db", 1)),
        ({"concurrency_key": "db", "concurrency": 5}, None, ("db", 5)),
        ({"concurrency": 5}, ("db", 1), ("db", 5)),
        ({"concurrency_key": "disk"}, ("db", 5), ("disk", 5)),
        ({"concurrency_key": None}, ("db", 5), (None, None)),
        ({"concurrency": None}, ("db", 5), ("db", 1)),
    ],
)
def test_a_key_and_its_limit_go_together(
    values: dict[str, Any], present: tuple[str, int] | None, expected: tuple[Any, Any]
) -> None:
    key, limit = present or (None, None)
    columns = check_values(values, zone=Zone(), present=SimpleNamespace(concurrency_key=key, concurrency=limit))

    assert (columns["concurrency_key"], columns["concurrency"]) == expected


# Recovery as a mapping


@pytest.mark.parametrize(
    ("recovery", "columns"),
    [
        ({"policy": "last"}, (Recovery.LAST, None, None, None)),
        ({"policy": "bounded", "count": 3}, (Recovery.BOUNDED, 3, None, None)),
        ({"policy": "bounded", "within": "2h"}, (Recovery.BOUNDED, None, 2 * HOUR, None)),
        ({"policy": "all", "spacing": "10s"}, (Recovery.ALL, None, None, 10 * SECOND)),
        (
            {"policy": "bounded", "count": 3, "within": "2h", "spacing": 10},
            (Recovery.BOUNDED, 3, 2 * HOUR, 10 * SECOND),
        ),
    ],
)
def test_recovery_as_a_mapping_states_all_of_it(recovery: dict[str, Any], columns: tuple[Any, ...]) -> None:
    names = ("recovery", "recovery_count", "recovery_within", "recovery_spacing")

    assert check_values({"recovery": recovery}, zone=Zone()) == dict(zip(names, columns, strict=True))


@pytest.mark.parametrize(
    ("recovery", "words"),
    [
        ({}, "recovery: {} has no policy; add e.g. 'policy': 'bounded'"),
        ({"count": 3}, "recovery: {'count': 3} has no policy"),
        ({"policy": "some"}, "recovery: 'some' is not one of its values"),
        ({"policy": None}, "recovery: None is not one of its values"),
        ({"policy": "bounded", "count": 0}, "recovery_count: 0 is not a count"),
        ({"policy": "bounded", "within": "x"}, "recovery_within: 'x' is not a duration"),
        ({"policy": "bounded", "cuont": 3}, "unknown option 'recovery.cuont', did you mean 'count'?"),
        ({"policy": "bounded", 5: 3}, "unknown option 'recovery.5'"),
    ],
)
def test_a_mapping_that_is_wrong_is_refused_by_its_part(recovery: dict[Any, Any], words: str) -> None:
    with pytest.raises(TmError) as refused:
        check_values({"recovery": recovery}, zone=Zone())

    assert str(refused.value).startswith(words)


def test_a_bound_is_stated_in_one_place_only() -> None:
    with pytest.raises(InvalidValue, match="recovery_count: recovery= states the bounds already; state them in one place"):
        check_values({"recovery": {"policy": "bounded", "within": "2h"}, "recovery_count": 3}, zone=Zone())


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
    ("schedule", "61 * * * *", "minute '61' is not in 0-59"),
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
    ("group", 5, "not a list of names"),
    ("queue", "", "empty"),
    ("queue", "x" * 256, "256 characters"),
    ("priority", 256, "256 is not a priority"),
    ("priority", "high", "'high' is not a priority"),
    ("max_retries", -1, "-1 is not a number of retries"),
    ("retry", "often", "unknown kind 'often'"),
    ("retry", {"kind": "fixed", "delay": "x"}, r"retry\.delay"),
    ("overlap", "maybe", "use one of 'skip', 'queue', 'queue_one', 'allow', 'replace'"),
    ("overlap", "que", "did you mean 'queue'"),
    ("recovery", "some", "use one of 'all', 'last', 'skip', 'bounded', 'compressed'"),
    ("recovery", "compress", "did you mean 'compressed'"),
    ("recovery", [], "recovery"),
    ("recovery", None, "None"),
    ("recovery_count", 0, "0 is not a count; give a whole number from 1 to 10000"),
    ("recovery_count", 10_001, "10001 is not a count"),
    ("recovery_count", True, "True is not a count"),
    ("recovery_count", 2.0, "2.0 is not a count"),
    ("recovery_within", "0s", "'0s' leaves no time; give a longer duration, e.g. '2h'"),
    ("recovery_within", -1, "-1 is negative"),
    ("recovery_spacing", "often", "'often' is not a duration"),
    ("execution_timeout", 0, "0 leaves no time"),
    ("execution_timeout", "long", "'long' is not a duration"),
    ("task_timeout", "soon", "'soon' is not a duration"),
    ("task_timeout", -1, "-1 is negative"),
    ("task_timeout", 0, "0 leaves no time"),
    ("expires", timedelta(0), "leaves no time"),
    ("expires", "1 fortnight", "is not a duration"),
    ("pause_after", 0, "0 is not a count"),
    ("pause_after", 101, "from 1 to 100"),
    ("plan_ahead", "forever", "'forever' is not a duration"),
    ("steps", "fetch", "'fetch' is not a list"),
    ("steps", [], "there are none"),
    ("steps", [{}], r"steps\[0\]: it has no task"),
    ("mode", "serial", "'serial' is not one of its values"),
    ("failure_strategy", "give_up", "use one of 'fail_fast', 'continue', 'retry_on_failure'"),
    ("max_parallel", 0, "0 is not a count"),
    ("terminate", "yes", "'yes' is not true or false"),
    ("on_start", "", "it is empty"),
    ("on_start_blocking", "yes", "'yes' is not true or false"),
    ("on_complete", 5, "5 is not text"),
    ("jitter", -5, "-5 is negative"),
    ("jitter", "x", "'x' is not a duration"),
    ("max_runs", 0, "0 is not a count"),
    ("max_runs", "3", "'3' is not a count"),
    ("max_runs", 1_000_000_001, "from 1 to 1000000000"),
    ("excluded", "sat", "'sat' is not a list"),
    ("excluded", ["sat", "someday"], r"excluded\[1\]: 'someday'"),
    ("calendars", "holidays", "'holidays' is not a list of names; give e.g. \\['holidays'\\]"),
    ("calendars", ["a", ""], r"calendars\[1\]: it is empty"),
    ("calendars", [5], r"calendars\[0\]: 5 is not text"),
    ("concurrency_key", "", "empty"),
    ("concurrency_key", 5, "not text"),
    ("concurrency", 5, "there is no concurrency_key to limit; give concurrency_key= too"),
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


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "2", 1_000_001])
def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    with pytest.raises(InvalidValue, match=r"^concurrency: .* is not a limit; give a whole number of one or more"):
        check_values({"concurrency_key": "db", "concurrency": limit}, zone=Zone())


def test_the_old_name_of_the_timeout_is_refused_with_the_new_one() -> None:
    with pytest.raises(UnknownOption, match="unknown option 'timeout', did you mean 'task_timeout'"):
        check_values({"timeout": 5}, zone=Zone())


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
    open_ones = [
        "fold", "starts_at", "ends_at", "group", "queue", "priority", "retry", "task_timeout", "execution_timeout",
        "expires", "max_retries", "jitter", "max_runs", "recovery_count", "recovery_within", "recovery_spacing",
        "pause_after", "plan_ahead", "concurrency_key", "concurrency", "steps", "failure_strategy", "max_parallel",
        "on_start", "on_complete",
    ]  # fmt: skip

    derived = {"groups": (), "on_start_blocking": False}
    assert check_values(dict.fromkeys(open_ones), zone=Zone()) == dict.fromkeys(open_ones) | derived
    assert check_values({"excluded": None, "calendars": None}, zone=Zone()) == {"excluded": (), "calendars": ()}


# Written back


@pytest.mark.parametrize(
    ("name", "column", "written"),
    [
        ("args", '[1, "a"]', [1, "a"]),
        ("kwargs", '{"a": 1}', {"a": 1}),
        ("jitter", 90 * SECOND, "1m 30s"),
        ("starts_at", NOON, "2026-01-01T12:00:00+00:00"),
        ("overlap", Overlap.QUEUE_ONE, "queue_one"),
        ("excluded", ("sat", "12-25"), ["sat", "12-25"]),
        ("retry", {"kind": "fixed", "delay": "1m"}, {"kind": "fixed", "delay": "1m"}),
        ("queue", "mail", "mail"),
        ("priority", 5, 5),
        ("paused", True, True),
        ("fold", None, None),
    ],
)
def test_a_column_is_written_as_a_person_would_state_it(name: str, column: Any, written: Any) -> None:
    assert write_value(name, column) == written
    assert type(write_value(name, column)) is type(written)


def test_what_is_stated_is_written_without_what_is_default() -> None:
    values = {"task": "shop.sync", "schedule": "0 9 * * *"}
    definition = new_definition(id="id", name="sync", values=values, now=NOON, actor=None)

    assert stated(definition) == values


durations = st.integers(1, 10**9).map(lambda milliseconds: timedelta(milliseconds=milliseconds))
words = st.text("abcdefgh-", min_size=1, max_size=20)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text("abc é☃", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
SCHEDULES = [
    "0 9 * * *", "0 0 9 * * MON-FRI", "@daily", "*/5 * * * *", "H H * * *", "every 10s",
    "every 2h from 2026-01-01T08:00:00+00:00",
    "R5/2026-06-01T00:00:00Z/P1M", "R/2026-06-01T09:00:00/P1D", "at 2026-12-24T18:00:00+01:00", "at 2026-12-24T18:00:00",
    "every 2h from 08:00 until 18:00 on mon-fri", "DTSTART:20260101T090000 RRULE:FREQ=DAILY", "sunset at 52.2,21.0",
    {"kind": "interval", "every": "2h"}, timedelta(minutes=7), datetime(2027, 1, 1, tzinfo=UTC),
    {"kind": "cron", "expression": "5 4 * * *"}, {"kind": "once", "at": "2026-12-24T18:00:00"},
]  # fmt: skip
recoveries = st.sampled_from([{"recovery": name} for name in ("all", "last", "skip", "compressed")]) | st.builds(
    lambda count, within, spacing: {
        "recovery": {"policy": "bounded", "count": count, "within": within if count else HOUR, "spacing": spacing}
    },
    st.none() | st.integers(1, 10_000),
    st.none() | durations,
    st.none() | durations,
)
overlaps = st.sampled_from([{"overlap": str(policy)} for policy in Overlap]) | st.fixed_dictionaries(
    {"overlap": st.sampled_from(["skip", "allow"]), "concurrency_key": words, "concurrency": st.integers(1, 1_000_000)}
)
others = st.fixed_dictionaries(
    {"schedule": st.sampled_from(SCHEDULES), "task": words},
    optional={
        "args": st.lists(plain | st.just(NOON), max_size=3),
        "kwargs": st.dictionaries(words, plain, max_size=3),
        "timezone": st.sampled_from(["UTC", "Europe/Warsaw", "Asia/Kathmandu"]),
        "gap": st.sampled_from(["shift", "skip"]),
        "fold": st.sampled_from([None, "first", "second", "both"]),
        "starts_at": st.none() | st.sampled_from([NOON, "2026-01-01T08:00:00.250+05:45"]),
        "ends_at": st.none() | st.just("2031-01-01T00:00:00+00:00"),
        "excluded": st.lists(st.sampled_from(["sun", "12-31", "2026-02-01", "2026-02-01/2026-02-09"]), max_size=3),
        "calendars": st.lists(st.sampled_from(sorted(CALENDARS)), unique=True, max_size=2),
        "jitter": st.none() | durations,
        "max_runs": st.none() | st.integers(1, 10**9),
        "enabled": st.booleans(),
        "paused": st.booleans(),
        "group": st.none() | words,
        "queue": st.none() | words,
        "priority": st.none() | st.integers(0, 255),
        "max_retries": st.none() | st.integers(0, 10**6),
        "retry": st.sampled_from([None, "fixed", "proportional", {"kind": "exponential", "factor": 3}]),
        "execution_timeout": st.none() | durations,
        "task_timeout": st.none() | durations,
        "expires": st.none() | durations,
        "pause_after": st.none() | st.integers(1, 100),
        "plan_ahead": st.none() | durations,
        "options": st.dictionaries(words, plain, max_size=2),
    },
)


@settings(max_examples=150, deadline=None)
@given(others=others, recovery=recoveries, overlap=overlaps)
def test_what_is_written_back_means_the_same_definition(
    others: dict[str, Any], recovery: dict[str, Any], overlap: dict[str, Any]
) -> None:
    made = [others | recovery | overlap]
    for _ in range(2):
        definition = new_definition(id="id", name="sync", values=made[-1], now=NOON, actor=None, calendars=CALENDARS)
        made.append(stated(definition))
        again = new_definition(id="id", name="sync", values=made[-1], now=NOON, actor=None, calendars=CALENDARS)
        assert again == definition

    assert made[1] == made[2]
    assert "options" not in made[1] or made[1]["options"] == others["options"]
    assert json.dumps({name: value for name, value in made[1].items() if name != "args"})
