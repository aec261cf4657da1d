"""A long outage is decided in rounds, and comes out as if it were decided at once: runs, windows and spacing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.definition import Definition, new_definition
from celery_tm.domain.overlap import Active
from celery_tm.domain.planning import plan
from celery_tm.domain.recovery import GRACE, Decision

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
POLICIES: list[dict[str, Any]] = [
    {"policy": "all"},
    {"policy": "last"},
    {"policy": "skip"},
    {"policy": "compressed"},
    {"policy": "bounded", "count": 1},
    {"policy": "bounded", "count": 7},
    {"policy": "bounded", "within": "20m"},
    {"policy": "bounded", "count": 7, "within": "20m"},
    {"policy": "all", "spacing": "13s"},
    {"policy": "bounded", "count": 500, "spacing": "1m"},
]


def a_definition(**values: Any) -> Definition:
    """Return a definition of every minute, added at noon."""
    defaults = {"task": "shop.sync", "schedule": "* * * * *", "overlap": "allow"}
    return new_definition(id="definition", name="sync", values=defaults | values, now=NOON, actor=None)


def in_rounds(definition: Definition, *, now: datetime, limit: int) -> tuple[list[Decision], Definition]:
    """Plan until nothing is due, each round finding owed what those before it let run; return all that was decided."""
    decided: list[Decision] = []
    for _ in range(10_000):
        owed = [decision for decision in decided if decision.runs]
        active = Active(len(owed), sum(not decision.is_recovery for decision in owed))
        made = plan(definition, now=now, active=active, limit=limit)
        assert len(made.decisions) <= limit
        assert made.is_complete or made.after.next_run_at == now
        decided += made.decisions
        definition = made.after
        if made.is_complete:
            return decided, definition
    raise AssertionError("it never ends")


def runs(decisions: list[Decision]) -> list[datetime]:
    return [decision.scheduled_at for decision in decisions if decision.runs]


def windows(decisions: list[Decision]) -> list[tuple[datetime | None, datetime | None]]:
    return [(decision.covers_from, decision.covers_until) for decision in decisions if decision.runs]


schedules = st.sampled_from(["* * * * *", "*/7 * * * *", "every 1s", "every 90s", "0,1,2,30 * * * *", "every 25m"])


# Rounds


@settings(max_examples=300, deadline=None)
@given(
    schedule=schedules,
    recovery=st.sampled_from(POLICIES) | st.builds(lambda count: {"policy": "bounded", "count": count}, st.integers(1, 200)),
    overlap=st.sampled_from(["allow", "skip", "queue", "queue_one"]),
    seconds=st.integers(0, 300) | st.integers(0, 20_000),
    limit=st.integers(1, 60),
    excluded=st.sampled_from([[], ["2026-01-01T12:10/2026-01-01T13:45"], ["thu"]]),
    zone=st.sampled_from(["UTC", "Asia/Kathmandu"]),
)
def test_rounds_decide_the_same_as_one_that_has_no_limit(
    schedule: str, recovery: dict[str, Any], overlap: str, seconds: int, limit: int, excluded: list[str], zone: str
) -> None:
    if schedule == "every 1s":
        seconds = min(seconds, 1500)
    definition = a_definition(schedule=schedule, recovery=recovery, overlap=overlap, excluded=excluded, timezone=zone)
    now = NOON + seconds * SECOND

    at_once = plan(definition, now=now, limit=1_000_000)
    decided, after = in_rounds(definition, now=now, limit=limit)

    assert without_reasons(decided) == without_reasons(at_once.decisions)
    assert after == at_once.after


@settings(max_examples=60, deadline=None)
@given(schedule=schedules, recovery=st.sampled_from(POLICIES), seconds=st.integers(0, 1500), limit=st.integers(1, 60))
def test_under_replace_rounds_end_with_the_same_one_owed(
    schedule: str, recovery: dict[str, Any], seconds: int, limit: int
) -> None:
    definition = a_definition(schedule=schedule, recovery=recovery, overlap="replace")
    now = NOON + seconds * SECOND

    at_once = plan(definition, now=now, limit=1_000_000)
    decided, _ = in_rounds(definition, now=now, limit=limit)

    assert [one.scheduled_at for one in decided] == [one.scheduled_at for one in at_once.decisions]
    assert runs(decided)[-1:] == runs(list(at_once.decisions)) == [at_once.replaces][: at_once.replaces is not None]


@pytest.mark.parametrize("limit", [1, 2, 9, 10, 11, 25, 26, 27])
@pytest.mark.parametrize("count", [1, 25, 26, 27])
def test_a_bounded_count_holds_over_all_rounds(count: int, limit: int) -> None:
    definition = a_definition(recovery={"policy": "bounded", "count": count})
    decided, _ = in_rounds(definition, now=NOON + 26 * MINUTE + 30 * SECOND, limit=limit)

    assert runs(decided) == [NOON + n * MINUTE for n in range(1, 27)][-count:]


@pytest.mark.parametrize("limit", [5, 1000])
def test_an_instant_that_is_just_on_time_takes_no_place_of_the_count(limit: int) -> None:
    definition = a_definition(recovery={"policy": "bounded", "count": 3})
    decided, _ = in_rounds(definition, now=NOON + 20 * MINUTE + GRACE, limit=limit)

    assert runs(decided) == [NOON + n * MINUTE for n in (17, 18, 19, 20)]


@pytest.mark.parametrize(
    ("schedule", "recovery", "ran"),
    [
        ("every 1m", {"policy": "bounded", "count": 10}, 10),
        ("every 1m", {"policy": "bounded", "count": 1000}, 1000),
        ("every 1m", {"policy": "bounded", "within": "1h"}, 60),
        ("every 1m", {"policy": "last"}, 1),
        ("every 1m", {"policy": "compressed"}, 1),
        ("every 1m", {"policy": "skip"}, 0),
        ("every 1m", {"policy": "all"}, 43_200),
    ],
)
def test_a_minute_job_after_a_month_is_caught_up_in_rounds(schedule: str, recovery: dict[str, Any], ran: int) -> None:
    after, now = a_definition(schedule=schedule, recovery=recovery), NOON + 30 * DAY + 30 * SECOND
    rounds = []
    while not (rounds and rounds[-1].is_complete):
        rounds.append(plan(after, now=now))
        after = rounds[-1].after
    ran_then = [decision for made in rounds for decision in made.decisions if decision.runs]

    assert [len(made.decisions) for made in rounds] == [1000] * 43 + [200]
    assert (len(ran_then), after.runs, after.planned_until) == (ran, ran, NOON + 30 * DAY)
    assert after.next_run_at == NOON + 30 * DAY + MINUTE
    if recovery["policy"] == "compressed":
        assert windows(ran_then) == [(NOON + MINUTE, NOON + 30 * DAY + MINUTE)]


# Spacing


def test_spacing_goes_on_over_rounds_at_any_time() -> None:
    definition, now, times = a_definition(recovery={"policy": "all", "spacing": "10s"}), NOON + HOUR, []
    while True:
        made = plan(definition, now=now, limit=7)
        times += [decision.run_at for decision in made.decisions if decision.runs and decision.is_recovery]
        definition, now = made.after, now + SECOND
        if made.is_complete:
            break

    assert times == [NOON + HOUR + 10 * place * SECOND for place in range(len(times))]
    assert len(times) >= 59
    assert definition.spaced_until == times[-1]


def test_spacing_begins_anew_when_the_last_recovery_is_long_past() -> None:
    definition = a_definition(recovery={"policy": "all", "spacing": "10s"})
    first = plan(definition, now=NOON + 2 * MINUTE + 30 * SECOND)
    later = plan(replace(first.after, planned_until=NOON + DAY), now=NOON + DAY + MINUTE + 30 * SECOND)

    assert [decision.run_at for decision in later.decisions] == [NOON + DAY + MINUTE + 30 * SECOND]


def test_a_run_on_time_is_not_spaced() -> None:
    definition = a_definition(recovery={"policy": "all", "spacing": "10m"})
    made = plan(definition, now=NOON + 2 * MINUTE)

    assert [decision.run_at for decision in made.decisions] == [NOON + 2 * MINUTE, None]
    assert made.after.spaced_until == NOON + 2 * MINUTE


# Windows of a definition that compresses


def test_a_run_on_time_stands_for_itself_up_to_the_next_instant() -> None:
    made = plan(a_definition(recovery="compressed"), now=NOON + MINUTE)

    assert windows(list(made.decisions)) == [(NOON + MINUTE, NOON + 2 * MINUTE)]
    assert not made.decisions[0].is_recovery


def test_a_compressed_run_stands_for_all_of_the_missed_ones() -> None:
    made = plan(a_definition(recovery="compressed"), now=NOON + 10 * MINUTE + 30 * SECOND)

    assert runs(list(made.decisions)) == [NOON + 10 * MINUTE]
    assert windows(list(made.decisions)) == [(NOON + MINUTE, NOON + 11 * MINUTE)]


def test_a_run_on_time_that_stands_for_missed_ones_is_a_recovery() -> None:
    made = plan(a_definition(recovery="compressed"), now=NOON + 10 * MINUTE)

    assert windows(list(made.decisions)) == [(NOON + MINUTE, NOON + 11 * MINUTE)]
    assert made.decisions[-1].is_recovery


def test_the_first_missed_instant_is_remembered_over_rounds() -> None:
    definition, now = a_definition(recovery="compressed"), NOON + 10 * MINUTE + 30 * SECOND
    first = plan(definition, now=now, limit=4)
    second = plan(first.after, now=now + MINUTE, limit=4)
    third = plan(second.after, now=now + MINUTE, limit=4)

    assert [made.after.catching_up_from for made in (first, second, third)] == [NOON + MINUTE, NOON + MINUTE, None]
    assert [windows(list(made.decisions)) for made in (first, second, third)] == [
        [], [], [(NOON + MINUTE, NOON + 12 * MINUTE)],
    ]  # fmt: skip


def test_a_clock_put_back_between_rounds_forgets_nothing() -> None:
    definition, now = a_definition(recovery="compressed"), NOON + 10 * MINUTE + 30 * SECOND
    first = plan(definition, now=now, limit=4)
    meanwhile = plan(first.after, now=NOON + MINUTE)
    second = plan(meanwhile.after, now=now)

    assert meanwhile.decisions == []
    assert windows(list(second.decisions)) == [(NOON + MINUTE, NOON + 11 * MINUTE)]


def test_a_round_that_ends_among_instants_on_time_gives_each_its_own_window() -> None:
    definition = a_definition(schedule="every 1s", recovery="compressed")
    decided, _ = in_rounds(definition, now=NOON + 20 * SECOND, limit=12)

    assert windows(decided)[:3] == [
        (NOON + SECOND, NOON + 11 * SECOND),
        (NOON + 11 * SECOND, NOON + 12 * SECOND),
        (NOON + 12 * SECOND, NOON + 13 * SECOND),
    ]
    assert all(earlier[1] == later[0] for earlier, later in pairwise(windows(decided)))


def test_the_last_instant_of_all_stands_for_one_second() -> None:
    definition = a_definition(recovery="compressed", ends_at=NOON + 3 * MINUTE)
    made = plan(definition, now=NOON + HOUR)

    assert windows(list(made.decisions)) == [(NOON + MINUTE, NOON + 3 * MINUTE + SECOND)]


def test_what_was_paused_is_in_no_window() -> None:
    definition = a_definition(recovery="compressed", paused=True)
    paused = plan(definition, now=NOON + 10 * MINUTE + 30 * SECOND).after
    made = plan(replace(paused, paused=False), now=NOON + 11 * MINUTE)

    assert windows(list(made.decisions)) == [(NOON + 11 * MINUTE, NOON + 12 * MINUTE)]


def test_only_a_definition_that_compresses_has_windows() -> None:
    for recovery in ("all", "last", "skip", {"policy": "bounded", "count": 3}):
        made = plan(a_definition(recovery=recovery), now=NOON + HOUR)
        assert {(one.covers_from, one.covers_until) for one in made.decisions} == {(None, None)}


@settings(max_examples=200, deadline=None)
@given(
    schedule=schedules,
    steps=st.lists(st.tuples(st.integers(-300, 3000), st.integers(1, 40)), min_size=1, max_size=12),
)
def test_windows_tile_time_without_a_gap_and_without_an_overlap(schedule: str, steps: list[tuple[int, int]]) -> None:
    definition, now, decided = a_definition(schedule=schedule, recovery="compressed"), NOON, []
    for seconds, limit in steps:
        now += (seconds // 20 if schedule == "every 1s" else seconds) * SECOND
        made = plan(definition, now=now, limit=limit)
        decided += made.decisions
        definition = made.after

    made_up = windows(decided)
    assert all(earlier[1] == later[0] for earlier, later in pairwise(made_up))
    if made_up:
        assert made_up[0][0] == decided[0].scheduled_at
        assert made_up[-1][1] == definition.next_after(runs(decided)[-1])
    undecided = [one for one in decided if not made_up or one.scheduled_at >= (made_up[-1][1] or NOON)]
    assert definition.catching_up_from == (undecided[0].scheduled_at if undecided else None)


def without_reasons(decisions: Iterable[Decision]) -> list[Decision]:
    """Return decisions without their words: which earlier run was in the way depends on the rounds."""
    return [replace(one, reason=None) for one in decisions]
