"""Overlap: whether an instant runs while an earlier one of its definition is still owed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.occurrence import OccurrenceState
from celery_tm.domain.overlap import TAKING_TURNS, Active, Overlap, apply_overlap, replaced_by
from celery_tm.domain.recovery import Decision

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
NOBODY = Active()
RUNS = [Decision(scheduled_at=NOON), Decision(scheduled_at=NOON + MINUTE)]
MISSED = Decision(scheduled_at=NOON - MINUTE, state=OccurrenceState.MISSED, reason="missed", is_recovery=True)


def row(kinds: str) -> list[Decision]:
    """Return decisions, one a minute: `o` runs on time, `r` is a recovered run, `-` does not run."""
    made = {
        "o": Decision(scheduled_at=NOON),
        "r": Decision(scheduled_at=NOON, is_recovery=True, reason="recovered 1h after its instant"),
        "-": MISSED,
    }
    return [replace(made[kind], scheduled_at=NOON + place * MINUTE) for place, kind in enumerate(kinds)]


def states(decisions: list[Decision]) -> list[str]:
    return [str(decision.state or "runs") for decision in decisions]


def letters(decisions: list[Decision]) -> str:
    """Return `R` for a run, `T` for one that takes turns, else the first letter of the state."""
    return "".join("T" if d.takes_turns and d.runs else "R" if d.runs else str(d.state)[0] for d in decisions)


def test_skip_lets_an_instant_run_when_nothing_of_its_definition_is_owed() -> None:
    assert apply_overlap(RUNS[:1], policy=Overlap.SKIP, active=NOBODY) == RUNS[:1]


@pytest.mark.parametrize("owed", [1, 2, 50])
def test_skip_skips_an_instant_while_an_earlier_one_is_owed_and_says_so(owed: int) -> None:
    (decision,) = apply_overlap(RUNS[:1], policy=Overlap.SKIP, active=Active(owed, owed))

    assert decision.state is OccurrenceState.SKIPPED
    assert decision.reason == "an earlier occurrence was still in process; overlap=skip"
    assert decision.scheduled_at == NOON


def test_skip_skips_an_instant_also_while_only_a_recovered_one_is_owed() -> None:
    assert states(apply_overlap(RUNS[:1], policy=Overlap.SKIP, active=Active(all=1, regular=0))) == ["skipped"]


def test_skip_runs_one_of_two_instants_that_are_decided_together() -> None:
    assert states(apply_overlap(RUNS, policy=Overlap.SKIP, active=NOBODY)) == ["runs", "skipped"]


@pytest.mark.parametrize("policy", Overlap)
def test_an_instant_that_does_not_run_anyway_keeps_its_reason_and_stands_in_nobody_s_way(policy: Overlap) -> None:
    settled = apply_overlap([MISSED, RUNS[0]], policy=policy, active=NOBODY)

    assert settled[0] == MISSED
    assert settled[1].runs
    assert apply_overlap([MISSED], policy=policy, active=Active(9, 9)) == [MISSED]


@pytest.mark.parametrize("owed", [0, 1, 50])
def test_allow_lets_everything_run(owed: int) -> None:
    assert apply_overlap([MISSED, *RUNS], policy=Overlap.ALLOW, active=Active(owed, owed)) == [MISSED, *RUNS]


def test_a_skipped_recovery_is_still_marked_as_one() -> None:
    late = Decision(scheduled_at=NOON, is_recovery=True)

    assert apply_overlap([late], policy=Overlap.SKIP, active=Active(1, 1))[0].is_recovery


SETTLED = [
    # policy, decisions, owed, regular ones of them, what becomes of them
    (Overlap.ALLOW, "rro-o", 5, 5, "RRRmR"),
    (Overlap.SKIP, "o", 0, 0, "R"),
    (Overlap.SKIP, "oo", 0, 0, "Rs"),
    (Overlap.SKIP, "rrr", 0, 0, "TTT"),  # recovered ones take turns instead of skipping each other
    (Overlap.SKIP, "rrr", 4, 0, "TTT"),  # also behind those of the round before
    (Overlap.SKIP, "rrr", 1, 1, "sss"),  # but not behind a regular one
    (Overlap.SKIP, "rrr", 5, 1, "sss"),
    (Overlap.SKIP, "rro", 0, 0, "TTs"),  # one on time finds them owed
    (Overlap.SKIP, "o", 3, 0, "s"),
    (Overlap.SKIP, "or", 0, 0, "Rs"),
    (Overlap.SKIP, "-o-", 0, 0, "mRm"),
    (Overlap.QUEUE, "oo", 0, 0, "TT"),
    (Overlap.QUEUE, "rro-o", 7, 3, "TTTmT"),
    (Overlap.QUEUE_ONE, "o", 0, 0, "T"),
    (Overlap.QUEUE_ONE, "o", 1, 1, "T"),  # one runs, one may wait
    (Overlap.QUEUE_ONE, "o", 2, 2, "s"),
    (Overlap.QUEUE_ONE, "ooo", 0, 0, "TTs"),
    (Overlap.QUEUE_ONE, "ooo", 1, 0, "Tss"),
    (Overlap.QUEUE_ONE, "rrr", 0, 0, "TTs"),  # recovered or not
    (Overlap.QUEUE_ONE, "o-o-o", 0, 0, "TmTms"),
    (Overlap.REPLACE, "o", 0, 0, "T"),
    (Overlap.REPLACE, "o", 9, 9, "T"),
    (Overlap.REPLACE, "ooo", 0, 0, "ccT"),
    (Overlap.REPLACE, "rro-", 2, 1, "ccTm"),
    (Overlap.REPLACE, "---", 2, 1, "mmm"),
]


@pytest.mark.parametrize(("policy", "kinds", "owed", "regular", "expected"), SETTLED)
def test_each_policy_settles_what_is_decided_by_what_is_owed(
    policy: Overlap, kinds: str, owed: int, regular: int, expected: str
) -> None:
    assert letters(apply_overlap(row(kinds), policy=policy, active=Active(owed, regular))) == expected


def test_there_is_a_line_for_each_policy() -> None:
    assert {policy for policy, *_ in SETTLED} == set(Overlap)


def test_queue_one_says_that_one_was_waiting() -> None:
    (decision,) = apply_overlap(row("o"), policy=Overlap.QUEUE_ONE, active=Active(2, 2))

    assert decision.reason == "another occurrence was waiting already; overlap=queue_one"


def test_a_replaced_instant_says_which_one_took_its_place() -> None:
    older, newest = apply_overlap(row("oo"), policy=Overlap.REPLACE, active=NOBODY)

    assert (older.state, older.reason) == (OccurrenceState.CANCELLED, replaced_by(newest.scheduled_at))
    assert older.reason == "replaced by the one of 2026-01-01T12:01:00+00:00; overlap=replace"
    assert newest.reason is None


def test_a_recovered_run_keeps_its_reason_where_it_may_run() -> None:
    for policy in Overlap:
        (decision,) = apply_overlap(row("r"), policy=policy, active=NOBODY)
        assert decision.reason == "recovered 1h after its instant"


@settings(max_examples=100, deadline=None)
@given(kinds=st.text("o-", max_size=20), owed=st.integers(0, 3))
def test_skip_never_has_two_owed_at_once(kinds: str, owed: int) -> None:
    settled = apply_overlap(row(kinds), policy=Overlap.SKIP, active=Active(owed, owed))

    assert len(settled) == len(kinds)
    assert sum(decision.runs for decision in settled) == (1 if "o" in kinds and not owed else 0)


@settings(max_examples=200, deadline=None)
@given(
    kinds=st.text("or-", max_size=20),
    policy=st.sampled_from(Overlap),
    recovered=st.integers(0, 3),
    regular=st.integers(0, 3),
)
def test_whatever_is_owed_nothing_is_lost_reordered_or_brought_back(
    kinds: str, policy: Overlap, recovered: int, regular: int
) -> None:
    before, active = row(kinds), Active(recovered + regular, regular)

    after = apply_overlap(before, policy=policy, active=active)

    assert [one.scheduled_at for one in after] == [one.scheduled_at for one in before]
    assert all(was.runs or was == now for was, now in zip(before, after, strict=True))
    assert all(one.reason for one in after if not one.runs)
    ran = [one for one in after if one.runs]
    if policy is Overlap.SKIP:
        assert all(one.takes_turns == one.is_recovery for one in ran)
        assert sum(not one.is_recovery for one in ran) <= 1
    if policy is Overlap.QUEUE_ONE:
        assert len(ran) <= max(2 - active.all, 0)
    if policy is Overlap.REPLACE:
        assert [one.scheduled_at for one in ran] == [one.scheduled_at for one in before if one.runs][-1:]
    if policy in TAKING_TURNS:
        assert all(one.takes_turns for one in ran)
    if policy in (Overlap.ALLOW, Overlap.QUEUE):
        assert len(ran) == sum(one.runs for one in before)


@settings(max_examples=100, deadline=None)
@given(kinds=st.text("or-", max_size=20), policy=st.sampled_from(Overlap), cut=st.integers(0, 20))
def test_two_rounds_settle_as_one_does_but_that_replace_replaces_twice(kinds: str, policy: Overlap, cut: int) -> None:
    """The second round finds owed what the first has let run."""
    decisions = row(kinds)
    whole = apply_overlap(decisions, policy=policy, active=NOBODY)

    first = apply_overlap(decisions[:cut], policy=policy, active=NOBODY)
    ran = [one for one in first if one.runs]
    owed = Active(len(ran), sum(not one.is_recovery for one in ran))
    second = apply_overlap(decisions[cut:], policy=policy, active=owed)

    if policy is Overlap.REPLACE:
        assert [one for one in second if one.runs] == [one for one in whole if one.runs][-1:] or not any(
            one.runs for one in second
        )
    else:
        assert [*first, *second] == whole
