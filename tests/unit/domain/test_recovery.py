"""Missed instants: which of them run, by policy and its bounds, how far apart, and what is recorded about the others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.occurrence import OccurrenceState
from celery_tm.domain.recovery import GRACE, CatchUp, Decision, Recovery, decide, spaced

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
LATE = [NOON - 3 * HOUR, NOON - 2 * HOUR, NOON - HOUR]
ALL, LAST, SKIP = CatchUp(policy=Recovery.ALL), CatchUp(policy=Recovery.LAST), CatchUp(policy=Recovery.SKIP)
COMPRESSED = CatchUp(policy=Recovery.COMPRESSED)
EVERY_POLICY = [
    ALL, LAST, SKIP, COMPRESSED,
    CatchUp(policy=Recovery.BOUNDED, count=2),
    CatchUp(policy=Recovery.BOUNDED, within=2 * HOUR),
    CatchUp(policy=Recovery.BOUNDED, count=1, within=HOUR),
]  # fmt: skip


def bounded(*, count: int | None = None, within: timedelta | None = None) -> CatchUp:
    return CatchUp(policy=Recovery.BOUNDED, count=count, within=within)


def states(decisions: list[Decision]) -> list[str]:
    return [str(decision.state or "runs") for decision in decisions]


def name_of(policy: CatchUp) -> str:
    return f"{policy.policy}-{policy.count}-{policy.within}"


def test_there_is_a_policy_of_each_kind_to_check() -> None:
    assert {one.policy for one in EVERY_POLICY} == set(Recovery)


@pytest.mark.parametrize("policy", EVERY_POLICY, ids=name_of)
def test_what_is_on_time_runs_whatever_the_policy(policy: CatchUp) -> None:
    assert decide([NOON], now=NOON, policy=policy) == [Decision(scheduled_at=NOON)]


@pytest.mark.parametrize("policy", EVERY_POLICY, ids=name_of)
def test_an_instant_up_to_the_grace_late_is_on_time_and_no_recovery(policy: CatchUp) -> None:
    on_time = decide([NOON], now=NOON + GRACE, policy=policy)
    late = decide([NOON], now=NOON + GRACE + timedelta(microseconds=1), policy=policy)

    assert [(decision.runs, decision.is_recovery) for decision in on_time] == [(True, False)]
    assert [decision.is_recovery for decision in late] == [True]


@pytest.mark.parametrize("policy", EVERY_POLICY, ids=name_of)
def test_nothing_missed_needs_no_decision(policy: CatchUp) -> None:
    assert decide([], now=NOON, policy=policy) == []


@pytest.mark.parametrize("policy", EVERY_POLICY, ids=name_of)
def test_every_instant_that_is_decided_late_is_marked_as_a_recovery(policy: CatchUp) -> None:
    assert all(decision.is_recovery for decision in decide(LATE, now=NOON, policy=policy))


# Each policy


def test_recovery_all_runs_every_missed_instant_and_says_how_late() -> None:
    decisions = decide(LATE, now=NOON, policy=ALL)

    assert decisions == [
        Decision(scheduled_at=instant, is_recovery=True, reason=f"recovered {late} after its instant")
        for instant, late in zip(LATE, ["3h", "2h", "1h"], strict=True)
    ]


@pytest.mark.parametrize(
    ("late", "words"),
    [
        (timedelta(seconds=11), "recovered 11s after its instant"),
        (timedelta(seconds=90, milliseconds=750), "recovered 1m 30s after its instant"),
        (timedelta(days=2, hours=3), "recovered 2d 3h after its instant"),
    ],
)
def test_how_late_is_said_in_whole_seconds(late: timedelta, words: str) -> None:
    assert [decision.reason for decision in decide([NOON - late], now=NOON, policy=ALL)] == [words]


def test_recovery_last_runs_the_newest_for_all_of_them() -> None:
    decisions = decide(LATE, now=NOON, policy=LAST)

    assert states(decisions) == ["coalesced", "coalesced", "runs"]
    assert [decision.is_recovery for decision in decisions] == [True, True, True]


def test_recovery_skip_records_them_as_missed() -> None:
    assert states(decide(LATE, now=NOON, policy=SKIP)) == ["missed", "missed", "missed"]


def test_recovery_compressed_runs_once_for_all_of_them() -> None:
    assert states(decide(LATE, now=NOON, policy=COMPRESSED)) == ["coalesced", "coalesced", "runs"]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (bounded(count=1), ["missed", "missed", "runs"]),
        (bounded(count=2), ["missed", "runs", "runs"]),
        (bounded(count=3), ["runs", "runs", "runs"]),
        (bounded(count=99), ["runs", "runs", "runs"]),
        (bounded(within=HOUR - SECOND), ["missed", "missed", "missed"]),
        (bounded(within=HOUR), ["missed", "missed", "runs"]),
        (bounded(within=2 * HOUR), ["missed", "runs", "runs"]),
        (bounded(within=9 * HOUR), ["runs", "runs", "runs"]),
        (bounded(count=1, within=9 * HOUR), ["missed", "missed", "runs"]),
        (bounded(count=9, within=HOUR), ["missed", "missed", "runs"]),
        (bounded(count=2, within=2 * HOUR), ["missed", "runs", "runs"]),
        (bounded(count=2, within=MINUTE), ["missed", "missed", "missed"]),
    ],
    ids=lambda value: name_of(value) if isinstance(value, CatchUp) else "",
)
def test_recovery_bounded_runs_what_is_within_every_bound(policy: CatchUp, expected: list[str]) -> None:
    assert states(decide(LATE, now=NOON, policy=policy)) == expected


def test_a_bound_says_which_one_it_was() -> None:
    decisions = decide(LATE, now=NOON, policy=bounded(count=1, within=2 * HOUR))

    assert [decision.reason for decision in decisions] == [
        "missed; recovery=bounded goes back 2h",
        "missed; recovery=bounded runs the last 1",
        "recovered 1h after its instant",
    ]


def test_an_instant_that_is_on_time_takes_no_place_of_the_bounded_count() -> None:
    assert states(decide([*LATE, NOON], now=NOON, policy=bounded(count=1))) == ["missed", "missed", "runs", "runs"]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (ALL, ["runs", "runs", "runs", "runs"]),
        (LAST, ["coalesced", "coalesced", "coalesced", "runs"]),
        (SKIP, ["missed", "missed", "missed", "runs"]),
        (COMPRESSED, ["coalesced", "coalesced", "coalesced", "runs"]),
        (bounded(count=2), ["missed", "runs", "runs", "runs"]),
        (bounded(within=HOUR), ["missed", "missed", "runs", "runs"]),
    ],
    ids=lambda value: name_of(value) if isinstance(value, CatchUp) else "",
)
def test_an_instant_on_time_is_newer_than_the_missed_ones(policy: CatchUp, expected: list[str]) -> None:
    decisions = decide([*LATE, NOON], now=NOON, policy=policy)

    assert states(decisions) == expected
    assert not decisions[-1].is_recovery


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(LAST, "coalesced"), (COMPRESSED, "coalesced"), (ALL, "runs"), (SKIP, "missed"), (bounded(within=9 * HOUR), "runs")],
    ids=lambda value: name_of(value) if isinstance(value, CatchUp) else "",
)
def test_while_more_is_to_come_the_last_one_of_this_round_is_not_the_last_of_all(policy: CatchUp, expected: str) -> None:
    assert states(decide(LATE, now=NOON, policy=policy, more_to_come=True)) == [expected] * 3


@pytest.mark.parametrize(
    ("oldest_kept", "expected"),
    [
        (NOON - MINUTE, ["missed", "missed", "missed"]),
        (LATE[2], ["missed", "missed", "runs"]),
        (LATE[1], ["missed", "runs", "runs"]),
        (LATE[0] - HOUR, ["runs", "runs", "runs"]),
    ],
)
def test_a_count_goes_by_the_oldest_kept_where_more_is_to_come(oldest_kept: datetime, expected: list[str]) -> None:
    decisions = decide(LATE, now=NOON, policy=bounded(count=2), more_to_come=True, oldest_kept=oldest_kept)

    assert states(decisions) == expected


@pytest.mark.parametrize(
    ("policy", "word"),
    [
        (LAST, "recovery=last"),
        (SKIP, "recovery=skip"),
        (COMPRESSED, "recovery=compressed"),
        (bounded(count=1), "recovery=bounded"),
        (bounded(within=HOUR), "recovery=bounded"),
    ],
    ids=lambda value: name_of(value) if isinstance(value, CatchUp) else "",
)
def test_an_instant_that_does_not_run_has_a_reason_that_names_the_policy(policy: CatchUp, word: str) -> None:
    dropped = [decision for decision in decide(LATE, now=NOON, policy=policy) if not decision.runs]

    assert dropped
    assert all(word in (decision.reason or "") for decision in dropped)


ages_of = st.lists(st.integers(0, 100), unique=True, max_size=30).map(lambda ages: sorted(ages, reverse=True))
policies = st.sampled_from(EVERY_POLICY) | st.builds(
    CatchUp,
    policy=st.just(Recovery.BOUNDED),
    count=st.integers(1, 30),
    within=st.none() | st.integers(1, 100).map(lambda seconds: seconds * SECOND),
)


@settings(max_examples=200, deadline=None)
@given(ages=ages_of, policy=policies, more_to_come=st.booleans())
def test_each_instant_gets_one_decision_in_order_and_only_a_run_on_time_needs_no_reason(
    ages: list[int], policy: CatchUp, more_to_come: bool
) -> None:
    instants = [NOON - age * SECOND for age in ages]

    decisions = decide(instants, now=NOON, policy=policy, more_to_come=more_to_come)

    assert [decision.scheduled_at for decision in decisions] == instants
    assert all(decision.runs == (decision.state is None) for decision in decisions)
    assert all(bool(decision.reason) == decision.is_recovery for decision in decisions)
    assert all(decision.is_recovery == (NOON - decision.scheduled_at > GRACE) for decision in decisions)
    assert all(decision.runs for decision in decisions if not decision.is_recovery)
    assert {decision.state for decision in decisions} <= {None, OccurrenceState.COALESCED, OccurrenceState.MISSED}
    if policy.policy in (Recovery.LAST, Recovery.COMPRESSED):
        assert sum(decision.runs for decision in decisions if decision.is_recovery) <= 1


@settings(max_examples=200, deadline=None)
@given(ages=ages_of, count=st.none() | st.integers(1, 30), within=st.none() | st.integers(1, 100))
def test_bounded_runs_exactly_the_last_few_of_the_last_while(ages: list[int], count: int | None, within: int | None) -> None:
    instants = [NOON - age * SECOND for age in ages]
    late = [instant for instant in instants if NOON - instant > GRACE]
    wanted = [instant for instant in late[-(count or 999) :] if within is None or NOON - instant <= within * SECOND]

    policy = bounded(count=count, within=None if within is None else within * SECOND)
    decisions = decide(instants, now=NOON, policy=policy)

    assert [decision.scheduled_at for decision in decisions if decision.runs and decision.is_recovery] == wanted


# Spacing


def run_times(decisions: list[Decision]) -> list[datetime | None]:
    return [decision.run_at for decision in decisions]


def test_recovered_runs_begin_now_and_follow_each_other_by_the_spacing() -> None:
    decisions = spaced(decide(LATE, now=NOON, policy=ALL), now=NOON, spacing=MINUTE, last=None)

    assert run_times(decisions) == [NOON, NOON + MINUTE, NOON + 2 * MINUTE]


@pytest.mark.parametrize(
    ("last", "first"),
    [
        (NOON - HOUR, NOON),
        (NOON - MINUTE, NOON),
        (NOON - 30 * SECOND, NOON + 30 * SECOND),
        (NOON, NOON + MINUTE),
        (NOON + 5 * MINUTE, NOON + 6 * MINUTE),
    ],
)
def test_spacing_goes_on_after_the_run_before(last: datetime, first: datetime) -> None:
    decisions = spaced(decide(LATE, now=NOON, policy=ALL), now=NOON, spacing=MINUTE, last=last)

    assert run_times(decisions) == [first, first + MINUTE, first + 2 * MINUTE]


def test_spacing_leaves_alone_what_is_on_time_and_what_does_not_run() -> None:
    decisions = decide([*LATE, NOON], now=NOON, policy=bounded(count=1))

    assert run_times(spaced(decisions, now=NOON, spacing=MINUTE, last=None)) == [None, None, NOON, None]


@pytest.mark.parametrize("spacing", [None, timedelta(0)])
def test_without_spacing_they_run_at_once(spacing: timedelta | None) -> None:
    decisions = decide(LATE, now=NOON, policy=ALL)

    assert spaced(decisions, now=NOON, spacing=spacing, last=NOON + HOUR) == decisions


@settings(max_examples=100, deadline=None)
@given(ages=ages_of, policy=policies, seconds=st.integers(1, 600), since_last=st.none() | st.integers(-600, 600))
def test_two_recovered_runs_are_never_closer_than_the_spacing_and_none_is_before_now(
    ages: list[int], policy: CatchUp, seconds: int, since_last: int | None
) -> None:
    last = None if since_last is None else NOON - since_last * SECOND
    decisions = decide([NOON - age * SECOND for age in ages], now=NOON, policy=policy)

    settled = spaced(decisions, now=NOON, spacing=seconds * SECOND, last=last)

    times = [decision.run_at for decision in settled if decision.is_recovery and decision.runs]
    line = [*([last] if last else []), *[one for one in times if one]]
    assert all(later - earlier >= seconds * SECOND for earlier, later in pairwise(line))
    assert all(one is not None and one >= NOON for one in times)
    assert all(decision.run_at is None for decision in settled if not (decision.is_recovery and decision.runs))
