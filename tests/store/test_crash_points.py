"""A process is killed at every boundary of what it does, and those that go on leave nothing lost and nothing doubled.

Each scenario is gone through once to see where it leads, and then once more for each boundary that the list has under its
name, with a SIGKILL there. What is listed is what is found: a new statement fails here until it is listed, and killed at.
"""

from __future__ import annotations

import gc
import zlib
from collections.abc import Iterator

import pytest
from tmtest import crash_list, points
from tmtest.crash_scenarios import SCENARIOS, Scenario
from tmtest.crash_world import CrashWorld, opened

TRIES = 5  # which of several steps comes first goes by their ids, and so do a few of the points
TURNS = ("postgresql", "sqlite", "postgresql", "mysql")  # each scenario runs on one of them; on all in the thorough run


@pytest.fixture(scope="module")
def worlds() -> Iterator[dict[str, CrashWorld]]:
    """Keep the worlds of this module, one for each database: to open one takes longer than to die in it."""
    open_ones: dict[str, CrashWorld] = {}
    yield open_ones
    for world in open_ones.values():
        world.close()


@pytest.fixture
def world(worlds: dict[str, CrashWorld], database_url: str) -> CrashWorld:
    if database_url not in worlds:
        worlds[database_url] = opened(database_url)
    return worlds[database_url]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_whoever_dies_leaves_nothing_lost_and_nothing_doubled(world: CrashWorld, scenario: Scenario, thorough: bool) -> None:
    kind = world.database.dialect.name
    if not thorough and TURNS[zlib.crc32(scenario.name.encode()) % len(TURNS)] != kind:
        pytest.skip("by turns")
    listed = crash_list.read(kind)
    for _ in range(TRIES):
        passed = crash_list.passed(world, scenario)
        new = {point.name for point in passed} - set().union(*listed.values())
        gone = set(listed[scenario.name]) - {point.name for point in passed}
        if not gone:
            break
    assert not new, f"not listed, so nobody dies there: {sorted(new)}; write the list anew with `make crash-points`"
    assert not gone, f"listed, and not come to: {sorted(gone)}; write the list anew with `make crash-points`"
    gc.freeze()  # so that a child copies less
    chosen = passed if thorough else [point for point in passed if is_worth_it(point, listed[scenario.name])]
    for number, point in enumerate(chosen):
        die_and_go_on(world, scenario, point, late=number % 2 == 1)


def is_worth_it(point: points.Boundary, listed: list[str]) -> bool:
    """Say whether to die here, in the short run: once at each name that leaves something else behind than the next."""
    return point.number == 1 and not point.is_read and (point.is_durable or point.name in listed)


def die_and_go_on(world: CrashWorld, scenario: Scenario, point: points.Boundary, *, late: bool) -> None:
    world.bring_back()
    died = points.run(world.database, lambda: scenario.act(world), until=point)
    assert died.killed, f"it never came to {point}: {died.error}"
    try:
        world.go_on(late=late, redelivered=scenario.redelivered)
    except AssertionError as error:
        raise AssertionError(f"killed at {point}: {error}") from error
    found = world.found()
    assert not found.wrong(), f"killed at {point}: {found.wrong()}"
    assert not scenario.ends or found.ends in scenario.ends, f"killed at {point}, it ended as {found.ends}"
    assert scenario.holds(found), f"killed at {point}, it left {found}"
