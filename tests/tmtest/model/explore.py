"""The walk through every state that can be reached, the nearest first, so that what breaks is found by its shortest way."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from celery_tm.domain.job import JobState

from .parts import FAULT, LOSS, SYSTEM, TIME, Step
from .promises import broken_promise, is_settled
from .steps import Protocol
from .world import Rules, Setting, World

Move = tuple[JobState | None, JobState | None]


@dataclass
class Verdict:
    """What the walk found: the first broken promise with the way to it, or all states and how they hang together."""

    worlds: list[World] = field(default_factory=list)
    transitions: int = 0
    moves: set[Move] = field(default_factory=set)
    broken: str | None = None
    trail: tuple[str, ...] = ()


class Walk:
    """One walk: the states by number, how each was come to, and what follows each."""

    def __init__(self, setting: Setting, rules: Rules) -> None:
        self.setting, self.protocol = setting, Protocol(setting, rules)
        self.verdict = Verdict()
        self.numbers: dict[World, int] = {}
        self.came: list[tuple[str, int]] = []  # the step that first led to a state, and from which
        self.next: list[list[tuple[str, int]]] = []  # kinds of steps, and where they lead

    def go(self) -> Verdict:
        """Walk until a promise breaks, or there is nothing new; then see whether everything can, and will, be settled."""
        with _without_collector():
            return self._go()

    def _go(self) -> Verdict:
        self._number(self.setting.start, "", -1)
        todo = deque([0])
        while todo:
            here = todo.popleft()
            world = self.verdict.worlds[here]
            if why := broken_promise(self.setting, world):
                return self._end(why, here)
            for name, kind, after in self._steps(world):
                there = self.numbers.get(after)
                if there is None:
                    there = self._number(after, name, here)
                    todo.append(there)
                self.next[here].append((kind, there))
                if kind != LOSS:  # that is no move of the protocol
                    self._note_moves(world, after)
        self.verdict.transitions = sum(map(len, self.next))
        return self._settles() or self._calms_down() or self.verdict

    def _steps(self, world: World) -> Iterable[Step]:
        steps = self.protocol.steps(world)
        if not self.setting.calm:
            return steps
        found = [step for step in steps if step.kind != FAULT]
        return [step for step in found if step.kind != TIME] or found

    def _number(self, world: World, name: str, before: int) -> int:
        number = self.numbers[world] = len(self.verdict.worlds)
        self.verdict.worlds.append(world)
        self.came.append((name, before))
        self.next.append([])
        return number

    def _note_moves(self, before: World, after: World) -> None:
        if before.rows is not after.rows:
            for one, other in zip(before.rows, after.rows, strict=True):
                states = (one and one.state, other and other.state)
                if states[0] is not states[1]:
                    self.verdict.moves.add(states)

    def _end(self, why: str, here: int) -> Verdict:
        trail: list[str] = []
        while here:
            name, here = self.came[here]
            trail.insert(0, name)
        self.verdict.broken, self.verdict.trail = why, tuple(trail)
        return self.verdict

    def _settles(self) -> Verdict | None:
        """From every state one can be reached where nothing is owed."""
        good = [is_settled(self.setting, world) for world in self.verdict.worlds]
        before: list[list[int]] = [[] for _ in good]
        for here, steps in enumerate(self.next):
            for _, there in steps:
                before[there].append(here)
        todo = deque(number for number, is_good in enumerate(good) if is_good)
        while todo:
            for number in before[todo.popleft()]:
                if not good[number]:
                    good[number] = True
                    todo.append(number)
        stuck = next((number for number, is_good in enumerate(good) if not is_good), None)
        return None if stuck is None else self._end("it can never be settled", stuck)

    def _calms_down(self) -> Verdict | None:
        """Once nothing more goes wrong, and time passes only when there is nothing else to do, every way leads to an end.

        Said of worlds with a clock: without one, a message may count as lost again and again.
        """
        if not self.setting.timed:
            return None
        calm = [self._calm(steps) for steps in self.next]
        left = [len(steps) for steps in calm]
        before: list[list[int]] = [[] for _ in calm]
        for here, steps in enumerate(calm):
            for there in steps:
                before[there].append(here)
        todo = deque(number for number, count in enumerate(left) if not count)
        over = 0
        while todo:  # from the ends backwards: what is never reached lies on a circle
            here = todo.popleft()
            over += 1
            if not calm[here] and not is_settled(self.setting, self.verdict.worlds[here]):
                return self._end("it stands still and is not settled", here)
            for number in before[here]:
                left[number] -= 1
                if not left[number]:
                    todo.append(number)
        if over < len(calm):
            return self._end("it may go round in circles", next(number for number, count in enumerate(left) if count))
        return None

    def _calm(self, steps: list[tuple[str, int]]) -> list[int]:
        done = [there for kind, there in steps if kind == SYSTEM]
        return done or [there for kind, there in steps if kind == TIME]


@contextmanager
def _without_collector() -> Iterator[None]:
    """Let nobody look for circles among the many small values, which have none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def check(setting: Setting, rules: Rules) -> Verdict:
    """Walk through a world of some size, by some rules."""
    return Walk(setting, rules).go()
