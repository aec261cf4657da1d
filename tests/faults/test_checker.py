"""The checker lets clean histories pass and catches every planted violation, by its promise and with its story."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from faults.allowances import ALLOWED
from faults.checker import PROMISES, check, judge, report
from faults.history import History
from faults.planting import PLANTINGS, Planting
from faults.simulated import GOES_ON, LAST, World, whole_world


@pytest.fixture(scope="module")
def clean() -> History:
    return whole_world().history()


def test_a_clean_history_has_no_violation(clean: History) -> None:
    assert [violation.story for violation in check(clean)] == []


def test_every_allowance_is_made_use_of_and_counted(clean: History) -> None:
    made = judge(clean).allowed
    never = {"ran though cancelled", "torn line", "still counted", "replaced pending"}
    assert set(made) | never >= set(ALLOWED)
    assert report(clean)["allowed"] == dict(made)


def test_every_promise_has_its_plantings() -> None:
    each = Counter(planting.promise for planting in PLANTINGS)
    assert set(each) == set(PROMISES)
    assert min(each.values()) >= 4


@pytest.mark.parametrize("planting", PLANTINGS, ids=lambda one: f"{one.promise}-{one.name.replace(' ', '-')}")
def test_a_planted_violation_is_caught(clean: History, planting: Planting) -> None:
    planted = planting.plant(clean)
    assert planted is not None, "the clean history has nothing that can be broken so"
    is_caught(planting, *planted)


def is_caught(planting: Planting, history: History, name: str) -> None:
    found = [one for one in check(history) if one.promise == planting.promise]
    about = [one for one in found if name in (one.job, one.key, one.occurrence) or name in str(one.occurrence)]
    assert about, f"{planting.name}: not caught at {name}; found {[one.what for one in found]}"
    assert name in about[0].story or name in about[0].what
    assert about[0].story.startswith(f"promise {planting.promise} was not kept: ")


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw a world in which any work is asked for, and any of it goes any way that is allowed."""
    world = World()
    ways = st.tuples(st.lists(st.sampled_from(GOES_ON), max_size=3), st.sampled_from(LAST)).map(
        lambda way: [*way[0], way[1]]
    )
    kinds = st.sampled_from(["plain", "keyed", "transactional", "in caller's transaction", "direct", "workflow", "lost ask"])
    for number, kind in enumerate(draw(st.lists(kinds, min_size=1, max_size=8))):
        if kind == "workflow":
            world.run_workflow("in-order", ["fetch", "tidy"], fails=draw(st.booleans()))
        elif kind == "lost ask":
            what = draw(st.sampled_from(["rolled back", "unknown"]))
            world.unanswered("in caller's transaction", what, whole=what == "unknown" and draw(st.booleans()))
        else:
            key = f"key-{number}" if kind == "keyed" else None
            job = world.ask(kind, key=key, delay=draw(st.sampled_from([0.0, 0.5, 7.0])))
            world.work(job, kind, draw(ways), key=key)
            if key is not None and draw(st.booleans()):
                world.ask(kind, key=key, job=job)
    fates = draw(st.lists(ways.filter(lambda way: way[-1] in ("succeeds", "is buried")), max_size=3))
    states = draw(st.lists(st.sampled_from(["skipped", "missed", "coalesced", "cancelled", "stale"]), max_size=2))
    if fates or states:
        world.definition("every-three", draw(st.sampled_from(["*/3 * * * * *", "every 3s"])), fates, states=states)
    return world


SOME = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@SOME
@given(worlds())
def test_no_clean_history_has_a_violation(world: World) -> None:
    assert [violation.story for violation in check(world.history())] == []


@SOME
@given(worlds(), st.sampled_from(PLANTINGS))
def test_any_violation_planted_anywhere_is_caught(world: World, planting: Planting) -> None:
    planted = planting.plant(world.history())
    assume(planted is not None)
    assert planted is not None
    is_caught(planting, *planted)


def test_a_long_run_is_checked_in_a_moment() -> None:
    world = World()
    for number in range(5_000):
        key = f"key-{number}" if number % 5 == 0 else None
        kind = "keyed" if key else "plain"
        way = ["is killed", "succeeds"] if number % 50 == 0 else ["succeeds"]
        world.work(world.ask(kind, key=key), kind, way, key=key)
    history = world.history()
    began = time.process_time()
    assert check(history) == []
    assert time.process_time() - began < 3  # 150,000 jobs in well under a minute and a half, on a slow machine
