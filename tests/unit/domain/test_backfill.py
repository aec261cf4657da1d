"""Which instants of a past range run, without a database: ranges, rules, and that no instant is lost or told twice."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_tm.domain.backfill import (
    MAX_BACKFILL,
    RAN,
    Backfilled,
    Range,
    choose,
    decisions_of,
    overlap_of,
    read_overlap,
    read_range,
    refuse_unfit,
    spans_of,
)
from celery_tm.domain.definition import Definition, new_definition
from celery_tm.domain.occurrence import ACTIVE, OccurrenceState
from celery_tm.domain.overlap import Overlap
from celery_tm.errors import InvalidValue

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
NEVER_RAN = [OccurrenceState.SKIPPED, OccurrenceState.MISSED, OccurrenceState.COALESCED, OccurrenceState.CANCELLED]
ENDED = [OccurrenceState.COMPLETED, OccurrenceState.FAILED, OccurrenceState.STALE]


def a_definition(**values: Any) -> Definition:
    """Return a definition of every hour, added at noon."""
    defaults = {"task": "shop.report", "schedule": "0 * * * *"}
    return new_definition(id="definition", name="report", values=defaults | values, now=NOON, actor=None)


def before_noon(hours: float) -> Range:
    return Range(since=NOON - hours * HOUR, until=NOON)


def hours(instants: Any) -> list[float]:
    return [(instant - NOON) / HOUR for instant in instants]


# The range


def test_a_range_includes_its_start_and_not_its_end() -> None:
    spans = spans_of(a_definition(), before_noon(3))

    assert hours(span.at for span in spans) == [-3, -2, -1]
    assert {span.period for span in spans} == {HOUR}


def test_a_range_without_an_end_is_up_to_now() -> None:
    assert read_range(NOON - DAY, None, now=NOON) == Range(since=NOON - DAY, until=NOON)


def test_a_range_is_read_in_any_zone() -> None:
    warsaw = datetime.fromisoformat("2026-06-01T10:00:00+02:00")

    assert read_range(warsaw, None, now=NOON).since == NOON - 4 * HOUR


def test_a_clock_that_is_a_little_ahead_is_forgiven() -> None:
    assert read_range(NOON - DAY, NOON + SECOND, now=NOON).until == NOON


@pytest.mark.parametrize(
    ("since", "until", "words"),
    [
        (datetime(2026, 5, 1), None, "since: 2026-05-01T00:00:00 has no time zone"),
        ("2026-05-01", None, "since: '2026-05-01' is not a datetime"),
        (None, None, "since: None is not a datetime"),
        (NOON - DAY, datetime(2026, 5, 1), "until: 2026-05-01T00:00:00 has no time zone"),
        (NOON - DAY, NOON + MINUTE, "until: .* is still to come.* come by themselves; give a time in the past"),
        (NOON - DAY, NOON - DAY, "since: .* is not before .*; give a since that is earlier than until"),
        (NOON - HOUR, NOON - DAY, "since: .* is not before"),
        (NOON + HOUR, None, "since: .* is not before .*; give a since in the past"),
    ],
)
def test_a_range_that_is_none_is_refused(since: Any, until: Any, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        read_range(since, until, now=NOON)


def test_a_range_goes_by_the_zone_the_exclusions_and_the_bounds_of_the_definition() -> None:
    nightly = a_definition(schedule="30 2 * * *", timezone="Europe/Warsaw", excluded=["2026-03-31"])
    bounded = replace(nightly, starts_at=datetime(2026, 3, 28, tzinfo=UTC), ends_at=datetime(2026, 4, 1, 12, tzinfo=UTC))
    spring = Range(since=datetime(2026, 3, 1, tzinfo=UTC), until=datetime(2026, 5, 1, tzinfo=UTC))

    found = [span.at for span in spans_of(bounded, spring)]

    # The clocks are put forward on the 29th at 02:00: what would be at 02:30 is at 03:00.
    assert [f"{at:%m-%d %H:%M}" for at in found] == ["03-28 01:30", "03-29 01:00", "03-30 00:30", "04-01 00:30"]


@pytest.mark.parametrize("since", [datetime.min.replace(tzinfo=UTC), datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC)])
def test_a_range_may_begin_with_the_calendar(since: datetime) -> None:
    yearly = a_definition(schedule="0 0 1 1 *", timezone="America/New_York")

    assert len(spans_of(yearly, Range(since=since, until=NOON))) in (2025, 2026)


def test_as_many_as_may_be_are_taken_and_one_more_is_refused_with_a_way_on() -> None:
    often = a_definition(schedule="every 1s")
    most = Range(since=NOON - MAX_BACKFILL * SECOND, until=NOON)

    assert len(spans_of(often, most)) == MAX_BACKFILL
    with pytest.raises(InvalidValue) as refused:
        spans_of(often, replace(most, since=most.since - SECOND))
    assert "has more than 10,000 instants" in str(refused.value)
    assert f"until={(NOON - SECOND).isoformat()} first" in str(refused.value)


@pytest.mark.parametrize("schedule", ["every 1s", "* * * * *", "* * * * * *"])
def test_a_range_of_a_century_is_refused_at_once(schedule: str) -> None:
    began = time.monotonic()

    with pytest.raises(InvalidValue, match="more than 10,000 instants"):
        spans_of(a_definition(schedule=schedule), Range(since=datetime(1926, 1, 1, tzinfo=UTC), until=NOON))

    assert time.monotonic() - began < 10


# The rule


@pytest.mark.parametrize(
    ("stated", "asked", "rule"),
    [
        ({"overlap": "skip"}, None, Overlap.QUEUE),
        ({"overlap": "queue"}, None, Overlap.QUEUE),
        ({"overlap": "queue_one"}, None, Overlap.QUEUE),
        ({"overlap": "replace"}, None, Overlap.QUEUE),
        ({"overlap": "allow"}, None, Overlap.ALLOW),
        ({"overlap": "allow"}, Overlap.QUEUE, Overlap.QUEUE),
        ({"overlap": "skip"}, Overlap.ALLOW, Overlap.ALLOW),
        ({"overlap": "skip", "concurrency_key": "k", "concurrency": 3}, None, Overlap.ALLOW),
        ({"overlap": "skip", "concurrency_key": "k"}, Overlap.QUEUE, Overlap.QUEUE),
    ],
)
def test_runs_take_turns_unless_somebody_says_otherwise(stated: Any, asked: Overlap | None, rule: Overlap) -> None:
    assert overlap_of(a_definition(**stated), asked) is rule


def test_one_at_a_time_is_refused_where_a_key_has_more_slots() -> None:
    keyed = a_definition(overlap="allow", concurrency_key="warehouse", concurrency=3)

    with pytest.raises(InvalidValue, match=r"the 3 slots of its concurrency_key 'warehouse'.*leave overlap out"):
        overlap_of(keyed, Overlap.QUEUE)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("skip", "overlap: 'skip' would run one instant and skip all the others; use 'queue'"),
        ("queue_one", "overlap: 'queue_one' would run two instants"),
        ("replace", "overlap: 'replace' would run the latest instant"),
        ("alow", "overlap: 'alow' is unknown; .*did you mean 'allow'"),
        (7, "overlap: 7 is unknown"),
        ("", "overlap: '' is unknown"),
    ],
)
def test_a_rule_under_which_most_would_not_run_is_refused(value: Any, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        read_overlap(value)


def test_queue_and_allow_are_rules_and_none_is_the_definitions() -> None:
    assert [read_overlap(value) for value in (None, "queue", "allow", Overlap.ALLOW)] == [None, "queue", "allow", "allow"]


@pytest.mark.parametrize(
    ("stated", "rule", "outside", "refused"),
    [
        ({"overlap": "skip"}, Overlap.QUEUE, True, True),
        ({"overlap": "replace"}, Overlap.QUEUE, True, True),
        ({"overlap": "skip"}, Overlap.QUEUE, False, False),
        ({"overlap": "skip"}, Overlap.ALLOW, True, False),
        ({"overlap": "allow"}, Overlap.QUEUE, True, False),
        ({"overlap": "skip", "concurrency_key": "k"}, Overlap.QUEUE, True, False),
    ],
)
def test_nobody_takes_turns_with_what_stands_in_no_line(stated: Any, rule: Overlap, outside: bool, refused: bool) -> None:
    words = r"a run of 'report' is in process.*wait for its end.*overlap='allow'"
    with pytest.raises(InvalidValue, match=words) if refused else nullcontext():
        refuse_unfit(a_definition(**stated), rule, outside=outside)


# The choice


@pytest.mark.parametrize("state", NEVER_RAN)
def test_what_never_ran_runs(state: OccurrenceState) -> None:
    assert divided({-1: [state]}) == ([-2, -1], [])


@pytest.mark.parametrize(("state", "why"), list(RAN.items()))
def test_what_ran_is_left_out_unless_it_is_to_run_again(state: OccurrenceState, why: str) -> None:
    assert divided({-1: [state]}) == ([-2], [(-1, why)])
    assert divided({-1: [state]}, again=True) == ([-2, -1], [])


@pytest.mark.parametrize("state", ACTIVE)
@pytest.mark.parametrize("again", [False, True])
def test_what_is_in_process_is_left_out_always(state: OccurrenceState, again: bool) -> None:
    assert divided({-1: [OccurrenceState.FAILED, state]}, again=again) == ([-2], [(-1, f"it is still {state}")])


def test_an_instant_that_was_made_up_for_ran() -> None:
    assert divided({-1: [OccurrenceState.SKIPPED, OccurrenceState.COMPLETED]}) == ([-2], [(-1, "it completed")])


def test_what_no_beat_has_decided_is_left_to_it() -> None:
    definition = replace(a_definition(), planned_until=NOON - 2 * HOUR)

    assert divided({}, definition=definition) == ([-2], [(-1, "it is not decided yet; a beat does that by itself")])


def test_what_comes_after_the_last_run_that_was_allowed_is_left_out() -> None:
    spent = replace(a_definition(max_runs=1), runs=1, planned_until=NOON - 2 * HOUR)

    assert divided({}, definition=spent) == ([-2], [(-1, "max_runs=1 was reached before it")])


def divided(
    ledger: dict[int, list[OccurrenceState]], *, definition: Definition | None = None, again: bool = False
) -> tuple[list[float], list[tuple[float, str]]]:
    """Return which of the two hours before noon run, and which do not and why."""
    definition = definition or a_definition()
    known = {NOON + hour * HOUR: states for hour, states in ledger.items()}
    choice = choose(definition, spans_of(definition, before_noon(2)), known, again=again)
    return hours(span.at for span in choice.chosen), [((at - NOON) / HOUR, why) for at, why in choice.left_out]


STATES = st.lists(st.sampled_from(list(OccurrenceState)), max_size=3)


@given(
    since=st.integers(1, 100),
    schedule=st.sampled_from(
        ["0 * * * *", "*/20 * * * *", "every 7m", "30 2 * * mon-fri", "every 2h from 08:00 until 18:00"]
    ),
    zone=st.sampled_from(["UTC", "Europe/Warsaw", "Australia/Lord_Howe"]),
    planned=st.integers(0, 100),
    runs=st.integers(0, 1),
    again=st.booleans(),
    data=st.data(),
)
def test_every_instant_runs_or_is_left_out_and_none_twice(
    since: int, schedule: str, zone: str, planned: int, runs: int, again: bool, data: st.DataObject
) -> None:
    definition = a_definition(schedule=schedule, timezone=zone, max_runs=1)
    definition = replace(definition, planned_until=NOON - planned * HOUR, runs=runs)
    spans = spans_of(definition, before_noon(since))
    ledger = {span.at: data.draw(STATES) for span in spans[:20]}

    choice = choose(definition, spans, ledger, again=again)

    chosen, left_out = [span.at for span in choice.chosen], [at for at, _ in choice.left_out]
    assert sorted([*chosen, *left_out]) == [span.at for span in spans]
    assert chosen == sorted(set(chosen))
    assert left_out == sorted(set(left_out))
    assert not any(state in ACTIVE for at in chosen for state in ledger.get(at, ()))
    assert again or not any(state in ENDED for at in chosen for state in ledger.get(at, ()))
    assert all(why for _, why in choice.left_out)


# The decisions


def test_the_oldest_comes_first_and_all_are_due_now() -> None:
    definition = a_definition()
    decisions = decisions_of(definition, spans_of(definition, before_noon(4)), now=NOON, reason="new")

    assert hours(decision.scheduled_at for decision in decisions) == [-4, -3, -2, -1]
    assert all(one.run_at < other.run_at <= NOON for one, other in pairwise(decisions) if one.run_at and other.run_at)
    assert NOON - SECOND < (decisions[0].run_at or NOON) < NOON
    assert {(decision.is_recovery, decision.reason, decision.runs) for decision in decisions} == {
        (True, "backfill: new", True)
    }


def test_runs_are_as_far_apart_as_recovered_ones_and_behind_those() -> None:
    definition = replace(a_definition(recovery={"policy": "all", "spacing": "10s"}), spaced_until=NOON + MINUTE)
    decisions = decisions_of(definition, spans_of(definition, before_noon(3)), now=NOON, reason=None)

    assert [(decision.run_at or NOON) - NOON for decision in decisions] == [70 * SECOND, 80 * SECOND, 90 * SECOND]
    assert decisions[0].reason == "backfill"


def test_each_run_of_one_that_compresses_covers_its_own_period() -> None:
    definition = a_definition(recovery="compressed", schedule="0 9-10 * * *")
    decisions = decisions_of(definition, spans_of(definition, before_noon(30)), now=NOON, reason=None)

    windows = [(decision.covers_from, decision.covers_until) for decision in decisions]
    assert [hours(window) for window in windows] == [[-27, -26], [-26, -3], [-3, -2], [-2, 21]]


def test_one_that_compresses_nothing_covers_nothing() -> None:
    definition = a_definition()

    assert {span.covers_until for span in spans_of(definition, before_noon(3))} == {None}


def test_a_reason_of_any_length_fits() -> None:
    definition = a_definition()
    [decision] = decisions_of(definition, spans_of(definition, before_noon(1)), now=NOON, reason="x" * 5000)

    assert 1900 < len(decision.reason or "") <= 2000


# What is told


def test_a_backfill_tells_what_it_did_in_one_line() -> None:
    left_out = [(NOON - HOUR, "it completed"), (NOON - 2 * HOUR, "it completed"), (NOON - 3 * HOUR, "it failed")]
    made = Backfilled(name="report", range=before_noon(3), left_out=left_out)

    assert made.counts == {"instants": 3, "created": 0, "left_out": 3}
    assert made.reasons == {"it completed": 2, "it failed": 1}
    assert str(made) == (
        "0 of 3 instants of 'report' from 2026-06-01T09:00:00+00:00 until 2026-06-01T12:00:00+00:00 are to run; "
        "left out 2: it completed; 1: it failed"
    )
    assert str(Backfilled(name="report", range=before_noon(3))).startswith("'report' has no instant from 2026-06-01T09")
