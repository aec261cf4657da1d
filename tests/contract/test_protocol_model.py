"""Every interleaving of one job, two workers and a broker that loses and duplicates: the promises hold in all of them.

The model walks all reachable states. What moves the row is looked up in `celery_tm.domain.job.NEXT`, so that the model and
the code cannot drift apart. Leases may end at any moment, which covers every pause, crash and clock. Each rule is also
broken on purpose: a check that does not notice proves nothing.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import pytest

from celery_tm.domain.job import NEXT, JobState

LAST_ATTEMPT = 3
IN_BROKER = 3
PENDING, DISPATCHED, RUNNING = JobState.PENDING, JobState.DISPATCHED, JobState.RUNNING


@dataclass(frozen=True, slots=True)
class Row:
    """The job as the database has it; `due` is False until its backoff is over."""

    state: JobState = PENDING
    attempt: int = 1
    due: bool = True


@dataclass(frozen=True, slots=True)
class World:
    """Everything there is: row, messages, the attempt that each worker's body believes in, and what has happened."""

    row: Row | None = Row()
    messages: tuple[int, ...] = ()
    bodies: tuple[int | None, int | None] = (None, None)
    successes: int = 0
    buried: bool = False
    faults: frozenset[str] = frozenset()

    def moved(self, state: JobState | None, **changes: object) -> World:
        """Return the world with the row in another state; the state machine must allow the move."""
        assert self.row is not None
        assert state in NEXT[self.row.state], f"{self.row.state} → {state} is not in NEXT"
        row = None if state is None else replace(self.row, state=state, **changes)  # type: ignore[arg-type]
        return replace(self, row=row)

    def tried_again_or_buried(self) -> World:
        """Return the world after the present attempt has failed."""
        assert self.row is not None
        if self.row.attempt == LAST_ATTEMPT:
            return replace(self.moved(None), buried=True)
        return self.moved(PENDING, attempt=self.row.attempt + 1, due=False)

    def with_body(self, worker: int, attempt: int | None) -> World:
        bodies = list(self.bodies)
        bodies[worker] = attempt
        return replace(self, bodies=(bodies[0], bodies[1]))

    def with_fault(self, fault: str) -> World:
        return replace(self, faults=self.faults | {fault})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The guards of the protocol; each can be taken away."""

    fencing: bool = True  # what ends an attempt names the attempt
    attempt_in_gate: bool = True  # a message gets in only for the present attempt
    gate_refuses_running: bool = True
    gate_waits_for_backoff: bool = True
    finish_needs_row: bool = True  # no row found: nothing is written
    sweeper: bool = True


Step = tuple[str, World]


def steps(world: World, rules: Rules) -> Iterator[Step]:
    """Yield everything that may happen next."""
    yield from scheduler_steps(world, rules)
    yield from broker_steps(world)
    for worker in (0, 1):
        if world.bodies[worker] is None:
            yield from delivery_steps(world, worker, rules)
        else:
            yield from body_steps(world, worker, rules)


def scheduler_steps(world: World, rules: Rules) -> Iterator[Step]:
    """Time, beat and sweeper: due, claim, publish, redispatch, orphan."""
    row = world.row
    if row is None:
        return
    if row.state is PENDING and not row.due:
        yield "the backoff is over", replace(world, row=replace(row, due=True))
    if row.state is PENDING and row.due:
        yield "a beat claims", world.moved(DISPATCHED)
    if row.state is DISPATCHED:
        if len(world.messages) < IN_BROKER:
            yield "the message is sent", replace(world, messages=tuple(sorted((*world.messages, row.attempt))))
        if rules.sweeper:
            yield "the message counts as lost", world.moved(PENDING)
    if row.state is RUNNING and rules.sweeper:
        yield "the lease ends", world.tried_again_or_buried()


def broker_steps(world: World) -> Iterator[Step]:
    """A message may get lost or come twice, whenever it likes."""
    for message in set(world.messages):
        yield "a message is lost", without(world, message)
        if len(world.messages) < IN_BROKER:
            yield "a message is duplicated", replace(world, messages=tuple(sorted((*world.messages, message))))


def without(world: World, message: int) -> World:
    rest = list(world.messages)
    rest.remove(message)
    return replace(world, messages=tuple(rest))


def delivery_steps(world: World, worker: int, rules: Rules) -> Iterator[Step]:
    """A free worker takes a message to the gate."""
    for message in set(world.messages):
        taken = without(world, message)
        if not may_enter(world.row, message, rules):
            yield f"worker {worker} is refused", taken
            continue
        assert world.row is not None
        if message != world.row.attempt:
            taken = taken.with_fault("a message started an attempt that it was not sent for")
        if not world.row.due:
            taken = taken.with_fault("a retry ran before its backoff was over")
        entered = taken if world.row.state is RUNNING else taken.moved(RUNNING)
        yield f"worker {worker} is let in", entered.with_body(worker, world.row.attempt)


def may_enter(row: Row | None, message: int, rules: Rules) -> bool:
    """The gate: dispatched, or pending and due, and of this attempt."""
    if row is None or (rules.attempt_in_gate and row.attempt != message):
        return False
    if row.state is RUNNING:
        return not rules.gate_refuses_running
    return row.state is DISPATCHED or row.due or not rules.gate_waits_for_backoff


def body_steps(world: World, worker: int, rules: Rules) -> Iterator[Step]:
    """A body dies, succeeds or fails; only the holder of the row's attempt may write."""
    attempt = world.bodies[worker]
    idle = world.with_body(worker, None)
    yield f"worker {worker} dies", idle
    row = world.row
    if row and row.state is RUNNING and (row.attempt == attempt or not rules.fencing):
        if row.attempt != attempt:
            idle = idle.with_fault("a stale worker ended a newer attempt")
        yield f"worker {worker} succeeds", replace(idle.moved(None), successes=world.successes + 1)
        yield f"worker {worker} fails", idle.tried_again_or_buried()
    elif rules.finish_needs_row:
        yield f"worker {worker} finds its lease lost", idle
    else:
        yield f"worker {worker} succeeds with no row", replace(idle, successes=world.successes + 1)


def broken_promise(world: World) -> str | None:
    """Return the promise that this state breaks."""
    if world.faults:
        return " and ".join(sorted(world.faults))
    if world.row and world.row.state is RUNNING and world.bodies.count(world.row.attempt) > 1:
        return "two bodies run one attempt"
    if world.successes > 1:
        return "it succeeded twice"
    if world.successes and world.buried:
        return "it succeeded and was buried"
    if world.successes and world.row:
        return "it succeeded and is still owed"
    return None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the walk found: the first broken promise with the way to it, or all states and moves."""

    broken: str | None
    trail: tuple[str, ...]
    worlds: frozenset[World]
    moves: frozenset[tuple[JobState, JobState | None]]


@cache
def check(rules: Rules) -> Verdict:
    """Walk every reachable state, nearest first, and stop at the first one that breaks a promise."""
    start = World()
    came_from: dict[World, Step | None] = {start: None}
    before: dict[World, set[World]] = defaultdict(set)
    moves: set[tuple[JobState, JobState | None]] = set()
    todo = deque([start])
    while todo:
        world = todo.popleft()
        if why := broken_promise(world):
            return Verdict(why, trail_to(world, came_from), frozenset(came_from), frozenset(moves))
        for name, following in steps(world, rules):
            before[following].add(world)
            moves |= move_between(world, following)
            if following not in came_from:
                came_from[following] = (name, world)
                todo.append(following)
    stuck = came_from.keys() - settling(came_from.keys(), before)
    why = "it can never be settled" if stuck else None
    return Verdict(why, trail_to(next(iter(stuck)), came_from) if stuck else (), frozenset(came_from), frozenset(moves))


def move_between(world: World, following: World) -> set[tuple[JobState, JobState | None]]:
    if world.row is None:
        return set()
    after = following.row.state if following.row else None
    return set() if after is world.row.state else {(world.row.state, after)}


def trail_to(world: World, came_from: dict[World, Step | None]) -> tuple[str, ...]:
    trail: list[str] = []
    while step := came_from[world]:
        trail.insert(0, step[0])
        world = step[1]
    return tuple(trail)


def settling(worlds: object, before: dict[World, set[World]]) -> set[World]:
    """Return the states from which one can be reached where the job has succeeded or was buried."""
    good = {world for world in worlds if world.row is None}  # type: ignore[attr-defined]
    todo = deque(good)
    while todo:
        fresh = before[todo.popleft()] - good
        good |= fresh
        todo.extend(fresh)
    return good


def test_no_interleaving_breaks_a_promise_and_a_settled_state_stays_reachable() -> None:
    verdict = check(Rules())

    assert verdict.broken is None, " → ".join(verdict.trail)


def test_the_model_reaches_every_corner_it_is_meant_to_cover() -> None:
    worlds = check(Rules()).worlds

    assert any(w.row is None and w.successes and w.messages for w in worlds)  # messages outlive the job
    assert any(w.buried and all(w.bodies) for w in worlds)  # bodies outlive it too
    assert any(w.row and w.row.attempt == LAST_ATTEMPT and set(w.bodies) == {1, 2} for w in worlds)  # two stale ones
    assert any(w.row and w.row.state is RUNNING and not any(w.bodies) for w in worlds)  # its worker is dead
    assert len(worlds) > 500


def test_every_settled_job_has_either_succeeded_once_or_been_buried() -> None:
    settled = {(w.successes, w.buried) for w in check(Rules()).worlds if w.row is None}

    assert settled == {(1, False), (0, True)}


def test_the_model_makes_every_move_of_the_state_machine_except_giving_up_before_a_start() -> None:
    allowed = {(state, after) for state, following in NEXT.items() for after in following}

    assert check(Rules()).moves <= allowed
    # Cancelling and expiring are no part of the model: they only ever remove a row that does not run.
    assert allowed - check(Rules()).moves == {(PENDING, None), (DISPATCHED, None)}


@pytest.mark.parametrize(
    ("rules", "promise"),
    [
        (Rules(fencing=False), "a stale worker ended a newer attempt"),
        (Rules(attempt_in_gate=False), "a message started an attempt that it was not sent for"),
        (Rules(attempt_in_gate=False, gate_waits_for_backoff=False), "a retry ran before its backoff was over"),
        (Rules(gate_refuses_running=False), "two bodies run one attempt"),
        (Rules(finish_needs_row=False), "it succeeded"),
        (Rules(sweeper=False), "it can never be settled"),
    ],
    ids=[
        "no fencing",
        "no attempt in gate",
        "gate knows neither attempt nor time",
        "gate admits running",
        "finish without row",
        "no sweeper",
    ],
)
def test_a_protocol_with_one_rule_missing_is_caught(rules: Rules, promise: str) -> None:
    verdict = check(rules)

    assert verdict.broken is not None
    assert promise in verdict.broken, " → ".join(verdict.trail)
    assert verdict.trail


def test_a_state_machine_that_forbids_a_move_of_the_protocol_stops_the_model() -> None:
    with pytest.raises(AssertionError, match="running → dispatched is not in NEXT"):
        World(row=Row(state=RUNNING)).moved(DISPATCHED)
