"""Cancelling and replacing, in every interleaving with two workers and a broker that loses and duplicates.

What `test_protocol_model` leaves out: a job that is taken back, asked to stop or given another time while its messages are
under way. Moves of the row are looked up in `celery_tm.domain.job.NEXT`; each guard is also taken away, and must be missed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from celery_tm.domain.job import NEXT, JobState

PENDING, DISPATCHED, RUNNING = JobState.PENDING, JobState.DISPATCHED, JobState.RUNNING
LAST_ATTEMPT, IN_BROKER = 3, 3


class Row(NamedTuple):
    """The job in the database."""

    state: JobState = PENDING
    attempt: int = 1
    due: bool = False
    asked_to_stop: bool = False


class World(NamedTuple):
    """The row, the attempts of the messages under way, the attempt each body believes in, and what has happened."""

    row: Row | None = Row()
    messages: tuple[int, ...] = ()
    bodies: tuple[int, int] = (0, 0)
    let_in: frozenset[int] = frozenset()
    endings: tuple[str, ...] = ()
    broken: str | None = None

    def moved(self, state: JobState, **changes: int) -> World:
        assert self.row
        assert state in NEXT[self.row.state], f"{self.row.state} → {state} is not in NEXT"
        return self._replace(row=self.row._replace(state=state, **changes))

    def ended(self, how: str) -> World:
        assert self.row
        assert None in NEXT[self.row.state], f"{self.row.state} does not end"
        return self._replace(row=None, endings=(*self.endings, how))

    def with_body(self, worker: int, attempt: int) -> World:
        return self._replace(bodies=(attempt, self.bodies[1]) if worker == 0 else (self.bodies[0], attempt))


class Rules(NamedTuple):
    """The guards; each can be taken away."""

    gate_asks_the_attempt: bool = True
    gate_asks_the_time: bool = True
    retry_asks_for_a_cancel: bool = True
    cancel_spares_what_runs: bool = True


Step = tuple[str, World]


def steps(world: World, rules: Rules) -> Iterator[Step]:
    if world.row:
        yield from row_steps(world, world.row, rules)
    for message in set(world.messages):
        rest = list(world.messages)
        rest.remove(message)
        taken = world._replace(messages=tuple(rest))
        yield "a message is lost", taken
        if len(world.messages) < IN_BROKER:
            yield "a message comes twice", world._replace(messages=tuple(sorted((*world.messages, message))))
        for worker in (0, 1):
            if not world.bodies[worker]:
                yield f"worker {worker} at the gate", at_the_gate(taken, worker, message, rules)
    for worker in (0, 1):
        if world.bodies[worker]:
            yield from body_steps(world, worker, rules)


def row_steps(world: World, row: Row, rules: Rules) -> Iterator[Step]:
    """Time, beat, sweeper, and people who cancel or replace."""
    if row.state is PENDING:
        yield "its time comes", world._replace(row=row._replace(due=True))
        yield "it is replaced by a later one", world._replace(row=row._replace(due=False))
        if row.due:
            yield "a beat claims it", world.moved(DISPATCHED)
    if row.state is DISPATCHED:
        if len(world.messages) < IN_BROKER:
            yield "its message is sent", world._replace(messages=tuple(sorted((*world.messages, row.attempt))))
        yield "its message counts as lost", world.moved(PENDING)
    if row.state is RUNNING:
        yield "its lease ends", failed(world, row, rules)
        if rules.cancel_spares_what_runs:
            yield "it is asked to stop", world._replace(row=row._replace(asked_to_stop=True))
            return
    runs = row.state is RUNNING and row.attempt in world.bodies
    after = world.ended("cancelled")
    yield "it is cancelled", after._replace(broken="it was cancelled as if it had not started") if runs else after


def failed(world: World, row: Row, rules: Rules) -> World:
    """Tries used up: buried; asked to stop: cancelled; else it gets its next try."""
    if row.attempt == LAST_ATTEMPT:
        return world.ended("buried")
    if row.asked_to_stop and rules.retry_asks_for_a_cancel:
        return world.ended("cancelled")
    again = world.moved(PENDING, attempt=row.attempt + 1, due=False)
    return again._replace(broken="it was asked to stop and is tried again") if row.asked_to_stop else again


def at_the_gate(world: World, worker: int, message: int, rules: Rules) -> World:
    """Let the delivery in, or drop it: dispatched, or pending and due, and of this attempt. A body believes its message."""
    row = world.row
    if row is None or row.state is RUNNING or (row.attempt != message and rules.gate_asks_the_attempt):
        return world
    if row.state is PENDING and not row.due and rules.gate_asks_the_time:
        return world
    broken = world.broken
    if row.state is PENDING and not row.due:
        broken = "it ran before its time"
    if message in world.let_in:
        broken = "two deliveries of one attempt were let in"
    entered = world.moved(RUNNING).with_body(worker, message)
    return entered._replace(let_in=world.let_in | {message}, broken=broken)


def body_steps(world: World, worker: int, rules: Rules) -> Iterator[Step]:
    """A body dies, or finishes: fenced, so only the holder of the row's attempt changes anything."""
    idle, row = world.with_body(worker, 0), world.row
    yield f"worker {worker} dies", idle
    if row and row.state is RUNNING and row.attempt == world.bodies[worker]:
        yield f"worker {worker} succeeds", idle.ended("succeeded")
        yield f"worker {worker} fails", failed(idle, row, rules)
        if row.asked_to_stop:
            yield f"worker {worker} stops", idle.ended("cancelled")
    else:
        yield f"worker {worker} finds its lease lost", idle


def broken_promise(world: World) -> str | None:
    if world.broken:
        return world.broken
    if len(world.endings) > 1:
        return "it ended twice"
    if (world.row is None) != bool(world.endings):
        return "its row and its record disagree"
    return None


class Verdict(NamedTuple):
    """The first promise that broke and the way to it, or every state and every move there was."""

    broken: str | None
    trail: list[str]
    worlds: set[World]
    moves: set[tuple[JobState, JobState | None]]


def check(rules: Rules) -> Verdict:
    came: dict[World, Step | None] = {World(): None}
    before: dict[World, list[World]] = {}
    moves: set[tuple[JobState, JobState | None]] = set()
    todo = deque(came)
    while todo:
        world = todo.popleft()
        if why := broken_promise(world):
            return Verdict(why, trail(world, came), set(came), moves)
        for name, following in steps(world, rules):
            before.setdefault(following, []).append(world)
            if world.row and (after := following.row.state if following.row else None) is not world.row.state:
                moves.add((world.row.state, after))
            if following not in came:
                came[following] = (name, world)
                todo.append(following)
    stuck = set(came) - leading_to_an_end(came, before)
    return Verdict("it can never end" if stuck else None, trail(stuck.pop(), came) if stuck else [], set(came), moves)


def leading_to_an_end(came: dict[World, Step | None], before: dict[World, list[World]]) -> set[World]:
    good = {world for world in came if world.row is None}
    todo = deque(good)
    while todo:
        for world in before.get(todo.popleft(), ()):
            if world not in good:
                good.add(world)
                todo.append(world)
    return good


def trail(world: World, came: dict[World, Step | None]) -> list[str]:
    names: list[str] = []
    while step := came[world]:
        names.insert(0, step[0])
        world = step[1]
    return names


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    return check(Rules())


def test_no_interleaving_with_cancels_and_replacements_breaks_a_promise(verdict: Verdict) -> None:
    assert verdict.broken is None, " → ".join(verdict.trail)
    assert len(verdict.worlds) > 1000


def test_the_model_makes_every_move_of_the_state_machine_and_no_other(verdict: Verdict) -> None:
    assert verdict.moves == {(state, after) for state, following in NEXT.items() for after in following}


def test_a_job_ends_in_each_of_the_three_ways_and_messages_and_bodies_may_outlive_it(verdict: Verdict) -> None:
    ended = [world for world in verdict.worlds if world.row is None]

    assert {world.endings for world in ended} == {("succeeded",), ("cancelled",), ("buried",)}
    assert any(world.messages and all(world.bodies) for world in ended)


@pytest.mark.parametrize(
    ("rules", "promise"),
    [
        (Rules(gate_asks_the_attempt=False), "two deliveries of one attempt were let in"),
        (Rules(gate_asks_the_time=False), "it ran before its time"),
        (Rules(retry_asks_for_a_cancel=False), "it was asked to stop and is tried again"),
        (Rules(cancel_spares_what_runs=False), "it was cancelled as if it had not started"),
    ],
    ids=["gate ignores the attempt", "gate ignores the time", "retry ignores a cancel", "cancel takes what runs"],
)
def test_a_protocol_with_one_guard_missing_is_caught(rules: Rules, promise: str) -> None:
    found = check(rules)

    assert found.broken == promise, " → ".join(found.trail)
    assert found.trail
