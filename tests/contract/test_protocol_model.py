"""Every order in which claim, gate, lease, retry, sweep, cancel, keys, calls and what follows can come, in small worlds.

`tmtest.model` walks through all states that can be reached, the nearest first. Workers and beats die between any two
statements, messages get lost and doubled, answers to commits too, leases end at any moment or by a clock. The model looks
moves up in the product's own table and asks its own retry decision. Each guard is also taken away: a check that does not
notice proves nothing. Why this is not written in TLA+: docs/adr/0035.

Left out: what expires (a cancel of what waits), chunks (single jobs that share a message), runs of many steps
(tests/store/test_workflow_machine.py), slots.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import pytest
from tmtest.model.explore import Verdict, check
from tmtest.model.world import DISPATCHED, PENDING, RUNNING, Row, Rules, Setting, World

from celery_tm.domain.job import NEXT

FIRST, SECOND, BOTH = frozenset({0}), frozenset({1}), frozenset({0, 1})

# What there is in each world, and how many states it has at least: a model that shrinks is noticed.
SETTINGS = {
    "good weather": (Setting(calm=True, timed=True, jobs=2, next_step=True, beats=3, workers=3), 60),
    "one job": (Setting(workers=3, beats=2, in_broker=3), 12_000),
    "one job and a clock": (Setting(timed=True, beats=2), 13_000),
    "cancels": (Setting(cancels=True, tries=2, beats=2), 9_000),
    "cancels and a clock": (Setting(cancels=True, tries=2, timed=True), 5_000),
    "hand-backs": (Setting(hand_backs=2, tries=2, workers=3, in_broker=3), 5_000),
    "hand-backs and a clock": (Setting(hand_backs=1, tries=2, timed=True), 2_500),
    "a key": (Setting(jobs=2, shares_key=True, tries=2), 2_000),
    "a key and revivals": (Setting(jobs=2, shares_key=True, tries=1, revives=True), 6_000),
    "a call": (Setting(direct=FIRST, cancels=True, tries=2), 1_700),
    "a call and a clock": (Setting(direct=FIRST, cancels=True, tries=2, timed=True), 4_500),
    "calls with a key": (Setting(jobs=2, direct=BOTH, shares_key=True, tries=1, revives=True), 7_000),
    "what follows": (Setting(jobs=2, follows=True, direct=SECOND, tries=1, in_broker=1), 5_500),
    "what follows, revived": (
        Setting(jobs=2, follows=True, direct=SECOND, tries=1, revives=True, workers=1, in_broker=1), 16_000,
    ),
    "a next step": (Setting(jobs=2, next_step=True, tries=2), 3_000),
    "a next step and a clock": (Setting(jobs=2, next_step=True, tries=2, timed=True), 8_000),
    "a body's call": (Setting(jobs=2, next_step=True, direct=SECOND, tries=2), 3_000),
    "a crash of the database": (Setting(crashes=True, tries=2), 300),
    "a failover": (Setting(fails_over=True, tries=2, cancels=True, hand_backs=1), 6_000),
}  # fmt: skip
LARGE = {
    "one job": (Setting(workers=3, beats=3, in_broker=4), 71_000),
    "one job and a clock": (Setting(timed=True, workers=3, beats=2, in_broker=3), 33_000),
    "cancels": (Setting(cancels=True, tries=2, workers=3, in_broker=3, beats=2), 20_000),
    "three with a key, and revivals": (Setting(jobs=3, shares_key=True, tries=1, revives=True), 75_000),
    "a key and revivals": (Setting(jobs=2, shares_key=True, tries=2, revives=True), 45_000),
    "a call": (Setting(direct=FIRST, cancels=True, workers=3, in_broker=3), 40_000),
    "what follows": (Setting(jobs=2, follows=True, direct=SECOND, tries=2, in_broker=1), 40_000),
    "what follows, more messages": (Setting(jobs=2, follows=True, direct=SECOND, tries=1), 24_000),
    "what follows and a clock": (Setting(jobs=2, follows=True, direct=SECOND, tries=1, in_broker=1, timed=True), 29_000),
    "what follows, revived": (Setting(jobs=2, follows=True, direct=SECOND, tries=1, revives=True, in_broker=1), 145_000),
    "a failover": (Setting(fails_over=True, workers=3, in_broker=3), 10_000),
}  # fmt: skip

# Which world shows that a guard is needed, and what breaks there without it.
NEEDED = {
    "fencing": ("one job", "a stale worker ended a newer attempt"),
    "fenced_by_worker": ("a failover", "a worker ended what another was let in for"),
    "attempt_in_gate": ("one job", "a message started an attempt that it was not sent for"),
    "gate_refuses_running": ("one job", "two deliveries of one attempt were let in"),
    "gate_asks_the_time": ("cancels", "it ran before its time"),
    "gate_asks_the_key": ("a key and revivals", "a key succeeded twice"),
    "gate_asks_the_record": ("a body's call", "two deliveries of one attempt were let in"),
    "call_asks_last": ("calls with a key", "two deliveries of one attempt were let in"),
    "gate_waits_for_the_disk": ("a crash of the database", "two deliveries of one attempt were let in"),
    "finish_needs_row": ("one job", "it ended twice"),
    "finish_needs_owed": ("what follows", "it ended twice"),
    "sweeper": ("a next step", "it can never be settled"),
    "sweep_asks_again": ("one job and a clock", "a healthy worker lost its job"),
    "sweep_asks_the_lease": ("one job and a clock", "a healthy worker lost its job"),
    "dispatch_lease": ("a next step", "it can never be settled"),
    "state_before_send": ("good weather", "one attempt was sent twice"),
    "commit_before_send": ("a body's call", "what follows began before the end was written"),
    "database_clock": ("one job and a clock", "a healthy worker lost its job"),
    "retry_counts": ("one job", "two deliveries of one attempt were let in"),
    "retry_asks_for_a_cancel": ("cancels", "it was asked to stop and is tried again"),
    "cancel_spares_what_runs": ("cancels", "it was cancelled as if it had not started"),
    "revoke_holds_the_id": ("a call", "it ended and is still owed"),
    "key_with_success": ("a key and revivals", "a key succeeded twice"),
    "effect_with_success": ("one job", "what it wrote is there twice"),
    "step_with_success": ("a next step", "it can never be settled"),
    "record_before_hand_on": ("what follows", "what follows began before the end was written"),
    "row_waits_for_hand_on": ("what follows", "it can never be settled"),
    "hand_back_fenced": ("hand-backs", "a stale worker gave back what is another's"),
}


@cache
def walked(name: str) -> Verdict:
    return check(SETTINGS[name][0], Rules())


def shown(verdict: Verdict) -> str:
    return f"{verdict.broken}: {' → '.join(verdict.trail)}"


@pytest.mark.parametrize("name", SETTINGS)
def test_no_order_of_events_breaks_a_promise_and_everything_can_be_settled(name: str) -> None:
    verdict = walked(name)

    print(f"{len(verdict.worlds):,} states, {verdict.transitions:,} transitions")
    assert verdict.broken is None, shown(verdict)
    assert len(verdict.worlds) >= SETTINGS[name][1]


@pytest.mark.thorough
@pytest.mark.parametrize("name", LARGE)
def test_nor_does_any_in_a_larger_world(name: str) -> None:
    setting, states = LARGE[name]
    verdict = check(setting, Rules())

    print(f"{len(verdict.worlds):,} states, {verdict.transitions:,} transitions")
    assert verdict.broken is None, shown(verdict)
    assert len(verdict.worlds) >= states


@pytest.mark.parametrize("rule", NEEDED)
def test_without_any_one_guard_a_promise_breaks(rule: str) -> None:
    name, promise = NEEDED[rule]
    verdict = check(SETTINGS[name][0], replace(Rules(), **{rule: False}))

    print(shown(verdict))
    assert verdict.broken == promise, shown(verdict)
    assert verdict.trail


def test_every_guard_is_shown_to_be_needed() -> None:
    assert list(NEEDED) == [rule.name for rule in fields(Rules)]


def test_a_lease_that_is_not_longer_than_the_renewals_are_apart_is_too_short() -> None:
    for lease, renew_every in ((1, 1), (2, 2), (1, 2)):
        verdict = check(Setting(timed=True, lease=lease, renew_every=renew_every), Rules())
        assert verdict.broken == "a healthy worker lost its job", shown(verdict)
    assert check(Setting(timed=True, lease=3, renew_every=2), Rules()).broken is None


def test_a_beat_that_writes_its_state_before_it_sends_loses_the_job_if_nothing_brings_it_back() -> None:
    verdict = check(Setting(), Rules(dispatch_lease=False))

    assert (verdict.broken, verdict.trail) == ("it can never be settled", ("a beat claims", "a beat dies"))


def test_a_worker_that_no_statement_names_forgets_what_another_is_to_hand_on() -> None:
    verdict = check(LARGE["what follows, revived"][0], Rules(fenced_by_worker=False))

    assert verdict.broken == "what another is to hand on was forgotten", shown(verdict)


def test_a_gate_that_knows_neither_attempt_nor_time_lets_a_retry_begin_at_once() -> None:
    verdict = check(SETTINGS["cancels"][0], Rules(attempt_in_gate=False, gate_asks_the_time=False))

    assert verdict.broken == "it ran before its time", shown(verdict)


def test_the_model_makes_every_move_of_the_state_machine_and_no_other() -> None:
    moves = {move for name in SETTINGS for move in walked(name).moves if move[0] is not None}

    assert moves == {(state, after) for state, following in NEXT.items() for after in following}


def test_a_state_machine_that_forbids_a_move_of_the_protocol_stops_the_model() -> None:
    world = Setting().start.with_row(0, Row(state=DISPATCHED)).with_row(0, Row(state=RUNNING))
    with pytest.raises(AssertionError, match="running → dispatched is not in NEXT"):
        world.with_row(0, Row(state=DISPATCHED))


def settled(name: str) -> set[tuple[str, ...]]:
    """Return how the first job of a world may have ended when its row is gone."""
    return {world.past[0].endings for world in walked(name).worlds if world.rows[0] is None}


def test_a_job_that_is_gone_has_ended_in_one_way() -> None:
    assert settled("one job") == {("succeeded",), ("buried",)}
    assert settled("cancels") == {("succeeded",), ("buried",), ("cancelled",)}
    assert settled("a key and revivals") == {("succeeded",), ("buried",), ("deduplicated",)}
    assert settled("a call") == {(), ("succeeded",), ("buried",), ("cancelled",)}  # (): no worker has it yet


def attempts(world: World) -> list[int]:
    return [body.attempt for body in world.bodies]


def test_the_walk_comes_by_every_corner_it_is_meant_to() -> None:
    worlds = walked("one job").worlds
    gone = [world for world in worlds if world.rows[0] is None]

    assert any(world.messages and len(world.bodies) == 3 for world in gone)  # messages and bodies outlive their job
    assert any(world.past[0].endings == ("buried",) and len(world.bodies) == 3 for world in gone)
    owed = [(world, row) for world in worlds if (row := world.rows[0]) is not None]
    assert any(row.attempt == 3 and attempts(world) == [1, 2] for world, row in owed)  # two stale ones
    assert any(row.state is RUNNING and attempts(world) == [1, 2, 3] for world, row in owed)
    assert any(row.state is RUNNING and not world.bodies for world, row in owed)  # its worker is dead
    assert any(row.state is PENDING and row.wait and (0, row.attempt - 1) in world.messages for world, row in owed)
    believers = [{(body.attempt, body.who) for body in world.bodies} for world in walked("a failover").worlds]
    assert {(1, 0), (1, 1)} in believers  # two that were let in for one attempt
